"""The paced module keeps its schedule, hands gradients out without copies, and yields to DDP's hooks.

An emulated wire and kernels keep time, as far as it takes no rank and no GPU to see that.
"""

import ctypes
import time
from contextlib import nullcontext
from statistics import fmean
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.recorder.clocks import Clock
from sim.validator.curves import FEWEST_ROUNDS, figure_ns, interval_ns, is_settled
from sim.validator.ranks import link
from sim.validator.ranks.link import HostLink, Spin
from sim.validator.ranks.paced import PacedModule, Schedule
from sim.validator.ranks.step import clear_gradients, sharpen_sleep
from tests.effort import tries
from tests.handmade import handmade, wired

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
    least_late = [10**18] * 9
    for _ in range(100):
        fired.clear()
        took = step(module)
        assert fired == list(range(8))[::-1]
        late = [at - due for at, due in zip(module.schedule.ready_ns, module.schedule.due_ns, strict=True)]
        assert all(value >= 0 for value in late), "never early"
        assert took >= module.schedule.due_ns[-1]
        least_late = list(map(min, least_late, late))
        if max(least_late) < 2 * MS:
            return
    pytest.fail(f"on time, but for a busy machine: at best {least_late} ns late")


def test_a_late_node_does_not_delay_the_next_deadline() -> None:
    """Deadlines are absolute: one long stall is made up for, where relative sleeps would add up."""
    ends = []
    while len(ends) < 100 and min(ends, default=50 * MS) >= 50 * MS:  # a busy machine may be late, not always
        schedule = Schedule(due_ns=[5 * MS, 10 * MS, 40 * MS], baseline_ns=[0, 0])
        schedule.begin()
        schedule.node(0)
        time.sleep(0.02)  # longer than until the next deadline, but no processor time
        schedule.node(1)
        schedule.node(2)
        assert schedule.shift < MS
        assert schedule.ready_ns[1] >= 20 * MS
        assert schedule.ready_ns[2] >= 40 * MS
        ends.append(schedule.ready_ns[2])
    assert min(ends) < 50 * MS


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


def assert_gradients_are(module: PacedModule, gradients: list[torch.Tensor] | None = None) -> None:
    for index, parameter in enumerate(module.parameters()):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full((16, 16), float(index + 1)))
        assert gradients is None or parameter.grad.data_ptr() == gradients[index].data_ptr()


def test_autograd_takes_the_preallocated_gradient_without_a_copy() -> None:
    module, gradients = make()
    step(module)
    assert_gradients_are(module, gradients)


def test_where_a_gradient_is_there_zeros_are_added_to_it() -> None:
    """A sum over many steps stays what it is, and no preallocated gradient is added to itself."""
    module, gradients = make(spacing_ns=0)
    module.addends = [torch.zeros(16, 16) for _ in gradients]
    clear_gradients(module, set_to_none=True)
    for number in range(3):
        loss = module(torch.zeros(1, requires_grad=True)).sum()
        module.begin_backward(loss, is_last=True, recorded=True)
        assert module.schedule.adds == (number > 0)
        loss.backward()
    assert_gradients_are(module)
    clear_gradients(module, set_to_none=False)
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in module.parameters())


def test_adding_has_a_baseline_of_its_own() -> None:
    schedule = Schedule(due_ns=[0, 0], baseline_ns=[0], adding_ns=[40 * MS])
    shifts = []
    for adds in (False, True):
        schedule.begin(adds=adds)
        schedule.enter(None)
        burn(20 * MS)
        schedule.leave(None, None)
        shifts.append(schedule.shift)
    assert shifts[0] >= 20 * MS
    assert shifts[0] - shifts[1] > 20 * MS
    schedule.begin(adds=True, recorded=False)  # a later micro-batch: the addition holds the lane up
    schedule.enter(None)
    schedule.leave(None, None)
    assert schedule.shift >= 0


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


# What stands for a message: bursts are left out, small messages count by their mean, scatter is seen.

ROUND = st.lists(st.floats(0.99, 1.01), min_size=1, max_size=30)


@given(st.integers(MS, 10**10), st.lists(ROUND, min_size=FEWEST_ROUNDS, max_size=11), st.data())
def test_a_burst_in_a_third_of_the_rounds_changes_nothing(
    clean_ns: int, factors: list[list[float]], data: st.DataObject
) -> None:
    rounds = [[round(clean_ns * factor) for factor in one] for one in factors]
    numbers = st.sets(st.integers(0, len(rounds) - 1), max_size=len(rounds) // 3)
    for number in data.draw(numbers, label="rounds struck"):
        rounds[number] = [round(sample * data.draw(st.floats(1.5, 20))) for sample in rounds[number]]
    assert abs(figure_ns(rounds) - clean_ns) <= 0.011 * clean_ns


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), min_size=1, max_size=9))
def test_the_figure_lies_in_its_interval_and_among_the_rounds(rounds: list[list[int]]) -> None:
    figure, (low, high), means = figure_ns(rounds), interval_ns(rounds), [fmean(one) for one in rounds]
    assert low <= high
    assert min(means) - 1 <= figure <= max(means) + 1


@pytest.mark.parametrize(
    ("rounds", "settled"),
    [
        ([[280.0] * 4] * FEWEST_ROUNDS, True),
        ([[280.0] * 4] * (FEWEST_ROUNDS - 1), False),
        ([[ms] * 4 for ms in (280.0, 280.0, 430.0, 650.0, 510.0)], False),
        ([[0.4] * 20 + [4.0] * 10] * FEWEST_ROUNDS, True),  # small messages count by the mean of a round
    ],
)
def test_rounds_that_do_not_agree_are_not_settled(rounds: list[list[float]], settled: bool) -> None:
    rounds_ns = [[round(MS * one) for one in each] for each in rounds]
    assert is_settled(rounds_ns) == settled
    assert not settled or figure_ns(rounds_ns) == fmean(rounds_ns[0])


@settings(deadline=None, max_examples=tries(60))
@given(
    gradients=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 2_000)), min_size=1, max_size=12),
    channels=st.integers(1, 3),
)
def test_a_wire_ends_collectives_when_the_simulator_does(
    gradients: list[tuple[int, int]], channels: int
) -> None:
    ready = sorted(at for at, _ in gradients)
    sizes = [size for _, size in gradients]
    workload = handmade(ready[::-1], sizes, dtypes="uint8", backward_ns=5_000)
    hardware = wired({0: 100, 1: 101}, comm_channels=channels)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload, "per-parameter")))
    wire = HostLink(hardware.all_reduce, channels)
    assert [wire.end_ns(row.launch_ns, row.num_bytes) for row in report.buckets] == [
        row.end_ns for row in report.buckets
    ]


# What keeps time on a GPU, with a driver that is not there.


class Driver(Clock):
    """CUDA's: kernels last as long as they wait, and 1,900 ns more; as a clock it tells their last end."""

    now_ns = 0
    made_of = b""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            return lambda *_: 0
        raise AttributeError(name)

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        self.made_of = image
        return 0

    def cuLaunchKernel(self, kernel: Any, *given: Any) -> int:
        self.now_ns += 1_900 + ctypes.cast(given[8][0], ctypes.POINTER(ctypes.c_longlong)).contents.value
        return 0

    def stamp(self) -> int:
        return self.now_ns


def test_kernels_keep_time_by_the_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA toolkit is asked for, which a host need not have; what is too short for one is not enqueued."""
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "current_stream", nullcontext)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    monkeypatch.setattr(link, "clock_for", lambda _: driver)
    spin = Spin(torch.device("cuda:0"))
    assert b".entry keep(" in driver.made_of
    for asked, lasts in ((1_800, 0), (5_000, 5_000)):
        before = driver.now_ns
        assert spin(asked) == driver.now_ns - before == lasts
    # Of other makers' GPUs the driver is not there.
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError("libcuda.so.1: no such file")))
    assert not link.keeps_time(torch.device("cuda:1"))
