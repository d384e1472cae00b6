"""Bucket sizes that others observed, from an estimated ready order and nothing else (A1, A2)."""

import sim
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from tests.contracts.clusters import a40
from tests.convolutional import Pair, resnet, resnet50
from tests.published.figures import figures


def workload(pair: Pair) -> Workload:
    return estimate(pair, backward_ns=10**8)


def test_gpt_at_4_and_16_mib() -> None:
    log = figures("layouts")["gpt"]
    gpt = a40().workload
    assert len(gpt.gradients) == log["param_tensors"]
    assert gpt.total_bytes == 4 * log["params"]
    assert list(log["bucket_bytes"]) == ["4", "16"]
    for cap_mb, seen in log["bucket_bytes"].items():
        assert list(sim.assign(gpt, bucket_cap_mb=int(cap_mb)).bucket_bytes) == seen


def test_resnet50_by_default() -> None:
    buckets = sim.assign(workload(resnet50()))
    assert list(buckets.bucket_bytes) == figures("layouts")["resnet50"]["bucket_bytes"]["25"]


def test_resnet18_at_25_and_35_with_a_small_first_bucket() -> None:
    """An older torch kept the first bucket at 1 MiB beside an explicit cap."""
    cases = figures("layouts")["resnet18"]["bucket_bytes"]
    assert list(cases) == ["25", "35"]
    resnet18 = workload(resnet([2, 2, 2, 2], bottleneck=False))
    for cap_mb, seen in cases.items():
        buckets = sim.assign(resnet18, bucket_cap_mb=int(cap_mb), first_bucket_mb=1)
        assert list(buckets.bucket_bytes) == seen
