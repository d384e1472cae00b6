"""When the textbook systems do what, to the nanosecond: cases by hand, and what holds of any case."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.nouns.collective import EarlyLaunch, LateGradient
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.strategies import SCALES, hardwares, workloads
from tests.systems.textbook_cases import simulate, three


@pytest.mark.parametrize(
    ("policy", "launches", "available", "backward_end", "sync_end"),
    [
        ("per-parameter-sync", [35, 80, 130], [80, 130, 185], 35, 185),
        ("per-parameter-async", [30, 20, 10], [135, 100, 65], 35, 135),
        ("after-backward", [65, 150], [120, 205], 35, 205),
        ("arrival-counted", [40, 90], [110, 145], 95, 145),
        ("flat-views", [10, 30], [65, 105], 35, 105),
        ("last-hook", [40, 90], [110, 145], 95, 145),
        ("last-hook-safe", [40, 90], [110, 145], 95, 145),
    ],
)
def test_three_gradients_from_the_last_to_the_first(
    policy: str, launches: list[int], available: list[int], backward_end: int, sync_end: int
) -> None:
    """A7.1 to A7.4, A6.1: one channel, 40 ns a message, copies that take as long as their bytes."""
    timeline = simulate(policy, three(30, 20, 10))
    assert [bucket.launch_ns for bucket in timeline.buckets] == launches
    assert [bucket.available_ns for bucket in timeline.buckets] == available
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (backward_end, sync_end)


def test_a_bucket_does_not_wait_for_those_before_it() -> None:
    """A7.3: bucket 1 is complete first, is sent first and waited for first; DDP would hold it back (A3.5)."""
    timeline = simulate("flat-views", three(10, 20, 30))
    assert [bucket.launch_ns for bucket in timeline.buckets] == [30, 20]
    assert [bucket.start_ns for bucket in timeline.buckets] == [60, 20]
    assert [bucket.available_ns for bucket in timeline.buckets] == [115, 75]


def test_each_gradient_is_copied_when_it_comes_or_all_when_the_bucket_is_sent() -> None:
    """A7.3, A6.1: the same copies, at other places."""
    spans = {}
    for policy in ("arrival-counted", "last-hook-safe"):
        copies = [span for span in simulate(policy, three(30, 20, 10)).compute if span.kind == "copy_in"]
        spans[policy] = [(span.gradient, span.bucket, span.start_ns, span.end_ns) for span in copies]
    assert spans["arrival-counted"] == [(2, None, 10, 40), (1, None, 50, 70), (0, None, 80, 90)]
    assert spans["last-hook-safe"] == [(None, 0, 10, 40), (None, 1, 60, 90)]


@settings(max_examples=tries(100), deadline=None)
@given(st.data())
def test_where_copying_in_is_free_the_counted_systems_are_one(data: st.DataObject) -> None:
    """They differ in when and whether they copy into a bucket, and in nothing else."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False))
    hardware = replace(data.draw(hardwares(scale)), copy_in_bytes_per_s=None)
    cap = data.draw(st.integers(0, 3 * scale.num_bytes)) / 2**20
    counted = [
        simulate(policy, workload, hardware, bucket_cap_mb=cap)
        for policy in ("arrival-counted", "flat-views", "last-hook-safe")
    ]
    assert counted[0].buckets == counted[1].buckets == counted[2].buckets


# Last-hook bucketing (A6): when buckets are sent, and which are sent too early.


def named(workload: Workload, *names: str) -> Workload:
    pairs = zip(workload.gradients, names, strict=True)
    return replace(workload, gradients=tuple(replace(gradient, name=name) for gradient, name in pairs))


def without(workload: Workload, index: int) -> Workload:
    """The same, but ``index`` is never ready."""
    gradients = list(workload.gradients)
    gradients[index] = replace(gradients[index], ready_ns=None)
    return replace(workload, gradients=tuple(gradients))


def test_a_bucket_that_closes_on_the_weight_of_a_norm_is_invalid() -> None:
    """T12: LayerNorm's bias is ready after its weight (A6.5), and declared after it."""
    workload = named(three(20, 32, 10), "norm.weight", "norm.bias", "head.weight")
    timeline = simulate("last-hook", workload)
    late = LateGradient(index=1, name="norm.bias", late_ns=12)
    early = EarlyLaunch(bucket=1, hooked=0, hooked_name="norm.weight", late=(late,))
    assert timeline.early_launches == (early,)
    (note,) = timeline.notes
    assert "1 of 2 buckets" in note
    assert "bucket 1 when norm.weight is ready, without norm.bias" in note


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent() -> None:
    """A6.4: it costs nothing, and is said to be wrong."""
    timeline = simulate("last-hook", without(three(30, 20, 10), 0))
    assert [played.collective.bucket for played in timeline.collectives] == [0]
    assert timeline.early_launches == (EarlyLaunch(bucket=1, hooked=0, hooked_name="p0", is_sent=False),)
    assert "1 of 2 buckets are never sent" in timeline.notes[0]
    assert (timeline.buckets[1].num_bytes, timeline.buckets[1].available_ns) == (0, timeline.sync_end_ns)
    assert timeline.sync_end_ns == 95  # backward ends at 65, bucket 0 at 80, its copies take 15


@settings(max_examples=tries(200), deadline=None)
@given(st.data())
def test_flags_are_the_buckets_whose_last_parameter_is_not_the_last(data: st.DataObject) -> None:
    """A6.2, on any workload; where there is none, the pattern is the one that counts."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False, dtypes=("float32",), devices=(None,)))
    hardware = data.draw(hardwares(scale))
    cap = data.draw(st.integers(0, 3 * scale.num_bytes)) / 2**20
    timeline = simulate("last-hook", workload, hardware, bucket_cap_mb=cap)
    order = workload.order()
    expected = {}
    for number, bucket in enumerate(timeline.assignment.bucket_indices):
        after = order[order.index(bucket[-1]) + 1 :]
        hooked = workload.gradients[bucket[-1]].ready_ns
        late = [(i, (workload.gradients[i].ready_ns or 0) - (hooked or 0)) for i in bucket if i in after]
        if late:
            expected[number] = late
    flagged = {
        early.bucket: [(late.index, late.late_ns) for late in early.late] for early in timeline.early_launches
    }
    assert flagged == expected
    if not flagged:
        safe = simulate("last-hook-safe", workload, hardware, bucket_cap_mb=cap)
        assert (safe.buckets, safe.compute) == (timeline.buckets, timeline.compute)
