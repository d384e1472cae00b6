"""``bucketsim doctor``: what is found, what is missing, and whether the loop can close."""

import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

import sim.cli.commands
from sim.cli import doctor
from sim.cli.doctor import Diagnosis, cautions, loop_steps
from tests.commands import bucketsim, process

COMMANDS = typer.main.get_command(sim.cli.commands.app).commands  # type: ignore[attr-defined]
GPU = "NVIDIA H200, 139.0 GiB"
ALL = Diagnosis(
    platform="linux",
    versions={"python": "3.11.7", **dict.fromkeys(doctor.PACKAGES, "1.0"), "torch": "2.13.0+cu126"},
    backends=("gloo", "nccl"),
    nccl="2.27.3",
    cuda="12.6",
    gpus=(GPU, GPU),
    keywords={"bucket_cap_mb_list": True, "batched_grad_copy": True},
    cpu="AMD EPYC",
    cores=8,
    threads=16,
    load=0.5,
    root=True,
    iproute2=True,
    box_obstacle=None,
    nvidia_driver=True,
    chromium="/usr/bin/chromium",
)
STEPS = {
    "record",
    "calibrate",
    "tune",
    "validate_loopback",
    "validate_box",
    "validate_nccl",
    "validate_one_gpu",
}
GLOO = {"calibrate", "validate_loopback", "validate_box"}
REPLAYS = {"validate_loopback", "validate_box"}


def changed(**changes: Any) -> Callable[[Diagnosis], Diagnosis]:
    return lambda machine: replace(machine, **changes)


# What is taken away, and the steps that go with it.
LOSSES: dict[str, tuple[Callable[[Diagnosis], Diagnosis], set[str]]] = {
    "torch": (
        changed(versions=ALL.versions | {"torch": None}, torch_obstacle="torch is not installed"),
        STEPS - {"tune"},
    ),
    "a torch that imports": (
        changed(torch_obstacle="torch cannot be imported: libcudart.so.12"),
        STEPS - {"tune"},
    ),
    "a recent torch": (changed(versions=ALL.versions | {"torch": "2.8.1"}), STEPS - {"tune"}),
    "torch.distributed": (changed(backends=()), GLOO | {"validate_nccl"}),
    "gloo": (changed(backends=("nccl",)), GLOO),
    "nccl": (changed(backends=("gloo",)), {"validate_nccl"}),
    "injection": (changed(missing_for_injection=("Reducer._reset_state",)), REPLAYS),
    "simpy": (changed(versions=ALL.versions | {"simpy": None}), {"tune"}),
    "Linux": (changed(platform="darwin", box_obstacle="needs Linux"), GLOO),
    "root": (changed(root=False, box_obstacle="needs root for network namespaces"), {"validate_box"}),
    "iproute2": (changed(iproute2=False, box_obstacle="ip and tc not found"), {"validate_box"}),
    "namespaces": (changed(box_obstacle="ip netns add failed"), {"validate_box"}),
    "the second GPU": (changed(gpus=(GPU,)), {"validate_nccl"}),
    "a torch for GPUs": (changed(gpus=(), cuda=None), {"validate_nccl"}),
    "visible GPUs": (changed(gpus=()), {"validate_nccl"}),
    "GPUs": (changed(gpus=(), cuda=None, nvidia_driver=False), {"validate_nccl"}),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Diagnosis], None]:
    """Makes doctor see the machine it is given."""
    return lambda machine: monkeypatch.setattr(doctor, "diagnose", lambda: machine)


def said(text: str) -> str:
    """As words, wherever the terminal broke the lines."""
    return " ".join(text.split())


def test_a_machine_that_has_all_can_do_all() -> None:
    steps = loop_steps(ALL)
    assert [step.name for step in steps if not step.possible] == []
    assert {step.name for step in steps} == STEPS
    assert cautions(ALL) == []


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_missing_takes_its_steps_and_no_others(loss: str) -> None:
    lose, expected = LOSSES[loss]
    steps = {step.name: step for step in loop_steps(lose(ALL))}
    lost = {name for name, step in steps.items() if not step.possible} - {"validate_one_gpu"}
    assert lost == expected - {"validate_one_gpu"}
    for name in lost:
        assert steps[name].reason
        assert steps[name].run


@pytest.mark.parametrize("loss", LOSSES)
def test_exit_is_1_with_one_line_where_the_cpu_loop_breaks(
    loss: str, seen: Callable[[Diagnosis], None]
) -> None:
    lose, expected = LOSSES[loss]
    seen(lose(ALL))
    heard = bucketsim("doctor", "--json")
    breaks = bool(expected & {"record", "calibrate", "tune", "validate_loopback"})
    assert heard.code == int(breaks)
    assert json.loads(heard.out)["closes"] is not breaks
    if breaks:
        assert heard.err.startswith("error: doctor: the loop cannot close here: ")
        assert heard.err.count("\n") == 1
    else:
        assert heard.err == ""


@pytest.mark.parametrize("machine", [ALL, *(lose(ALL) for lose, _ in LOSSES.values())])
def test_every_command_that_doctor_names_is_one(machine: Diagnosis) -> None:
    words = " , ".join(step.run for step in loop_steps(machine))
    named = [shlex.split(command) for command in re.findall(r"bucketsim [^,]+", words)]
    assert named
    for _, command, *arguments in named:
        assert COMMANDS[command].make_context(command, arguments).params


def test_this_machine_is_seen_as_it_is() -> None:
    machine = doctor.diagnose()
    assert machine.torch_obstacle is None
    assert machine.versions["torch"] == torch.__version__
    assert ("gloo" in machine.backends) == torch.distributed.is_gloo_available()
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.threads == len(os.sched_getaffinity(0))
    assert machine.cores is None or machine.cores <= (os.cpu_count() or 1)


def test_a_torch_that_does_not_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such file')")
    heard = process("-m", "sim", "doctor", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert heard.code == 1
    assert heard.err.count("\n") == 1
    assert json.loads(heard.out)["torch_obstacle"]
    assert "torch cannot be imported: libcudart.so.12: no such file" in heard.err
