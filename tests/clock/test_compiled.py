"""One program on many machines, compiled, against SimPy: to the nanosecond wherever it is sure."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import exact_floats, instants, simpy_clock
from sim.clock.analytic import play_on_machines
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.hardware import SLOWDOWNS
from sim.systems.registry import write
from tests import strategies
from tests.effort import tries
from tests.tuner.cases import link, resnet50


def check(case: strategies.Case, services: list[list[int]]) -> int:
    """Compare each machine that is sure with the engine; how many are."""
    (program,) = write(case.workload, case.hardware, case.assignment)
    played = play_on_machines(program, services)
    for machine, times in enumerate(services):
        if not played.is_sure[machine]:
            continue
        collectives = tuple(
            replace(one, service_ns=time) for one, time in zip(program.collectives, times, strict=True)
        )
        outcome = simpy_clock.play(replace(program, collectives=collectives))
        spans = list(zip(outcome.start_ns, outcome.end_ns, strict=True))
        compute = [(span.start_ns, span.end_ns) for span in outcome.compute]
        assert played.sync_ends[machine] == outcome.sync_end_ns
        assert played.comm[machine] == length(union(spans))
        assert played.overlapped[machine] == intersection_length(compute, spans)
    return int(played.is_sure.sum())


@settings(max_examples=tries(400))
@given(strategies.cases(), st.data())
def test_sure_figures_are_the_engines(case: strategies.Case, data: st.DataObject) -> None:
    """Any assignment on any machine: the times of a tiny scale are where halves and ties come up."""
    count = len(case.assignment.bucket_indices)
    time = st.integers(0, data.draw(st.sampled_from([9, 1000, 40_000_000])))
    services = data.draw(st.lists(st.lists(time, min_size=count, max_size=count), min_size=1, max_size=3))
    check(case, services)


@settings(max_examples=tries(150))
@given(strategies.cases(st.just(strategies.REAL)))
def test_real_times_are_sure(case: strategies.Case) -> None:
    """Except true ties, which factors such as 1.5 make of odd times when they come and go."""
    hardware = replace(
        case.hardware,
        **{name: 1 + 0.1 * (getattr(case.hardware, name) > 1) for name in SLOWDOWNS},
    )
    case = replace(case, hardware=hardware)
    services = [[1_000_001 * (k + 1) for k in range(len(case.assignment.bucket_indices))]]
    assert check(case, services) == 1


@settings(max_examples=tries(200))
@given(strategies.cases(stretches=False))
def test_without_slow_downs_all_is_sure(case: strategies.Case) -> None:
    assert check(case, [[7] * len(case.assignment.bucket_indices)]) == 1


def test_a_true_tie_is_not_sure_without_knowing_how_near_an_end_can_come() -> None:
    """Of 3 ns of work at 1.5 there are 7/3 left after 1 ns, which no float holds; 1 + 7/3 * 1.5 is a half."""
    assert exact_floats.work_left(3.0, 0.0, 1.0, 1.5, 0.0)[2] is False
    left, low, _ = exact_floats.work_left(3.0, 0.0, 1.0, 1.5, 0.0)
    assert Fraction(left) + Fraction(low) == pytest.approx(Fraction(7, 3), rel=1e-30)
    rounded, is_sure = exact_floats.rounded_end(1.0, left, low, 1.5, 0.0, 3.0, 1)
    assert (rounded, is_sure) == (4, False)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.floats(1, 3), st.floats(1, 3))
def test_rounding_is_that_of_fractions(elapsed: int, left: int, one: float, two: float) -> None:
    """Half to even, of the exact product, however close to a half."""
    rate, low = exact_floats.exact_product(one, two)
    assert Fraction(rate) + Fraction(low) == Fraction(one) * Fraction(two)
    rounded, is_sure = exact_floats.rounded_end(float(elapsed), float(left), 0.0, rate, low, float(left), 0)
    exact = elapsed + left * Fraction(one) * Fraction(two)
    assert rounded == round(exact) or not is_sure


rates = st.sampled_from([1.0, 1.5, 1.25, 3.0, 1.75, 1.1, 2.0063])


@settings(max_examples=tries(1000))
@given(st.integers(1, 10**9), st.lists(st.tuples(st.integers(1, 10**8), rates), max_size=6), rates)
def test_what_changing_rates_leave_is_told_or_left_open(
    whole: int, pieces: list[tuple[int, float]], last: float
) -> None:
    """Against fractions: thirds and fifths of a ns, whose sums are halves now and then."""
    left, low, exact, changes, elapsed = float(whole), 0.0, Fraction(whole), 0, 0
    for taken, rate in pieces:
        if exact <= taken / Fraction(rate):
            break
        left, low, is_exact = exact_floats.work_left(left, low, float(taken), rate, 0.0)
        exact -= taken / Fraction(rate)
        changes += not is_exact
        elapsed += taken
    assert abs(Fraction(left) + Fraction(low) - exact) <= whole * (changes + 1) * Fraction(2) ** -100
    assert changes or Fraction(left) + Fraction(low) == exact
    rounded, is_sure = exact_floats.rounded_end(float(elapsed), left, low, last, 0.0, float(whole), changes)
    true = elapsed + exact * Fraction(last)
    assert rounded == round(true) or not is_sure
    assert is_sure or abs(true - math.floor(true) - Fraction(1, 2)) < 1e-12


@pytest.mark.parametrize(
    ("left", "rate"), [(1, 1.5), (3, 1.5), (5, 1.1), (10, 1.05), (1 << 40, 1.0000000000000002)]
)
def test_halves_that_floats_cannot_tell(left: int, rate: float) -> None:
    """10 * 1.05 is 10.5 to a float, and a little more in truth."""
    assert exact_floats.rounded_end(0.0, float(left), 0.0, rate, 0.0, float(left), 0) == (
        round(left * Fraction(rate)),
        True,
    )


def test_the_clock_is_compiled_once() -> None:
    """However what it is given lies in memory: whoever simulates first waits for each compilation."""
    case = resnet50(), link(10)
    (program,) = write(*case, sim.assign(case[0]))
    play_on_machines(program, [[one.service_ns for one in program.collectives]] * 2)
    sim.simulate(*case, sim.assign(case[0]), "analytic")
    assert len(instants.advance.signatures) == 1  # type: ignore[attr-defined]


def test_longer_service_is_never_earlier() -> None:
    workload, hardware = resnet50(), link(4, comm_channels=2, channel_slowdown=2.0063)
    assignment = sim.assign(workload, bucket_cap_mb=5)
    (program,) = write(workload, hardware, assignment)
    services = [[k * 300_000] * len(program.collectives) for k in range(50)]
    ends = play_on_machines(program, services).sync_ends
    assert all(a <= b for a, b in pairwise(ends.tolist()))
    assert ends[0] == workload.backward_ns
    assert np.unique(ends).size > 40


def test_collectives_that_follow_others_are_one_rank_s_own() -> None:
    workload, curve = resnet50(), link(4).all_reduce
    hardware = replace(link(4), world_size=4, reduce_scatter=curve, all_gather=curve)
    chained = sim.assign(workload, "fully_shard", replicas=2)
    with pytest.raises(AssertionError, match="that follow others"):
        play_on_machines(write(workload, hardware, chained)[-1], [])
