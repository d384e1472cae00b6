"""Real ``fully_shard`` around a paced tree of modules (A10), on the CPU over gloo.

On the CPU torch has no streams: there FSDP2 waits for every collective at once. Here it is made to behave as
on a GPU, as far as its order is concerned, by what torch offers for it: gathers are asynchronous
(``_set_unshard_async_op``), a reduce-scatter of ours is launched and waited for by the next one
(``set_custom_reduce_scatter``), and as the host does not run ahead of the compute lane, each unit prefetches
one more in forward than on a GPU (``set_modules_to_forward_prefetch``), the first ones before it. All goes
over one process group that carries one collective at a time, as an NCCL communicator does. Under HSDP the
replicas have a group of their own; each of its all-reduces is launched as its reduce-scatter ends. What is
not replayed: the host's own time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from sim.systems.fsdp2 import Fsdp2Settings
from sim.validator.ranks.pacing.paced_module import sleep_until
from sim.validator.ranks.pacing.replay_lane import Lane
from sim.validator.ranks.pacing.stepping import common_start
from sim.validator.ranks.process.one_channel import one_channel
from tests.dist.evidence.paced_tree import PacedTree, run_tree_forward

_DTYPES = ("param_dtype", "reduce_dtype")
_APART_NS = 500_000  # between the starts of ranks: more than a notice takes from rank to rank


def fsdp2_lane(
    candidate: dict[str, Any], tree: PacedTree, units: Sequence[str], forward_ns: int, optimizer_ns: int
) -> Lane:
    """A candidate of policy ``fully_shard``.

    Args:
        candidate: as the job describes it; its settings are torch's.
        tree: has copies of the parameters, which are sharded.
        units: the modules of each unit but the root, with + between them, in the order of forward.
        forward_ns: length of forward.
        optimizer_ns: the recorded step of an optimizer that has all parameters.
    """
    run = _Run(candidate, tree, units, forward_ns, optimizer_ns)
    return Lane(name=candidate["name"], step=run.step, observe=lambda: run.reduced)


class _Reducing(ReduceScatter):
    """A reduce-scatter that is under way until the next one needs its buffer, or backward is over (A10.4)."""

    def __init__(self, tree: PacedTree) -> None:
        self._tree = tree
        self.under_way: list[Callable[[], Any]] = []
        self.behind: list[Future[dist.Work]] = []
        self._stream = ThreadPoolExecutor(1)

    def wait_for_all(self) -> None:
        """As ``wait``, and for what follows reduce-scatters (A10.7)."""
        self.wait()
        for launched in self.behind:
            launched.result().wait()
        self.behind.clear()

    def follow(self, launch: Callable[[], dist.Work]) -> None:
        """Launch something as the last reduce-scatter ends, whose work gloo gives no future (A10.7)."""
        self.under_way[-1] = self._stream.submit(self.under_way[-1]).result
        self.behind.append(self._stream.submit(launch))

    def wait(self) -> None:
        """The lane waits for what is under way."""
        began = time.monotonic_ns()
        for wait in self.under_way:
            wait()
        self.under_way.clear()
        self._tree.stand_still(time.monotonic_ns() - began)

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for an input, and later an output; that of the one before must be free by then."""
        self.wait()
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work:
        """Launch it; it sums, as gloo would divide on the host."""
        work: dist.Work = dist.reduce_scatter_single(
            output=output_tensor, input=input_tensor, group=group, async_op=True
        )
        self.under_way.append(work.wait)
        return work


class _Run:
    """One wrapped tree and its steps."""

    def __init__(
        self,
        candidate: dict[str, Any],
        tree: PacedTree,
        units: Sequence[str],
        forward_ns: int,
        optimizer_ns: int,
    ) -> None:
        self.tree, self.forward_ns, self.optimizer_ns = tree, forward_ns, optimizer_ns
        self.settings = candidate["settings"]
        self.ahead = max(1, self.settings.get("forward_prefetch", 0))
        self.mesh = self._mesh(self.settings.get("replicas", 1))
        self.share = _owned(tree, self.mesh.size(-1))
        self.reduced: list[list[int]] = []
        self.reducing = _Reducing(tree)
        self._index = {name: place for place, name in enumerate(tree.names)}
        self.units = self._wrap([unit.split("+") for unit in units])

    def _mesh(self, replicas: int) -> DeviceMesh:
        ranks = dist.get_world_size()
        if replicas == 1:
            return DeviceMesh.from_group(one_channel(), "cpu", mesh_dim_names=("shard",))
        Fsdp2Settings(replicas=replicas).shards(ranks)
        mesh = torch.arange(ranks).view(replicas, -1)
        groups = [one_channel(mesh.t().tolist()), one_channel(mesh.tolist())]
        return DeviceMesh.from_group(groups, "cpu", mesh, mesh_dim_names=("replicate", "shard"))

    def _wrap(self, units: list[list[str]]) -> list[Any]:
        """The first module of each unit, in the order of forward; each is wrapped, and then the root."""
        root: Any = self.tree.root
        policy = {
            name: getattr(torch, self.settings[name])
            for name in _DTYPES
            if self.settings.get(name) is not None
        }
        more: dict[str, Any] = {"mesh": self.mesh, "mp_policy": MixedPrecisionPolicy(**policy)}
        kept = {"reshard_after_forward": self.settings.get("reshard_after_forward", True)}
        modules = [[root.get_submodule(name) for name in unit] for unit in units]
        for unit in modules:
            fully_shard(unit[0] if len(unit) == 1 else unit, **kept, **more)
        fully_shard(root, **more)
        firsts: list[Any] = [unit[0] for unit in modules]
        for module in [root, *firsts]:
            module._set_unshard_async_op(True)
            module.set_custom_reduce_scatter(self.reducing)
        self._prefetch([root, *firsts], firsts)
        return firsts

    def _prefetch(self, forward: list[Any], firsts: list[Any]) -> None:
        for place, module in enumerate(forward):
            module.set_modules_to_forward_prefetch(forward[place + 1 : place + 2 + self.ahead])
        backward = self.settings.get("backward_prefetch", 0)
        for place, module in enumerate([forward[0], *firsts[::-1]] if backward else []):
            module.set_modules_to_backward_prefetch(firsts[::-1][place : place + backward])

    def step(self) -> dict[str, Any]:
        """One step; times as of ``run_step``.

        It begins with a gather, which takes two ranks a third less time if they come to it in the same moment
        (A10.8). Those of a job do not, behind their optimizers: so each starts ``_APART_NS`` after the one
        before, for which the first ones wait.
        """
        tree = self.tree
        root: Any = tree.root
        for parameter in root.parameters():
            parameter.grad = None
        count = self.settings.get("accumulation_steps", 1)
        start = common_start() + dist.get_rank() * _APART_NS
        sleep_until(start)
        with self._watched():
            for number in range(count):
                root.set_requires_gradient_sync(number == count - 1)
                self.reduced = []
                tree.begin_forward()
                for module in [root, *self.units[: self.ahead]]:
                    module.unshard(async_op=True)
                loss = run_tree_forward(tree, root, self.forward_ns)
                tree.begin_backward()
                loss.backward()  # type: ignore[no-untyped-call]
                self.reducing.wait_for_all()
        sync_end = time.monotonic_ns()
        end = sleep_until(sync_end + round(self.optimizer_ns * self.share))
        schedule = tree.paced.schedule
        return {
            "step": end - start,
            "backward_end": schedule.ready_ns[-1],
            "sync_end": sync_end - schedule.start,
        }

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Meanwhile what the lane waits and copies is told to it, and which units are reduced is noted."""
        group: Any = _fsdp_param_group
        collectives: Any = _fsdp_collectives
        torch_dist: Any = dist
        reduces, reduce_all = group.foreach_reduce, torch_dist.all_reduce
        copies_out = group.foreach_all_gather_copy_out
        copies_in = collectives.foreach_reduce_scatter_copy_in

        def noted(parameters: Any, *more: Any) -> Any:
            self.reduced.append([self._index[one._param_fqn] for one in parameters])
            return reduces(parameters, *more)

        def launched(tensor: torch.Tensor, group: Any = None, **more: Any) -> Any:
            def launch() -> dist.Work:
                work: dist.Work = reduce_all(tensor, group=group, async_op=True)
                return work

            self.reducing.follow(launch)

        torch_dist.all_reduce = launched
        group.foreach_reduce = noted
        collectives.foreach_reduce_scatter_copy_in = self._counted(copies_in)
        group.foreach_all_gather_copy_out = self._counted(copies_out)
        try:
            yield
        finally:
            group.foreach_reduce, torch_dist.all_reduce = reduces, reduce_all
            group.foreach_all_gather_copy_out = copies_out
            collectives.foreach_reduce_scatter_copy_in = copies_in

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.monotonic_ns()
            returned = function(*arguments, **named)
            self.tree.stand_still(time.monotonic_ns() - began)
            return returned

        return call


def _owned(tree: PacedTree, ranks: int) -> float:
    """The share of the elements, padding included, that the optimizer of one of so many sharers has."""
    weights = tree.paced.weights
    return sum(_padded(weight, ranks) for weight in weights) / ranks / sum(map(torch.numel, weights))


def _padded(weight: torch.Tensor, ranks: int) -> int:
    rows = int(weight.shape[0])
    return -(-rows // ranks) * ranks * (weight.numel() // rows) if rows else 0
