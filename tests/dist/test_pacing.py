"""The paced module keeps its schedule, hands gradients out without copies, and yields to DDP's hooks."""

import time

import pytest
import torch

from sim.validator.ranks.pacing import PacedModule, Schedule, sharpen_sleep, sleep_until

MS = 1_000_000


def make(count: int = 8, spacing_ns: int = 5 * MS) -> tuple[PacedModule, list[torch.Tensor]]:
    tensors = [torch.zeros(16, 16) for _ in range(count)]
    gradients = [torch.full((16, 16), float(index + 1)) for index in range(count)]
    order = list(range(count))[::-1]
    due = [spacing_ns * (place + 1) for place in range(count + 1)]
    return PacedModule(tensors, gradients, order, due, forward_ns=3 * MS), gradients


def step(module: PacedModule) -> int:
    for parameter in module.parameters():
        parameter.grad = None
    module.forward_start_ns = time.monotonic_ns()
    loss = module(torch.zeros(1, requires_grad=True)).sum()
    module.schedule.begin()
    loss.backward()
    return time.monotonic_ns() - module.schedule.start


def test_gradients_arrive_in_ready_order_at_their_times() -> None:
    sharpen_sleep()
    module, _ = make()
    fired: list[int] = []
    for index, parameter in enumerate(module.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: fired.append(index))
    step(module)
    fired.clear()
    took = step(module)
    assert fired == list(range(8))[::-1]
    late = [at - due for at, due in zip(module.schedule.ready_ns, module.schedule.due_ns, strict=True)]
    assert all(value >= 0 for value in late), "never early"
    assert sorted(late)[len(late) // 2] < 2 * MS, "on time, but for a noisy scheduler"
    assert took >= module.schedule.due_ns[-1]


def test_a_late_node_does_not_delay_the_next_deadline() -> None:
    """Deadlines are absolute: one long stall is made up for, where relative sleeps would add up."""
    schedule = Schedule(due_ns=[5 * MS, 10 * MS, 40 * MS], baseline_ns=[0, 0])
    schedule.begin()
    schedule.node(0)
    time.sleep(0.02)  # longer than until the next deadline, but no processor time
    schedule.node(1)
    schedule.node(2)
    assert schedule.shift < MS
    assert schedule.ready_ns[1] >= 20 * MS
    assert 40 * MS <= schedule.ready_ns[2] < 50 * MS


def burn(duration_ns: int) -> None:
    until = time.thread_time_ns() + duration_ns
    while time.thread_time_ns() < until:
        pass


def test_time_spent_in_hooks_shifts_what_follows() -> None:
    module, _ = make()
    module.schedule.baseline_ns = [0] * 8
    module.watch_hooks()
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: burn(4 * MS))
    took = step(module)
    assert module.schedule.shift >= 8 * 4 * MS
    assert took >= module.schedule.due_ns[-1] + 8 * 4 * MS


def test_autograd_takes_the_preallocated_gradient_without_a_copy() -> None:
    module, gradients = make()
    step(module)
    for index, parameter in enumerate(module.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == gradients[index].data_ptr()
        assert torch.equal(parameter.grad, torch.full((16, 16), float(index + 1)))


@pytest.mark.parametrize("ahead", [-MS, 0, 3 * MS])
def test_sleep_until_is_never_early(ahead: int) -> None:
    deadline = time.monotonic_ns() + ahead
    assert sleep_until(deadline) >= deadline


def test_with_buffers_forward_counts_from_its_own_start() -> None:
    """DDP broadcasts buffers before forward, and that time must not vanish in forward's sleep."""
    module = PacedModule(
        [torch.zeros(4)], [torch.zeros(4)], [0], [MS, MS], forward_ns=5 * MS, buffers=[torch.zeros(8)]
    )
    assert [tuple(buffer.shape) for buffer in module.buffers()] == [(8,)]
    module.forward_start_ns = time.monotonic_ns() - 100 * MS
    before = time.monotonic_ns()
    module(torch.zeros(1, requires_grad=True))
    assert time.monotonic_ns() - before >= 5 * MS
