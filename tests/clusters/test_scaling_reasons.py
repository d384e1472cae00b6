"""Why the best cap changes: one case for each cause, and every claim of a sentence played again."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.nccl.computed_hardware import hardware_of
from sim.clusters.nccl.from_cluster import fabric_of
from sim.clusters.scaling.cap_steps import caps_of, tune_caps
from sim.clusters.scaling.carried import Carried
from sim.clusters.scaling.change import side_of
from sim.clusters.scaling.reasons import find_reason
from sim.nouns.hardware import CurvePoint, Hardware
from tests.clusters.scaling_cases import (
    MIB,
    MS,
    affine,
    bucket_bytes,
    hosts_of,
    lose,
    reason_of,
    side,
    step_ns,
    workload_of,
)
from tests.effort import tries

FOUR = ([10, 20, 30, 40], [1, 1, 1, 1])
CASES = [
    (([10, 20], [1, 1]), (1, 1), (20, 0), "cost-of-a-bucket", "bucket more costs 20.00 ms on the wire, 1.00"),
    (FOUR, (8, 1), (8, 15), "no-longer-hidden", "which no longer fits behind the 40.00 ms of backward"),
    (FOUR, (8, 15), (8, 1), "hidden", "which now fits behind the 40.00 ms of backward"),
    (
        FOUR,
        (8, 0),
        (8, 1),
        "tail",
        "only the last bucket is not hidden, and takes 12.00 ms instead of 9.00 ms",
    ),
    (([8, 30, 31, 34], [1, 2, 1, 4]), (0, 0.5), (0, 1), "bandwidth", "8.00 ms on the wire (4.00 ms at 2"),
    (
        ([5, 23, 25], [2, 2, 2]),
        (8, 0.5),
        (0, 5),
        "either",
        "each does it alone; with the first it would lose 2.00 ms, with the second lose 4.00 ms",
    ),
    (
        ([9, 12, 21], [2, 2, 2]),
        (8, 1),
        (0, 15),
        "together",
        "with the first it would lose nothing, with the second save 5.00 ms",
    ),
]


@pytest.mark.parametrize(
    ("model", "before", "after", "code", "words"), CASES, ids=[case[3] for case in CASES]
)
def test_each_cause_where_it_is_the_only_one(
    model: tuple[list[float], list[float]],
    before: tuple[float, float],
    after: tuple[float, float],
    code: str,
    words: str,
) -> None:
    reason = reason_of(workload_of(*model), affine(*before), affine(*after, ranks=4))
    assert reason is not None
    assert reason.code == code
    assert words in reason.sentence
    assert reason.sentence.startswith("at 4 GPUs bucket_cap_mb=")


def test_where_one_gpu_was_before_communication_begins() -> None:
    """A single GPU has all caps alike, of which one bucket is the simplest."""
    workload = workload_of([10, 20], [1, 1])
    reason = reason_of(workload, affine(0, 0, ranks=1), affine(1, 1, ranks=2))
    assert reason is not None
    assert reason.code == "communication-begins"
    assert "1 GPU sends nothing" in reason.sentence


def test_what_was_alike_before_is_said() -> None:
    reason = reason_of(workload_of([10, 20, 30, 40], [1, 1, 1, 1]), affine(8, 0), affine(8, 1, ranks=4))
    assert reason is not None
    assert reason.sentence.endswith("at 2 GPUs every cap was within 0.1 % of the best")


def test_where_nccl_chooses_otherwise_it_is_said() -> None:
    """The same hosts, once without and once with the protocol LL, which small buckets then take."""
    with_ll = replace(fabric_of(hosts_of(8)), protocols=("LL", "Simple"))
    fabrics = replace(with_ll, protocols=("Simple",)), with_ll
    machines = [
        Carried(fabric=fabric, hardware=hardware_of(fabric, "8 hosts"), source="computed")
        for fabric in fabrics
    ]
    codes = set()
    for kib, gap_us in product((16, 32, 64, 128), (50, 100, 150, 200)):
        workload = workload_of([1, 1 + gap_us / 1000], [kib / 1024] * 2, forward_ms=0)
        caps = caps_of(workload, None)
        before, after = [side_of(tune_caps(caps, each.hardware), each) for each in machines]
        reason = find_reason(workload, before, after)
        if reason is None:
            continue
        codes.add(reason.code)
        if reason.code == "method":
            assert " LL where it took " in reason.sentence
            # The old choices on these hosts are those of the machine without LL, whose curve is played again.
            again = replace(after.carried.hardware, all_reduce=before.curve)
            lost = step_ns(workload, again, before.best_mb) - step_ns(workload, again, after.best_mb)
            assert lost <= 0.001 * after.best_ns
            assert reason.sentence.split("; ")[2] == f"with the old choices it would {lose(lost)}"
    assert "method" in codes


def with_rise(hardware: Hardware, rise_ns: int) -> Hardware:
    points = tuple(
        CurvePoint(num_bytes=point.num_bytes, duration_ns=max(0, point.duration_ns + rise_ns))
        for point in hardware.all_reduce
    )
    return replace(hardware, all_reduce=points)


some_ms = st.sampled_from([0, 0.25, 1, 4, 8])


@settings(max_examples=tries(150))
@given(st.data())
def test_every_cause_is_one(data: st.DataObject) -> None:
    """On affine curves, whose parts are known, each part is put back and both caps are played again."""
    count = data.draw(st.integers(2, 6))
    ready = sorted(data.draw(st.lists(st.integers(5, 60), min_size=count, max_size=count, unique=True)))
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=count, max_size=count))
    workload = workload_of(list(ready), list(sizes))
    latencies, rates = data.draw(st.tuples(some_ms, some_ms)), data.draw(st.tuples(some_ms, some_ms))
    before, after = affine(latencies[0], rates[0]), affine(latencies[1], rates[1], ranks=4)
    caps = caps_of(workload, None)
    old_mb, new_mb = side(caps, before).best_mb, side(caps, after).best_mb
    best = step_ns(workload, after, new_mb)

    def matters(hardware: Hardware) -> bool:
        return step_ns(workload, hardware, old_mb) - step_ns(workload, hardware, new_mb) > 0.001 * best

    reason = reason_of(workload, before, after)
    assert (reason is not None) == matters(after)
    if reason is None:
        return
    rise = round((latencies[1] - latencies[0]) * MS)
    by_latency, by_bytes = matters(with_rise(before, rise)), matters(with_rise(after, -rise))
    expected = {
        "cost-of-a-bucket": (True, False),
        "no-longer-hidden": (False, True),
        "hidden": (False, True),
        "tail": (False, True),
        "bandwidth": (False, True),
        "either": (True, True),
        "together": (False, False),
    }
    assert expected[reason.code] == (by_latency, by_bytes)
    if latencies[0] == latencies[1]:
        assert reason.code in ("no-longer-hidden", "hidden", "tail", "bandwidth")
    if rates[0] == rates[1]:
        assert reason.code == "cost-of-a-bucket"
    wire = [
        sum(round((latency + rate * bucket / MIB) * MS) for bucket in bucket_bytes(workload, old_mb))
        for latency, rate in zip(latencies, rates, strict=True)
    ]
    if reason.code == "no-longer-hidden":
        assert wire[0] <= workload.backward_ns < wire[1]
    if reason.code == "hidden":
        assert wire[1] <= workload.backward_ns < wire[0]
