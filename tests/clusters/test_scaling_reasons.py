"""Why the best cap changes: one case for each cause, and every claim of a sentence played again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.scaling.cap_steps import caps_of
from sim.nouns.hardware import CurvePoint, Hardware
from tests.clusters.scaling_cases import (
    MS,
    affine,
    reason_of,
    side,
    step_ns,
    workload_of,
)
from tests.effort import tries

FOUR = ([10, 20, 30, 40], [1, 1, 1, 1])
CASES = [
    (([10, 20], [1, 1]), (1, 1), (20, 0), "cost-of-a-bucket", "bucket more costs 20.00 ms on the wire, 1.00"),
    (FOUR, (8, 1), (8, 15), "bandwidth", "were bytes as fast as at 2 GPUs, it would "),
    (([8, 30, 31, 34], [1, 2, 1, 4]), (0, 0.5), (0, 1), "bandwidth", "8.00 ms on the wire (4.00 ms at 2"),
    # A dearer bucket and slower bytes: each is the cause alone; both only together.
    (([5, 23, 25], [2, 2, 2]), (8, 0.5), (0, 5), "all-reduces", "with all-reduces as at 2 GPUs it would "),
    (([9, 12, 21], [2, 2, 2]), (8, 1), (0, 15), "all-reduces", "with all-reduces as at 2 GPUs it would "),
]


@pytest.mark.parametrize(("model", "before", "after", "code", "words"), CASES)
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


def test_what_was_alike_before_is_said() -> None:
    reason = reason_of(workload_of([10, 20, 30, 40], [1, 1, 1, 1]), affine(8, 0), affine(8, 1, ranks=4))
    assert reason is not None
    assert reason.sentence.endswith("at 2 GPUs every cap was within 0.1 % of the best")


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
    expected = {(True, False): "cost-of-a-bucket", (False, True): "bandwidth"}
    assert reason.code == expected.get((by_latency, by_bytes), "all-reduces")
    if latencies[0] == latencies[1]:
        assert reason.code == "bandwidth"
    if rates[0] == rates[1]:
        assert reason.code == "cost-of-a-bucket"
