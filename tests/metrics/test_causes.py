"""Take a cause away, and the sentence that names it goes, and no more time than the sentence says."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import sim
from sim.metrics.critical_path import critical_path
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from tests.effort import tries
from tests.metrics.built import MB, MS, hardware, workload
from tests.strategies import REAL, Case, assignments, cases, hardwares, paired_cases, workloads

Change = Callable[[Case], Case]


def simulate(case: Case) -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, "analytic", slowest=case.slowest)


def report(case: Case) -> Report:
    return sim.summarize(simulate(case))


def on(**machine: Any) -> Change:
    """The same case on a machine that differs in this."""
    return lambda case: replace(case, hardware=replace(case.hardware, **machine))


def with_curve(times: Callable[[Hardware], list[int]]) -> Change:
    """The same case on a curve of the same sizes with other times."""

    def change(case: Case) -> Case:
        curve = case.hardware.all_reduce
        others = [
            replace(point, duration_ns=time) for point, time in zip(curve, times(case.hardware), strict=True)
        ]
        return replace(case, hardware=replace(case.hardware, all_reduce=tuple(others)))

    return change


def _least(machine: Hardware) -> int:
    return min(point.duration_ns for point in machine.all_reduce)


def _in_ready_order(case: Case) -> Case:
    place = {index: number for number, index in enumerate(case.workload.order())}
    buckets = sorted(case.assignment.bucket_indices, key=lambda bucket: max(place[index] for index in bucket))
    return replace(
        case, assignment=replace(case.assignment, bucket_indices=tuple(buckets), bucket_bytes=None)
    )


def _without_compute(case: Case) -> Case:
    gradients = tuple(replace(gradient, ready_ns=0) for gradient in case.workload.gradients)
    none = replace(case.workload, gradients=gradients, forward_ns=0, loss_ns=0, backward_ns=0, optimizer_ns=0)
    return replace(case, workload=none, hardware=replace(case.hardware, broadcast=None))


without_latency = with_curve(lambda it: [point.duration_ns - _least(it) for point in it.all_reduce])


def of_latency_alone(case: Case) -> Case:
    """All sizes take the least time, also beyond the curve, where time grows with bytes otherwise."""
    constant = (CurvePoint(num_bytes=0, duration_ns=_least(case.hardware)),)
    return replace(case, hardware=replace(case.hardware, all_reduce=constant))


without_wire = with_curve(lambda it: [0] * len(it.all_reduce))

# By code, the case without that cause; those of the second table are causes that DDP never has.
WITHOUT: Mapping[str, Change] = {
    "compute-bound": _without_compute,
    "straggler-bound": lambda case: replace(case, slowest=None),
    "head-of-line": _in_ready_order,
    "launch-bound": on(launch_cost_ns=0),
    "copy-bound": on(copy_in_bytes_per_s=None, copy_out_bytes_per_s=None),
    "interference-bound": on(**dict.fromkeys(SLOWDOWNS, 1.0)),
    "latency-bound": without_latency,
    "tail-exposed": without_wire,
    "bandwidth-bound": of_latency_alone,
}
WITHOUT_IN_OTHERS: Mapping[str, Change] = {
    "hook-bound": lambda case: replace(case, assignment=sim.assign(case.workload)),
    "lane-held": lambda case: replace(
        case, assignment=sim.assign(case.workload, "zero2", reduce_bucket_size=1 << 30, overlap_comm=True)
    ),
    "no-overlap": lambda case: replace(case, assignment=sim.assign(case.workload, "flat-views")),
}
# What is taken from the path: without it no step is shorter by more than the sentence says.
BOUNDED = (
    *("straggler-bound", "launch-bound", "copy-bound", "hook-bound"),
    *("latency-bound", "tail-exposed", "bandwidth-bound"),
)


def each(*buckets: int) -> Assignment:
    return Assignment(bucket_indices=tuple((index,) for index in buckets))


FOUR = workload([80, 60, 40, 20], [4] * 4)
SIX = workload([60, 50, 40, 30, 20, 10], [4] * 6)
BUILT = {
    "compute-bound": Case(workload=workload([40, 99.5], [20, 2]), hardware=hardware(), assignment=each(0, 1)),
    "straggler-bound": Case(
        workload=workload([40, 98], [20, 2]),
        hardware=hardware(),
        assignment=each(0, 1),
        slowest=workload([40, 98], [20, 2], pace=1.3),
    ),
    "head-of-line": Case(workload=workload([20, 90], [30, 10]), hardware=hardware(), assignment=each(1, 0)),
    "launch-bound": Case(
        workload=workload([100] * 8, [1] * 8),
        hardware=hardware(launch_cost_ns=5 * MS),
        assignment=each(*range(8)),
    ),
    "copy-bound": Case(
        workload=workload([100], [20]),
        hardware=hardware(ms_per_mb=0.25, copy_in_bytes_per_s=1e9, copy_out_bytes_per_s=2e9),
        assignment=each(0),
    ),
    "interference-bound": Case(
        workload=workload([10, 100], [40, 0]), hardware=hardware(compute_slowdown=2.0), assignment=each(0, 1)
    ),
    "latency-bound": Case(
        workload=workload([90] * 10, [0.1] * 10), hardware=hardware(latency_ms=5), assignment=each(*range(10))
    ),
    "tail-exposed": Case(
        workload=workload([40, 98], [20, 25]), hardware=hardware(latency_ms=1), assignment=each(0, 1)
    ),
    "bandwidth-bound": Case(
        workload=workload([20, 40, 60, 80], [40] * 4),
        hardware=hardware(latency_ms=2),
        assignment=each(*range(4)),
    ),
    "hook-bound": Case(
        workload=workload([100], [20]),
        hardware=hardware(copy_in_bytes_per_s=2e9, copy_out_bytes_per_s=2e9),
        assignment=sim.assign(workload([100], [20]), comm_hook="bf16_compress", gradient_as_bucket_view=True),
    ),
    "lane-held": Case(
        workload=SIX,
        hardware=hardware(ms_per_mb=7.5),
        assignment=sim.assign(SIX, "zero2", reduce_bucket_size=MB, overlap_comm=True),
    ),
    "no-overlap": Case(
        workload=FOUR,
        hardware=hardware(),
        assignment=sim.assign(FOUR, "zero2", reduce_bucket_size=MB, accelerator="cpu"),
    ),
}


def is_additive(machine: Hardware) -> bool:
    return machine.comm_channels == 1 and is_calm(machine)


def is_calm(machine: Hardware) -> bool:
    return all(getattr(machine, name) == 1 for name in SLOWDOWNS)


def check_goes(case: Case, change: Change) -> None:
    """The sentence goes; the step becomes no longer, and no shorter than the sentence allows."""
    found, other = report(case), report(change(case))
    code = found.verdict_code
    assert other.verdict_code != code
    if code not in BOUNDED:
        return
    if is_calm(case.hardware):
        assert other.exposed_comm_ns <= found.exposed_comm_ns
    if is_additive(case.hardware):
        rounded_ns = len(found.buckets)  # each collective lasts whole nanoseconds, with the cause and without
        assert other.exposed_comm_ns >= found.exposed_comm_ns - found.verdict_ns - rounded_ns


@pytest.mark.parametrize("code", BUILT)
def test_a_built_cause_is_found_and_goes(code: str) -> None:
    case = BUILT[code]
    assert report(case).verdict_code == code
    check_goes(case, {**WITHOUT, **WITHOUT_IN_OTHERS}[code])


@settings(max_examples=tries(400), deadline=None)
@given(cases() | paired_cases())
def test_any_cause_goes_when_it_is_taken_away(case: Case) -> None:
    code = report(case).verdict_code
    event(code)
    if code in WITHOUT:
        check_goes(case, WITHOUT[code])


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases(st.just(REAL), stretches=False), st.integers(1, 8))
def test_a_straggler_is_bound_by_what_it_is_late(case: Case, factor: int) -> None:
    """The bound, where waits are long: another rank of the same model, that much slower."""
    gradients = case.workload.gradients
    slowest = replace(
        case.workload,
        backward_ns=case.workload.backward_ns * factor,
        gradients=tuple(
            replace(gradient, ready_ns=(gradient.ready_ns or 0) * factor) for gradient in gradients
        ),
    )
    case = replace(case, slowest=slowest, hardware=replace(case.hardware, comm_channels=1))
    event(report(case).verdict_code)
    if report(case).verdict_code == "straggler-bound":
        check_goes(case, WITHOUT["straggler-bound"])


def merged(case: Case) -> Case:
    """The buckets on the critical path as one, where the last of them was."""
    indices = case.assignment.bucket_indices
    path = {span.bucket for span in critical_path(simulate(case)) if span.kind == "all_reduce"}
    numbers = sorted(number for number in path if number is not None)
    members = tuple(index for number in numbers for index in indices[number])
    buckets = [
        members if number == numbers[-1] else bucket
        for number, bucket in enumerate(indices)
        if number == numbers[-1] or number not in path
    ]
    return replace(
        case, assignment=replace(case.assignment, bucket_indices=tuple(buckets), bucket_bytes=None)
    )


@st.composite
def additive_cases(draw: st.DrawFn) -> Case:
    """One dtype, buckets in ready order on one channel, where nothing stretches: sentences about the wire."""
    one = draw(workloads(REAL, max_gradients=8, dtypes=("float32",), devices=(None,), sparse=False))
    machine = draw(hardwares(REAL, stretches=False))
    machine = replace(machine, comm_channels=1, world_size=2)
    return _in_ready_order(Case(workload=one, hardware=machine, assignment=draw(assignments(one))))


@settings(max_examples=tries(200), deadline=None)
@given(additive_cases(), st.integers(0, 100 * MS))
def test_merging_saves_at_most_what_is_said(case: Case, latency: int) -> None:
    case = with_curve(lambda it: [point.duration_ns + latency for point in it.all_reduce])(case)
    found = report(case)
    most = found.verdict_saves_ns
    event(f"{found.verdict_code} {most is not None}")
    if found.verdict_code == "latency-bound" and most is not None:
        assert found.sync_end_ns - report(merged(case)).sync_end_ns <= most


@settings(max_examples=tries(200), deadline=None)
@given(additive_cases(), st.integers(1, 20))
def test_twice_the_bandwidth_saves_at_most_what_is_said(case: Case, factor: int) -> None:
    fast, slow = (
        with_curve(
            lambda it, times=times: [  # type: ignore[misc]
                _least(it) + times * (point.duration_ns - _least(it)) for point in it.all_reduce
            ]
        )(case)
        for times in (factor, 2 * factor)
    )
    found = report(slow)
    event(found.verdict_code)
    if found.verdict_code == "bandwidth-bound":
        most = found.verdict_saves_ns
        assert most is not None
        assert found.sync_end_ns - report(fast).sync_end_ns <= most


@settings(max_examples=tries(200), deadline=None)
@given(cases() | paired_cases())
def test_bounds_are_claimed_only_where_they_hold(case: Case) -> None:
    """With two channels, slow-downs or another rank, saving is not additive along the path."""
    sentence = report(case).verdict
    if "would save" in sentence:
        is_alone = is_additive(case.hardware) and case.slowest is None
        assert ("would save at most" in sentence) == is_alone
    if "without that rank" in sentence:
        assert ("without that rank at most" in sentence) == is_additive(case.hardware)
