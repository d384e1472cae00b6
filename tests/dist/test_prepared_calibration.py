"""calibrate --prepare and gather: the machine as ranks measured it that torchrun or srun had started."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import ReplayError
from sim.nouns.hardware import Hardware
from sim.validator.calibrate import calibrate, gather_calibration, prepare_calibration
from sim.validator.curves import cost, curve, held_up, rate, slowdown, together
from sim.validator.jobs import CalibrationJob, sizes_to
from sim.validator.launch import EVENTS, FAILED, Place
from tests.commands import bucketsim
from tests.dist.starting import forked_to_their_ends
from tests.dist.test_launch import SRUN
from tests.ranks import free_port

pytestmark = pytest.mark.dist
EXAMPLE = Path(sim.__file__).parent / "validator" / "examples" / "calibrate.sbatch"
ENVIRONMENT = {"cpu": "any", "cpu_count": 2, "platform": "any", "python": "3", "torch": "2"}
# What rank 0 writes, in its order, with figures that are easy to follow.
FOUND = together(
    curve("all_reduce", {4096: [[40_960]], 8192: [[81_920]]}),
    curve("broadcast", {4096: [[7]]}),
    rate("copy_in", 1000, [10]),
    rate("accumulate", 1000, [50]),
    slowdown("copy_out", [10], [30]),
    cost("launch_cost_ns", [-3, -1, 2]),
)
TOLD: list[dict[str, Any]] = [
    {"event": "started", "launcher": "slurm", "hosts": ["a", "b"], "environment": ENVIRONMENT},
    {"event": "progress", "done": 0, "total": 4, "what": "curve"},
    {"event": "timed", "kind": "all_reduce", "num_bytes": 4096},
    {"event": "measured", "fields": FOUND[0], "spread": FOUND[1]},
    {"event": "finished"},
]


def folder_of(events: list[dict[str, Any]], folder: Path, world_size: int = 2) -> Path:
    """A prepared calibration whose rank 0 has written ``events``."""
    prepare_calibration(CalibrationJob(sizes=sizes_to(8192), rounds=1), folder, world_size)
    (folder / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def run_by_torchrun(job: Path, temporary: Path) -> int:
    """Two ranks of a prepared job, as its first command says."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--master-port", str(free_port()), "-m", "sim.validator.worker", str(job)),
        ],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(temporary)},
        check=False,
    ).returncode


def what_is_known(hardware: Hardware) -> dict[str, set[str] | bool]:
    """Which fields say something, and which keys those have that have keys."""
    values = {field.name: getattr(hardware, field.name) for field in fields(hardware)}
    return {
        name: set(value) if isinstance(value, dict) else value is not None and value != ()
        for name, value in values.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("computes", [False, True])
def test_the_same_is_known_as_of_local_ranks(computes: bool, tmp_path: Path) -> None:
    job = CalibrationJob(sizes=sizes_to(1 << 20), rounds=1, computes=computes)
    assert run_by_torchrun(prepare_calibration(job, tmp_path / "job", 2), tmp_path) == 0
    there = gather_calibration(tmp_path / "job")
    here = calibrate(job, Place(ranks=2))
    assert what_is_known(there) == what_is_known(here)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        sizes = [[point.num_bytes for point in getattr(one, kind)] for one in (there, here)]
        assert sizes[0] == sizes[1] != []


@pytest.mark.slow
def test_the_sbatch_example_writes_a_hardware(tmp_path: Path) -> None:
    """With an srun that starts two local tasks and sets the variables that SLURM's would."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(python=sys.executable, job=free_port()))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(EXAMPLE), "wire.json", "--largest", "16KiB", "--rounds", "1", "--budget", "0"],
        cwd=tmp_path,
        env=os.environ
        | {"PATH": path, "PYTHON": sys.executable, "GLOO_SOCKET_IFNAME": "lo", "SLURM_NTASKS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hardware = sim.load_hardware(tmp_path / "wire.json")
    assert "by slurm on" in hardware.name
    assert [point.num_bytes for point in hardware.all_reduce] == [4096, 8192, 16384]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["srun", "wire.json"]


def test_what_ranks_told_is_a_hardware(tmp_path: Path) -> None:
    hardware = gather_calibration(folder_of(TOLD, tmp_path))
    assert hardware.name == "2 ranks by slurm on a x 1, b x 1"
    assert [(point.num_bytes, point.duration_ns) for point in hardware.all_reduce] == [
        (4096, 40960),
        (8192, 81920),
    ]
    assert (hardware.copy_out_slowdown, hardware.launch_cost_ns) == (3, 0)
    assert (hardware.copy_in_bytes_per_s, hardware.accumulate_bytes_per_s) == (1e11, 2e10)
    # Of the machine that was measured, not of the one that gathers.
    assert ENVIRONMENT.items() <= hardware.provenance.items()
    assert held_up([30], [10]) == 1.5


@given(kept=st.integers(0, len(TOLD) - 1), torn=st.integers(0, 12))
def test_a_run_that_was_cut_off_is_no_hardware(
    tmp_path_factory: pytest.TempPathFactory, kept: int, torn: int
) -> None:
    folder = folder_of(TOLD[:kept], tmp_path_factory.mktemp("cut"))
    with open(folder / EVENTS, "a") as stream:
        stream.write(json.dumps(TOLD[kept])[:torn])
    with pytest.raises(ReplayError, match=r"the run has not finished.*; no hardware is written"):
        gather_calibration(folder)


def test_a_rank_that_failed_is_named(tmp_path: Path) -> None:
    folder = folder_of(TOLD[:3], tmp_path)
    told = {"event": "failed", "ranks": [1], "reason": "no sign of life", "at": 0}
    (folder / FAILED.format(1)).write_text(json.dumps(told))
    with pytest.raises(ReplayError, match=r"rank 1: no sign of life \(at curve, 0 of 4 parts done\)"):
        gather_calibration(folder)


def test_another_number_of_ranks_than_prepared_is_told_by_gather(tmp_path: Path) -> None:
    prepare_calibration(CalibrationJob(sizes=sizes_to(4096), rounds=1), tmp_path / "job", 3)
    assert [code for code, _ in forked_to_their_ends([tmp_path / "job"] * 2)] == [1, 1]
    said = bucketsim("gather", tmp_path / "job", "-o", tmp_path / "wire.json")
    assert said.code == 1
    assert "world size: 2 ranks were started, but the job is for 3; nothing was measured" in said.err
    assert not (tmp_path / "wire.json").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    folder = folder_of(TOLD, tmp_path / "job")
    wire = tmp_path / "wire.json"
    said = bucketsim("calibrate", "--prepare", "-o", folder)
    assert (said.code, "holds a job already" in said.err) == (1, True)
    said = bucketsim("calibrate", "--prepare", "--ranks", 1, "-o", tmp_path / "new")
    assert (said.code, "ranks: 1 is not legal" in said.err) == (1, True)
    said = bucketsim("gather", tmp_path)
    assert (said.code, "no job.json in it" in said.err) == (1, True)
    assert bucketsim("gather", folder).code == 2
    assert bucketsim("gather", folder, "-o", wire, "--max-error", 3).code == 2
    for wrong in (["--box", 2, "--rate", "1gbit"], ["--json"]):
        assert bucketsim("calibrate", "--prepare", "-o", tmp_path / "other", *wrong).code == 2
    (folder / "job.json").write_text("[]")
    said = bucketsim("gather", folder, "-o", wire)
    assert (said.code, "no job; give the directory" in said.err) == (1, True)
    assert not wire.exists()
