"""doctor: what this machine has, and whether the loop can close here."""

import os
import platform
import shutil
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.loop_steps import cautions, loop_obstacle, loop_steps
from sim.cli.next_steps import suggest
from sim.cli.printing import emit, say, table
from sim.errors import MachineError
from sim.formats.documents import json_text
from sim.machine import cpu_model, is_root, load_average, physical_cores, usable_threads
from sim.nouns.diagnosis import Diagnosis, LoopStep, TorchFacts
from sim.units import format_ms, format_size

PACKAGES = (
    "bucketsim",
    "torch",
    "simpy",
    "networkx",
    "plotly",
    "streamlit",
    "numpy",
    "playwright",
)
_OPTIONAL = ("playwright",)
_PROBE_BITS = 10**9


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Only remove what runs of bucketsim that were killed left here.")
    ] = False,
) -> None:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
    if clean:
        _clean()
        return
    machine = diagnose()
    steps = loop_steps(machine)
    obstacle = loop_obstacle(steps)
    if as_json:
        emit(json_text(_document(machine, steps)))
    else:
        table("this machine", ["what", "found"], _rows(machine))
        emit("\n" + "\n".join(_line(step) for step in steps))
        for caution in cautions(machine):
            say(f"mind: {caution}")
    if obstacle is not None:
        raise MachineError(f"doctor: the loop cannot close here: {obstacle}")
    if not as_json:
        say("the loop can close here: record, calibrate, tune, validate over gloo")
        suggest("bucketsim demo (the loop on a bundled recording)")


def _clean() -> None:
    """Remove network namespaces whose process runs no more, and name them."""
    left: list[str] = []
    if is_root() and shutil.which("ip"):
        from sim.validator.hosts.boxed_hosts import remove_leftovers

        left = remove_leftovers()
    for one in left:
        say(f"removed network namespace {one}")
    say(f"{len(left)} left by runs that were killed; what still runs keeps its own")


def diagnose() -> Diagnosis:
    """Look at this machine, in little more than the time torch takes to import; nothing is left behind."""
    load = load_average()  # before this process adds to it
    torch, torch_obstacle = _torch()
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    return Diagnosis(
        platform=sys.platform,
        versions=versions,
        torch=torch,
        torch_obstacle=torch_obstacle,
        cpu=cpu_model(),
        cores=physical_cores(),
        threads=usable_threads(),
        load=load,
        root=is_root(),
        iproute2=all(shutil.which(tool) for tool in ("ip", "tc")),
        box_obstacle=_box_obstacle(),
        nvidia_driver=shutil.which("nvidia-smi") is not None,
        chromium=_chromium() if versions["playwright"] else None,
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch() -> tuple[TorchFacts | None, str | None]:
    """What torch can do, or why nobody can say."""
    if find_spec("torch") is None:
        return None, "torch is not installed"
    try:
        import sim.validator.capabilities as capabilities
    except (ImportError, OSError) as error:
        return None, f"torch cannot be imported: {error}"
    return capabilities.torch_facts(), None


def _box_obstacle() -> str | None:
    """Why no cluster in a box can be made here; None after one of two hosts was, and was removed."""
    if sys.platform != "linux":
        return "needs Linux"
    from sim.validator.hosts.boxed_hosts import box

    try:
        with box((_PROBE_BITS, _PROBE_BITS)):
            return None
    except MachineError as error:
        return str(error).removeprefix("box: ").partition("; ")[0]  # the remedy is the verdict's to say


def _chromium() -> str | None:
    """The browser that the tests drive, if it is where they look."""
    path = Path(os.environ.get("BUCKETSIM_CHROMIUM", "/usr/bin/chromium"))
    return str(path) if path.exists() else None


def _document(machine: Diagnosis, steps: tuple[LoopStep, ...]) -> dict[str, Any]:
    loop = {step.name: {"possible": step.possible, "reason": step.reason, "run": step.run} for step in steps}
    return {
        "schema_version": 1,
        "kind": "diagnosis",
        **asdict(machine),
        "loop": loop,
        "closes": loop_obstacle(steps) is None,
        "cautions": cautions(machine),
    }


def _line(step: LoopStep) -> str:
    name = step.name.replace("_", " ")
    return f"{name}: yes: {step.run}" if step.possible else f"{name}: no: {step.reason}; {step.run}"


def _rows(machine: Diagnosis) -> list[list[str]]:
    cores = "" if machine.cores is None else f"{machine.cores} cores, "
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    rows = [
        [name, found or "missing"]
        for name, found in machine.versions.items()
        if found is not None or name not in _OPTIONAL
    ]
    rows += [["processor", machine.cpu], ["processors", f"{cores}{machine.threads} threads{load}"]]
    rows += [["torch", machine.torch_obstacle or ""]] if machine.torch is None else _torch_rows(machine.torch)
    rows += [
        ["root", _yes(machine.root)],
        ["iproute2", _yes(machine.iproute2)],
        ["cluster in a box", "yes" if machine.box_obstacle is None else f"no: {machine.box_obstacle}"],
    ]
    if machine.versions["playwright"] is not None:
        rows.append(["chromium", machine.chromium or "missing"])
    return rows


def _torch_rows(torch: TorchFacts) -> list[list[str]]:
    injection = ", ".join(torch.missing_for_injection)
    rows = [
        ["bucket_cap_mb_list", _yes(torch.bucket_cap_mb_list, "needs torch 2.11")],
        ["batched_grad_copy", _yes(torch.batched_grad_copy, "needs torch 2.12")],
        ["free bucket_indices", _yes(not injection, f"lacks {injection}")],
        ["torch.distributed", _yes(torch.distributed)],
        ["gloo", _yes(torch.gloo)],
        ["nccl", torch.nccl_version or _yes(torch.nccl)],
        ["mpi", _yes(torch.mpi)],
        ["CUDA of torch", torch.cuda or "none"],
        ["GPUs", str(len(torch.gpus))],
    ]
    rows += [
        [f"GPU {index}", f"{gpu.name}, {format_size(gpu.memory_bytes)}"]
        for index, gpu in enumerate(torch.gpus)
    ]
    late = f"{format_ms(torch.sleep_late_median_ns)}, one in ten {format_ms(torch.sleep_late_p90_ns)}"
    rows.append(["sleeps end late by", late])
    return rows


def _yes(holds: bool, otherwise: str = "") -> str:
    return "yes" if holds else f"no: {otherwise}" if otherwise else "no"
