"""Emulated links: in time as the simulator says, under real DDP, on the host and on a GPU."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from typer.testing import CliRunner

import sim
from sim.cli.commands import app
from sim.costs.service_time import all_reduce_ns
from sim.errors import InputError, MachineError
from sim.formats.record_files import load_record
from sim.nouns.workload import Workload
from sim.validator.calibrate import with_local_costs
from sim.validator.jobs import Carrier
from sim.validator.ranks.cuda import (
    check_apart,
    check_sums,
    choose_gpu,
)
from sim.validator.ranks.link import HostLink
from tests.handmade import wired

pytestmark = pytest.mark.dist

MS = 1_000_000
LINK = wired({0: MS, 10 << 20: 70 * MS}, name="eight ranks", world_size=8)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_host_link_is_never_early_and_keeps_the_order() -> None:
    link = HostLink(wired({0: 5 * MS}).all_reduce, channels=1, channel_slowdown=1.0)
    tensors = [torch.full((4,), float(number)) for number in range(4)]
    start = time.monotonic_ns()
    ended: list[int] = []
    futures = [link.launch(tensor) for tensor in tensors]
    for future in futures:
        future.then(lambda _: ended.append(time.monotonic_ns() - start))
    for number, future in enumerate(futures):
        (arrived,) = future.wait()
        assert arrived.data_ptr() == tensors[number].data_ptr()
    while len(ended) < 4:
        time.sleep(0.001)
    assert all(at >= 5 * MS * (place + 1) for place, at in enumerate(sorted(ended)))


ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@ON_A_GPU
def test_two_ranks_share_a_gpu_over_gloo(small_workload: Workload, tmp_path: Path) -> None:
    """Paced on kernels, reduced by way of the host: every assignment is replayed to its end."""
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(replace(LINK, world_size=2)))
    words = ["validate", str(workload), "--hardware", str(hardware), "-o", str(record), "--device", "cuda"]
    done = CliRunner().invoke(app, [*words, "--backend", "gloo", "--caps", "2", "--rounds", "3"])
    assert done.exit_code == 0, done.output
    assert all(one.complete for one in load_record(record).measurements)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=(pytest.mark.gpu, ON_A_GPU))])
def test_validate_over_an_emulated_link_gives_an_agreed_record(
    small_workload: Workload, tmp_path: Path, device: str
) -> None:
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(LINK))
    runner = CliRunner()
    arguments = [
        "validate",
        str(workload),
        "--hardware",
        str(hardware),
        "-o",
        str(record),
        "--device",
        device,
    ]
    for wrong in (["--ranks", "2"], ["--box", "2", "--rate", "1gbit"], ["--prepare"]):
        assert runner.invoke(app, [*arguments, "--link", "emulated", *wrong]).exit_code == 2
    assert isinstance(
        runner.invoke(app, [*arguments, "--link", "emulated", "--backend", "nccl"]).exception, InputError
    )
    done = runner.invoke(app, [*arguments, "--link", "emulated", "--caps", "2", "--rounds", "3"])
    assert done.exit_code == 0, done.output
    measured = load_record(record)
    assert measured.hardware.world_size == 8
    assert measured.hardware.all_reduce == LINK.all_reduce
    assert measured.hardware.copy_in_bytes_per_s is not None
    assert {one.backend for one in measured.measurements} == {"emulated"}
    assert {one.world_size for one in measured.measurements} == {1}
    for candidate in measured.candidates:
        assert candidate.observed is not None
        for iteration in candidate.traced:
            free = 0
            for bucket, row in zip(candidate.observed, iteration.buckets, strict=True):
                assert row.launch_ns is not None
                assert row.end_ns is not None
                assert row.ready_ns is not None
                service = all_reduce_ns(LINK, len(bucket) << 20)
                # a GPU's kernels last as long as they are told within 10 us
                service -= 10_000 if device == "cuda" else 0
                assert row.end_ns >= max(row.ready_ns, free) + service
                free = row.ready_ns + service
    agreement = sim.agreement(measured)
    assert agreement.median_step_error < 0.10
    assert agreement.order_right == agreement.order_pairs


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=(pytest.mark.gpu, ON_A_GPU))])
def test_a_model_of_ones_own_meets_a_wire_that_is_not_there(tmp_path: Path, device: str) -> None:
    """Bound on a GPU: what is exposed of the communication, within 3 % at the median."""
    model = ["sim.examples.train:model_and_batch", *("--arg", "width=1024", "--arg", "layers=12")]
    model += ["--arg", "batch=4096" if device == "cuda" else "batch=32", "--device", device]
    runner, workload, hardware = CliRunner(), tmp_path / "w.json", tmp_path / "h.json"
    hardware.write_text(sim.to_text(LINK))
    assert runner.invoke(app, ["record", *model, "-o", str(workload)]).exit_code == 0
    words = ["--hardware", str(hardware), "--link", "emulated", "--rounds", "3"]
    replay = ["validate", str(workload), *words, "--model", *model]
    done = runner.invoke(app, [*replay, "--caps", "2,25", "-o", str(tmp_path / "r")])
    assert done.exit_code == 0, done.output
    record = load_record(tmp_path / "r")
    assert {(one.mode, one.backend, one.complete) for one in record.measurements} == {
        ("model", "emulated", True)
    }
    if device == "cuda":
        assert sim.agreement(record).median_exposed_error < 0.03
    test = ["ab", *model, "--workload", str(workload), *words]
    tested = runner.invoke(app, [*test, "-o", str(tmp_path / "ab"), "--json"])
    assert tested.exit_code == 0, tested.output
    assert json.loads(tested.stdout)["world_size"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("gloo", marks=ON_A_GPU),
        pytest.param(
            "nccl", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
        ),
    ],
)
def test_the_link_of_gpus_is_measured_between_gpus(backend: str, tmp_path: Path) -> None:
    """Over gloo two ranks share one GPU. Bound: copies within the GPU at 20 GB/s or more."""
    words = ["calibrate", "--device", "cuda", "--backend", backend, "--largest", "4MiB", "--rounds", "1"]
    done = CliRunner().invoke(app, [*words, "--budget", "0", "-o", str(tmp_path / "h.json")])
    assert done.exit_code == 0, done.output
    found = sim.load_hardware(tmp_path / "h.json")
    assert (found.provenance["device"], found.provenance["backend"]) == ("cuda", backend)
    assert found.all_reduce[-1].duration_ns > found.all_reduce[0].duration_ns
    assert (found.copy_in_bytes_per_s or 0) > 2e10
    assert not found.launch_blocks_compute


def test_slow_downs_of_the_link_s_machine_are_not_this_machine_s() -> None:
    far = replace(LINK, compute_slowdown=1.3, comm_slowdown=1.2, copy_in_slowdown=2.0, launch_cost_ns=9)
    found = {
        "copies": {"copy_bytes": 1000, "copy_in_ns": [10, 20, 30], "copy_out_ns": [-5, -1, 0]},
        "launches": {"samples_ns": [7, 8, 9], "blocks_compute": True},
    }
    here = with_local_costs(far, found)
    assert (here.compute_slowdown, here.comm_slowdown, here.copy_in_slowdown) == (1.0, 1.0, 1.0)
    assert here.copy_in_bytes_per_s == 5e10
    assert here.copy_out_bytes_per_s is None
    assert (here.launch_cost_ns, here.launch_blocks_compute) == (8, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "tpu"}, "give cpu or cuda"),
        ({"backend": "mpi"}, "give gloo or nccl"),
        ({"backend": "nccl"}, "not legal on the CPU"),
        ({"device": "cuda", "backend": "nccl", "emulated": LINK}, "emulated link"),
        ({"emulated": replace(LINK, world_size=1)}, "world_size 1"),
    ],
)
def test_carriers_that_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Carrier(**given)


def test_nccl_is_refused_where_ranks_would_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_apart(["GPU-a", "GPU-b", "GPU-c"])
    with pytest.raises(InputError, match=r"ranks: 0 and 2 over NCCL on one GPU, GPU-a,.*Duplicate GPU"):
        check_apart(["GPU-a", "GPU-b", "GPU-a"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(MachineError, match="sees 0 GPUs"):
        choose_gpu(0)


def test_wrong_sums_are_refused_with_their_figures(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[int] = []
    check_sums(0, 1, torch.device("cpu"), lambda: delays.append(1))
    assert len(delays) == 9
    real = dist.all_reduce

    def stale(tensor: torch.Tensor, async_op: bool) -> Any:
        if tensor.numel() == 1000:
            tensor[:10] = -1.0  # what was there before the fill that the stream had not reached
        return real(tensor, async_op=async_op)

    monkeypatch.setattr(dist, "all_reduce", stale)
    with pytest.raises(MachineError, match=r"10 of 1000 sums are wrong \(-1 instead of 1\) on rank 0"):
        check_sums(0, 1, torch.device("cpu"))
