"""Figures of a step, by counting and by simulation: intervals, the path, every part and every bound."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import SimError
from sim.metrics.bottleneck import critical_path
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.metrics.step import overlap_ratio
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, SLOWDOWNS, Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Span, Timeline
from sim.nouns.workload import Buffer, Workload
from tests.effort import tries
from tests.handmade import handmade, points, wired
from tests.machines import model
from tests.oracle.stepper import service
from tests.strategies import TINY, Case, cases, paired_cases
from tests.systems.cases import system_cases

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def instants(spans: list[Interval]) -> set[int]:
    """Every nanosecond that a span covers; spans that end before they begin cover none."""
    return {instant for start, end in spans for instant in range(start, end)}


@given(intervals)
def test_union_covers_the_same_instants(spans: list[Interval]) -> None:
    merged = union(spans)
    assert instants(merged) == instants(spans)
    assert length(merged) == len(instants(spans))
    for start, end in merged:
        assert start < end
    for (_, before), (after, _) in pairwise(merged):
        assert before < after


@given(intervals, intervals)
def test_intersection_counts_shared_instants(left: list[Interval], right: list[Interval]) -> None:
    assert intersection_length(left, right) == len(instants(left) & instants(right))
    assert intersection_length(left, right) == intersection_length(right, left)


@settings(max_examples=tries(300))
@given(cases(st.just(TINY), max_gradients=7))
def test_overlap_ratio_by_counting(case: Case) -> None:
    """CONTRACT: time in which lane and a collective are busy over time in which a collective is."""
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic")
    lane = instants([(span.start_ns, span.end_ns) for span in timeline.compute])
    wire = instants([(bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets])
    assert overlap_ratio(timeline) == (len(lane & wire) / len(wire) if wire else 0.0)


@settings(max_examples=tries(200))
@given(cases())
def test_report_says_what_the_timeline_says(case: Case) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "simpy")
    report = sim.summarize(timeline)
    assert report.exposed_comm_ns == timeline.sync_end_ns - case.workload.backward_ns >= 0
    assert report.step_ns == timeline.step_ns
    assert 0 <= report.overlap_ratio <= 1
    assert report.backward_end_ns <= report.sync_end_ns
    assert report.sync_end_ns == max(row.available_ns for row in report.buckets)
    assert report.bucket_indices == case.assignment.bucket_indices
    assert len(report.buckets) == len(timeline.buckets)
    for row, bucket in zip(report.buckets, timeline.buckets, strict=True):
        for name in ("index", "num_bytes", "ready_ns", "launch_ns", "start_ns", "end_ns", "available_ns"):
            assert getattr(row, name) == getattr(bucket, name)
        assert row.ready_ns <= row.launch_ns <= row.start_ns <= row.end_ns <= row.available_ns


# The critical path: a chain without a gap, made of spans that exist.


def check_exists(span: Span, timeline: Timeline) -> None:
    """What the path has of a bucket is what became of it."""
    if span.bucket is None or span.kind == "copy_in":
        return
    bucket = timeline.buckets[span.bucket]
    lives = {
        "all_reduce": (bucket.start_ns, bucket.end_ns),
        "straggler": (bucket.start_ns - bucket.late_ns, bucket.start_ns),
        "copy_out": (bucket.copy_out_start_ns, bucket.available_ns),
        "launch": (span.start_ns, bucket.launch_ns),
    }
    assert (span.start_ns, span.end_ns) == lives[span.kind]
    if span.kind == "launch" and not timeline.hardware.launch_blocks_compute:
        assert span.end_ns - span.start_ns == timeline.hardware.launch_cost_ns


def check_cause(before: Span, after: Span, timeline: Timeline) -> None:
    """The second span did wait for the first; that one ends when the other starts is not enough."""
    lane = timeline.compute
    on_lane = before.bucket is None or any(span.bucket == before.bucket for span in lane)
    if after.bucket is None or (after.kind == "launch" and any(s.bucket == after.bucket for s in lane)):
        assert before.kind in ("backward", "copy_in", "launch")
        assert on_lane
        return
    bucket = timeline.buckets[after.bucket]
    waited = bucket.start_ns - bucket.late_ns > bucket.launch_ns
    if after.kind == "launch":
        if before.kind == "launch" and not on_lane:
            assert before.bucket == after.bucket - 1
        else:
            assert bucket.ready_ns == after.start_ns
    elif after.kind == "all_reduce" and bucket.late_ns:
        assert (before.kind, before.bucket) == ("straggler", after.bucket)
    elif after.kind in ("straggler", "all_reduce"):
        if before.kind == "all_reduce":
            assert waited or timeline.hardware.comm_channels == 1
            assert before.bucket is not None
            assert before.bucket < after.bucket
        else:
            assert not waited
            assert before.bucket in (None, after.bucket) or on_lane
    elif before.kind in ("all_reduce", "copy_out"):  # its own collective, or the copy ahead; or empty copies
        assert before.bucket is not None
        first = before.bucket + (before.kind == "copy_out")
        between = timeline.buckets[first : after.bucket]
        assert first <= after.bucket
        assert all(skipped.copy_out_start_ns == skipped.available_ns for skipped in between)
    else:
        assert before.end_ns == timeline.backward_end_ns


def gapless(timeline: Timeline) -> tuple[Span, ...]:
    """The path, which goes without a gap from the start of backward to where gradients are synchronised."""
    path = critical_path(timeline)
    ends = [0, *(span.end_ns for span in path)]
    assert [span.start_ns for span in path] == ends[:-1]
    assert ends == sorted(set(ends))
    assert ends[-1] == timeline.sync_end_ns
    return path


@settings(max_examples=tries(500))
@given(cases() | paired_cases(), st.sampled_from(["simpy", "analytic"]))
def test_path_is_gapless_and_real(case: Case, engine: str) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, engine, slowest=case.slowest)
    for span in gapless(timeline):
        check_exists(span, timeline)
    if all(bucket.start_ns < bucket.end_ns for bucket in timeline.buckets):  # no links through empty spans
        for cause, link in zip(timeline.causes, timeline.spans, strict=True):
            if cause >= 0:
                check_cause(timeline.spans[cause], link, timeline)


@settings(max_examples=tries(300), deadline=None)
@given(system_cases())
def test_path_is_gapless_where_the_lane_waits(case: Case) -> None:
    """Other systems wait for a collective and launch the next one: the chain goes through both."""
    try:
        inputs = case.workload, case.hardware, case.assignment
        timeline = sim.simulate(*inputs, "analytic", slowest=case.slowest)
    except SimError:  # ranks that launch in different orders
        assume(False)
    gapless(timeline)
    assert sim.summarize(timeline).verdict


def test_nothing_at_all_is_an_empty_path() -> None:
    assignment = Assignment(bucket_indices=((0,),))
    assert critical_path(sim.simulate(handmade([0]), wired({0: 15}, world_size=1), assignment)) == ()


# All of a step: every micro-batch, every part, every bound by simulation.

MS, MB = 10**6, 10**6
GATHERED = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": 200_000}
SYSTEMS = {
    "ddp": {},
    "each micro-batch": {"accumulation_steps": 4, "no_sync": False},
    "the last micro-batch": {"accumulation_steps": 4},
    "views, unused searched": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    "hook": {"comm_hook": "bf16_compress", "accumulation_steps": 2, "no_sync": False},
    "zero1": {"policy": "zero1", "gradient_accumulation_steps": 3},
    "zero2": {"policy": "zero2", "gradient_accumulation_steps": 3, "reduce_bucket_size": 100_000},
    "zero2 beside": {"policy": "zero2", "overlap_comm": True, "reduce_bucket_size": 100_000},
    "zero2 on a CPU": {"policy": "zero2", "accelerator": "cpu", "cpu_offload": True},
    "megatron": {"policy": "megatron", "num_microbatches": 3},
    "megatron, gathers in step": {"policy": "megatron", "num_microbatches": 2, **GATHERED},
    "megatron, gathers in forward": {"policy": "megatron", "overlap_param_gather": True, **GATHERED},
    "fully_shard": {"policy": "fully_shard", "units": "layers.*"},
    "fully_shard, micro-batches": {"policy": "fully_shard", "units": "layers.*", "accumulation_steps": 3},
    "hybrid": {"policy": "fully_shard", "units": "layers.*", "replicas": 2},
}

CHAINED = ("hybrid",)  # of ranks that differ, it is refused


def wire(
    latency_ns: int, ns_a_mib: int, sizes: Sequence[int] = (0, 2**30), *, bend: int = 2**40, **machine: float
) -> Hardware:
    """Affine at ``sizes``, but level from ``bend`` bytes on."""
    curve = points({size: latency_ns + min(size, bend) * ns_a_mib // 2**20 for size in sizes})
    return Hardware(name="wire", world_size=4, **dict.fromkeys(CURVES, curve), **machine)  # type: ignore[arg-type]


def play(
    workload: Workload, hardware: Hardware, assignment: Assignment, slowest: Workload | None = None
) -> Report:
    return sim.summarize(sim.simulate(workload, hardware, assignment, "analytic", slowest=slowest))


def on_curves(hardware: Hardware, change: Callable[[int, int], int]) -> Hardware:
    """The machine with each time of its curves as ``change`` makes it of what no bytes take and it."""
    made = {}
    for name in CURVES:
        curve = hardware.curve(name)
        assert curve is not None
        empty = service(curve, 0, hardware.world_size)
        made[name] = tuple(replace(point, duration_ns=change(empty, point.duration_ns)) for point in curve)
    return replace(hardware, **made)


def with_modules(workload: Workload) -> Workload:
    """Two gradients a module."""
    named = (replace(one, name=f"layers.{one.index // 2}.p{one.index}") for one in workload.gradients)
    return replace(workload, gradients=tuple(named))


rates = st.none() | st.floats(1e8, 1e11)


@st.composite
def machines(draw: st.DrawFn) -> Hardware:
    """A link and what else a machine does; mostly one on which bounds are known."""
    calm = draw(st.integers(0, 3))
    slow = {} if calm else {name: draw(st.floats(1, 2)) for name in SLOWDOWNS}
    return wire(
        draw(st.integers(0, 2 * MS)),
        draw(st.integers(MS // 100, 20 * MS)),
        draw(st.sampled_from([(0, 2**30), (2**22,), (2**16, 2**18, 2**20), (2**20, 2**30)])),
        bend=draw(st.sampled_from([2**40, 2**18])),
        comm_channels=1 if calm else draw(st.integers(1, 2)),
        launch_cost_ns=draw(st.sampled_from([0, 10_000, MS])),
        launch_blocks_compute=draw(st.booleans()),
        copy_in_bytes_per_s=draw(rates),
        copy_out_bytes_per_s=draw(rates),
        accumulate_bytes_per_s=draw(rates),
        hook_cost_ns=draw(st.sampled_from([0, 10_000])),
        search_unused_ns=draw(st.sampled_from([0, 10_000])),
        queued_gather_factor=draw(st.sampled_from([1.0, 0.6])),
        **slow,
    )


# By code, the machine on which its cause is gone: the step is shorter there by at most ``verdict_ns``.
GONE: dict[str, Callable[[Hardware], Hardware]] = {
    "compute-bound": lambda it: on_curves(it, lambda _, __: 0),
    "outside-backward": lambda it: on_curves(it, lambda _, __: 0),
    "tail-exposed": lambda it: on_curves(it, lambda _, __: 0),
    "bandwidth-bound": lambda it: on_curves(it, lambda _, __: 0),
    "latency-bound": lambda it: on_curves(it, lambda empty, took: max(0, took - empty)),
    "launch-bound": lambda it: replace(it, launch_cost_ns=0),
    "copy-bound": lambda it: replace(it, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None),
    "accumulation-bound": lambda it: replace(it, accumulate_bytes_per_s=None),
}


@settings(max_examples=tries(300), deadline=None)
@given(
    st.sampled_from(sorted(SYSTEMS)),
    st.integers(2, 24),
    machines(),
    st.floats(0.01, 30),
    st.sampled_from([0, 1000, MB, 100 * MB]),
    st.sampled_from([None, 0.8, 1.05, 1.5]),
)
def test_parts_add_up_and_bounds_hold(
    system: str, count: int, hardware: Hardware, cap: float, buffered: int, pace: float | None
) -> None:
    workload = with_modules(model(count, "affine"))
    if buffered:
        workload = replace(workload, buffers=(Buffer(dtype="float32", num_bytes=buffered),))
    slowest = None if pace is None or system in CHAINED else _paced(workload, pace)
    options = dict(SYSTEMS[system])
    if options.get("policy", "ddp") == "ddp":
        options["bucket_cap_mb"] = cap
    assignment = sim.assign(workload, **options)
    report = play(workload, hardware, assignment, slowest)
    event(report.verdict_code)
    assert sum(report.parts_ns.values()) == report.step_ns
    assert min(report.parts_ns.values()) > 0
    assert sum(report.exposed_by_micro_batch_ns) == report.exposed_comm_ns
    assert report.outside_ns >= report.pre_forward_ns + report.post_sync_ns
    calm = all(getattr(hardware, name) == 1 for name in SLOWDOWNS)
    code, most = report.verdict_code, report.verdict_saves_ns
    if code == "no-communication":
        return

    def saved(machine: Hardware, other: Workload | None = slowest) -> int:
        return report.step_ns - play(workload, machine, assignment, other).step_ns

    queued = hardware.queued_gather_factor != 1  # what is queued is rounded once more
    rounded = 2 * 3 * count if queued and options.get("policy") == "fully_shard" else 0
    if code in ("compute-bound", "outside-backward"):
        assert saved(GONE[code](hardware)) <= report.verdict_ns
    elif code == "straggler-bound" and most is not None:
        assert saved(hardware, None) <= most
    if calm and hardware.comm_channels == 1 and slowest is None and code in GONE:
        assert saved(GONE[code](hardware)) <= report.verdict_ns + rounded


def _paced(workload: Workload, pace: float) -> Workload:
    """The workload on a rank that takes ``pace`` times as long."""
    gradients = tuple(replace(one, ready_ns=round((one.ready_ns or 0) * pace)) for one in workload.gradients)
    return replace(
        workload,
        gradients=gradients,
        forward_ns=round(workload.forward_ns * pace),
        backward_ns=round(workload.backward_ns * pace),
    )


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_each_micro_batch_is_told_in_its_place(system: str) -> None:
    """Names of parts come in the order of micro-batches, and each micro-batch has its own forward."""
    workload = with_modules(model(12, "affine"))
    workload = replace(workload, buffers=(Buffer(dtype="float32", num_bytes=MB),))
    hardware = wire(MS // 10, 4 * MS, copy_in_bytes_per_s=1e10, accumulate_bytes_per_s=1e10)
    timeline = sim.simulate(workload, hardware, sim.assign(workload, **SYSTEMS[system]))
    report = sim.summarize(timeline)
    assert sum(report.parts_ns.values()) == report.step_ns
    count = len(timeline.micro_batches)
    forwards = [took for name, took in report.parts_ns.items() if name.split(": ")[-1] == "forward"]
    assert sum(forwards) == count * workload.forward_ns
    places = [name.split(": ")[0] for name in report.parts_ns if name.startswith("micro-batch")]
    assert bool(places) == (count > 1)
    told = [place for place, _ in groupby(places)]
    assert len(told) == len(set(told))
    for batch in timeline.micro_batches:
        assert sum(took for _, took in batch.before_forward) == batch.pre_forward_ns


def test_buffers_of_every_micro_batch_are_told_and_bounded() -> None:
    """Two bytes of gradients, and buffers of 100 MB before each of four forwards: they are what it is."""
    workload = replace(model(2, "affine"), buffers=(Buffer(dtype="float32", num_bytes=100 * MB),))
    hardware = wire(0, 10_000)
    each = {"bucket_cap_mb": 1, "accumulation_steps": 4, "no_sync": False}
    report = play(workload, hardware, sim.assign(workload, **each))
    took = 4 * report.pre_forward_ns
    assert report.verdict_code == "outside-backward"
    assert report.outside_ns == took
    told = {name: ns for name, ns in report.parts_ns.items() if "buffers" in name}
    assert sum(told.values()) == took
    without = sim.assign(workload, **each, broadcast_buffers=False)
    assert report.step_ns - play(workload, hardware, without).step_ns == took
