"""doctor: what this machine has, and whether the loop can close here: record, calibrate, tune, validate."""

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cli.next_steps import suggest
from sim.cli.options import flag
from sim.cli.printing import emit, say, table
from sim.errors import MachineError
from sim.formats.documents import json_text
from sim.machine import cpu_model, is_root, load_average, physical_cores, usable_threads
from sim.units import format_ms, format_size

if TYPE_CHECKING:
    from sim.validator.capabilities import TorchFacts

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A machine as far as bucketsim depends on it.

    ``versions`` holds every package looked for, None where it is missing. ``torch`` is None where
    ``torch_obstacle`` says why. ``cores`` counts physical cores (None: unknown), ``threads`` the logical ones
    that this process may use, ``load`` those that wanted to run in the last minute (None: unknown).
    ``box_obstacle`` says why no cluster in a box can be made; None: one was. ``chromium`` is the browser that
    the tests drive, looked for only where playwright is installed.
    """

    platform: str
    versions: dict[str, str | None]
    torch: "TorchFacts | None"
    torch_obstacle: str | None
    cpu: str
    cores: int | None
    threads: int
    load: float | None
    root: bool
    iproute2: bool
    box_obstacle: str | None
    nvidia_driver: bool
    chromium: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """One step of the loop: whether it is possible, and what to run, or what to install or run instead.

    ``reason`` is why not; None where it is possible.
    """

    name: str
    reason: str | None
    run: str

    @property
    def possible(self) -> bool:
        """Whether this machine can make the step."""
        return self.reason is None


def doctor(as_json: bool = flag("One JSON document on stdout.", "--json")) -> None:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
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


def _torch() -> "tuple[TorchFacts | None, str | None]":
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
    from sim.validator.box import box

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


def _torch_rows(torch: "TorchFacts") -> list[list[str]]:
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


RECORD = "bucketsim record MODULE:FACTORY -o workload.json"
CALIBRATE = "bucketsim calibrate --ranks 2 -o hardware.json"
# of nccl-tests, one rank a GPU, by mpirun, srun or a build of its own: what `calibrate` over gloo is not
ALL_REDUCE_PERF = "all_reduce_perf -b 8 -e 1G -f 2 > link.txt"
_NCCL_LINK = f"nccl-tests: {ALL_REDUCE_PERF}; then: bucketsim import auto link.txt -o ."
TUNE = "bucketsim tune workload.json --hardware hardware.json -o assignment.json"
REPLAY = "bucketsim validate workload.json --hardware hardware.json --ranks 2 -o measured"
REPLAY_IN_BOX = "bucketsim validate workload.json --hardware hardware.json --box 2 --rate 4gbit -o measured"
RECORD_ON_GPU = "bucketsim record MODULE:FACTORY --device cuda -o workload.json"
_ON_GPUS = (
    "bucketsim validate --ab --model MODULE:FACTORY --device cuda --ranks {gpus} --assignment assignment.json"
)
_ON_ONE_GPU = (
    "bucketsim validate workload.json --hardware hardware.json --link emulated --device cuda -o measured"
)

INSTALL_TORCH = "pip install 'torch>=2.9,<2.16'"
REINSTALL_TORCH = "pip install --force-reinstall torch"
INSTALL_IPROUTE2 = "apt-get install iproute2"
OLDEST_TORCH = (2, 9)

_TUNING = ("numpy", "simpy", "networkx")
_BY_CPU = ("record", "calibrate", "tune", "validate_loopback")
_LATE_NS = 1_000_000


def loop_steps(machine: Diagnosis) -> tuple[LoopStep, ...]:
    """Each step of the loop in order, with what makes it possible or what stands in its way."""
    return (
        _record(machine),
        _calibrate(machine),
        _tune(machine),
        _step("validate_loopback", _replay_obstacle(machine), REPLAY),
        _in_box(machine),
        _on_gpus(machine),
        _on_one_gpu(machine),
    )


def loop_obstacle(steps: tuple[LoopStep, ...]) -> str | None:
    """Why the loop cannot close on the CPU: its first impossible step in a sentence; None where it can."""
    for step in steps:
        if step.name in _BY_CPU and not step.possible:
            return f"{step.name}: {step.reason}; {step.run}"
    return None


def cautions(machine: Diagnosis) -> list[str]:
    """What makes a replay here scatter, in sentences; empty on a quiet machine with cores enough."""
    said = []
    if machine.threads < 2:
        said.append("1 thread for 2 ranks: they wait for each other as much as for the wire")
    if machine.load is not None and machine.load > machine.threads:
        said.append(f"load {machine.load:.1f} on {machine.threads} threads: measured steps will scatter")
    if machine.torch is not None and machine.torch.sleep_late_p90_ns > _LATE_NS:
        late_ms = machine.torch.sleep_late_p90_ns / 1e6
        said.append(f"one sleep in ten ends more than {late_ms:.1f} ms late: a paced backward will too")
    return said


def _torch_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why torch is of no use here, and what to run."""
    if machine.torch is None:
        installed = machine.versions["torch"] is not None
        return machine.torch_obstacle or "no torch", REINSTALL_TORCH if installed else INSTALL_TORCH
    if tuple(map(int, machine.torch.version.split(".")[:2])) < OLDEST_TORCH:
        return f"torch {machine.torch.version} is too old", INSTALL_TORCH
    return None


def _gloo_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why no ranks can meet over gloo here, and what to run."""
    if machine.platform != "linux":
        return f"real ranks need Linux, not {machine.platform}", "run on Linux"
    obstacle = _torch_obstacle(machine)
    if obstacle is not None or machine.torch is None:
        return obstacle
    if not machine.torch.distributed:
        return f"torch {machine.torch.version} is built without torch.distributed", REINSTALL_TORCH
    if not machine.torch.gloo:
        return f"torch {machine.torch.version} is built without gloo", REINSTALL_TORCH
    return None


def _replay_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why no assignments can be replayed here, some of which no keyword of DDP reaches, and what to run."""
    obstacle = _gloo_obstacle(machine)
    if obstacle is None and machine.torch is not None and machine.torch.missing_for_injection:
        lacking = ", ".join(machine.torch.missing_for_injection)
        return f"torch {machine.torch.version} lacks {lacking} for free bucket_indices", INSTALL_TORCH
    return obstacle


def _calibrate(machine: Diagnosis) -> LoopStep:
    """Several GPUs train over NCCL, which `bucketsim calibrate` does not measure."""
    gpus = [] if machine.torch is None else machine.torch.gpus
    is_nccl = len(gpus) > 1 and machine.torch is not None and machine.torch.nccl
    return _step("calibrate", _gloo_obstacle(machine), _NCCL_LINK if is_nccl else CALIBRATE)


def _step(name: str, obstacle: tuple[str, str] | None, run: str) -> LoopStep:
    reason, instead = obstacle or (None, run)
    return LoopStep(name=name, reason=reason, run=instead)


def _record(machine: Diagnosis) -> LoopStep:
    has_gpu = machine.torch is not None and bool(machine.torch.gpus)
    return _step("record", _torch_obstacle(machine), RECORD_ON_GPU if has_gpu else RECORD)


def _tune(machine: Diagnosis) -> LoopStep:
    missing = [package for package in _TUNING if machine.versions.get(package) is None]
    words = " ".join(missing)
    return _step("tune", (f"{words} missing", f"pip install {words}") if missing else None, TUNE)


def _in_box(machine: Diagnosis) -> LoopStep:
    obstacle = _replay_obstacle(machine)
    if obstacle is None and machine.box_obstacle is not None:
        if not machine.iproute2:
            remedy = INSTALL_IPROUTE2
        elif not machine.root:
            remedy = "run as root"
        else:
            remedy = "start the container with --privileged"
        obstacle = machine.box_obstacle, f"{remedy}, or: {REPLAY}"
    return _step("validate_box", obstacle, REPLAY_IN_BOX)


def _on_gpus(machine: Diagnosis) -> LoopStep:
    obstacle = _torch_obstacle(machine) or _gpu_obstacle(machine)
    gpus = 0 if machine.torch is None else len(machine.torch.gpus)
    if obstacle is None and machine.torch is not None:
        if not (machine.torch.distributed and machine.torch.nccl):
            obstacle = f"torch {machine.torch.version} is built without NCCL", REINSTALL_TORCH
        elif gpus == 1:
            obstacle = "1 GPU; several ranks on one GPU: gloo only, not NCCL", f"instead: {REPLAY}"
    return _step("validate_nccl", obstacle, _ON_GPUS.format(gpus=gpus))


def _on_one_gpu(machine: Diagnosis) -> LoopStep:
    """One rank whose wire is a curve on side streams: everything but the wire is real."""
    obstacle = _replay_obstacle(machine) or _gpu_obstacle(machine)
    return _step("validate_one_gpu", obstacle, _ON_ONE_GPU)


def _gpu_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why torch computes on no GPU here, and what to run."""
    if machine.torch is None or machine.torch.gpus:
        return None
    if not machine.nvidia_driver:
        return "no GPU", f"instead: {REPLAY}"
    if machine.torch.cuda is None:
        return f"torch {machine.torch.version} is built without CUDA", REINSTALL_TORCH
    return "torch sees no GPU though nvidia-smi is here", "look at nvidia-smi and CUDA_VISIBLE_DEVICES"
