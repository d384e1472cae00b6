"""The two engines against each other, against an oracle, and against what must hold of any timeline."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import sim
from sim.clock.program import Machine, machine_of, small_messages
from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Gradient
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.oracle.stepper import copy, service, step_through
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


def _lane_intervals(timeline: Timeline) -> list[tuple[int, int]]:
    return [(span.start_ns, span.end_ns) for span in timeline.compute]


@given(cases())
def test_compute_lane_is_busy_without_a_gap_until_it_ends(case: Case) -> None:
    """How time runs, 1: the lane never waits, does one thing at a time, and does all of it."""
    timeline = simulate(case)
    clock = 0
    for start, end in _lane_intervals(timeline):
        assert start == clock
        assert end > start
        clock = end
    assert clock == timeline.backward_end_ns
    copied = [span.gradient for span in timeline.compute if span.kind == "copy_in"]
    assert len(copied) == len(set(copied))
    launched = [span.bucket for span in timeline.compute if span.kind == "launch"]
    assert launched == sorted(launched)


@given(cases())
def test_launches_are_strictly_in_bucket_order(case: Case) -> None:
    """A3.5: launch(k) = max(launch(k-1), ready(k)) + cost; no bucket overtakes."""
    timeline = simulate(case)
    hardware = case.hardware
    blocks = hardware.launch_blocks_compute and "launch" not in case.workload.ready_includes
    before = 0
    for bucket in timeline.buckets:
        earliest = max(before, bucket.ready_ns) + hardware.launch_cost_ns
        if blocks:  # and what else the lane has to do first, stretched
            assert bucket.launch_ns >= earliest
        else:
            assert bucket.launch_ns == earliest
        before = bucket.launch_ns


@given(cases())
def test_collectives_start_first_come_first_served(case: Case) -> None:
    """How time runs, 3: start(k) = max(launch(k), a channel free), so starts are in bucket order."""
    timeline = simulate(case)
    channels = case.hardware.comm_channels
    ends: list[int] = []
    before = 0
    for bucket in timeline.buckets:
        busy_until = sorted(ends)[-channels] if len(ends) >= channels else 0
        assert bucket.start_ns == max(bucket.launch_ns, busy_until)
        assert bucket.start_ns >= before
        assert 0 <= bucket.channel < channels
        before = bucket.start_ns
        ends.append(bucket.end_ns)
    for one in timeline.buckets:
        for two in timeline.buckets:
            if one.index < two.index and one.channel == two.channel:
                assert one.end_ns <= two.start_ns


@given(cases())
def test_copies_back_are_in_bucket_order(case: Case) -> None:
    """A3.10: from the end of the lane, for each bucket in order: wait, then copy back."""
    timeline = simulate(case)
    views = case.assignment.ddp_kwargs.get("gradient_as_bucket_view", False)
    rate = None if views else case.hardware.copy_out_bytes_per_s
    clock = timeline.backward_end_ns
    for bucket, indices in zip(timeline.buckets, case.assignment.bucket_indices, strict=True):
        gradients = [case.workload.gradients[index] for index in indices]
        took = sum(0 if gradient.sparse else copy(gradient.on_wire, rate) for gradient in gradients)
        assert bucket.copy_out_start_ns == max(clock, bucket.end_ns)
        clock = bucket.available_ns
        if case.hardware.copy_out_slowdown == 1:
            assert clock == bucket.copy_out_start_ns + took
        busy = [(b.start_ns, b.end_ns) for b in timeline.buckets]

        def stretch(start: int, end: int, busy: list[tuple[int, int]] = busy) -> Fraction:
            beside = any(s <= start and end <= e for s, e in busy if s < e)
            return Fraction(case.hardware.copy_out_slowdown if beside else 1)

        _check_done(timeline, bucket.copy_out_start_ns, clock, stretch, took)
    assert timeline.sync_end_ns == clock


def _check_done(
    timeline: Timeline, start: int, end: int, factor_at: Callable[[int, int], Fraction], owed: int
) -> None:
    """What is owed is done in [start, end), in which no more than a further ns could have been done: but for
    what a rate may be rounded by, half a 2**-20th of full speed."""
    rounded = (end - start) * Fraction(1, 2**21)
    assert owed - rounded <= _done(timeline, start, end, factor_at) <= owed + 1 + rounded


def _done(timeline: Timeline, start: int, end: int, factor_at: Callable[[int, int], Fraction]) -> Fraction:
    """Work done in [start, end): the integral of 1 / stretch over the pieces between events."""
    marks = {start, end}
    collectives = [(b.start_ns, b.end_ns) for b in timeline.buckets]
    copies_out = [(b.copy_out_start_ns, b.available_ns) for b in timeline.buckets]
    for first, last in [*_lane_intervals(timeline), *collectives, *copies_out]:
        marks |= {t for t in (first, last) if start < t < end}
    cuts = sorted(marks)
    return sum(
        ((b - a) / factor_at(a, b) for a, b in itertools.pairwise(cuts)),
        Fraction(0),
    )


@settings(max_examples=tries(300))
@given(cases())
def test_work_is_conserved_under_every_slow_down(case: Case) -> None:
    """How time runs, 4: stretched by the product of what is active, each piece of work is done, and over with
    the nanosecond in which it is, however often its rate changed."""
    timeline = simulate(case)
    hardware = case.hardware
    lane = _lane_intervals(timeline)
    spans = [(b.index, b.start_ns, b.end_ns) for b in timeline.buckets]
    slow_compute = Fraction(
        1 if "interference" in case.workload.ready_includes else hardware.compute_slowdown
    )

    def collectives(start: int, end: int, but: int | None = None) -> bool:
        return any(s <= start and end <= e and k != but for k, s, e in spans if s < e)

    small_bytes, small_slowdown = small_messages(hardware)
    larger = {b.index for b in timeline.buckets if b.num_bytes >= small_bytes}

    def sharing(start: int, end: int, number: int) -> Fraction:
        others = {k for k, s, e in spans if s <= start and end <= e and k != number and s < e}
        if number not in larger and others & larger:
            return Fraction(small_slowdown)
        alike = others & larger if number in larger else others
        return Fraction(hardware.channel_slowdown if alike else 1)

    copies = [(b.copy_out_start_ns, b.available_ns) for b in timeline.buckets]
    slow_copy = Fraction(hardware.copy_in_slowdown)

    def during(intervals: list[tuple[int, int]], start: int, end: int) -> bool:
        return any(s <= start and end <= e for s, e in intervals)

    for bucket in timeline.buckets:

        def stretch(start: int, end: int, k: int = bucket.index) -> Fraction:
            factor = Fraction(hardware.comm_slowdown if during(lane, start, end) else 1)
            factor *= Fraction(hardware.comm_copy_out_slowdown if during(copies, start, end) else 1)
            return factor * sharing(start, end, k)

        _check_done(timeline, bucket.start_ns, bucket.end_ns, stretch, bucket.service_ns)
        if not (bucket.start_ns < bucket.end_ns):
            assert bucket.service_ns == 0

    copies_in = None if "copy_in" in case.workload.ready_includes else hardware.copy_in_bytes_per_s
    order = case.workload.order()
    ready = [case.workload.gradients[index].ready_ns or 0 for index in order]
    work = {index: now - before for index, now, before in zip(order, ready, [0, *ready], strict=False)}
    for span in timeline.compute:
        if span.kind == "copy_in":
            owed = copy(case.workload.gradients[span.gradient or 0].on_wire, copies_in)
        elif span.kind == "launch":
            owed = hardware.launch_cost_ns
        elif span.gradient is None:
            owed = case.workload.backward_ns - ready[-1]
        else:
            owed = work[span.gradient]
        slow = slow_compute * (slow_copy if span.kind == "copy_in" else 1)

        def beside(start: int, end: int, slow: Fraction = slow) -> Fraction:
            return slow if collectives(start, end) else Fraction(1)

        _check_done(timeline, span.start_ns, span.end_ns, beside, owed)


@given(cases(stretches=False))
def test_without_slow_downs_every_duration_is_its_own(case: Case) -> None:
    """How time runs, 3 and 4: nothing stretches, so a collective lasts its service time exactly."""
    timeline = simulate(case)
    for bucket in timeline.buckets:
        assert bucket.end_ns - bucket.start_ns == bucket.service_ns


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


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases())
@settings(max_examples=tries(50))
def test_a_simulation_is_reproducible(engine: str, case: Case) -> None:
    """Ties are broken by ready order, then bucket order: the same input gives the same timeline."""
    assert simulate(case, engine) == simulate(case, engine)


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
