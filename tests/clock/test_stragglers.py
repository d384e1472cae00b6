"""A collective starts with its last arriver: cases by hand, an oracle, and what holds of any two ranks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import AssignmentError, InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade
from tests.oracle.stepper import step_through
from tests.strategies import TINY, Case, paired_cases
from tests.systems.cases import system_cases

ENGINES = ("simpy", "analytic")
HARDWARE = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=15),))
EACH_ALONE = Assignment(bucket_indices=((2,), (1,), (0,)))


def rank(*ready: int, tail: int = 10, **more: Any) -> Workload:
    """Gradients of 8 bytes, ready at these times; backward ends ``tail`` after the last of them."""
    return handmade(ready, **{"forward_ns": 5, "backward_ns": max(ready) + tail} | more)


def simulate(case: Case, engine: str = "analytic") -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, engine, slowest=case.slowest)  # type: ignore[arg-type]


def lives(timeline: Timeline) -> list[tuple[int, int, int, int]]:
    return [(b.launch_ns, b.late_ns, b.start_ns, b.end_ns) for b in timeline.buckets]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_collective_waits_for_the_later_rank(engine: str) -> None:
    """Ready at 10, 20, 30 here and at 18, 36, 54 there; a collective takes 15.

    Bucket 0: 18 to 33. Bucket 1 has the channel here at 33 and there at 36: 36 to 51. Bucket 2: 54 to 69.
    """
    case = Case(
        workload=rank(30, 20, 10), hardware=HARDWARE, assignment=EACH_ALONE, slowest=rank(54, 36, 18, tail=18)
    )
    timeline = simulate(case, engine)
    assert lives(timeline) == [(10, 8, 18, 33), (20, 3, 36, 51), (30, 3, 54, 69)]
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (40, 69)
    assert timeline.slowest == case.slowest


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_whose_lanes_wait_may_be_last_in_turns(engine: str) -> None:
    """A5.6: on a CPU the lane waits for each flush, so that what one rank is late makes the other late.

    A gradient takes 10 and 30 by turns here, 30 and 10 there. The first flush is at 40 on both; then each
    takes 15 and the longer of the two gradients that follow it.
    """
    here, there = ([sum(turns[: k + 1]) for k in range(8)] for turns in ([10, 30] * 4, [30, 10] * 4))
    assignment = sim.assign(rank(*here[::-1]), "zero2", reduce_bucket_size=1, accelerator="cpu")
    timeline = sim.simulate(
        rank(*here[::-1], tail=0),
        HARDWARE,
        assignment,
        engine,  # type: ignore[arg-type]
        slowest=rank(*there[::-1], tail=0),
    )
    starts = [40 + flush * 45 for flush in range(7)]
    assert [bucket.start_ns for bucket in timeline.buckets] == [*starts, starts[-1] + 15]
    assert [bucket.late_ns for bucket in timeline.buckets] == [0, 20, 0, 20, 0, 20, 0, 0]
    assert timeline.sync_end_ns == starts[-1] + 30


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_waits_slows_nothing_down(engine: str) -> None:
    """Backward runs at full speed until 40, where the last rank comes, and at half speed beside the 15 ns."""
    slowed = replace(HARDWARE, compute_slowdown=2.0)
    case = Case(
        workload=rank(10, tail=40),
        hardware=slowed,
        assignment=Assignment(bucket_indices=((0,),)),
        slowest=rank(40, tail=0),
    )
    timeline = simulate(case, engine)
    assert lives(timeline) == [(10, 30, 40, 55)]
    assert timeline.backward_end_ns == 58  # 10 of its 50 ns take 20, less 5 that remain after 55


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_that_do_not_synchronise_add_up(engine: str) -> None:
    """A3.12: two backwards under no_sync, each 20 longer there, and the third."""
    workload, slowest = rank(10), rank(30)
    assignment = sim.assign(workload, accumulation_steps=3)
    timeline = sim.simulate(workload, HARDWARE, assignment, engine, slowest=slowest)  # type: ignore[arg-type]
    assert lives(timeline) == [(10, 60, 70, 85)]
    assert timeline.accumulation_ns == 2 * (5 + 20)


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_that_synchronise_start_anew(engine: str) -> None:
    """A5.9: ZeRO-2 reduces in every micro-batch, after which both ranks are level again."""
    workload, slowest = rank(10), rank(30)
    options = {"accelerator": "cpu", "gradient_accumulation_steps": 2}
    assignment = sim.assign(workload, "zero2", **options)
    timeline = sim.simulate(workload, HARDWARE, assignment, engine, slowest=slowest)  # type: ignore[arg-type]
    assert lives(timeline) == [(20, 20, 40, 55)]
    assert timeline.accumulation_ns == 5 + 55


@settings(max_examples=tries(300), deadline=None)
@given(paired_cases())
def test_both_engines_agree_on_every_field(case: Case) -> None:
    one, two = simulate(case, "simpy"), simulate(case, "analytic")
    assert replace(two, engine="simpy") == one
    assert replace(sim.summarize(two), engine="simpy") == sim.summarize(one)


@settings(max_examples=tries(300), deadline=None)
@given(paired_cases(st.just(TINY), max_gradients=5))
def test_both_engines_do_what_two_ranks_do(case: Case) -> None:
    """Against two ranks stepped side by side, nanosecond by nanosecond."""
    fate = step_through(case.workload, case.hardware, case.assignment, case.slowest)
    told = list(zip(fate.ready, fate.launch, fate.late, fate.start, fate.end, fate.available, strict=True))
    for engine in ENGINES:
        timeline = simulate(case, engine)
        said = [
            (b.ready_ns, b.launch_ns, b.late_ns, b.start_ns, b.end_ns, b.available_ns)
            for b in timeline.buckets
        ]
        assert said == told, engine
        assert (timeline.backward_end_ns, timeline.sync_end_ns) == (fate.backward_end, fate.sync_end)
        spans = [(s.kind, s.start_ns, s.end_ns, s.gradient, s.bucket) for s in timeline.compute]
        assert spans == fate.compute, engine


def moments(timeline: Timeline) -> list[int]:
    times = [(b.launch_ns, b.start_ns, b.end_ns, b.available_ns) for b in timeline.buckets]
    return [timeline.sync_end_ns, *(moment for times_of_one in times for moment in times_of_one)]


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases(stretches=False))
def test_nothing_comes_earlier_than_without_the_other_rank(case: Case) -> None:
    """Where work stretches it may: a backward that runs while others are waited for is not slowed down."""
    alone, beside = simulate(replace(case, slowest=None)), simulate(case)
    assert all(one <= two for one, two in zip(moments(alone), moments(beside), strict=True))


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases(stretches=False), st.integers(0, 50), st.integers(1, 4))
def test_the_later_the_other_rank_the_later_is_everything(case: Case, delay: int, factor: int) -> None:
    assert case.slowest is not None
    later = replace(
        case.slowest,
        forward_ns=case.slowest.forward_ns + delay,
        backward_ns=case.slowest.backward_ns * factor,
        gradients=tuple(replace(g, ready_ns=(g.ready_ns or 0) * factor) for g in case.slowest.gradients),
    )
    one, two = simulate(case), simulate(replace(case, slowest=later))
    assert all(before <= after for before, after in zip(moments(one), moments(two), strict=True))


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases(stretches=False))
def test_what_each_rank_says_of_a_collective_is_one(case: Case) -> None:
    """Seen from either rank it starts in one instant, and one of the two did not wait."""
    assert case.slowest is not None
    here, there = simulate(case), simulate(replace(case, workload=case.slowest, slowest=case.workload))
    begins = [w.forward_ns + w.loss_ns for w in (case.workload, case.slowest)]
    for mine, theirs in zip(here.buckets, there.buckets, strict=True):
        assert mine.start_ns + begins[0] == theirs.start_ns + begins[1]
        assert 0 in (mine.late_ns, theirs.late_ns)


@settings(max_examples=tries(150), deadline=None)
@given(system_cases())
def test_every_system_waits_alike_in_both_engines_or_is_refused(case: Case) -> None:
    """Those whose order of collectives follows from that of gradients say so where ranks differ in it."""
    try:
        one = simulate(case, "simpy")
    except SimError:
        assert case.slowest is not None
        assert case.slowest.order() != case.workload.order()
        with pytest.raises(SimError, match=r"^slowest: "):
            simulate(case)
        return
    assert replace(simulate(case), engine="simpy") == one
    for played in one.collectives:
        assert played.launch_ns <= played.start_ns - played.late_ns <= played.start_ns


def test_ranks_that_send_something_else_are_refused() -> None:
    workload = rank(30, 20, 10)
    smaller = replace(
        workload,
        gradients=(replace(workload.gradients[0], shape=(1,), num_bytes=4), *workload.gradients[1:]),
    )
    with pytest.raises(
        InputError, match=r"slowest: rank 1: its collective 2 .* 1 float32, bucket 2, and .* 2 float32"
    ):
        sim.simulate(workload, HARDWARE, EACH_ALONE, slowest=smaller)
    with pytest.raises(AssignmentError, match="slowest: "):
        sim.simulate(workload, HARDWARE, EACH_ALONE, slowest=rank(30, 20))
    flat = sim.assign(workload, "per-parameter-async")
    with pytest.raises(InputError, match=r"slowest: rank 1: its collective 0 .* bucket 0, .* bucket 2 on"):
        sim.simulate(workload, HARDWARE, flat, slowest=rank(10, 20, 30))
    buckets = sim.assign(workload, "zero2", reduce_bucket_size=2)
    with pytest.raises(AssignmentError, match="slowest: bucket_indices"):
        sim.simulate(workload, HARDWARE, buckets, slowest=rank(10, 20, 30))


def test_one_rank_has_no_other() -> None:
    alone = replace(HARDWARE, world_size=1)
    with pytest.raises(InputError, match=r"slowest: there is no other rank; .*world_size=1"):
        sim.simulate(rank(10), alone, Assignment(bucket_indices=((0,),)), slowest=rank(10))


def test_collectives_that_follow_others_may_come_in_other_orders_and_are_refused() -> None:
    """A10.7: behind each reduce-scatter its all-reduce, whose place among gathers is each rank's own."""
    curve = (CurvePoint(num_bytes=0, duration_ns=5),)
    hardware = Hardware(name="h", world_size=4, all_reduce=curve, reduce_scatter=curve, all_gather=curve)
    names = [f"h.{index}.w" for index in range(3)]
    here, there = (rank(*ready, tail=0, names=names) for ready in ((30, 20, 10), (40, 20, 10)))
    made = sim.assign(here, "fully_shard", replicas=2)
    with pytest.raises(
        NotModelledError, match="slowest: ranks: they come to their collectives in different orders"
    ):
        sim.simulate(here, hardware, made, slowest=there)
