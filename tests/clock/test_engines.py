"""The two engines against each other, against an oracle, and against what must hold of any timeline."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import sim
from sim.clock.program import Machine, machine_of
from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Gradient
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.oracle.stepper import service, step_through
from tests.strategies import REAL, TINY, Case, cases

ENGINES = ("simpy", "analytic")


def simulate(case: Case, engine: str = "analytic") -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, engine)


def _connected(case: Case, is_shared: bool) -> Case:
    return replace(case, hardware=replace(case.hardware, shared_connection=is_shared))


EVERYTHING = st.builds(_connected, cases(), st.booleans())


@pytest.mark.parametrize("name", Machine._fields)
def test_every_effect_of_a_machine_is_drawn(name: str) -> None:
    """Otherwise the engines and the oracle agree on nothing new."""
    search = settings(max_examples=2000, database=None, phases=[Phase.generate])
    find(EVERYTHING, lambda case: name in machine_of(case.workload, case.hardware).in_force, settings=search)


@settings(max_examples=tries(700))
@given(EVERYTHING)
def test_both_engines_agree_on_every_field(case: Case) -> None:
    """CONTRACT, "How time runs": two engines, one truth, to the nanosecond; and their reports are one."""
    one, two = simulate(case, "simpy"), simulate(case, "analytic")
    assert replace(two, engine="simpy") == one
    assert replace(sim.summarize(two), engine="simpy") == sim.summarize(one)


@settings(max_examples=tries(400))
@given(cases(st.just(TINY), max_gradients=7), st.booleans())
def test_both_engines_do_what_the_contract_says(case: Case, connected: bool) -> None:
    """CONTRACT, "How time runs", 1 to 6, stepped through nanosecond by nanosecond."""
    case = replace(case, hardware=replace(case.hardware, shared_connection=connected))
    fate = step_through(case.workload, case.hardware, case.assignment)
    for engine in ENGINES:
        timeline = simulate(case, engine)
        said = [
            (b.ready_ns, b.launch_ns, b.start_ns, b.end_ns, b.copy_out_start_ns, b.available_ns)
            for b in timeline.buckets
        ]
        told = zip(
            fate.ready, fate.launch, fate.start, fate.end, fate.copy_out_start, fate.available, strict=True
        )
        assert said == list(told), engine
        assert [b.service_ns for b in timeline.buckets] == fate.service, engine
        assert [b.num_bytes for b in timeline.buckets] == fate.wire, engine
        assert timeline.backward_end_ns == fate.backward_end, engine
        assert timeline.sync_end_ns == fate.sync_end, engine
        spans = [(s.kind, s.start_ns, s.end_ns, s.gradient, s.bucket) for s in timeline.compute]
        assert spans == fate.compute, engine


def _moments(timeline: Timeline) -> list[int]:
    return [
        timeline.backward_end_ns,
        timeline.sync_end_ns,
        *(
            t
            for b in timeline.buckets
            for t in (b.ready_ns, b.launch_ns, b.start_ns, b.end_ns, b.available_ns)
        ),
    ]


def _no_earlier(better: Timeline, worse: Timeline) -> None:
    assert all(one <= two for one, two in zip(_moments(better), _moments(worse), strict=True))


@given(cases())
def test_slow_downs_never_make_anything_earlier(case: Case) -> None:
    """How time runs, 4: against no slow-downs, every moment is the same or later."""
    calm = replace(case.hardware, **dict.fromkeys(SLOWDOWNS, 1.0))
    _no_earlier(simulate(replace(case, hardware=calm)), simulate(case))


@given(cases(stretches=False), st.data())
def test_without_slow_downs_more_work_never_makes_anything_earlier(case: Case, data: st.DataObject) -> None:
    """How time runs: launches, services, copies and channels are monotone where nothing interferes."""
    hardware = case.hardware
    extra = data.draw(st.integers(0, 10**6))
    curve = tuple(replace(point, duration_ns=point.duration_ns + extra) for point in hardware.all_reduce)
    worse = data.draw(
        st.sampled_from(
            [
                replace(hardware, launch_cost_ns=hardware.launch_cost_ns + extra),
                replace(hardware, all_reduce=curve),
                replace(hardware, copy_in_bytes_per_s=(hardware.copy_in_bytes_per_s or 4e9) / 2),
                replace(hardware, copy_out_bytes_per_s=(hardware.copy_out_bytes_per_s or 4e9) / 2),
            ]
        )
    )
    _no_earlier(simulate(case), simulate(replace(case, hardware=worse)))
    wider = replace(hardware, comm_channels=hardware.comm_channels + 1)
    _no_earlier(simulate(replace(case, hardware=wider)), simulate(case))


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
        assert one.channel != two.channel or one.end_ns <= two.start_ns


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


def tiny_case(work: tuple[int, int], service: int, **changes: object) -> Case:
    """One gradient in one bucket: ``work`` before it is ready and after."""
    before, after = work
    return Case(
        workload=handmade([before], 1, dtypes="int8", backward_ns=before + after),
        hardware=wired({0: service}, **changes),
        assignment=Assignment(bucket_indices=((0,),)),
    )


@pytest.mark.parametrize("engine", ENGINES)
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
def test_what_is_stretched_ends_with_a_nanosecond(engine: str, after: int, service: int, lasts: int) -> None:
    """How time runs, 4: the whole is rounded up, however often its rate changed."""
    timeline = simulate(tiny_case((0, after), service, comm_slowdown=2.0), engine)
    assert timeline.buckets[0].end_ns == lasts


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rate_that_does_not_change_is_not_rounded_on_the_way(engine: str) -> None:
    """Launches that find no channel free change no rate, and so no end."""
    case = Case(
        workload=handmade([0, 1, 2, 3], 1, dtypes="int8", backward_ns=9),
        hardware=wired({0: 2}, comm_slowdown=1.25),
        assignment=Assignment(bucket_indices=((0,), (1,), (2,), (3,))),
    )
    timeline = simulate(case, engine)
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


def test_an_unused_parameter_is_refused_by_name() -> None:
    """A3.21: every parameter must become ready."""
    case = tiny_case((1, 1), 1)
    unused = Gradient(index=1, name="head.bias", shape=(), dtype="int8", num_bytes=1, ready_ns=None)
    workload = replace(case.workload, gradients=(*case.workload.gradients, unused))
    with pytest.raises(NotModelledError, match=r"head\.bias.*never ready"):
        simulate(replace(case, workload=workload, assignment=Assignment(bucket_indices=((0, 1),))))
    with pytest.raises(NotModelledError, match=r"head\.bias.*never ready"):
        sim.assign(workload)
