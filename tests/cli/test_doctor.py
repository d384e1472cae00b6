"""``bucketsim doctor``: what is found, what is missing, and whether the loop can close."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main

import sim.cli.commands
from sim.cli import diagnosing
from sim.cli.loop_steps import cautions, loop_obstacle, loop_steps
from sim.errors import MachineError
from sim.machine import usable_threads
from sim.nouns.diagnosis import Diagnosis, Gpu, TorchFacts
from sim.validator import capabilities
from sim.validator.hosts import boxed_hosts as box
from tests.commands import bucketsim, process
from tests.dist.conftest import needs_box

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
    versions={"python": "3.11.7", **dict.fromkeys(diagnosing.PACKAGES, "1.0")},
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
    return lambda machine: monkeypatch.setattr(diagnosing, "diagnose", lambda: machine)


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


def test_the_keys_of_the_document_are_stable() -> None:
    document = json.loads(bucketsim("doctor", "--json").out)
    assert list(document) == [
        *("schema_version", "kind", "platform", "versions", "torch", "torch_obstacle", "cpu", "cores"),
        *("threads", "load", "root", "iproute2", "box_obstacle", "nvidia_driver", "chromium"),
        *("loop", "closes", "cautions"),
    ]
    assert (document["schema_version"], document["kind"]) == (1, "diagnosis")
    assert list(document["versions"]) == [
        *("python", "bucketsim", "torch", "simpy", "networkx", "plotly", "streamlit", "numpy"),
        "playwright",
    ]
    assert list(document["torch"]) == [
        *("version", "distributed", "gloo", "nccl", "mpi", "nccl_version", "cuda", "gpus"),
        *("bucket_cap_mb_list", "batched_grad_copy", "missing_for_injection"),
        *("sleep_late_median_ns", "sleep_late_p90_ns"),
    ]
    assert set(document["loop"]) == STEPS
    assert {tuple(step) for step in document["loop"].values()} == {("possible", "reason", "run")}


def test_this_machine_is_seen_as_it_is() -> None:
    machine = diagnosing.diagnose()
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


def test_a_torch_without_distributed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    facts = capabilities.torch_facts()
    assert (facts.distributed, facts.gloo, facts.nccl, facts.mpi) == (False,) * 4
    assert facts.missing_for_injection == ("torch.distributed",)


def test_gpus_and_nccl_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name=GPU.name, total_memory=GPU.memory_bytes)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    facts = capabilities.torch_facts()
    assert facts.gpus == (GPU, GPU)
    assert facts.nccl_version == "2.27.3"


def test_keywords_that_this_torch_lacks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __init__(self, module: object, bucket_cap_mb: float | None = None) -> None: ...

    monkeypatch.setattr(capabilities, "DistributedDataParallel", Old)
    facts = capabilities.torch_facts()
    assert (facts.bucket_cap_mb_list, facts.batched_grad_copy) == (False, False)


def test_a_user_who_is_not_root_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    machine = diagnosing.diagnose()
    assert (machine.root, machine.iproute2, machine.nvidia_driver) == (False, True, True)
    assert machine.box_obstacle == "needs root for network namespaces"


def test_missing_tools_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    machine = diagnosing.diagnose()
    assert (machine.iproute2, machine.nvidia_driver) == (False, False)
    assert machine.box_obstacle == "ip and tc not found"


def test_a_kernel_that_refuses_a_box_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rates_bits: object) -> None:
        raise MachineError("box: ip netns add failed: Operation not permitted")

    monkeypatch.setattr(box, "box", refuse)
    assert diagnosing.diagnose().box_obstacle == "ip netns add failed: Operation not permitted"


def test_chromium_is_looked_for_where_the_tests_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(diagnosing, "_version", lambda package: "1.0")
    monkeypatch.setenv("BUCKETSIM_CHROMIUM", str(tmp_path / "chromium"))
    assert diagnosing.diagnose().chromium is None
    (tmp_path / "chromium").touch()
    assert diagnosing.diagnose().chromium == str(tmp_path / "chromium")


@needs_box
def test_the_box_that_was_tried_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"bs{os.getpid()}."
    during = []
    build = box._build

    def watched(*arguments: Any) -> Any:
        hosts = build(*arguments)
        during.append(_namespaces())
        return hosts

    monkeypatch.setattr(box, "_build", watched)
    assert diagnosing.diagnose().box_obstacle is None
    assert [ours in names for names in during] == [True]
    assert ours not in _namespaces()


def _namespaces() -> str:
    return subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout
