"""``doctor``: what is found, what is missing, whether the loop can close; ``demo``: the loop in an empty
folder, command by command, in which nothing is measured."""

import json
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from app import launch
from sim.cli import starting
from sim.cli.starting import Diagnosis, cautions, loop_steps
from tests.cli import cheap
from tests.cli.test_commands import COMMANDS
from tests.commands import Said, bucketsim, process

GPU = "NVIDIA H200, 139.0 GiB"
ALL = Diagnosis(
    platform="linux",
    versions={"python": "3.11.7", **dict.fromkeys(starting.PACKAGES, "1.0"), "torch": "2.13.0+cu126"},
    backends=("gloo", "nccl"),
    nccl="2.27.3",
    cuda="12.6",
    gpus=(GPU, GPU),
    cpu="AMD EPYC",
    threads=16,
    load=0.5,
    box_obstacle=None,
)
BOXLESS = replace(ALL, box_obstacle="needs root for network namespaces")
NO_RANKS = replace(ALL, platform="darwin", box_obstacle="needs Linux")
REPLAYS = {"validate_loopback", "validate_box", "validate_one_gpu"}
GLOO = REPLAYS | {"calibrate"}
TORCH = GLOO | {"record", "validate_nccl"}
NO_TORCH = {"versions": ALL.versions | {"torch": None}, "torch_obstacle": "torch is not installed"}
# What is taken away, and the steps that go with it.
LOSSES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "torch": (NO_TORCH, TORCH),
    "a recent torch": ({"versions": ALL.versions | {"torch": "2.8.1"}}, TORCH),
    "torch.distributed": ({"backends": ()}, GLOO | {"validate_nccl"}),
    "gloo": ({"backends": ("nccl",)}, GLOO),
    "nccl": ({"backends": ("gloo",)}, {"validate_nccl"}),
    "injection": ({"missing_for_injection": ("Reducer._reset_state",)}, REPLAYS),
    "simpy": ({"versions": ALL.versions | {"simpy": None}}, {"tune"}),
    "Linux": ({"platform": "darwin", "box_obstacle": "needs Linux"}, GLOO),
    "root": ({"box_obstacle": "needs root for network namespaces"}, {"validate_box"}),
    "the second GPU": ({"gpus": (GPU,)}, {"validate_nccl"}),
    "GPUs": ({"gpus": (), "cuda": None}, {"validate_nccl", "validate_one_gpu"}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_missing_takes_its_steps_and_no_others(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1, with one line, where the loop breaks on the CPU; each command that is named is one."""
    changed, lost = LOSSES[loss]
    machine = replace(ALL, **changed)
    steps = loop_steps(machine)
    assert {name for name, step in steps.items() if not step.possible} == lost
    assert all(steps[name].reason for name in lost)
    for command in re.findall(r"bucketsim [^,]+", " , ".join(step.run for step in steps.values())):
        _, name, *arguments = shlex.split(command)
        assert COMMANDS[name].make_context(name, arguments).params
    monkeypatch.setattr(starting, "diagnose", lambda: machine)
    heard = bucketsim("doctor", "--json")
    breaks = bool(lost & {"record", "calibrate", "tune", "validate_loopback"})
    assert (heard.code, json.loads(heard.out)["closes"]) == (int(breaks), not breaks)
    assert heard.err.count("\n") == int(breaks)
    assert heard.err.startswith("error: doctor: the loop cannot close here: " if breaks else "")


def test_this_machine_is_seen_as_it_is_and_a_busy_one_cautioned() -> None:
    machine = starting.diagnose()
    assert machine.torch_obstacle is None
    assert machine.versions["torch"] == torch.__version__
    assert ("gloo" in machine.backends) == torch.distributed.is_gloo_available()
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.threads == len(os.sched_getaffinity(0))
    assert [len(cautions(one)) for one in (ALL, replace(ALL, threads=1, load=2.0))] == [0, 2]


def test_a_torch_that_does_not_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such file')")
    heard = process("-m", "sim", "doctor", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (heard.code, heard.err.count("\n")) == (1, 1)
    assert json.loads(heard.out)["torch_obstacle"] in heard.err
    assert "libcudart.so.12: no such file" in heard.err


# The demo.


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, where everything is cheap."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(starting, "_RECORDING", cheap.W)
    cheap.without_ranks(monkeypatch)
    return tmp_path


def shown(
    monkeypatch: pytest.MonkeyPatch, machine: Diagnosis, *words: object
) -> tuple[Said, list[list[str]]]:
    """What the demo says, and the commands that it shows before they run."""
    monkeypatch.setattr(starting, "diagnose", lambda: machine)
    said = bucketsim("demo", *words)
    assert said.code == 0, said.err
    ran = [shlex.split(line)[2:] for line in said.err.splitlines() if line.startswith("$ bucketsim ")]
    return said, ran


@pytest.mark.parametrize(("machine", "place"), [(ALL, "--box 2 --rate 4gbit"), (BOXLESS, "--ranks 2")])
def test_the_loop_closes_where_ranks_run(
    machine: Diagnosis, place: str, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line that it shows runs by itself; the link is measured where the bundled job trains."""
    said, ran = shown(monkeypatch, machine, "--no-dash")
    assert ([words[0] for words in ran], "--workload" in ran[0]) == (["calibrate", "tune", "validate"], True)
    assert all(place in shlex.join(words) for words in (ran[0], ran[2]))
    made = empty / "bucketsim-demo"
    sim.load_assignment(made / "assignment.json").check_fits(sim.load_workload(made / "workload.json"))
    assert sim.load_record(made / "measured").measurements
    assert "recommended: 4 bucket(s)" in said.out
    assert "pairs in the right order" in said.out
    assert said.err.splitlines()[-1] == "next: bucketsim dash --watch bucketsim-demo"
    assert said.err.count("next: ") == 1
    assert ("needs root" in said.err) == (machine is BOXLESS)
    assert [bucketsim(*words).code for words in ran[:2]] == [0, 0]


def test_without_ranks_it_shows_what_is_bundled(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_RECORDING", Path("workloads", "gpt-13.8M-cpu.json"))
    said, ran = shown(monkeypatch, NO_RANKS, "--no-dash")
    assert [words[0] for words in ran] == ["tune", "agree"]
    assert "No ranks can run here (real ranks need Linux)" in said.err
    assert "gain of the recommended buckets over DDP's default: measured" in said.out


def test_it_opens_the_dashboard_first_and_ends_with_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def served(**asked: Any) -> list[str]:
        return [sys.executable, "-c", f"print({asked['port']}, {str(asked['watch'])!r})"]

    monkeypatch.setattr(launch, "command", served)
    monkeypatch.setattr(starting, "_port", lambda asked: 8765)
    said, _ = shown(monkeypatch, ALL)
    assert (empty / "bucketsim-demo" / "dashboard.log").read_text() == "8765 bucketsim-demo\n"
    told = ("8765/?start=measured+run&record=", "1 of 3", "8765/validate")
    assert sorted(told, key=said.err.index) == list(told)
    assert "next: " not in said.err


def test_it_hands_out_what_is_bundled(empty: Path) -> None:
    said = bucketsim("demo", "--files", "-o", "bundled")
    assert (said.code, said.out) == (0, "")
    assert {path.name for path in (empty / "bundled").iterdir()} == {"workloads", "hardware", "measured"}
    assert sim.load_record(empty / "bundled" / "measured" / "gpt-box-2x1gbit").measurements


def test_nothing_that_is_there_is_touched(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = empty / "bucketsim-demo" / "mine"
    kept.parent.mkdir()
    kept.write_text("mine")
    shown(monkeypatch, BOXLESS, "--no-dash")
    assert [path.name for path in kept.parent.iterdir()] == ["mine"]
    assert (empty / "bucketsim-demo-2" / "measured").is_dir()
    refused = bucketsim("demo", "-o", kept.parent)
    assert refused.code == 1
    assert f"--output: {kept.parent} holds files already; give a new or empty directory" in refused.err
