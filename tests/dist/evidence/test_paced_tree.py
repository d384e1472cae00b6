"""The tree of modules that systems wrap and hook: its order, its clock, and what it declares."""

import time

import torch

from sim.validator.ranks.pacing.paced_module import PacedModule
from tests.dist.evidence.paced_tree import PacedTree, run_tree_forward

MS = 1_000_000
NAMES = ("tokens.weight", "blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.1.norm.weight", "head.weight")
MODULES = [((0,), MS), ((1, 2), 2 * MS), ((3,), 3 * MS), ((4,), 4 * MS)]


def made(**more: bool) -> PacedTree:
    tensors = [torch.zeros(4, 4) for _ in NAMES]
    gradients = [torch.full((4, 4), float(index)) for index in range(len(NAMES))]
    order = [4, 3, 1, 2, 0]
    paced = PacedModule(
        tensors, gradients, order, [MS * (place + 1) for place in range(6)], forward_ns=4 * MS
    )
    return PacedTree(paced, NAMES, MODULES, **more)


def test_modules_are_run_in_order_and_gradients_come_in_theirs() -> None:
    tree = made()
    root = tree.root
    assert [name for name, _ in root.named_parameters()] == list(NAMES)
    ran: list[str] = []
    fired: list[str] = []
    for name, module in root.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    for name, parameter in root.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    tree.begin_forward()
    loss = run_tree_forward(tree, root, 5 * MS)
    assert time.monotonic_ns() - tree.start_ns >= 5 * MS
    assert [name for name in ran if name] == [
        *("tokens", "blocks", "blocks.0", "blocks.0.norm", "blocks.1", "blocks.1.norm", "head")
    ]
    tree.begin_backward()
    loss.backward()  # type: ignore[no-untyped-call]
    assert fired == [NAMES[index] for index in (4, 3, 1, 2, 0)]
    assert tree.paced.schedule.ready_ns[-1] >= 6 * MS
    assert torch.equal(tree.paced.weights[3].grad, torch.full((4, 4), 3.0))


def test_what_is_waited_for_in_forward_delays_what_follows() -> None:
    tree = made(copies=True)
    tree.root.get_submodule("blocks.1").register_forward_pre_hook(lambda *_: tree.stand_still(30 * MS))
    tree.begin_forward()
    run_tree_forward(tree, tree.root, 4 * MS)
    assert time.monotonic_ns() - tree.start_ns >= 34 * MS
    assert tree.paced.schedule.shift == 0


def test_the_first_module_takes_no_gradient_of_its_inputs() -> None:
    """As an embedding of tokens: what wraps it has no moment at which its inputs' gradient comes."""
    tree = made()
    seen: dict[str, bool] = {}
    for name in ("tokens", "head"):
        tree.root.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: seen.update({name: inputs[0].requires_grad})
        )
    tree.begin_forward()
    run_tree_forward(tree, tree.root, 0)
    assert seen == {"tokens": False, "head": True}
