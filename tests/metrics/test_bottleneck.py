"""Each cause on a timeline built to have it, with the figures of its sentence worked out by hand."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import sim
from sim.metrics.bottleneck import NEGLIGIBLE, critical_path
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.oracle.stepper import service
from tests.strategies import REAL, Case, cases, paired_cases

MS = 1_000_000
MB = 1_000_000


def workload(ready_ms: Sequence[float], sizes_mb: Sequence[float], *, pace: float = 1.0) -> Workload:
    """Gradient k is ready at ``ready_ms[k]`` of a backward of 100 ms, all of it times ``pace``; the step is
    backward and 50 ms more."""
    return handmade(
        [round(time * pace * MS) for time in ready_ms],
        [round(size * MB) for size in sizes_mb],
        name="built",
        names="layers.{}.weight",
        forward_ns=45 * MS,
        backward_ns=round(100 * pace * MS),
        optimizer_ns=5 * MS,
    )


def hardware(*, latency_ms: float = 0.0, ms_per_mb: float = 1.0, **machine: Any) -> Hardware:
    """Two ranks; a collective takes ``latency_ms + ms_per_mb`` a MB."""
    times = {0: round(latency_ms * MS), 1000 * MB: round((latency_ms + 1000 * ms_per_mb) * MS)}
    return replace(wired(times, name="built"), **machine)


CODES = {
    *("no-communication", "compute-bound", "outside-backward", "straggler-bound", "head-of-line"),
    *("launch-bound", "copy-bound", "interference-bound", "latency-bound", "tail-exposed", "bandwidth-bound"),
}


def built(
    ready_ms: Sequence[float],
    sizes_mb: Sequence[float],
    buckets: Sequence[Sequence[int]] | Mapping[str, Any],
    *,
    pace: float | None = None,
    **machine: Any,
) -> Case:
    """These buckets, or those of a system's options, on a ``hardware``, beside a rank of another ``pace``."""
    one = workload(ready_ms, sizes_mb)
    if isinstance(buckets, Mapping):
        assignment = sim.assign(one, **buckets)
    else:
        assignment = Assignment(bucket_indices=tuple(map(tuple, buckets)))
    slowest = None if pace is None else workload(ready_ms, sizes_mb, pace=pace)
    return Case(workload=one, hardware=hardware(**machine), assignment=assignment, slowest=slowest)


def simulate(case: Case) -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, "analytic", slowest=case.slowest)


def report_of(case: Case) -> Report:
    return sim.summarize(simulate(case))


def each(*buckets: int) -> list[list[int]]:
    return [[index] for index in buckets]


@pytest.mark.parametrize(
    ("code", "ready_ms", "sizes_mb", "buckets", "machine"),
    [
        # 1 % of the step is negligible: 1.50 of 151.50 ms is below, 1.53 of 151.53 above.
        ("compute-bound", [40, 99.5], [20, 2.0], [[0], [1]], {}),
        ("tail-exposed", [40, 99.5], [20, 2.03], [[0], [1]], {}),
        # A quarter of what is exposed is a block: 30 ms are, so 7.5 ms idle.
        ("head-of-line", [82, 90], [30, 10], [[1], [0]], {}),
        ("bandwidth-bound", [83, 90], [30, 10], [[1], [0]], {}),
        # Bucket 2 waits for bucket 1, but bucket 0 keeps the link busy all the while.
        ("bandwidth-bound", [10, 60, 20], [60, 20, 60], each(0, 1, 2), {}),
        # Half: a launch, a copy, a stretched backward (40 ms of collective at half speed cost 20 ms).
        ("launch-bound", [100], [10], [[0]], {"launch_cost_ns": 10_100_000}),
        ("tail-exposed", [100], [10], [[0]], {"launch_cost_ns": 9_900_000}),
        ("hook-bound", [100], [10], [[0]], {"hook_cost_ns": 10_100_000}),
        ("tail-exposed", [100], [10], [[0]], {"hook_cost_ns": 9_900_000}),
        ("copy-bound", [100], [10], [[0]], {"copy_in_bytes_per_s": 10 * MB / 0.0101}),
        ("tail-exposed", [100], [10], [[0]], {"copy_in_bytes_per_s": 10 * MB / 0.0099}),
        ("copy-bound", [100], [10], [[0]], {"copy_out_bytes_per_s": 10 * MB / 0.0101}),
        ("tail-exposed", [100], [10], [[0]], {"copy_out_bytes_per_s": 10 * MB / 0.0099}),
        ("interference-bound", [10, 100], [40, 19.9], [[0], [1]], {"compute_slowdown": 2.0}),
        ("tail-exposed", [10, 100], [40, 20.1], [[0], [1]], {"compute_slowdown": 2.0}),
        # Latency is half of the time on the wire: 10 MB take 10 ms, so 10 ms of it.
        ("bandwidth-bound", [90] * 3, [10] * 3, each(0, 1, 2), {"latency_ms": 9.9}),
        ("latency-bound", [90] * 3, [10] * 3, each(0, 1, 2), {"latency_ms": 10.1}),
        # The first that matches wins: the order of the buckets is what to mend first.
        ("head-of-line", [20, 90], [1, 1], [[1], [0]], {"latency_ms": 10}),
    ],
)
def test_where_a_cause_begins(
    code: str, ready_ms: list[float], sizes_mb: list[float], buckets: list[list[int]], machine: dict[str, Any]
) -> None:
    found = report_of(built(ready_ms, sizes_mb, buckets, **machine))
    assert found.verdict_code == code
    assert (found.exposed_comm_ns <= NEGLIGIBLE * found.step_ns) == (code == "compute-bound")


def test_without_a_collective_that_takes_time_a_straggler_is_still_found() -> None:
    found = report_of(built([40, 98], [0, 0], each(0, 1), pace=1.3))
    assert (found.verdict_code, found.exposed_comm_ns) == ("straggler-bound", round(27.4 * MS))


@settings(max_examples=tries(500), deadline=None)
@given(cases() | paired_cases())
def test_every_sentence_adds_up(case: Case) -> None:
    """On any timeline: a known code, a sentence whose figures are those of the report and of the path."""
    timeline = simulate(case)
    found, path = sim.summarize(timeline), critical_path(timeline)
    assert found.verdict_code in CODES
    sentence, code = found.verdict, found.verdict_code
    silent = all(bucket.service_ns == 0 == bucket.late_ns for bucket in timeline.buckets)
    silent = silent and found.pre_forward_ns <= case.hardware.launch_cost_ns * len(timeline.before)
    assert (code == "no-communication") == silent
    assert not re.search(r"\b0 (bucket|launch|collective)", sentence)
    assert "-" not in re.sub(r"[a-z]-[a-z]", "", sentence)  # no negatives
    taken = Counter[str]()
    for span in path:
        taken[span.kind] += span.end_ns - span.start_ns
    added = found.exposed_comm_ns + found.outside_ns
    if code in ("compute-bound", "outside-backward"):
        assert found.verdict_ns == added
        assert (added <= NEGLIGIBLE * found.step_ns) == (code == "compute-bound")
    elif code == "straggler-bound":
        assert found.verdict_ns == taken["straggler"] >= found.exposed_comm_ns / 2
    elif code == "launch-bound":
        assert taken["launch"] <= found.verdict_ns <= taken["launch"] + found.outside_ns
    elif code == "copy-bound":
        assert found.verdict_ns == taken["copy_in"] + taken["copy_out"] > 0
    elif code == "interference-bound":
        assert 0 < found.verdict_ns <= timeline.backward_end_ns - timeline.workload.backward_ns
        assert case.hardware.compute_slowdown > 1
    elif code in ("latency-bound", "tail-exposed", "bandwidth-bound"):
        assert 0 < found.verdict_ns <= taken["all_reduce"] + found.outside_ns
        assert code != "tail-exposed" or [span.kind for span in path].count("all_reduce") == 1
    elif code == "head-of-line":
        waiting, blocking = map(int, re.findall(r"bucket (\d+)", sentence))
        late, early = timeline.buckets[blocking], timeline.buckets[waiting]
        assert blocking < waiting
        assert 0 < found.verdict_ns <= late.ready_ns - early.ready_ns
    if "exposed" in sentence and code not in ("tail-exposed", "head-of-line"):
        assert f"{found.exposed_comm_ns / 1e6:.2f} ms" in sentence


def test_what_gathering_parameters_adds_is_told() -> None:
    one = workload([80, 60, 40, 20], [4] * 4)
    machine = replace(hardware(), all_gather=hardware().all_reduce)
    timeline = sim.simulate(one, machine, sim.assign(one, "zero2"))
    added_ns = timeline.post_sync_ns
    assert added_ns > 10 * MS
    added = f"; after the optimizer: parameters, {added_ns / MS:.2f} ms"
    assert sim.summarize(timeline).verdict.endswith(added)


# Take a cause away, and the sentence that names it goes, and no more time than the sentence says.

Change = Callable[[Case], Case]


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


def _latency(machine: Hardware) -> int:
    return service(machine.all_reduce, 0, machine.world_size)


def _in_ready_order(case: Case) -> Case:
    place = {index: number for number, index in enumerate(case.workload.order())}
    buckets = sorted(case.assignment.bucket_indices, key=lambda bucket: max(place[index] for index in bucket))
    made = replace(case.assignment, bucket_indices=tuple(buckets), bucket_bytes=None)
    return replace(case, assignment=made)


def _without_compute(case: Case) -> Case:
    gradients = tuple(replace(gradient, ready_ns=0) for gradient in case.workload.gradients)
    times = dict.fromkeys(("forward_ns", "loss_ns", "backward_ns", "optimizer_ns", "rest_ns"), 0)
    none = replace(case.workload, gradients=gradients, **times)  # type: ignore[arg-type]
    return replace(case, workload=none, hardware=replace(case.hardware, broadcast=None))


without_latency = with_curve(lambda it: [max(0, one.duration_ns - _latency(it)) for one in it.all_reduce])


def of_latency_alone(case: Case) -> Case:
    """All sizes take what no bytes do, or less that one of the curve does, also beyond it."""
    least = min(_latency(case.hardware), *(point.duration_ns for point in case.hardware.all_reduce))
    constant = (CurvePoint(num_bytes=0, duration_ns=least),)
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
    "hook-bound": lambda case: replace(on(hook_cost_ns=0)(case), assignment=sim.assign(case.workload)),
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

ZERO2 = {"policy": "zero2", "reduce_bucket_size": MB}
HOOKED = {"comm_hook": "bf16_compress", "gradient_as_bucket_view": True}
# What each costs, in ms: 1.5 of 2 are beyond backward; 29.4 late; the link idle from 20 to 90; 8 launches;
# 20 in and 10 out; 40 at half speed; 10 times 5; all of the last bucket; the link from 20 to 188; 12.5 of
# compressing and 7.5 of decompressing; 4 flushes of 20 that wait for those before them; 4 of 4.
BUILT: dict[str, tuple[float, Case]] = {
    "compute-bound": (1.5, built([40, 99.5], [20, 2], each(0, 1))),
    "straggler-bound": (29.4, built([40, 98], [20, 2], each(0, 1), pace=1.3)),
    "head-of-line": (70, built([20, 90], [30, 10], each(1, 0))),
    "launch-bound": (40, built([100] * 8, [1] * 8, each(*range(8)), launch_cost_ns=5 * MS)),
    "copy-bound": (
        30,
        built([100], [20], each(0), ms_per_mb=0.25, copy_in_bytes_per_s=1e9, copy_out_bytes_per_s=2e9),
    ),
    "interference-bound": (20, built([10, 100], [40, 0], each(0, 1), compute_slowdown=2.0)),
    "latency-bound": (50, built([90] * 10, [0.1] * 10, each(*range(10)), latency_ms=5)),
    "tail-exposed": (26, built([40, 98], [20, 25], each(0, 1), latency_ms=1)),
    "bandwidth-bound": (168, built([20, 40, 60, 80], [40] * 4, each(*range(4)), latency_ms=2)),
    "hook-bound": (20, built([100], [20], HOOKED, copy_in_bytes_per_s=2e9, copy_out_bytes_per_s=2e9)),
    "lane-held": (
        80,
        built([60, 50, 40, 30, 20, 10], [4] * 6, ZERO2 | {"overlap_comm": True}, ms_per_mb=7.5),
    ),
    "no-overlap": (16, built([80, 60, 40, 20], [4] * 4, ZERO2 | {"accelerator": "cpu"})),
}


def is_additive(machine: Hardware) -> bool:
    return machine.comm_channels == 1 and is_calm(machine)


def is_calm(machine: Hardware) -> bool:
    return all(getattr(machine, name) == 1 for name in SLOWDOWNS)


def check_goes(case: Case, change: Change) -> None:
    """The sentence goes; the step becomes no longer, and no shorter than the sentence allows."""
    found, other = report_of(case), report_of(change(case))
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
def test_a_built_cause_is_found_with_what_it_costs_and_goes(code: str) -> None:
    cost_ms, case = BUILT[code]
    found = report_of(case)
    assert (found.verdict_code, found.verdict_ns) == (code, round(cost_ms * MS))
    check_goes(case, {**WITHOUT, **WITHOUT_IN_OTHERS}[code])


@settings(max_examples=tries(400), deadline=None)
@given(cases() | paired_cases())
def test_any_cause_goes_when_it_is_taken_away(case: Case) -> None:
    code = report_of(case).verdict_code
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
    event(report_of(case).verdict_code)
    if report_of(case).verdict_code == "straggler-bound":
        check_goes(case, WITHOUT["straggler-bound"])


@settings(max_examples=tries(200), deadline=None)
@given(cases() | paired_cases())
def test_bounds_are_claimed_only_where_they_hold(case: Case) -> None:
    """With two channels or slow-downs saving is not additive along the path."""
    sentence = report_of(case).verdict
    if "without that rank" in sentence:
        assert ("without that rank at most" in sentence) == is_additive(case.hardware)
