"""Emulated links: in time as the simulator says, under real DDP, on the host and on a GPU."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.formats.record_files import load_record
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator import calibrate
from sim.validator.calibrate import with_local_costs
from sim.validator.curves import cost, curve, rate, together
from sim.validator.jobs import Carrier
from sim.validator.ranks.link import HostLink
from tests import ranks
from tests.commands import bucketsim
from tests.dist.starting import forks_ranks
from tests.handmade import wired

pytestmark = pytest.mark.dist

MS = 1_000_000
LINK = wired({0: MS, 10 << 20: 70 * MS}, name="eight ranks", world_size=8)
ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=(pytest.mark.gpu, ON_A_GPU))])


def test_a_host_link_is_never_early_and_keeps_the_order() -> None:
    link = HostLink(wired({0: 5 * MS}).all_reduce, channels=1)
    tensors = [torch.full((4,), float(number)) for number in range(4)]
    start = time.monotonic_ns()
    sent = map(link, tensors)
    futures = [one.then(lambda done: (done.value(), time.monotonic_ns() - start)) for one in sent]
    for number, future in enumerate(futures):
        (arrived,), ended_ns = future.wait()
        assert arrived.data_ptr() == tensors[number].data_ptr()
        assert ended_ns >= 5 * MS * (number + 1)


@pytest.mark.slow
@DEVICES
def test_validate_over_an_emulated_link_gives_an_agreed_record(
    small_workload: Workload, tmp_path: Path, device: str
) -> None:
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(LINK))
    words = ["validate", workload, "--hardware", hardware, "-o", record, "--device", device]
    for wrong, code in ((["--box", "2", "--rate", "1gbit"], 1), (["--prepare"], 2)):
        assert bucketsim(*words, "--link", "emulated", *wrong).code == code
    said = bucketsim(*words, "--link", "emulated", "--caps", "2", "--rounds", "3")
    assert said.code == 0, said.err
    measured = load_record(record)
    assert (measured.hardware.world_size, measured.hardware.all_reduce) == (8, LINK.all_reduce)
    assert measured.hardware.copy_in_bytes_per_s is not None
    assert {(one.backend, one.world_size) for one in measured.measurements} == {("emulated", 1)}
    for candidate, iteration in ((one, each) for one in measured.candidates for each in one.traced):
        free = 0
        for bucket, row in zip(candidate.observed or (), iteration.buckets, strict=True):
            assert row.ready_ns is not None
            assert row.end_ns is not None
            # a GPU's kernels last as long as they are told within 10 us
            service = service_ns(LINK.all_reduce, len(bucket) << 20) - (10_000 if device == "cuda" else 0)
            assert row.end_ns >= max(row.ready_ns, free) + service
            free = row.ready_ns + service
    agreement = sim.agreement(measured)
    assert agreement.median_step_error < 0.10
    assert agreement.order_right == agreement.order_pairs


@pytest.mark.slow
@DEVICES
def test_a_model_of_ones_own_meets_a_wire_that_is_not_there(tmp_path: Path, device: str) -> None:
    """Bound on a GPU: what is exposed of the communication, within 3 % at the median."""
    model = ["sim.examples.train:model_and_batch", *("--arg", "width=1024", "--arg", "layers=12")]
    model += ["--arg", "batch=4096" if device == "cuda" else "batch=32", "--device", device]
    workload, hardware = tmp_path / "w.json", tmp_path / "h.json"
    recorded = bucketsim("record", *model, "-o", workload)
    assert recorded.code == 0, recorded.err
    hardware.write_text(sim.to_text(LINK))
    words = ["--hardware", hardware, "--link", "emulated", "--rounds", "3"]
    replay = ["validate", workload, "--model", *model, *words]
    said = bucketsim(*replay, "--caps", "2,25", "-o", tmp_path / "r")
    assert said.code == 0, said.err
    record = load_record(tmp_path / "r")
    how = {(one.mode, one.backend, one.complete) for one in record.measurements}
    assert how == {("model", "emulated", True)}
    if device == "cuda":
        assert sim.agreement(record).median_exposed_error < 0.03
    said = bucketsim("ab", *model, "--workload", workload, *words, "-o", tmp_path / "ab", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["world_size"] == 1


def calibrated(folder: Path, *words: str) -> Hardware:
    said = bucketsim("calibrate", *words, "--rounds", "1", "--budget", "0", "-o", folder / "h.json")
    assert said.code == 0, said.err
    return sim.load_hardware(folder / "h.json")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_link_of_gpus_is_measured_between_gpus(tmp_path: Path) -> None:
    """Bound: copies within the GPU at 20 GB/s or more."""
    found = calibrated(tmp_path, "--device", "cuda", "--largest", "4MiB")
    assert (found.provenance["device"], found.provenance["backend"]) == ("cuda", "nccl")
    assert found.all_reduce[-1].duration_ns > found.all_reduce[0].duration_ns
    assert (found.copy_in_bytes_per_s or 0) > 2e10
    assert not found.launch_blocks_compute


@DEVICES
def test_two_ranks_share_a_device_over_gloo(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU every probe a few times, briefly; as a user has it: tests/dist/test_ranks.py."""
    if device == "cpu":
        forks_ranks(monkeypatch)
        real = calibrate.calibrate
        few = lambda job, *on, **to: real(replace(job, copy_repeats=2), *on, **to)  # noqa: E731
        monkeypatch.setattr(calibrate, "calibrate", few)
        less = {"SHARE_TURNS": 2, "SHARE_NS": 10 * MS, "SWEEP_BYTES": MIB, "MODEL_BYTES": 12 * [65536, 4096]}
        less["SPACING_NS"] = {"cpu": MS}
        for name, value in less.items():
            monkeypatch.setitem(ranks.SETTINGS, f"sim.validator.ranks.probes._{name}", value)
    found = calibrated(tmp_path, "--device", device, "--backend", "gloo", "--largest", "1MiB")
    assert (found.provenance["device"], found.provenance["backend"]) == (device, "gloo")
    assert found.world_size == 2


@pytest.mark.parametrize(("slows", "channels"), [({}, 2), ({"channel_slowdown": 2.0}, 1)])
def test_slow_downs_of_the_link_s_machine_are_not_this_machine_s(slows: Any, channels: int) -> None:
    """What shares a wire is emulated as one channel, and predicted so."""
    far = replace(LINK, compute_slowdown=1.3, comm_slowdown=1.2, copy_in_slowdown=2.0, launch_cost_ns=9)
    fields, spread = together(
        curve("all_reduce", {}),
        rate("copy_in", 1000, [10, 20, 30]),
        rate("copy_out", 1000, [-5, -1, 0]),
        cost("launch_cost_ns", [7, 8, 9]),
    )
    link = replace(far, comm_channels=2, spread={"all_reduce": {"0": {}}}, **slows)
    here = with_local_costs(link, fields, spread)
    assert here.spread.keys() == {"all_reduce", "copy_in_ns", "copy_out_ns", "launch_cost_ns"}
    assert here.spread["all_reduce"] == {"0": {}}
    assert (here.compute_slowdown, here.comm_slowdown, here.copy_in_slowdown) == (1.0, 1.0, 1.0)
    assert (here.comm_channels, here.channel_slowdown) == (channels, 1.0)
    assert (here.copy_in_bytes_per_s, here.copy_out_bytes_per_s, here.launch_cost_ns) == (5e10, None, 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "tpu"}, "device: 'tpu' is not legal"),
        ({"emulated": replace(LINK, world_size=1)}, "world_size 1"),
    ],
)
def test_carriers_that_cannot_be(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Carrier(**given)
