"""Perfetto export: every bucket, gradient and exposed ns is there, to the nanosecond."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.nouns.measurement import MeasuredIteration
from sim.nouns.timeline import Timeline
from sim.truth.perfetto import COMMUNICATION, COMPUTE, COPY_BACK, EXPOSED, MEASURED, PREDICTED, perfetto_json
from sim.truth.scoring import CandidateAgreement, compare
from tests.handmade import handmade, measurement, seen_bucket, wired

MIB = 1 << 20
MS = 1_000_000


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    ready, times = [(4 - index) * 10 * MS + 1 for index in range(4)], {"forward_ns": 20 * MS}
    named = {"name": 'four "equal" <layers>', "names": "layers.{}.weight"}
    workload = handmade(ready, 4 * MIB, **named, **times, backward_ns=41 * MS)
    costs = {"copy_in_bytes_per_s": 8e9, "copy_out_bytes_per_s": 8e9, "launch_cost_ns": 50_000}
    machine = wired({0: MS, 4 * MIB: 9 * MS}, name="a machine", **costs)
    return sim.simulate(workload, machine, sim.assign(workload, bucket_cap_mb=4))


@pytest.fixture(scope="module")
def measured(timeline: Timeline) -> CandidateAgreement:
    """As gloo tells it, without starts: launches overlap the collective before. Ends are 5 ms late."""
    buckets = tuple(
        seen_bucket(row.index, row.ready_ns, row.launch_ns, row.end_ns + 5 * MS) for row in timeline.buckets
    )
    seen = MeasuredIteration(
        step_ns=timeline.step_ns, backward_end_ns=timeline.backward_end_ns, sync_end_ns=timeline.sync_end_ns
    )
    traced = (replace(seen, buckets=buckets),)
    return compare(
        measurement("cap 4", timeline.assignment, [seen], traced=traced, plain_backward_ns=41 * MS),
        sim.summarize(timeline),
    )


def spans(text: str, pid: int) -> dict[int, list[dict[str, Any]]]:
    """By lane."""
    found = defaultdict(list)
    for event in json.loads(text)["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == pid:
            found[event["tid"]].append(event)
    return found


def test_what_is_predicted_is_there_with_exact_times(timeline: Timeline) -> None:
    text = perfetto_json(timeline, provenance={"tool": "it"})
    lanes = spans(text, PREDICTED)
    for bucket, span in zip(timeline.buckets, lanes[COMMUNICATION], strict=True):
        assert span["name"] == f"bucket {bucket.index}"
        assert (span["ts"], span["dur"]) == (bucket.start_ns / 1000, (bucket.end_ns - bucket.start_ns) / 1000)
        assert span["args"]["bytes"] == bucket.num_bytes
        assert span["args"]["gradients"] == list(timeline.assignment.bucket_indices[bucket.index])
    names = [span["args"].get("parameter") for span in lanes[COMPUTE]]
    assert {f"layers.{index}.weight" for index in range(4)} <= set(names)
    assert len(lanes[COMPUTE]) == len(timeline.compute)
    (exposed,) = lanes[EXPOSED]
    assert exposed["dur"] == (timeline.sync_end_ns - timeline.backward_end_ns) / 1000
    told = [one for one in json.loads(text)["traceEvents"] if one["name"] == "thread_name"]
    assert {one["tid"] for one in told} == {COMPUTE, EXPOSED, COPY_BACK, COMMUNICATION}
    back = [(bucket.copy_out_start_ns / 1000, bucket.available_ns / 1000) for bucket in timeline.buckets]
    ends = [(one["ts"], one["ts"] + one["dur"]) for one in lanes[COPY_BACK]]
    assert np.array(ends) == pytest.approx(np.array(back))
    assert json.loads(text)["otherData"]["tool"] == "it"


def test_the_measurement_is_a_process_of_its_own(timeline: Timeline, measured: CandidateAgreement) -> None:
    text = perfetto_json(timeline, measured)
    names = {
        one["pid"]: one["args"]["name"]
        for one in json.loads(text)["traceEvents"]
        if one["name"] == "process_name"
    }
    assert names == {PREDICTED: "predicted: ddp", MEASURED: "measured: cap 4"}
    on_wire = [span for tid, lane in spans(text, MEASURED).items() if tid >= COMMUNICATION for span in lane]
    assert sorted(span["ts"] for span in on_wire) == [bucket.launch_ns / 1000 for bucket in timeline.buckets]
    for pid in (PREDICTED, MEASURED):
        for lane in spans(text, pid).values():
            for before, after in itertools.pairwise(lane):
                assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def test_arrows_lead_from_ready_to_start_and_all_bytes_land(
    timeline: Timeline, measured: CandidateAgreement
) -> None:
    events = json.loads(perfetto_json(timeline, measured))["traceEvents"]
    for pid in (PREDICTED, MEASURED):
        own = [one for one in events if one["pid"] == pid]
        left, landed = ({one["id"]: one["ts"] for one in own if one["ph"] == phase} for phase in "sf")
        assert left.keys() == landed.keys()
        assert sorted(left.values()) == [bucket.ready_ns / 1000 for bucket in timeline.buckets]
        assert all(left[name] <= landed[name] for name in left)
        flying = [one["args"]["bytes"] for one in own if one["ph"] == "C"]
        assert min(flying) == flying[-1] == 0
        assert max(flying) >= max(bucket.num_bytes for bucket in timeline.buckets)
