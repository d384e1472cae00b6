"""Each cause on a timeline built to have it, with the figures of its sentence worked out by hand."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings

import sim
from sim.metrics.bottleneck import NEGLIGIBLE
from sim.metrics.critical_path import critical_path
from sim.nouns.assignment import Assignment
from sim.nouns.report import Report
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.metrics.built import MB, MS, hardware, workload
from tests.strategies import Case, cases, paired_cases

CODES = {
    "no-communication",
    "compute-bound",
    "outside-backward",
    "straggler-bound",
    "head-of-line",
    "launch-bound",
    "copy-bound",
    "interference-bound",
    "latency-bound",
    "tail-exposed",
    "bandwidth-bound",
}


def report(
    ready_ms: Sequence[float],
    sizes_mb: Sequence[float],
    buckets: Sequence[Sequence[int]],
    *,
    slowest: Workload | None = None,
    **machine: Any,
) -> Report:
    """What is said of these buckets, on a ``built`` machine."""
    assignment = Assignment(bucket_indices=tuple(map(tuple, buckets)))
    one = workload(ready_ms, sizes_mb)
    return sim.summarize(sim.simulate(one, hardware(**machine), assignment, slowest=slowest))


def test_no_communication() -> None:
    found = report([40, 90], [20, 20], [[0], [1]], world_size=1, copy_out_bytes_per_s=1e9)
    assert found.verdict_code == "no-communication"


def test_compute_bound() -> None:
    """The last is ready at 99.5 and takes 2: 1.5 ms beyond backward, of a step of 151.5."""
    found = report([40, 99.5], [20, 2], [[0], [1]])
    assert found.exposed_comm_ns == 1_500_000
    assert found.verdict_code == "compute-bound"
    assert found.verdict_ns == round(1.5 * MS)


@pytest.mark.parametrize(("size", "code"), [(2.0, "compute-bound"), (2.03, "tail-exposed")])
def test_what_is_negligible(size: float, code: str) -> None:
    """1 % of the step: 1.50 of 151.50 ms is below, 1.53 of 151.53 above."""
    found = report([40, 99.5], [20, size], [[0], [1]])
    assert (found.exposed_comm_ns <= NEGLIGIBLE * found.step_ns) == (code == "compute-bound")
    assert found.verdict_code == code


def test_head_of_line() -> None:
    """Bucket 1 is ready at 20, bucket 0 at 90; till then the link is idle: 70 ms. Then 10 + 30 ms."""
    found = report([20, 90], [30, 10], [[1], [0]])
    assert found.sync_end_ns == 130 * MS
    assert found.verdict_code == "head-of-line"
    assert found.verdict_ns == 70 * MS


@pytest.mark.parametrize(("ready", "code"), [(82, "head-of-line"), (83, "bandwidth-bound")])
def test_a_short_block_is_not_the_cause(ready: float, code: str) -> None:
    """A quarter of what is exposed is the boundary: 30 ms are, so 7.5 ms idle."""
    assert report([ready, 90], [30, 10], [[1], [0]]).verdict_code == code


def test_head_of_line_counts_the_link_once() -> None:
    """Two channels: buckets 0 and 1 run side by side from 10 to 40, while bucket 3 waits from 20 to 90 for
    bucket 2. The link is idle from 40 to 90: 50 ms, not 70 less twice 20."""
    found = report(
        [10, 10, 90, 20], [30, 30, 10, 60], [[0], [1], [2], [3]], comm_channels=2, channel_slowdown=1.0
    )
    assert found.buckets[0].end_ns == found.buckets[1].end_ns == 40 * MS
    assert found.verdict_code == "head-of-line"
    assert found.verdict_ns == 50 * MS


def test_a_bucket_that_waits_behind_a_busy_link_is_not_blocked() -> None:
    """Bucket 2 waits for bucket 1, but bucket 0 keeps the link busy all the while."""
    found = report([10, 60, 20], [60, 20, 60], [[0], [1], [2]])
    assert found.verdict_code == "bandwidth-bound"


def test_launch_bound() -> None:
    """Eight launches of 5 ms from 100 on, each hiding a collective of 1 ms: 100 + 40 + 1."""
    found = report([100] * 8, [1] * 8, [[k] for k in range(8)], launch_cost_ns=5 * MS)
    assert found.sync_end_ns == 141 * MS
    assert found.verdict_code == "launch-bound"
    assert found.verdict_ns == 40 * MS


@pytest.mark.parametrize(("cost_ms", "code"), [(10.1, "launch-bound"), (9.9, "tail-exposed")])
def test_launches_must_be_half(cost_ms: float, code: str) -> None:
    """A launch, and a collective of 10 ms."""
    assert report([100], [10], [[0]], launch_cost_ns=round(cost_ms * MS)).verdict_code == code


@pytest.mark.parametrize(("copy_ms", "code"), [(10.1, "copy-bound"), (9.9, "tail-exposed")])
@pytest.mark.parametrize("way", ["copy_in_bytes_per_s", "copy_out_bytes_per_s"])
def test_copies_must_be_half(way: str, copy_ms: float, code: str) -> None:
    """A collective of 10 ms, and a copy of 10 MB."""
    assert report([100], [10], [[0]], **{way: 10 * MB / (copy_ms / 1000)}).verdict_code == code


@pytest.mark.parametrize(("size", "code"), [(19.9, "interference-bound"), (20.1, "tail-exposed")])
def test_interference_must_be_half(size: float, code: str) -> None:
    """40 ms of collective at half speed cost 20 ms; the last bucket is all that follows."""
    assert report([10, 100], [40, size], [[0], [1]], compute_slowdown=2.0).verdict_code == code


def test_copy_bound_both_ways() -> None:
    """20 MB in at 1 GB/s: 20 ms on the lane, which ends at 120. The collective (5 ms) ends at 125, and
    20 MB go back in 10 ms: 135."""
    found = report([100], [20], [[0]], ms_per_mb=0.25, copy_in_bytes_per_s=1e9, copy_out_bytes_per_s=2e9)
    assert found.sync_end_ns == 135 * MS
    assert found.verdict_code == "copy-bound"
    assert found.verdict_ns == 30 * MS


def test_interference_bound() -> None:
    """The one collective is done long before backward, which it only stretches: 20 ms of it, at half
    speed, in 40 ms of collective."""
    found = report([10, 100], [40, 0], [[0], [1]], compute_slowdown=2.0)
    assert found.sync_end_ns == 120 * MS
    assert found.verdict_code == "interference-bound"
    assert found.verdict_ns == 20 * MS


def test_latency_bound() -> None:
    """Ten buckets of 0.1 MB from 90 on: 5 ms of latency and 0.1 of transfer each: 90 + 51; one in their
    place takes 6, but only 41 can be saved."""
    found = report([90] * 10, [0.1] * 10, [[k] for k in range(10)], latency_ms=5)
    assert found.sync_end_ns == 141 * MS
    assert found.verdict_code == "latency-bound"
    assert found.verdict_ns == 50 * MS


def test_tail_exposed() -> None:
    """The last bucket, 25 MB of one gradient, is ready at 98 of 100 and takes 26 ms."""
    found = report([40, 98], [20, 25], [[0], [1]], latency_ms=1)
    assert found.sync_end_ns == 124 * MS
    assert found.verdict_code == "tail-exposed"
    assert found.verdict_ns == 26 * MS


def test_what_its_last_gradient_would_take_is_what_a_hook_sends() -> None:
    """Of 25 MB half is sent: 1 ms of latency and 12.5; of the last 5 MB, 1 and 2.5."""
    one = workload([98, 60], [5, 20])
    sent = sim.assign(one, bucket_cap_mb=100, comm_hook="fp16_compress")
    found = sim.summarize(sim.simulate(one, hardware(latency_ms=1), sent))
    assert found.verdict_code == "tail-exposed"
    assert "its all-reduce takes 13.50 ms with" in found.verdict


def test_what_more_bandwidth_saves_is_told_where_it_is_a_bound() -> None:
    """On two channels the path alone does not tell: there the knob says it."""
    ready, sizes = [40, 60, 80, 98], [50, 50, 50, 50]
    alone = report(ready, sizes, [[0], [1], [2], [3]])
    assert "twice the bandwidth would save at most" in alone.verdict
    shared = report(ready, sizes, [[0], [1], [2], [3]], comm_channels=2, channel_slowdown=2.0)
    assert (shared.verdict_code, "twice the bandwidth" in shared.verdict) == ("bandwidth-bound", False)


def test_the_map_of_used_parameters_is_a_tail_too() -> None:
    """A3.9: it is launched with the last bucket, at 90, and takes 20 ms; buckets take 1 at most."""
    one = workload([40, 90], [0.5, 0.25])
    machine = hardware(ms_per_mb=0)
    least, most = machine.all_reduce
    machine = replace(
        machine, all_reduce=(replace(most, num_bytes=8, duration_ns=20 * MS), replace(least, num_bytes=9))
    )
    found = sim.summarize(sim.simulate(one, machine, sim.assign(one, find_unused_parameters=True)))
    assert found.verdict == (
        "tail exposed: the all-reduce of used parameters (8 B) is launched at 90.00 ms, and its all-reduce "
        "takes 20.00 ms with only 10.00 ms of backward left to hide it"
    )


def test_straggler_bound() -> None:
    """Ready at 98 here and at 127.4 there: 29.4 ms, and 2 of collective. The first, from 52 to 72, waits for
    12 ms that backward hides."""
    late = workload([40, 98], [20, 2], pace=1.3)
    found = report([40, 98], [20, 2], [[0], [1]], slowest=late)
    assert [bucket.late_ns for bucket in found.buckets] == [12 * MS, round(29.4 * MS)]
    assert found.verdict_code == "straggler-bound"
    assert found.verdict_ns == round(29.4 * MS)


@pytest.mark.parametrize(("size", "code"), [(12.2, "straggler-bound"), (12.3, "tail-exposed")])
def test_the_wait_for_the_slowest_rank_must_be_half(size: float, code: str) -> None:
    """10.2 ms of waiting, from 98 (here and 2 % of it later there: 108.2, by a forward 8.24 ms longer)."""
    late = workload([98], [size], pace=1.02)
    late = replace(late, forward_ns=late.forward_ns + round(8.24 * MS))
    found = report([98], [size], [[0]], slowest=late)
    assert found.buckets[0].late_ns == round(10.2 * MS)
    assert found.verdict_code == code


def test_without_a_collective_that_takes_time_a_straggler_is_still_found() -> None:
    found = report([40, 98], [0, 0], [[0], [1]], slowest=workload([40, 98], [0, 0], pace=1.3))
    assert found.verdict_code == "straggler-bound"
    assert found.exposed_comm_ns == round(27.4 * MS)


def test_bandwidth_bound() -> None:
    """From 20 on the link carries 4 x 40 MB in 4 x 42 ms: 160 MB at 0.95 GB/s, till 188. Of 160 ms that are
    not latency a link twice as fast takes 80 away."""
    found = report([20, 40, 60, 80], [40] * 4, [[k] for k in range(4)], latency_ms=2)
    assert found.sync_end_ns == 188 * MS
    assert found.verdict_code == "bandwidth-bound"
    assert found.verdict_ns == 168 * MS


@pytest.mark.parametrize(("latency_ms", "code"), [(9.9, "bandwidth-bound"), (10.1, "latency-bound")])
def test_latency_or_bandwidth(latency_ms: float, code: str) -> None:
    """The boundary is half of the time on the wire: 10 MB take 10 ms, so 10 ms of latency."""
    assert report([90] * 3, [10] * 3, [[0], [1], [2]], latency_ms=latency_ms).verdict_code == code


def test_the_first_cause_that_matches_wins() -> None:
    """Head-of-line blocking on a link with much latency: the order of the buckets is what to mend first."""
    found = report([20, 90], [1, 1], [[1], [0]], latency_ms=10)
    assert found.verdict_code == "head-of-line"


def test_no_overlap_after_backward() -> None:
    """Four of 4 ms, and one of 16."""
    one = workload([80, 60, 40, 20], [4] * 4)
    zero = sim.assign(one, "zero1", reduce_bucket_size=MB)
    assert sim.summarize(sim.simulate(one, hardware(), zero)).verdict == (
        "no overlap: all 4 collectives are launched after backward, which hides none of the 16.00 ms that "
        "are exposed"
    )
    textbook = sim.assign(one, "after-backward")
    assert sim.summarize(sim.simulate(one, hardware(), textbook)).verdict == (
        "no overlap: the 1 collective is launched after backward, which hides none of the 16.00 ms that are "
        "exposed"
    )


def test_no_overlap_where_every_flush_holds_the_lane() -> None:
    """A5.6: on a CPU the host waits in the hook: three flushes of 4 ms in backward, and one after it."""
    one = workload([80, 60, 40, 20], [4] * 4)
    zero = sim.assign(one, "zero2", reduce_bucket_size=MB, accelerator="cpu")
    found = sim.summarize(sim.simulate(one, hardware(), zero))
    assert found.overlap_ratio == 0
    assert found.backward_end_ns == 112 * MS
    assert (found.verdict_code, found.verdict_ns) == ("no-overlap", 16 * MS)


def test_flushes_that_hold_the_lane_for_those_before_them() -> None:
    """A5.6: with a reduction stream of 30 ms a flush, and one every 10 ms from 20 on: at 30, 40, 50 and 60 of
    its own time backward waits 20 ms each, and 30 ms follow it."""
    one = workload([60, 50, 40, 30, 20, 10], [4] * 6)
    zero = sim.assign(one, "zero2", reduce_bucket_size=MB, overlap_comm=True)
    found = sim.summarize(sim.simulate(one, hardware(ms_per_mb=7.5), zero))
    assert found.backward_end_ns == 180 * MS
    assert (found.verdict_code, found.verdict_ns) == ("lane-held", 80 * MS)


def test_hook_bound() -> None:
    """A3.17: 20 MB are copied into the bucket (10 ms), compressed (12.5), sent as 10 MB (10) and decompressed
    (7.5)."""
    one = workload([100], [20])
    machine = hardware(copy_in_bytes_per_s=2e9, copy_out_bytes_per_s=2e9)
    views = sim.assign(one, comm_hook="bf16_compress", gradient_as_bucket_view=True)
    found = sim.summarize(sim.simulate(one, machine, views))
    assert (found.verdict_code, found.verdict_ns) == ("hook-bound", 20 * MS)


@settings(max_examples=tries(500), deadline=None)
@given(cases() | paired_cases())
def test_every_sentence_adds_up(case: Case) -> None:
    """On any timeline: a known code, a sentence whose figures are those of the report and of the path."""
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic", slowest=case.slowest)
    found = sim.summarize(timeline)
    path = critical_path(timeline)
    kinds = {span.kind for span in path}
    assert found.verdict_code in CODES
    sentence, code = found.verdict, found.verdict_code
    silent = all(bucket.service_ns == 0 == bucket.late_ns for bucket in timeline.buckets)
    silent = silent and found.pre_forward_ns == 0
    assert (code == "no-communication") == silent
    assert not re.search(r"\b0 (bucket|launch|collective)", sentence)
    assert "-" not in re.sub(r"[a-z]-[a-z]", "", sentence)  # no negatives
    taken = {kind: sum(s.end_ns - s.start_ns for s in path if s.kind == kind) for kind in kinds}
    if code == "compute-bound":
        assert found.exposed_comm_ns + found.outside_ns == found.verdict_ns <= NEGLIGIBLE * found.step_ns
    elif code == "outside-backward":
        assert found.exposed_comm_ns + found.outside_ns == found.verdict_ns > NEGLIGIBLE * found.step_ns
    elif code == "straggler-bound":
        assert found.verdict_ns == taken["straggler"] >= found.exposed_comm_ns / 2
        assert f"in {sum(span.kind == 'straggler' for span in path)} collective" in sentence
    elif code == "launch-bound":
        assert found.verdict_ns == taken["launch"]
    elif code == "copy-bound":
        assert found.verdict_ns == taken.get("copy_in", 0) + taken.get("copy_out", 0) > 0
        assert ("gradient_as_bucket_view" in sentence) == ("copy_out" in kinds)
    elif code == "interference-bound":
        assert 0 < found.verdict_ns <= timeline.backward_end_ns - timeline.workload.backward_ns
        assert case.hardware.compute_slowdown > 1
    elif code in ("latency-bound", "tail-exposed", "bandwidth-bound"):
        reduces = [span for span in path if span.kind == "all_reduce"]
        assert reduces
        assert 0 < found.verdict_ns <= taken["all_reduce"] + found.outside_ns
        if code == "tail-exposed":
            assert len(reduces) == 1
            assert f"bucket {reduces[0].bucket} (" in sentence
        else:
            assert f"{len(reduces)} bucket{'s' if len(reduces) > 1 else ''}" in sentence
        is_gapless = all(one.end_ns == two.start_ns for one, two in pairwise(reduces))
        assert code != "bandwidth-bound" or ("back to back" in sentence) == is_gapless
    elif code == "head-of-line":
        waiting, blocking = map(int, re.findall(r"bucket (\d+)", sentence))
        assert blocking < waiting
        late, early = timeline.buckets[blocking], timeline.buckets[waiting]
        assert late.ready_ns > early.ready_ns
        assert 0 < found.verdict_ns <= late.ready_ns - early.ready_ns
        name = re.match("head-of-line blocked by p(\\d+):", sentence)
        assert name is not None
        members = case.assignment.bucket_indices[blocking]
        assert int(name[1]) == max(members, key=case.workload.order().index)
    if "exposed" in sentence and code not in ("tail-exposed", "head-of-line"):
        assert f"{found.exposed_comm_ns / 1e6:.2f} ms" in sentence


def test_what_gathering_parameters_adds_is_told() -> None:
    one = workload([80, 60, 40, 20], [4] * 4)
    machine = replace(hardware(), all_gather=hardware().all_reduce)
    timeline = sim.simulate(one, machine, sim.assign(one, "zero2"))
    added_ns = timeline.post_sync_ns
    assert added_ns > 10 * MS
    added = f"; gathering parameters in the optimizer's step adds {added_ns / MS:.2f} ms"
    assert sim.summarize(timeline).verdict.endswith(added)
