"""Ranks started by torchrun and srun: who they are, and a record from what they wrote."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import InputError, MachineError, ReplayError
from sim.formats.record_files import load_record
from sim.nouns.workload import Workload
from sim.validator import worker
from sim.validator.jobs import CalibrationJob, Carrier
from sim.validator.launch import EVENTS, FAILED
from sim.validator.ranks.rank import find_seat, first_host
from sim.validator.replay import gather_record
from tests.commands import bucketsim
from tests.dist.starting import FLAT, prepared
from tests.effort import PATIENCE_S
from tests.ranks import free_port

pytestmark = pytest.mark.dist
EXAMPLE = Path(sim.__file__).parent / "validator" / "examples" / "validate.sbatch"
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


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("node[01-03,7]", "node01"),
        ("node[7,01-03],login", "node7"),
        ("rack[2-3]n[004-009]", "rack2n004"),
        ("a-b[3].cluster,c", "a-b3.cluster"),
    ],
)
def test_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["n", "gpu-", "rack1-"]))
def test_first_host_of_a_range_is_its_lower_end(low: int, high: int, stem: str) -> None:
    assert first_host(f"{stem}[{low:03d}-{high:03d},5],other[1-2]") == f"{stem}{low:03d}"


def test_seats() -> None:
    slurm = {
        "SLURM_PROCID": "9",
        "SLURM_NTASKS": "16",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_NODELIST": "gpu[03-04]",
        "SLURM_JOB_ID": "1234567",
    }
    seat = find_seat(slurm)
    assert (seat.rank, seat.world_size, seat.local_rank, seat.launcher) == (9, 16, 1, "slurm")
    assert (seat.address, seat.keeps_store) == ("gpu03", False)
    assert 15_000 <= seat.port < 30_000
    assert find_seat(slurm | {"SLURM_PROCID": "0"}).keeps_store
    assert find_seat(slurm | {"MASTER_ADDR": "head", "MASTER_PORT": "7"}).address == "head"
    # torchrun inside a SLURM job: torchrun's variables win, and its agent keeps the store.
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    assert find_seat(slurm | torchrun).world_size == 2
    assert not find_seat(torchrun | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).keeps_store


STEP = {
    **{"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"},
    **{"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_ID": "77"},
}
POD = {"RANK": "9", "WORLD_SIZE": "16", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


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
    environment: dict[str, str],
    visible: int,
    local_world_size: int,
    gpu: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    seat = find_seat(environment)
    worker._take_device(CalibrationJob(carrier=Carrier(device="cuda")), seat)
    assert (chosen, seat.local_world_size) == ([gpu], local_world_size)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(MachineError, match="sees 0 GPUs"):
        worker._take_device(CalibrationJob(carrier=Carrier(device="cuda")), seat)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RANK: not set"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE: 'two'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "rank: 2"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, "SLURM_NODELIST"),
    ],
)
def test_seats_that_are_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_seat(environment)


@pytest.mark.slow
def test_two_agents_of_torchrun_make_a_record(small_workload: Workload, tmp_path: Path) -> None:
    """The whole way through the command line: prepare, torchrun on two (local) hosts, gather, agree."""
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(FLAT))
    options = ["--hardware", hardware, "--caps", "1", "--rounds", "2", "--prepare", "-o", record]
    said = bucketsim("validate", workload, *options)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0].startswith("torchrun --nnodes HOSTS")
    assert str(record) in said.out
    too_early = bucketsim("gather", record)
    assert too_early.code == 1
    assert "no events.jsonl" in too_early.err
    port = free_port()
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
                *("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("-m", "sim.validator.worker", str(record / "job.json")),
            ],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)},
        )
        for node in range(2)
    ]
    assert [agent.wait(timeout=PATIENCE_S) for agent in agents] == [0, 0]
    assert bucketsim("gather", record).code == 0
    assert bucketsim("agree", record).code == 0
    kept = load_record(record)
    assert {"DDP default", "bucket_cap_mb=1", "single"} <= {one.name for one in kept.candidates}
    assert all(measurement.complete for measurement in kept.measurements)
    assert "by torchrun on" in kept.measurements[0].environment["place"]


@pytest.mark.slow
def test_the_sbatch_example_makes_a_record(small_workload: Workload, tmp_path: Path) -> None:
    """With an srun that starts two local tasks and sets the variables that SLURM's would."""
    record = prepared(small_workload, tmp_path / "record")
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(python=sys.executable, job=free_port()))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        assert name not in os.environ
    done = subprocess.run(
        ["bash", str(EXAMPLE), str(record)],
        env=os.environ | {"PATH": path, "PYTHON": sys.executable, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    gather_record(record)
    kept = load_record(record)
    assert all(measurement.complete for measurement in kept.measurements)
    assert "by slurm on" in kept.measurements[0].environment["place"]


def test_an_unfinished_run_is_gathered_as_far_as_it_went(small_workload: Workload, tmp_path: Path) -> None:
    record = prepared(small_workload, tmp_path / "record")
    row = {"step": 9, "backward_end": 5, "sync_end": 6}
    events = [
        {"event": "started", "launcher": "slurm", "hosts": ["a", "b"], "environment": {"torch": "2"}},
        {"event": "step", "lane": "plain", "traced": False, "round": 0, "ranks": [row, row]},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (record / EVENTS).write_text(text + '{"event": "st')
    with pytest.raises(ReplayError, match="has not finished; what was measured is kept, incomplete"):
        gather_record(record)
    (plain,) = load_record(record).measurements
    assert (plain.name, plain.complete, len(plain.iterations)) == ("plain", False, 1)
    left = {0: ([], "lost touch", 1.0), 1: ([1], "no sign of life", 3.0), 2: ([2], "its own", 2.0)}
    for rank, (ranks, reason, at) in left.items():
        told = {"event": "failed", "ranks": ranks, "reason": reason, "at": at}
        (record / FAILED.format(rank)).write_text(json.dumps(told))
    with pytest.raises(ReplayError, match="rank 2: its own; what was"):
        gather_record(record)


@pytest.mark.parametrize("nodes", ["", "node[", "node[]", "]"])
def test_broken_node_lists_are_refused(nodes: str) -> None:
    with pytest.raises(InputError, match="node list"):
        first_host(nodes)
