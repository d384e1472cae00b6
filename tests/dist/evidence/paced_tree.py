"""The recorded parameters in the modules that their names tell, for systems that hang hooks on modules.

Forward calls modules in the order of ``forward_modules`` and sleeps for the time of each. Each module chains
the autograd nodes of its parameters, which let backward keep the schedule of a ``PacedModule``. When a
system's hooks wait or copy, ``stand_still`` is told for how long: all that follows on the compute lane is due
so much later.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sim.validator.ranks.pacing.paced_module import PacedModule, chain_node, chain_tail, sleep_until


class _Part(nn.Module):
    """A module: parameters of its own, and children, used in the order in which they were added."""

    def __init__(self, tree: "PacedTree") -> None:
        super().__init__()
        self._trees = [tree]  # in a list: the tree is no child of its parts
        self._uses: list[_Part | tuple[Sequence[tuple[int, str]], int]] = []

    def child(self, name: str) -> "_Part":
        """The child of that name, made where there is none."""
        if name not in self._modules:
            self.add_module(name, _Part(self._trees[0]))
        return getattr(self, name)  # type: ignore[no-any-return]

    def use(self, path: Sequence[str], weights: Sequence[tuple[int, str]], due_ns: int) -> None:
        """Let the module at ``path`` use ``weights`` (position in ready order, name) until ``due_ns``."""
        if not path:
            self._uses.append((weights, due_ns))
            return
        child = self.child(path[0])
        if not self._uses or self._uses[-1] is not child:
            self._uses.append(child)
        child.use(path[1:], weights, due_ns)

    def forward(self, carry: torch.Tensor) -> torch.Tensor:
        """Use own parameters and children one after the other, as ``use`` added them."""
        (tree,) = self._trees
        for used in self._uses:
            if isinstance(used, _Part):
                carry = used(carry)
            else:
                weights, due_ns = used
                carry = tree.chain([(position, getattr(self, name)) for position, name in weights], carry)
                sleep_until(tree.start_ns + due_ns + tree.waited_ns)
        return carry


class PacedTree:
    """A tree of modules over a paced module's schedule, and its own forward schedule.

    Args:
        paced: whose backward schedule and gradients are used.
        names: of the parameters, by index.
        modules: indices of each module's own parameters, and the end of its time in forward, ns, in order;
            gradients of a module are ready one after another, and so are those of any module around it.
        copies: whether parameters are copies, for a system that takes their storage away.
    """

    def __init__(
        self,
        paced: PacedModule,
        names: Sequence[str],
        modules: Sequence[tuple[Sequence[int], int]],
        *,
        copies: bool = False,
    ) -> None:
        self.paced, self.names = paced, list(names)
        self.root = _Part(self)
        self.start_ns = 0
        self.waited_ns = 0
        self._in_backward = False
        position = {index: place for place, index in enumerate(paced.order)}
        for name, weight in zip(names, paced.weights, strict=True):  # declared in the order of their indices
            *path, last = name.split(".")
            part = self.root
            for step in path:
                part = part.child(step)
            part.register_parameter(last, nn.Parameter(weight.detach().clone()) if copies else weight)
        for indices, due_ns in modules:
            used = sorted((index for index in indices if index in position), key=position.__getitem__)
            if used:
                weights = [(position[index], names[index].rpartition(".")[2]) for index in used[::-1]]
                self.root.use(names[used[0]].split(".")[:-1], weights, due_ns)

    def begin_forward(self) -> None:
        """Start the clock of a forward."""
        self.start_ns, self.waited_ns, self._in_backward = time.monotonic_ns(), 0, False

    def begin_backward(self) -> None:
        """Start the clock of a backward."""
        self._in_backward = True
        self.paced.begin_backward()

    def stand_still(self, duration_ns: int) -> None:
        """Note that the compute lane has waited, or copied, for ``duration_ns``."""
        if self._in_backward:
            self.paced.schedule.shift += duration_ns
        else:
            self.waited_ns += duration_ns

    def chain(self, weights: Sequence[tuple[int, torch.Tensor]], carry: torch.Tensor) -> torch.Tensor:
        """Append the autograd nodes of one module's parameters to ``carry``, the output so far.

        Before the first of all comes the node that ends backward. The model's input needs no gradient, like
        the tokens that go into an embedding.
        """
        if not carry.requires_grad:
            carry = chain_tail(torch.zeros(1, requires_grad=True), self.paced)
        for position, weight in weights:
            carry = chain_node(carry, weight, self.paced, position)
        return carry


def run_tree_forward(tree: PacedTree, model: Any, forward_ns: int) -> torch.Tensor:
    """Run forward of ``model`` around the tree's root, in ``forward_ns`` plus its waits; return the loss."""
    loss: torch.Tensor = model(torch.zeros(1)).sum()
    sleep_until(tree.start_ns + forward_ns + tree.waited_ns)
    return loss
