"""What the simulator says of last-hook bucketing: when buckets are sent, and which are sent too early."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import NotModelledError
from sim.nouns.collective import EarlyLaunch, LateGradient
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.strategies import SCALES, hardwares, workloads
from tests.systems.textbook_cases import simulate, three


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


def test_it_is_flattened_and_sent_when_the_hooked_parameter_is_ready() -> None:
    """A6.2: copies of 30 ns at 10 and 50; the bias, at 32 of backward's own work, moves to 92."""
    timeline = simulate("last-hook", three(20, 32, 10))
    assert [bucket.launch_ns for bucket in timeline.buckets] == [40, 80]
    assert timeline.backward_end_ns == 95
    assert [bucket.available_ns for bucket in timeline.buckets] == [110, 135]


def test_counting_arrivals_waits_for_the_late_one() -> None:
    timeline = simulate("last-hook-safe", three(20, 32, 10))
    assert [bucket.launch_ns for bucket in timeline.buckets] == [40, 92]
    assert timeline.early_launches == ()
    assert timeline.notes == ()


def test_the_report_carries_the_flags() -> None:
    report = sim.summarize(simulate("last-hook", three(20, 32, 10)))
    (early,) = json.loads(sim.to_text(report))["early_launches"]
    assert early == {
        "bucket": 1,
        "hooked": 0,
        "hooked_name": "p0",
        "late": [{"index": 1, "name": "p1", "late_ns": 12}],
        "is_sent": True,
    }


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent() -> None:
    """A6.4: it costs nothing, and is said to be wrong."""
    timeline = simulate("last-hook", without(three(30, 20, 10), 0))
    assert [played.collective.bucket for played in timeline.collectives] == [0]
    assert timeline.early_launches == (EarlyLaunch(bucket=1, hooked=0, hooked_name="p0", is_sent=False),)
    assert "1 of 2 buckets are never sent" in timeline.notes[0]
    assert (timeline.buckets[1].num_bytes, timeline.buckets[1].available_ns) == (0, timeline.sync_end_ns)
    assert timeline.sync_end_ns == 95  # backward ends at 65, bucket 0 at 80, its copies take 15


def test_another_unused_parameter_stops_it() -> None:
    """A6.4: flattening meets a gradient that is None."""
    with pytest.raises(NotModelledError, match=r"gradient 1 \(p1\) is never ready; last-hook has no average"):
        simulate("last-hook", without(three(30, 20, 10), 1))


def test_published_code_cannot_mix_dtypes() -> None:
    """A7.5: a bucket takes what comes; with a dtype key, each has its own."""
    workload = three(30, 20, 10)
    gradients = workload.gradients
    workload = replace(workload, gradients=(*gradients[:2], replace(gradients[2], dtype="float64")))
    with pytest.raises(NotModelledError, match="2 dtypes or devices into bucket 0"):
        sim.assign(workload, "last-hook", 25.0)
    assert sim.assign(workload, "last-hook-safe", 25.0).bucket_indices == ((2,), (1, 0))


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
