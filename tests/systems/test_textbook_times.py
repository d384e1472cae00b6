"""When the textbook systems do what, to the nanosecond: cases by hand, and what holds of any case."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import AssignmentError, InputError, NotModelledError
from tests.effort import tries
from tests.strategies import SCALES, hardwares, workloads
from tests.systems.textbook_cases import CAP_MB, HARDWARE, POLICIES, simulate, three


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


@settings(max_examples=tries(150), deadline=None)
@given(st.data())
def test_no_collective_is_lost(data: st.DataObject) -> None:
    """On any machine; every gradient travels once."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False, dtypes=("float32",), devices=(None,)))
    policy = data.draw(st.sampled_from(POLICIES))
    cap = data.draw(st.integers(0, 3 * scale.num_bytes)) / 2**20
    timeline = simulate(policy, workload, data.draw(hardwares(scale)), bucket_cap_mb=cap)
    sent = [played.collective for played in timeline.collectives]
    assert sum(c.num_bytes for c in sent) == sum(gradient.on_wire for gradient in workload.gradients)
    assert sorted(c.bucket for c in sent if c.bucket is not None) == list(range(len(timeline.buckets)))
    for bucket in timeline.buckets:
        assert bucket.ready_ns <= bucket.launch_ns <= bucket.start_ns <= bucket.end_ns <= bucket.available_ns
    assert timeline.sync_end_ns == max(bucket.available_ns for bucket in timeline.buckets)


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


@settings(max_examples=tries(100), deadline=None)
@given(st.data())
def test_buckets_close_at_the_cap_for_each_dtype_and_device(data: st.DataObject) -> None:
    """A6.1, A7.5: from the last to the first; full without the last one they are below the cap."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False))
    cap = data.draw(st.integers(0, 3 * scale.num_bytes))
    buckets = sim.assign(workload, "arrival-counted", bucket_cap_mb=cap / 2**20).bucket_indices
    for key in {gradient.key for gradient in workload.gradients}:
        mine = [bucket for bucket in buckets if workload.gradients[bucket[0]].key == key]
        sizes = [[workload.gradients[index].num_bytes for index in bucket] for bucket in mine]
        assert all(sum(bucket[:-1]) < cap or len(bucket) == 1 for bucket in sizes)
        assert all(sum(bucket) >= cap for bucket in sizes[:-1])
        walked = [g.index for g in reversed(workload.gradients) if g.key == key]
        assert [index for bucket in mine for index in bucket] == walked


def test_what_a_system_would_stop_at_is_refused() -> None:
    """A3.21, A8.5, A1.2: a gradient that never comes, comes twice or is sparse."""
    unused = three(30, 20, 10)
    unused = replace(unused, gradients=(replace(unused.gradients[0], ready_ns=None), *unused.gradients[1:]))
    for policy in POLICIES:
        for change in ({"uses": 2}, {"sparse": True}):
            gradients = tuple(replace(one, **change) for one in three(30, 20, 10).gradients)
            workload = replace(unused, gradients=gradients)
            with pytest.raises(NotModelledError, match=policy):
                simulate(policy, workload)
        if policy != "last-hook":
            with pytest.raises(NotModelledError, match=r"gradient 0 \(p0\) is never ready"):
                simulate(policy, unused)


def test_what_a_system_does_not_take_is_refused_by_name() -> None:
    workload = three(30, 20, 10)
    with pytest.raises(InputError, match="give bucket_cap_mb alone"):
        sim.assign(workload, "arrival-counted", 1.0, first_bucket_mb=0.5)
    with pytest.raises(InputError, match="no switch gradient_as_bucket_view=True"):
        sim.assign(workload, "last-hook", gradient_as_bucket_view=True)
    with pytest.raises(InputError, match="takes no bucket caps"):
        sim.assign(workload, "per-parameter-sync", 1.0)
    with pytest.raises(InputError, match="-1"):
        sim.assign(workload, "flat-views", -1)


@pytest.mark.parametrize("policy", ["per-parameter-sync", "after-backward"])
def test_the_verdict_names_that_nothing_overlaps(policy: str) -> None:
    report = sim.summarize(simulate(policy, three(30, 20, 10)))
    assert report.verdict_code == "no-overlap"
    assert report.verdict.startswith("no overlap: ")


def test_no_bucket_is_said_to_wait_for_another_where_none_does() -> None:
    """A7.3: bucket 1 was ready before bucket 0 and did not wait for it; DDP's would (A3.5)."""
    workload = three(10, 20, 300, backward_ns=300)
    assert sim.summarize(simulate("flat-views", workload)).verdict_code != "head-of-line"
    held_back = replace(sim.assign(workload, "flat-views", CAP_MB), policy="explicit", settings={})
    assert sim.summarize(sim.simulate(workload, HARDWARE, held_back)).verdict_code == "head-of-line"


@pytest.mark.parametrize("policy", ["arrival-counted", "per-parameter-async", "flat-views", "last-hook-safe"])
def test_buckets_of_another_workload_are_refused(policy: str) -> None:
    workload = three(10, 20, 30)
    wrong = replace(sim.assign(workload, policy), bucket_indices=((0, 1), (999,)), bucket_bytes=None)
    with pytest.raises(AssignmentError, match="999"):
        sim.simulate(workload, HARDWARE, wrong)
