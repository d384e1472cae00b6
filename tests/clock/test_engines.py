"""The two engines against each other, against an oracle, and against what must hold of any step, of one rank
or beside another."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import sim
from sim.clock.program import Machine, machine_of
from sim.errors import AssignmentError, InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, SLOWDOWNS
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade, points, wired
from tests.oracle.stepper import service, step_through
from tests.strategies import REAL, TINY, Case, cases, paired_cases
from tests.systems.cases import both, system_cases


def simulate(case: Case, engine: str = "analytic") -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, engine, slowest=case.slowest)  # type: ignore[arg-type]


def both_of(case: Case) -> Timeline:
    return both(case.workload, case.hardware, case.assignment, slowest=case.slowest)


def _connected(case: Case, is_shared: bool) -> Case:
    return replace(case, hardware=replace(case.hardware, shared_connection=is_shared))


EVERYTHING = st.builds(_connected, cases(), st.booleans())


@pytest.mark.parametrize("name", Machine._fields)
def test_every_effect_of_a_machine_is_drawn(name: str) -> None:
    """Otherwise the engines and the oracle agree on nothing new."""
    search = settings(max_examples=2000, database=None, phases=[Phase.generate])
    find(EVERYTHING, lambda case: name in machine_of(case.workload, case.hardware).in_force, settings=search)


@settings(max_examples=tries(1000), deadline=None)
@given(EVERYTHING | EVERYTHING | paired_cases())
def test_both_engines_agree_on_every_field(case: Case) -> None:
    """CONTRACT, "How time runs": two engines, one truth, to the nanosecond; and their reports are one."""
    report = sim.summarize(simulate(case))
    assert replace(report, engine="simpy") == sim.summarize(both_of(case))


TINY_CASES = st.builds(_connected, cases(st.just(TINY), max_gradients=7), st.booleans())


@settings(max_examples=tries(700), deadline=None)
@given(TINY_CASES | paired_cases(st.just(TINY), max_gradients=5))
def test_both_engines_do_what_the_contract_says(case: Case) -> None:
    """CONTRACT, "How time runs", 1 to 6, stepped through nanosecond by nanosecond, by two ranks side by side
    where there is another one."""
    fate = step_through(case.workload, case.hardware, case.assignment, case.slowest)
    timeline = both_of(case)
    for name, told in {
        **{"ready_ns": fate.ready, "launch_ns": fate.launch, "start_ns": fate.start, "end_ns": fate.end},
        **{"late_ns": fate.late, "copy_out_start_ns": fate.copy_out_start, "available_ns": fate.available},
        **{"service_ns": fate.service, "num_bytes": fate.wire},
    }.items():
        assert [getattr(bucket, name) for bucket in timeline.buckets] == told, name
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (fate.backward_end, fate.sync_end)
    assert [(s.kind, s.start_ns, s.end_ns, s.gradient, s.bucket) for s in timeline.compute] == fate.compute


def moments(timeline: Timeline) -> list[int]:
    ends = [timeline.backward_end_ns, timeline.sync_end_ns]
    lives = ((b.ready_ns, b.launch_ns, b.start_ns, b.end_ns, b.available_ns) for b in timeline.buckets)
    return [*ends, *itertools.chain(*lives)]


def check_no_earlier(better: Case, worse: Case) -> None:
    pairs = zip(moments(simulate(better)), moments(simulate(worse)), strict=True)
    assert all(one <= two for one, two in pairs)


@given(cases())
def test_slow_downs_never_make_anything_earlier(case: Case) -> None:
    """How time runs, 4: against no slow-downs, every moment is the same or later."""
    calm = replace(case.hardware, **dict.fromkeys(SLOWDOWNS, 1.0))
    check_no_earlier(replace(case, hardware=calm), case)


@given(cases(stretches=False), st.data())
def test_without_slow_downs_more_work_never_makes_anything_earlier(case: Case, data: st.DataObject) -> None:
    """How time runs: launches, services, copies and channels are monotone where nothing interferes."""
    hardware, extra = case.hardware, data.draw(st.integers(0, 10**6))
    longer = tuple(replace(point, duration_ns=point.duration_ns + extra) for point in hardware.all_reduce)
    worse: list[dict[str, Any]] = [
        {"launch_cost_ns": hardware.launch_cost_ns + extra},
        {"all_reduce": longer},
        {"copy_in_bytes_per_s": (hardware.copy_in_bytes_per_s or 4e9) / 2},
        {"copy_out_bytes_per_s": (hardware.copy_out_bytes_per_s or 4e9) / 2},
    ]
    check_no_earlier(case, replace(case, hardware=replace(hardware, **data.draw(st.sampled_from(worse)))))
    wider = replace(hardware, comm_channels=hardware.comm_channels + 1)
    check_no_earlier(replace(case, hardware=wider), case)


@given(cases())
def test_times_come_in_the_order_of_a_buckets_life(case: Case) -> None:
    """ready <= launch <= start <= end <= copy-out <= available; sync ends after backward."""
    timeline = simulate(case)
    for b in timeline.buckets:
        life = [b.ready_ns, b.launch_ns, b.start_ns, b.end_ns, b.copy_out_start_ns, b.available_ns]
        assert life == sorted(life)
        assert all(isinstance(moment, int) for moment in life)
    assert timeline.sync_end_ns >= timeline.backward_end_ns >= case.workload.backward_ns
    for one, two in itertools.combinations(timeline.buckets, 2):
        assert one.channel != two.channel or one.end_ns <= two.start_ns or two.end_ns <= one.start_ns


@given(cases(st.just(REAL)))
def test_world_size_one_reduces_for_free(case: Case) -> None:
    """CONTRACT, Hardware: world size 1 costs nothing; collectives end as they start."""
    timeline = simulate(replace(case, hardware=replace(case.hardware, world_size=1)))
    assert all(b.start_ns == b.end_ns == b.launch_ns for b in timeline.buckets)
    assert sim.summarize(timeline).overlap_ratio == 0.0


@given(cases())
def test_order_of_gradients_inside_a_bucket_and_names_do_not_matter(case: Case) -> None:
    """A3.5: a bucket is ready with its last gradient, whatever its place in the bucket."""
    turned = replace(
        case.assignment, bucket_indices=tuple(bucket[::-1] for bucket in case.assignment.bucket_indices)
    )
    assert simulate(case).buckets == simulate(replace(case, assignment=turned)).buckets


@pytest.mark.parametrize(
    ("after", "service", "lasts"),
    [
        (1, 1, 2),  # 1 ns at half speed, 0.5 left: 1.5 in all
        (1, 2, 3),  # 1 + 1.5
        (3, 2, 4),  # 3 + 0.5
        (5, 3, 6),  # 5 + 0.5
        (9, 3, 6),  # all of it at half speed
    ],
)
def test_what_is_stretched_ends_with_a_nanosecond(after: int, service: int, lasts: int) -> None:
    """How time runs, 4: the whole is rounded up, however often its rate changed."""
    workload = handmade([0], 1, dtypes="int8", backward_ns=after)
    timeline = both(workload, wired({0: service}, comm_slowdown=2.0), Assignment(bucket_indices=((0,),)))
    assert timeline.buckets[0].end_ns == lasts


def test_a_rate_that_does_not_change_is_not_rounded_on_the_way() -> None:
    """Launches that find no channel free change no rate, and so no end."""
    workload = handmade([0, 1, 2, 3], 1, dtypes="int8", backward_ns=9)
    each = Assignment(bucket_indices=((0,), (1,), (2,), (3,)))
    timeline = both(workload, wired({0: 2}, comm_slowdown=1.25), each)
    assert [(b.start_ns, b.end_ns) for b in timeline.buckets] == [(0, 3), (3, 6), (6, 9), (9, 11)]  # 2.5, 2


@given(cases(st.just(REAL)))
def test_what_the_times_already_contain_is_not_counted_twice(case: Case) -> None:
    """CONTRACT, Workload: ``ready_includes`` names the effects that the ready times contain."""
    workload = replace(case.workload, ready_includes=("copy_in", "launch", "interference"))
    timeline = simulate(replace(case, workload=workload))
    assert timeline.backward_end_ns == workload.backward_ns
    assert {span.kind for span in timeline.compute} <= {"backward"}


@given(cases(), st.sampled_from(["steady", 1, 2, 2, 3]))
def test_broadcasts_come_before_forward(case: Case, iteration: Any) -> None:
    """A3.16: buffers once a dtype before each forward; A2.7: iteration 2 begins with two of int32."""
    assignment = sim.assign(case.workload, iteration=iteration)
    timeline = sim.simulate(case.workload, case.hardware, assignment, "analytic", iteration=iteration)
    sizes: dict[str, int] = {}
    for buffer in case.workload.buffers:
        sizes[buffer.dtype] = sizes.get(buffer.dtype, 0) + buffer.num_bytes
    wanted = list(sizes.values())
    if iteration == 2:
        wanted += [4 * (len(case.workload.gradients) + 1), 4 * len(assignment.bucket_indices)]
    curve, ranks = case.hardware.broadcast, case.hardware.world_size
    launches = case.hardware.launch_cost_ns * len(wanted)
    if curve is None:
        assert timeline.pre_forward_ns == launches
        assert bool(timeline.notes) == (bool(wanted) and ranks > 1)  # said, not dropped in silence
    else:
        assert timeline.pre_forward_ns == launches + sum(service(curve, size, ranks) for size in wanted)


# A collective starts with its last arriver.

FIFTEEN = wired({0: 15})
EACH_ALONE = Assignment(bucket_indices=((2,), (1,), (0,)))


def rank(*ready: int, tail: int = 10, **more: Any) -> Workload:
    """Gradients of 8 bytes, ready at these times; backward ends ``tail`` after the last of them."""
    return handmade(ready, **{"forward_ns": 5, "backward_ns": max(ready) + tail} | more)


def lives(timeline: Timeline) -> list[tuple[int, int, int, int]]:
    return [(b.launch_ns, b.late_ns, b.start_ns, b.end_ns) for b in timeline.buckets]


def test_each_collective_waits_for_the_later_rank() -> None:
    """Ready at 10, 20, 30 here and at 18, 36, 54 there; a collective takes 15.

    Bucket 0: 18 to 33. Bucket 1 has the channel here at 33 and there at 36: 36 to 51. Bucket 2: 54 to 69.
    """
    slowest = rank(54, 36, 18, tail=18)
    timeline = both(rank(30, 20, 10), FIFTEEN, EACH_ALONE, slowest=slowest)
    assert lives(timeline) == [(10, 8, 18, 33), (20, 3, 36, 51), (30, 3, 54, 69)]
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (40, 69)
    assert timeline.slowest == slowest


def test_ranks_whose_lanes_wait_may_be_last_in_turns() -> None:
    """A5.6: on a CPU the lane waits for each flush, so that what one rank is late makes the other late.

    A gradient takes 10 and 30 by turns here, 30 and 10 there. The first flush is at 40 on both; then each
    takes 15 and the longer of the two gradients that follow it.
    """
    here, there = ([sum(turns[: k + 1]) for k in range(8)] for turns in ([10, 30] * 4, [30, 10] * 4))
    assignment = sim.assign(rank(*here[::-1]), "zero2", reduce_bucket_size=1, accelerator="cpu")
    slowest = rank(*there[::-1], tail=0)
    timeline = both(rank(*here[::-1], tail=0), FIFTEEN, assignment, slowest=slowest)
    starts = [40 + flush * 45 for flush in range(7)]
    assert [bucket.start_ns for bucket in timeline.buckets] == [*starts, starts[-1] + 15]
    assert [bucket.late_ns for bucket in timeline.buckets] == [0, 20, 0, 20, 0, 20, 0, 0]
    assert timeline.sync_end_ns == starts[-1] + 30


def test_a_rank_that_waits_slows_nothing_down() -> None:
    """Backward runs at full speed until 40, where the last rank comes, and at half speed beside the 15 ns."""
    one, slowed = Assignment(bucket_indices=((0,),)), replace(FIFTEEN, compute_slowdown=2.0)
    timeline = both(rank(10, tail=40), slowed, one, slowest=rank(40, tail=0))
    assert lives(timeline) == [(10, 30, 40, 55)]
    assert timeline.backward_end_ns == 58  # 10 of its 50 ns take 20, less 5 that remain after 55


def test_micro_batches_of_two_ranks() -> None:
    """A3.12: two backwards under no_sync, each 20 longer there, add up. A5.9: ZeRO-2 reduces in every
    micro-batch, after which both ranks are level again."""
    once = sim.assign(rank(10), accumulation_steps=3)
    timeline = both(rank(10), FIFTEEN, once, slowest=rank(30))
    assert (lives(timeline), timeline.accumulation_ns) == ([(10, 60, 70, 85)], 2 * (5 + 20))
    each = sim.assign(rank(10), "zero2", accelerator="cpu", gradient_accumulation_steps=2)
    timeline = both(rank(10), FIFTEEN, each, slowest=rank(30))
    assert (lives(timeline), timeline.accumulation_ns) == ([(20, 20, 40, 55)], 5 + 55)


@settings(max_examples=tries(300), deadline=None)
@given(paired_cases(stretches=False), st.integers(0, 50), st.integers(1, 4))
def test_the_later_the_other_rank_the_later_is_everything(case: Case, delay: int, factor: int) -> None:
    """Where work stretches it need not be: a backward that runs while others are waited for is not slowed."""
    later = replace(
        case.slowest,
        forward_ns=case.slowest.forward_ns + delay,
        backward_ns=case.slowest.backward_ns * factor,
        gradients=tuple(replace(g, ready_ns=(g.ready_ns or 0) * factor) for g in case.slowest.gradients),
    )
    check_no_earlier(replace(case, slowest=None), case)
    check_no_earlier(case, replace(case, slowest=later))


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
        timeline = simulate(case, "simpy")
    except SimError:
        assert case.slowest.order() != case.workload.order()
        with pytest.raises(SimError, match=r"^slowest: "):
            simulate(case)
        return
    assert simulate(case) == timeline
    for played in timeline.collectives:
        assert played.launch_ns <= played.start_ns - played.late_ns <= played.start_ns


FIRST, *REST = rank(30, 20, 10).gradients
FULLY_SHARDED = replace(FIFTEEN, world_size=4, **dict.fromkeys(CURVES, points({0: 5})))
THREE = rank(30, 20, 10, names=[f"h.{index}.w" for index in range(3)])


@pytest.mark.parametrize(
    ("hardware", "options", "slowest", "words"),
    [
        (
            FIFTEEN,
            {},
            replace(THREE, gradients=(replace(FIRST, shape=(1,), num_bytes=4), *REST)),
            r"rank 1: its collective 2 .* 1 float32, bucket 2, and .* 2 float32",
        ),
        (FIFTEEN, {}, rank(30, 20), "index 2"),
        (
            FIFTEEN,
            {"policy": "per-parameter-async"},
            rank(10, 20, 30),
            r"rank 1: its collective 0 .* bucket 0, .* bucket 2 on",
        ),
        (FIFTEEN, {"policy": "zero2", "reduce_bucket_size": 2}, rank(10, 20, 30), "bucket_indices"),
        (replace(FIFTEEN, world_size=1), {}, THREE, "there is no other rank; .*world_size=1"),
        # A10.7: behind each reduce-scatter its all-reduce, whose place among gathers is each rank's own.
        (
            FULLY_SHARDED,
            {"policy": "fully_shard", "replicas": 2},
            replace(THREE, gradients=(replace(THREE.gradients[0], ready_ns=40), *THREE.gradients[1:])),
            "ranks: they come to their collectives in different orders",
        ),
    ],
)
def test_ranks_that_send_something_else_are_refused(
    hardware: Any, options: dict[str, Any], slowest: Workload, words: str
) -> None:
    here = replace(THREE, backward_ns=30)
    slowest = replace(slowest, backward_ns=max(one.ready_ns or 0 for one in slowest.gradients))
    assignment = sim.assign(here, **options) if options else EACH_ALONE
    with pytest.raises((AssignmentError, InputError, NotModelledError), match=f"slowest: .*{words}"):
        sim.simulate(here, hardware, assignment, slowest=slowest)
