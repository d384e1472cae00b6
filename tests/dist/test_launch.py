"""Ranks started by torchrun and srun: who they are, and what is made of what they wrote."""

import json
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.costs.doubts import OWN_COSTS
from sim.errors import InputError, MachineError, ReplayError
from sim.formats.record_files import load_record
from sim.nouns.gpus import find_gpu
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.validator import worker
from sim.validator.calibrate import calibrate, gather_calibration, prepare_calibration
from sim.validator.curves import cost, curve, held_up, rate, slowdown, together
from sim.validator.jobs import CalibrationJob, Carrier, sizes_to
from sim.validator.launch import EVENTS, FAILED, Place
from sim.validator.ranks.rank import find_seat, first_host
from sim.validator.replay import gather_record
from tests.commands import bucketsim
from tests.dist.starting import FLAT, forked_to_their_ends, prepared
from tests.effort import PATIENCE_S
from tests.ranks import free_port

pytestmark = pytest.mark.dist

# Who a rank is.

STEP = {
    **{"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"},
    **{"SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "1234567"},
}
POD = {"RANK": "9", "WORLD_SIZE": "16", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("node[7,01-03],login", "node7"),
        ("rack[2-3]n[004-009]", "rack2n004"),
        ("a-b[3].cluster,c", "a-b3.cluster"),
        *((broken, None) for broken in ("", "node[", "node[]", "]")),
    ],
)
def test_first_host_of_a_node_list(nodes: str, first: str | None) -> None:
    with nullcontext() if first else pytest.raises(InputError, match="node list"):
        assert first_host(nodes) == first


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["n", "gpu-", "rack1-"]))
def test_first_host_of_a_range_is_its_lower_end(low: int, high: int, stem: str) -> None:
    assert first_host(f"{stem}[{low:03d}-{high:03d},5],other[1-2]") == f"{stem}{low:03d}"


def test_seats() -> None:
    seat = find_seat(STEP)
    assert (seat.rank, seat.world_size, seat.local_rank, seat.launcher) == (9, 16, 1, "slurm")
    assert (seat.address, seat.keeps_store) == ("gpu03", False)
    assert 15_000 <= seat.port < 30_000
    assert find_seat(STEP | {"SLURM_PROCID": "0"}).keeps_store
    assert find_seat(STEP | {"MASTER_ADDR": "head", "MASTER_PORT": "7"}).address == "head"
    # torchrun inside a SLURM job: torchrun's variables win, and its agent keeps the store.
    assert find_seat(STEP | POD | {"WORLD_SIZE": "12"}).world_size == 12
    assert not find_seat(POD | {"RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}).keeps_store


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RANK: not set"),
        (POD | {"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two'"),
        (POD | {"RANK": "16"}, "rank: 16"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, "SLURM_NODELIST"),
    ],
)
def test_what_is_no_seat(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_seat(environment)


@pytest.mark.parametrize(
    ("environment", "visible", "local_world_size", "gpu"),
    [
        (STEP, 8, 8, 1),  # the line that --prepare prints
        (STEP, 1, 8, 0),  # with --gpus-per-task 1
        (STEP | {"SLURM_NTASKS_PER_NODE": "12"}, 8, 12, 1),
        (STEP | {"SLURM_NNODES": "3"}, 4, 6, 1),
        (POD, 1, 16, 0),  # a GPU in a pod of its own
        (POD, 8, 16, 1),  # all of a host's
        (POD | {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 4, 4, 3),  # torchrun
        (POD | {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 1, 4, 0),
    ],
)
def test_every_launch_that_can_work_gets_a_gpu(
    environment: dict[str, str], visible: int, local_world_size: int, gpu: int, monkeypatch: Any
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    seat, job = find_seat(environment), CalibrationJob(carrier=Carrier(device="cuda"))
    worker._take_device(job, seat)
    assert (chosen, seat.local_world_size) == ([gpu], local_world_size)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(MachineError, match="sees 0 GPUs"):
        worker._take_device(job, seat)


# The whole way: prepare, torchrun or srun, gather.

EXAMPLES = Path(sim.__file__).parent / "validator" / "examples"
SRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
there = {{"SLURM_NTASKS": "2", "SLURM_JOB_ID": "{job}", "SLURM_STEP_NODELIST": "localhost"}}
ranks = [
    subprocess.Popen(words, env=os.environ | there | {{"SLURM_PROCID": str(k), "SLURM_LOCALID": str(k)}})
    for k in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def run_by_torchrun(job: Path, temporary: Path) -> list[int]:
    """Two agents, as on two hosts, of a rank each; their exit codes."""
    words = "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port"
    ran, environment = ("-m", "sim.validator.worker", str(job)), {"TMPDIR": str(temporary)}
    start = [sys.executable, *words.split(), str(free_port()), "--node-rank"]
    agents = [
        subprocess.Popen([*start, node, *ran], env=os.environ | environment | {"GLOO_SOCKET_IFNAME": "lo"})
        for node in "01"
    ]
    return [agent.wait(timeout=PATIENCE_S) for agent in agents]


@pytest.mark.slow
def test_two_agents_of_torchrun_make_a_record(small_workload: Workload, tmp_path: Path) -> None:
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(FLAT))
    options = ["--hardware", hardware, "--caps", "1", "--rounds", "2", "--prepare", "-o", record]
    said = bucketsim("validate", workload, *options)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0].startswith("torchrun --nnodes HOSTS")
    too_early = bucketsim("gather", record)
    assert (too_early.code, "no events.jsonl" in too_early.err) == (1, True)
    assert run_by_torchrun(record / "job.json", tmp_path) == [0, 0]
    assert bucketsim("gather", record).code == 0
    assert bucketsim("agree", record).code == 0
    kept = load_record(record)
    assert {"DDP default", "bucket_cap_mb=1", "single"} <= {one.name for one in kept.candidates}
    assert all(measurement.complete for measurement in kept.measurements)
    assert "by torchrun on" in kept.measurements[0].environment["place"]


@pytest.mark.slow
@pytest.mark.parametrize("computes", [False, True])
def test_the_same_is_known_of_a_machine_as_of_local_ranks(computes: bool, tmp_path: Path) -> None:
    job = CalibrationJob(sizes=sizes_to(1 << 20), rounds=1, computes=computes)
    assert run_by_torchrun(prepare_calibration(job, tmp_path / "job", 2), tmp_path) == [0, 0]

    def known(hardware: Hardware) -> dict[str, Any]:
        """Which fields say something; keys of those that have keys, sizes of curves."""
        values = {field.name: getattr(hardware, field.name) for field in fields(hardware)}
        return {
            name: set(value) - {"loopback"}  # which local ranks alone can say
            if isinstance(value, dict)
            else [point.num_bytes for point in value]
            if isinstance(value, tuple)
            else value is not None
            for name, value in values.items()
        }

    assert known(gather_calibration(tmp_path / "job")) == known(calibrate(job, Place(ranks=2)))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["calibrate", "validate"])
def test_the_sbatch_examples(script: str, small_workload: Workload, tmp_path: Path) -> None:
    """With an srun that starts two local tasks and sets the variables that SLURM's would."""
    (srun := tmp_path / "srun").write_text(SRUN.format(python=sys.executable, job=free_port()))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    words = ["wire.json", "--largest", "16KiB", "--rounds", "1", "--budget", "0"]
    if script == "validate":
        words = [str(prepared(small_workload, tmp_path / "record"))]
    there = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(EXAMPLES / f"{script}.sbatch"), *words],
        cwd=tmp_path,
        env=os.environ | there | {"GLOO_SOCKET_IFNAME": "lo", "SLURM_NTASKS": "2"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if script == "calibrate":
        hardware = sim.load_hardware(tmp_path / "wire.json")
        assert "by slurm on" in hardware.name
        assert [point.num_bytes for point in hardware.all_reduce] == [4096, 8192, 16384]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["srun", "wire.json"]
    else:
        measured = gather_record(tmp_path / "record")
        assert all(one.complete for one in measured)
        assert "by slurm on" in measured[0].environment["place"]


# What is made of what they wrote.

ENVIRONMENT = {"cpu": "any", "cpu_count": 2, "platform": "any", "python": "3", "torch": "2"}
STARTED = {"event": "started", "launcher": "slurm", "hosts": ["a", "b"], "environment": ENVIRONMENT}
FOUND = together(
    curve("all_reduce", {4096: [[40_960]], 8192: [[81_920]]}),
    curve("broadcast", {4096: [[7]]}),
    rate("copy_in", 1000, [10]),
    slowdown("copy_out", [10], [30]),
    cost("launch_cost_ns", [-3, -1, 2]),
)
TOLD: list[dict[str, Any]] = [
    STARTED,
    {"event": "progress", "done": 0, "total": 4, "what": "curve"},
    {"event": "timed", "kind": "all_reduce", "num_bytes": 4096},
    {"event": "measured", "fields": FOUND[0], "spread": FOUND[1]},
    {"event": "finished"},
]


def leave(folder: Path, events: list[dict[str, Any]], torn: str = "", *failures: Any) -> Path:
    """What ranks left in the folder of their job; ``failures``: ranks at fault, the reason, and when."""
    (folder / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events) + torn)
    for number, (ranks, reason, at) in enumerate(failures):
        told = {"event": "failed", "ranks": ranks, "reason": reason, "at": at}
        (folder / FAILED.format(number)).write_text(json.dumps(told))
    return folder


def calibration(folder: Path, world_size: int = 2) -> Path:
    prepare_calibration(CalibrationJob(sizes=sizes_to(8192), rounds=1), folder, world_size)
    return folder


def test_small_messages_are_sent_more_often_than_large_ones() -> None:
    job = CalibrationJob(sizes=sizes_to(256 << 20), small_repeats=30)
    repeats = [job.repeats_of(size) for size in job.sizes]
    assert repeats == [*[30] * 10, 16, 8, 4, 2, 1, 1, 1]
    assert job.pair_sizes == [4 << 20, 8 << 20, 16 << 20]
    assert CalibrationJob(sizes=sizes_to(1 << 20)).pair_sizes == [1 << 20]


def test_what_ranks_told_is_a_hardware(tmp_path: Path) -> None:
    hardware = gather_calibration(leave(calibration(tmp_path), TOLD))
    assert hardware.name == "2 ranks by slurm on a x 1, b x 1"
    points = [(point.num_bytes, point.duration_ns) for point in hardware.all_reduce]
    assert points == [(4096, 40960), (8192, 81920)]
    assert (hardware.copy_out_slowdown, hardware.launch_cost_ns) == (3, 0)
    assert hardware.copy_in_bytes_per_s == 1e11
    # Of the machine that was measured, not of the one that gathers.
    assert ENVIRONMENT.items() <= hardware.provenance.items()
    assert held_up([30], [10]) == 1.5


def test_where_kernels_keep_no_time_the_rest_is_other_gpus(tmp_path: Path) -> None:
    """Such as AMD's: of these ranks measure the link alone."""
    job = CalibrationJob(sizes=sizes_to(8192), rounds=1, carrier=Carrier(device="cuda"))
    prepare_calibration(job, tmp_path, 2)
    fields, spread = curve("all_reduce", {4096: [[40_960]], 8192: [[81_920]]})
    measured = {"event": "measured", "fields": fields, "spread": spread}
    started = STARTED | {"environment": ENVIRONMENT | {"gpu": "AMD Instinct MI300X"}}
    hardware = gather_calibration(leave(tmp_path, [started, measured, TOLD[-1]]))
    assert hardware.spread["ranges"].keys() == {*OWN_COSTS}
    assert hardware.copy_in_bytes_per_s == pytest.approx(0.8 * find_gpu("MI300X").bytes_per_s / 2)


@given(kept=st.integers(0, len(TOLD) - 1), torn=st.integers(0, 12))
def test_a_run_that_was_cut_off_is_no_hardware(
    tmp_path_factory: pytest.TempPathFactory, kept: int, torn: int
) -> None:
    folder = calibration(tmp_path_factory.mktemp("cut"))
    leave(folder, TOLD[:kept], json.dumps(TOLD[kept])[:torn])
    with pytest.raises(ReplayError, match=r"the run has not finished.*; no hardware is written"):
        gather_calibration(folder)
    leave(folder, TOLD[:3], "", ([1], "no sign of life", 0))
    with pytest.raises(ReplayError, match=r"rank 1: no sign of life \(at curve, 0 of 4 parts done\)"):
        gather_calibration(folder)


def test_an_unfinished_replay_is_gathered_as_far_as_it_went(small_workload: Workload, tmp_path: Path) -> None:
    record = prepared(small_workload, tmp_path / "record")
    row = {"step": 9, "backward_end": 5, "sync_end": 6}
    step = {"event": "step", "lane": "plain", "traced": False, "round": 0, "ranks": [row, row]}
    leave(record, [STARTED, step], '{"event": "st')
    with pytest.raises(ReplayError, match="has not finished; what was measured is kept, incomplete"):
        gather_record(record)
    (plain,) = load_record(record).measurements
    assert (plain.name, plain.complete, len(plain.iterations)) == ("plain", False, 1)
    faults = ([], "lost touch", 1.0), ([1], "no sign of life", 3.0), ([2], "its own", 2.0)
    leave(record, [STARTED, step], "", *faults)
    with pytest.raises(ReplayError, match="rank 2: its own; what was"):
        gather_record(record)


def test_another_number_of_ranks_than_prepared_is_told_by_gather(tmp_path: Path) -> None:
    folder = calibration(tmp_path / "job", 3)
    assert [code for code, _ in forked_to_their_ends([folder] * 2)] == [1, 1]
    said = bucketsim("gather", folder, "-o", tmp_path / "wire.json")
    assert (said.code, (tmp_path / "wire.json").exists()) == (1, False)
    assert "world size: 2 ranks were started, but the job is for 3; nothing was measured" in said.err
    with pytest.raises(InputError, match=r"written by 2 ranks, but .* is for 3"):
        gather_calibration(leave(folder, TOLD))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("calibrate --prepare -o job", 1, "holds a job already"),
        ("calibrate --prepare --ranks 1 -o new", 1, "ranks: 1 is not legal"),
        ("calibrate --prepare -o new --box 2 --rate 1gbit", 2, "--prepare"),
        ("calibrate --prepare -o new --device cuda --mode model", 1, "mode: model is not legal on GPUs"),
        ("gather .", 1, "no job.json in it"),
        ("gather job", 2, "--output"),
        ("gather job -o wire.json --max-error 3", 2, "--max-error"),
        ("gather broken -o wire.json", 1, "no job; give the directory"),
    ],
)
def test_what_is_refused(words: str, code: int, told: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    leave(calibration(tmp_path / "job"), TOLD)
    (leave(calibration(tmp_path / "broken"), TOLD) / "job.json").write_text("[]")
    said = bucketsim(*words.split())
    assert (said.code, told in said.err, Path("wire.json").exists()) == (code, True, False), said.err
