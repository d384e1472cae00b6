"""A calibration that met a burst, a recording that cannot be true: named in an answer that is not sure."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

import sim
from sim.costs.doubts import doubts_about
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.calibrate import CalibrationStory
from sim.validator.hosts.launch import Place
from tests.truth.test_own_step import WORKLOAD

MS = 10**6
SIZES = [4096 << power for power in range(15)]


def calibrated(burst_rounds: Sequence[int]) -> Hardware:
    """What ranks would tell of a wire of 60 MB/s, the 16 MiB of some rounds beside something else."""
    told = CalibrationStory()
    for number in range(9):
        for size in SIZES:
            clean = 400_000 + size * 17
            slow = size == 16 * MIB and number in burst_rounds
            samples = [round(clean * (1.5 + 0.2 * number if slow else 1.0))] * 4
            told.take({"event": "all_reduce", "num_bytes": size, "samples_ns": samples})
        for name in ("all_gather", "reduce", "broadcast"):
            told.take({"event": name, "num_bytes": 4096, "samples_ns": [MS] * 4})
        told.take({"event": "pair", "num_bytes": MIB, "alone_ns": [MS], "both_ns": [2 * MS]})
        copies = {f"{name}_ns": [4 * MS] for name in ("copy_in", "hooked", "hooked_beside", "copy_out")}
        told.take({"event": "copies", "copy_bytes": 40 * MIB, **copies})
    told.take({"event": "started", "environment": {}})
    told.take({"event": "launches", "samples_ns": [50_000]})
    out = {f"{name}_ns": [4 * MS] for name in ("copy", "comm", "copy_beside", "comm_beside")}
    told.take({"event": "copies out", **out})
    told.take({"event": "additions", "num_bytes": MIB, "samples_ns": [MS]})
    told.take({"event": "gathers", "alone_ns": [MS], "queued_ns": [2 * MS]})
    told.take({"event": "products", "num_bytes": MIB, "samples_ns": [MS]})
    told.take({"event": "search", "search_ns": [1], "mark_ns": [1]})
    told.take({"event": "host", "shares": {str(16 * MIB): 0.2}, "slowdowns": {str(16 * MIB): 1.1}})
    return told.hardware(Place(), "paced")


def test_a_burst_in_one_round_is_left_out_and_one_in_most_is_named() -> None:
    quiet, once, often = calibrated(()), calibrated((2,)), calibrated((0, 2, 3, 5))
    assert quiet.all_reduce == once.all_reduce
    assert quiet.provenance["doubtful"] == once.provenance["doubtful"] == []
    (doubt,) = often.provenance["doubtful"]
    assert doubt["num_bytes"] == 16 * MIB
    assert doubt["why"].startswith("scatters: ")
    assert "44% of its messages were held up" in doubt["why"]


CPU = replace(WORKLOAD, gradients=tuple(replace(one, device="cpu") for one in WORKLOAD.gradients))
CUDA = replace(WORKLOAD, gradients=tuple(replace(one, device="cuda:3") for one in WORKLOAD.gradients))
LAST = replace(CPU, gradients=(*CPU.gradients[:-1], replace(CPU.gradients[-1], device="cuda:0")))
LATER = replace(WORKLOAD, gradients=(*WORKLOAD.gradients[:1], *CUDA.gradients[1:]))
RECORDED = replace(CUDA, provenance={"backend": "cpu:gloo,cuda:nccl", "world_size": 2})
ESTIMATED = replace(WORKLOAD, provenance={"roofline": {"device": "a100-40gb-sxm"}})


@pytest.mark.parametrize(
    ("workload", "told", "is_other"),
    [
        (CPU, {"backend": "gloo"}, False),
        (CUDA, {"backend": "gloo"}, True),
        (ESTIMATED, {"backend": "gloo", "device": "cpu"}, True),
        (CUDA, {"backend": "gloo", "device": "cuda"}, False),  # gloo takes their tensors too
        (CUDA, {"backend": "nccl"}, False),
        (CPU, {"backend": "nccl"}, True),
        (CPU, {"fabric": {}}, True),  # computed
        (CUDA, {"source": "bucketsim import nccl-tests"}, False),
        (WORKLOAD, {"backend": "gloo"}, False),  # nothing says where it trains
        (LAST, {"backend": "gloo"}, True),  # one of them is elsewhere
        (LATER, {"backend": "gloo"}, True),  # the first does not say
        (RECORDED, {"backend": "nccl"}, False),
        (RECORDED, {"backend": "rccl", "device": "cuda"}, False),  # torch calls it nccl
        (RECORDED, {"backend": "mpi", "device": "cuda"}, True),
        (RECORDED, {"fabric": {}}, False),  # computed by NCCL's model
        (replace(RECORDED, provenance={"world_size": 3}), {"backend": "nccl"}, True),
    ],
)
def test_a_link_that_is_not_the_one_that_trains_is_named_wherever_it_is_asked(
    workload: Workload, told: dict[str, object], is_other: bool
) -> None:
    hardware = replace(calibrated(()), provenance=told)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload)))
    answer = sim.tune(workload, hardware)
    for notes in (report.notes, answer.notes, doubts_about(workload, hardware)):
        assert any("doubtful link" in line for line in notes) == is_other
    assert answer.gain.significant is not is_other


def test_a_calibration_says_between_whose_tensors_it_measured() -> None:
    assert calibrated(()).provenance["device"] == "cpu"
