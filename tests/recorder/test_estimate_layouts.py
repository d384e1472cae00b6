"""Bucket sizes that others observed, from an estimated ready order and nothing else (A1, A2)."""

from typing import Any

import sim
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from tests.public_data import DATA, needs_data
from tests.published.figures import figures


def workload(factory: str, **options: Any) -> Workload:
    return estimate(f"sim.recorder.published_models:{factory}", name=factory, backward_ns=10**8, **options)


def test_gpt_at_4_and_16_mib() -> None:
    log = figures("layouts")["gpt"]
    gpt = workload("gpt_82m", autocast="bfloat16")
    assert len(gpt.gradients) == log["param_tensors"]
    assert gpt.total_bytes == 4 * log["params"]
    assert list(log["bucket_bytes"]) == ["4", "16"]
    for cap_mb, seen in log["bucket_bytes"].items():
        assert list(sim.assign(gpt, bucket_cap_mb=int(cap_mb)).bucket_bytes) == seen


def test_resnet50_by_default() -> None:
    buckets = sim.assign(workload("resnet50", arguments={"batch": 2}))
    assert list(buckets.bucket_bytes) == figures("layouts")["resnet50"]["bucket_bytes"]["25"]


def test_resnet18_at_25_and_35_with_a_small_first_bucket() -> None:
    """An older torch kept the first bucket at 1 MiB beside an explicit cap."""
    cases = figures("layouts")["resnet18"]["bucket_bytes"]
    assert list(cases) == ["25", "35"]
    resnet = workload("resnet18", arguments={"batch": 2})
    for cap_mb, seen in cases.items():
        buckets = sim.assign(resnet, bucket_cap_mb=int(cap_mb), first_bucket_mb=1)
        assert list(buckets.bucket_bytes) == seen


@needs_data
def test_googlenets_tensors_are_caffes() -> None:
    """Caffe's log pads each bias to a multiple of 64 elements."""
    log = (DATA / "layer_timing" / "bcaffe_mgwfbp" / "tmp2comm.log").read_text().splitlines()
    rows = [line.rpartition("[")[2].split(",") for line in log if "distributed.cpp" in line]
    sizes = {int(row[0]): int(row[1]) for row in rows}
    ours = [gradient.num_bytes // 4 for gradient in workload("googlenet", arguments={"batch": 2}).gradients]
    assert [sizes[index] for index in range(len(ours))] == [
        size if index % 2 == 0 else -(-size // 64) * 64 for index, size in enumerate(ours)
    ]
