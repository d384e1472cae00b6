"""Buckets far outside of the measured sizes are named where they may change the step, and else not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.costs.not_measured import FAR
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade

MS, MIB = 10**6, 1 << 20


def workload(*sizes: int) -> Workload:
    times = {"forward_ns": 10 * MS, "backward_ns": 20 * MS, "optimizer_ns": MS}
    return handmade([MS] * len(sizes), sizes, **times)


def wire(*points: tuple[int, int], ranks: int = 2) -> Hardware:
    curve = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in points)
    return Hardware(name="h", world_size=ranks, all_reduce=curve)


def notes(job: Workload, hardware: Hardware) -> tuple[str, ...]:
    assignment = sim.assign(job, policy="per-parameter")
    return sim.summarize(sim.simulate(job, hardware, assignment, "analytic")).notes


def test_one_size_is_no_curve() -> None:
    """A step of 100 buckets of 1 MiB behind a link of 512 MiB alone: each is taken to last as long."""
    (said,) = notes(workload(*[MIB] * 100), wire((512 * MIB, 100 * MS)))
    assert said.startswith("100 of 100 all-reduces, down to 1 MiB, are taken to last as long as 512 MiB")
    assert "the only size of the curve: 100.00 ms each, up to 9980" in said


def test_beyond_the_last_it_is_a_straight_line() -> None:
    curve = ((MIB, MS), (2 * MIB, 3 * MS))
    (said,) = notes(workload(16 * MIB, MIB), wire(*curve))
    assert said.startswith("1 of 2 all-reduces, up to 16 MiB, are larger than 2 MiB, the greatest size")
    assert "28.00 ms in all are a straight line beyond it" in said
    flat = notes(workload(16 * MIB), wire((MIB, 3 * MS), (2 * MIB, 3 * MS)))
    assert "21.00 ms in all are a straight line beyond it" in flat[0]


def test_between_sizes_that_are_far_apart_or_where_the_curve_bends_it_is_a_guess() -> None:
    far = notes(workload(4 * MIB), wire((MIB, MS), (32 * MIB, 20 * MS)))
    assert far[0].startswith("1 of 1 all-reduces are between 1 MiB and 32 MiB, where nothing was measured")
    bend = ((MIB, 5 * MS), (2 * MIB, 10 * MS), (4 * MIB, 11 * MS), (8 * MIB, 22 * MS))
    (said,) = notes(workload(3 * MIB), wire(*bend))
    assert "between 2 MiB and 4 MiB" in said
    assert notes(workload(6 * MIB), wire(*bend)) == ()


@given(
    st.lists(st.integers(MIB // FAR + 1, FAR * 64 * MIB).map(lambda n: 4 * (n // 4)), min_size=1, max_size=4),
    st.integers(1, 10**9),
)
def test_within_four_times_of_what_was_measured_nothing_is_said(sizes: list[int], time: int) -> None:
    inside = [max(size, MIB // FAR + 4) for size in sizes]
    assert notes(workload(*inside), wire((MIB, time), (64 * MIB, 2 * time))) == ()


@given(st.integers(1, 64), st.integers(1, 10**4))
def test_what_does_not_change_the_step_is_not_said(words: int, time: int) -> None:
    """Tiny buckets below the curve that take microseconds of a step of 31 ms."""
    assert notes(workload(4 * words), wire((64 << 10, time), (MIB, 10 * time))) == ()


@pytest.mark.parametrize("engine", ["simpy", "analytic"])
def test_one_rank_sends_nothing(engine: str) -> None:
    job = workload(MIB)
    alone = replace(wire((512 * MIB, 100 * MS)), world_size=1)
    timeline = sim.simulate(job, alone, sim.assign(job), engine)
    assert sim.summarize(timeline).notes == ()
