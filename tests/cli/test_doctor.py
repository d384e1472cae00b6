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
from sim.cli import running
from sim.cli.running import Diagnosis, cautions, loop_obstacle, loop_steps
from sim.machine import usable_threads
from sim.validator.capabilities import Gpu, TorchFacts
from tests.commands import bucketsim, process

COMMANDS = typer.main.get_command(sim.cli.commands.app).commands  # type: ignore[attr-defined]
GPU = Gpu(name="NVIDIA H200", memory_bytes=139 << 30)
TORCH = TorchFacts(
    version="2.13.0+cu126",
    distributed=True,
    gloo=True,
    nccl=True,
    mpi=False,
    nccl_version="2.27.3",
    cuda="12.6",
    gpus=(GPU, GPU),
    bucket_cap_mb_list=True,
    batched_grad_copy=True,
    missing_for_injection=(),
    sleep_late_median_ns=30_000,
    sleep_late_p90_ns=60_000,
)
ALL = Diagnosis(
    platform="linux",
    versions={"python": "3.11.7", **dict.fromkeys(running.PACKAGES, "1.0")},
    torch=TORCH,
    torch_obstacle=None,
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


def without_torch(machine: Diagnosis) -> Diagnosis:
    versions = machine.versions | {"torch": None}
    return replace(machine, torch=None, torch_obstacle="torch is not installed", versions=versions)


def with_torch(**changed: Any) -> Callable[[Diagnosis], Diagnosis]:
    return lambda machine: replace(machine, torch=replace(TORCH, **changed))


def changed(**changes: Any) -> Callable[[Diagnosis], Diagnosis]:
    return lambda machine: replace(machine, **changes)


# What is taken away, and the steps that go with it.
LOSSES: dict[str, tuple[Callable[[Diagnosis], Diagnosis], set[str]]] = {
    "torch": (without_torch, STEPS - {"tune"}),
    "a torch that imports": (
        changed(torch=None, torch_obstacle="torch cannot be imported: libcudart.so.12"),
        STEPS - {"tune"},
    ),
    "a recent torch": (with_torch(version="2.8.1"), STEPS - {"tune"}),
    "torch.distributed": (with_torch(distributed=False, gloo=False, nccl=False), GLOO | {"validate_nccl"}),
    "gloo": (with_torch(gloo=False), GLOO),
    "nccl": (with_torch(nccl=False), {"validate_nccl"}),
    "injection": (with_torch(missing_for_injection=("Reducer._reset_state",)), REPLAYS),
    "simpy": (changed(versions=ALL.versions | {"simpy": None}), {"tune"}),
    "Linux": (changed(platform="darwin", box_obstacle="needs Linux"), GLOO),
    "root": (changed(root=False, box_obstacle="needs root for network namespaces"), {"validate_box"}),
    "iproute2": (changed(iproute2=False, box_obstacle="ip and tc not found"), {"validate_box"}),
    "namespaces": (changed(box_obstacle="ip netns add failed"), {"validate_box"}),
    "the second GPU": (with_torch(gpus=(GPU,)), {"validate_nccl"}),
    "a torch for GPUs": (with_torch(gpus=(), cuda=None, version="2.13.0+cpu"), {"validate_nccl"}),
    "visible GPUs": (with_torch(gpus=()), {"validate_nccl"}),
    "GPUs": (
        lambda machine: replace(with_torch(gpus=(), cuda=None)(machine), nvidia_driver=False),
        {"validate_nccl"},
    ),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Diagnosis], None]:
    """Makes doctor see the machine it is given."""
    return lambda machine: monkeypatch.setattr(running, "diagnose", lambda: machine)


def said(text: str) -> str:
    """As words, wherever the terminal broke the lines."""
    return " ".join(text.split())


def test_a_machine_that_has_all_can_do_all() -> None:
    steps = loop_steps(ALL)
    assert [step.name for step in steps if not step.possible] == []
    assert {step.name for step in steps} == STEPS
    assert loop_obstacle(steps) is None
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
    machine = running.diagnose()
    assert machine.torch is not None
    assert machine.torch.version == machine.versions["torch"] == torch.__version__
    assert machine.torch.gloo == torch.distributed.is_gloo_available()
    assert len(machine.torch.gpus) == torch.cuda.device_count()
    assert machine.threads == usable_threads()
    assert machine.cores is None or machine.cores <= (os.cpu_count() or 1)
    assert 0 <= machine.torch.sleep_late_median_ns <= machine.torch.sleep_late_p90_ns


def test_a_torch_that_does_not_import_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such file')")
    heard = process("-m", "sim", "doctor", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert heard.code == 1
    assert heard.err.count("\n") == 1
    assert json.loads(heard.out)["torch"] is None
    assert "torch cannot be imported: libcudart.so.12: no such file" in heard.err
