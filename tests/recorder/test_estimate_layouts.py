"""Bucket sizes that others observed, from an estimated ready order and nothing else (A1, A2)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate

DATA = os.environ.get("BUCKETSIM_DATA", "")
FOLDER = Path(DATA) / "ddp_logging"
pytestmark = pytest.mark.skipif(not DATA, reason="BUCKETSIM_DATA does not name the public measurements")


def workload(factory: str, **options: Any) -> Workload:
    return estimate(f"sim.recorder.published_models:{factory}", name=factory, backward_ns=10**8, **options)


def test_gpt_at_4_and_16_mib() -> None:
    log = json.loads((FOLDER / "kopernik_a40x4_hostA_ddp_logging.json").read_text())
    gpt = workload("gpt_82m", autocast="bfloat16")
    assert len(gpt.gradients) == log["model"]["param_tensors"]
    assert gpt.total_bytes == 4 * log["model"]["params"]
    assert [record["cap_mb"] for record in log["records"]] == [4, 16]
    for record in log["records"]:
        buckets = sim.assign(gpt, bucket_cap_mb=record["cap_mb"])
        assert list(buckets.bucket_bytes) == record["rebuilt_bucket_sizes"]


def test_resnet50_by_default() -> None:
    assert list(sim.assign(workload("resnet50", arguments={"batch": 2})).bucket_bytes) == [
        4 * elements for elements in (2049000, 7875584, 6563840, 6637568, 2431040)
    ]


def test_resnet18_at_25_and_35_with_a_small_first_bucket() -> None:
    """An older torch kept the first bucket at 1 MiB beside an explicit cap."""
    cases = [
        case
        for case in json.loads((FOLDER / "bucket_layouts.json").read_text())["cases"]
        if "resnet18" in case["model"]
    ]
    assert len(cases) == 2
    resnet = workload("resnet18", arguments={"batch": 2})
    for case in cases:
        buckets = sim.assign(resnet, bucket_cap_mb=case["cap_mb"], first_bucket_mb=1)
        assert list(buckets.bucket_bytes) == case["allreduce_bytes"]


def test_googlenets_tensors_are_caffes() -> None:
    """Caffe's log pads each bias to a multiple of 64 elements."""
    log = (Path(DATA) / "layer_timing" / "bcaffe_mgwfbp" / "tmp2comm.log").read_text().splitlines()
    rows = [line.rpartition("[")[2].split(",") for line in log if "distributed.cpp" in line]
    sizes = {int(row[0]): int(row[1]) for row in rows}
    ours = [gradient.num_bytes // 4 for gradient in workload("googlenet", arguments={"batch": 2}).gradients]
    assert [sizes[index] for index in range(len(ours))] == [
        size if index % 2 == 0 else -(-size // 64) * 64 for index, size in enumerate(ours)
    ]
