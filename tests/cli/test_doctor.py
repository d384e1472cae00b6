"""``bucketsim doctor``: what is found, what is missing, and whether the loop can close."""

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

import sim.cli.commands
from sim.cli import starting
from sim.cli.starting import Diagnosis, cautions, loop_steps
from tests.commands import bucketsim, process

COMMANDS = typer.main.get_command(sim.cli.commands.app).commands  # type: ignore[attr-defined]
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
REPLAYS = {"validate_loopback", "validate_box", "validate_one_gpu"}
GLOO = REPLAYS | {"calibrate"}
TORCH = GLOO | {"record", "validate_nccl"}
# What is taken away, and the steps that go with it.
LOSSES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "torch": (
        {"versions": ALL.versions | {"torch": None}, "torch_obstacle": "torch is not installed"},
        TORCH,
    ),
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


def test_a_busy_machine_is_cautioned() -> None:
    assert cautions(ALL) == []
    assert len(cautions(replace(ALL, threads=1, load=2.0))) == 2


def test_this_machine_is_seen_as_it_is() -> None:
    machine = starting.diagnose()
    assert machine.torch_obstacle is None
    assert machine.versions["torch"] == torch.__version__
    assert ("gloo" in machine.backends) == torch.distributed.is_gloo_available()
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.threads == len(os.sched_getaffinity(0))


def test_a_torch_that_does_not_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such file')")
    heard = process("-m", "sim", "doctor", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (heard.code, heard.err.count("\n")) == (1, 1)
    assert json.loads(heard.out)["torch_obstacle"] in heard.err
    assert "libcudart.so.12: no such file" in heard.err
