"""doctor: what this machine has, and which steps of the loop can run here; else why not, and what helps."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sim.cli.options import AsJson
from sim.cli.printing import emit, print_table, say, suggest
from sim.errors import MachineError
from sim.formats.documents import json_text
from sim.machine import cpu_model

PACKAGES = ("bucketsim", "torch", "simpy", "networkx", "plotly", "streamlit", "numpy", "playwright")
RECORD = "bucketsim record MODULE:FACTORY -o workload.json"
CALIBRATE = "bucketsim calibrate --ranks 2 -o hardware.json"
# of nccl-tests, one rank a GPU, by mpirun, srun or a build of its own: what `calibrate` over gloo is not
ALL_REDUCE_PERF = "all_reduce_perf -b 8 -e 1G -f 2 > link.txt"
TUNE = "bucketsim tune workload.json --hardware hardware.json -o assignment.json"
_REPLAY = "bucketsim validate workload.json --hardware hardware.json"
REPLAY = f"{_REPLAY} --ranks 2 -o measured"
_INSTALL_TORCH, _REINSTALL_TORCH = "pip install 'torch>=2.9,<2.16'", "pip install --force-reinstall torch"
_OLDEST_TORCH = (2, 9)
_BY_CPU = ("record", "calibrate", "tune", "validate_loopback")
_PROBE_BITS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A machine as far as bucketsim depends on it.

    ``versions`` holds every package looked for, None where it is missing; ``torch_obstacle`` is why torch
    cannot be asked. ``backends`` are those of torch.distributed, ``keywords`` whether newer ones of
    DistributedDataParallel are there, ``missing_for_injection`` what free ``bucket_indices`` lack. ``cores``
    are physical (None: unknown), ``threads`` those that this process may use, ``load`` those that wanted to
    run in the last minute. ``box_obstacle`` is why no cluster in a box can be made; None: one was.
    """

    platform: str
    versions: dict[str, str | None]
    torch_obstacle: str | None = None
    backends: tuple[str, ...] = ()
    nccl: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] = ()
    keywords: dict[str, bool] = field(default_factory=dict)
    missing_for_injection: tuple[str, ...] = ()
    cpu: str
    cores: int | None
    threads: int
    load: float | None
    root: bool
    iproute2: bool
    box_obstacle: str | None
    nvidia_driver: bool
    chromium: str | None


class Step(NamedTuple):
    """One step of the loop: what to run; where ``reason`` says why it is not possible, what to do instead."""

    name: str
    reason: str | None
    run: str

    @property
    def possible(self) -> bool:
        """Whether this machine can make the step."""
        return self.reason is None


class _Need(NamedTuple):
    """What a step takes: ``obstacle`` says what is in its way (None: nothing), ``remedy`` what helps."""

    obstacle: Callable[[Diagnosis], str | None]
    remedy: Callable[[Diagnosis], str] | str


def _of_torch(machine: Diagnosis) -> str | None:
    if machine.torch_obstacle is not None:
        return machine.torch_obstacle
    said = machine.versions["torch"] or ""
    is_old = tuple(map(int, said.split(".")[:2])) < _OLDEST_TORCH
    return f"torch {said} is too old" if is_old else None


def _of_gpu(machine: Diagnosis) -> str | None:
    if machine.gpus:
        return None
    if not machine.nvidia_driver:
        return "no GPU"
    if machine.cuda is None:
        return f"torch {machine.versions['torch']} is built without CUDA"
    return "torch sees no GPU though nvidia-smi is here"


def _for_gpu(machine: Diagnosis) -> str:
    if not machine.nvidia_driver:
        return f"instead: {REPLAY}"
    return _REINSTALL_TORCH if machine.cuda is None else "look at nvidia-smi and CUDA_VISIBLE_DEVICES"


def _backend(name: str) -> _Need:
    def obstacle(machine: Diagnosis) -> str | None:
        lacks = name not in machine.backends
        return f"torch {machine.versions['torch']} is built without {name}" if lacks else None

    return _Need(obstacle, _REINSTALL_TORCH)


def _missing(machine: Diagnosis) -> str:
    return " ".join(name for name in ("numpy", "simpy", "networkx") if machine.versions.get(name) is None)


def _for_box(machine: Diagnosis) -> str:
    remedy = "start the container with --privileged" if machine.root else "run as root"
    return f"{remedy if machine.iproute2 else 'apt-get install iproute2'}, or: {REPLAY}"


_TORCH = _Need(_of_torch, lambda machine: _REINSTALL_TORCH if machine.versions["torch"] else _INSTALL_TORCH)
_TUNING = _Need(
    lambda machine: f"{_missing(machine)} missing" if _missing(machine) else None,
    lambda machine: f"pip install {_missing(machine)}",
)
_LINUX = _Need(
    lambda machine: None if machine.platform == "linux" else f"real ranks need Linux, not {machine.platform}",
    "run on Linux",
)
_INJECTION = _Need(
    lambda machine: (
        f"torch {machine.versions['torch']} lacks {', '.join(machine.missing_for_injection)} for free "
        f"bucket_indices"
        if machine.missing_for_injection
        else None
    ),
    _INSTALL_TORCH,
)
_BOX = _Need(lambda machine: machine.box_obstacle, _for_box)
_GPU = _Need(_of_gpu, _for_gpu)
_GPUS = _Need(
    lambda machine: (
        "1 GPU; several ranks on one GPU: gloo only, not NCCL" if len(machine.gpus) == 1 else None
    ),
    f"instead: {REPLAY}",
)
_RANKS = (_LINUX, _TORCH, _backend("gloo"))


def loop_steps(machine: Diagnosis) -> tuple[Step, ...]:
    """Each step of the loop in order, with what makes it possible or what stands in its way."""
    gpus = len(machine.gpus)
    ab = f"bucketsim ab MODULE:FACTORY --device cuda --ranks {gpus} --assignment assignment.json"
    steps: dict[str, tuple[tuple[_Need, ...], str]] = {
        "record": ((_TORCH,), RECORD.replace(" -o", " --device cuda -o") if gpus else RECORD),
        "calibrate": (_RANKS, f"bucketsim calibrate --ranks {max(2, gpus)} -o hardware.json"),
        "tune": ((_TUNING,), TUNE),
        "validate_loopback": ((*_RANKS, _INJECTION), REPLAY),
        "validate_box": ((*_RANKS, _INJECTION, _BOX), f"{_REPLAY} --box 2 --rate 4gbit -o measured"),
        "validate_nccl": ((_TORCH, _GPU, _backend("nccl"), _GPUS), ab),
        # one rank whose wire is a curve on side streams: everything but the wire is real
        "validate_one_gpu": (
            (*_RANKS, _INJECTION, _GPU),
            f"{_REPLAY} --link emulated --device cuda -o measured",
        ),
    }
    made = []
    for name, (needs, run) in steps.items():
        first = next((need for need in needs if need.obstacle(machine)), None)
        if first is None:
            made.append(Step(name, None, run))
        else:
            remedy = first.remedy if isinstance(first.remedy, str) else first.remedy(machine)
            made.append(Step(name, first.obstacle(machine), remedy))
    return tuple(made)


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
    machine = diagnose()
    steps = loop_steps(machine)
    broken = next((step for step in steps if step.name in _BY_CPU and not step.possible), None)
    if as_json:
        loop = {
            step.name: {"possible": step.possible, "reason": step.reason, "run": step.run} for step in steps
        }
        found = {"loop": loop, "closes": broken is None, "cautions": cautions(machine)}
        emit(json_text({"schema_version": 1, "kind": "diagnosis", **asdict(machine), **found}))
    else:
        print_table("this machine", ["what", "found"], _rows(machine))
        say("")
        for step in steps:
            can = "yes:" if step.possible else f"no: {step.reason};"
            say(f"{step.name.replace('_', ' ')}: {can} {step.run}")
        for caution in cautions(machine):
            say(f"mind: {caution}")
    if broken is not None:
        told = f"{broken.name}: {broken.reason}; {broken.run}"
        raise MachineError(f"doctor: the loop cannot close here: {told}")
    if not as_json:
        say("the loop can close here: record, calibrate, tune, validate over gloo")
        suggest("bucketsim demo (the loop on a bundled recording)")


def diagnose() -> Diagnosis:
    """Look at this machine, in little more than the time torch takes to import; nothing is left behind."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before this process adds to it
    siblings = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    browser = Path(os.environ.get("BUCKETSIM_CHROMIUM", "/usr/bin/chromium"))  # where the tests look
    return Diagnosis(
        platform=sys.platform,
        versions=versions,
        cpu=cpu_model(),
        cores=len({path.read_text(encoding="ascii") for path in siblings}) or None,
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=load,
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
        iproute2=all(shutil.which(tool) for tool in ("ip", "tc")),
        box_obstacle=_box_obstacle(),
        nvidia_driver=shutil.which("nvidia-smi") is not None,
        chromium=str(browser) if versions["playwright"] and browser.exists() else None,
        **_torch(),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    """What the installed torch can do, or why nobody can say."""
    if find_spec("torch") is None:
        return {"torch_obstacle": "torch is not installed"}
    try:
        from sim.validator.installed import torch_facts
    except (ImportError, OSError) as error:
        return {"torch_obstacle": f"torch cannot be imported: {error}"}
    return torch_facts()


def _box_obstacle() -> str | None:
    """Why no cluster in a box can be made here; None after one of two hosts was, and was removed."""
    if sys.platform != "linux":
        return "needs Linux"
    from sim.validator.launch import box

    try:
        with box((_PROBE_BITS, _PROBE_BITS)):
            return None
    except MachineError as error:
        return str(error)


def _rows(machine: Diagnosis) -> list[list[str]]:
    def yes(holds: bool, otherwise: str = "") -> str:
        return "yes" if holds else f"no: {otherwise}" if otherwise else "no"

    lacking = ", ".join(machine.missing_for_injection)
    rows = {name: found or "missing" for name, found in machine.versions.items()}
    cores = "" if machine.cores is None else f"{machine.cores} cores, "
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    rows |= {"processor": machine.cpu, "processors": f"{cores}{machine.threads} threads{load}"}
    if machine.torch_obstacle is not None:
        rows["torch"] = machine.torch_obstacle
    else:
        rows |= {name: yes(there, "needs a newer torch") for name, there in machine.keywords.items()}
        rows["free bucket_indices"] = yes(not lacking, f"lacks {lacking}")
        rows["backends"] = ", ".join(machine.backends) or "none"
        rows |= {"nccl": machine.nccl or "no", "CUDA of torch": machine.cuda or "none"}
        rows |= {f"GPU {number}": gpu for number, gpu in enumerate(machine.gpus)} or {"GPUs": "none"}
    rows["cluster in a box"] = yes(machine.box_obstacle is None, machine.box_obstacle or "")
    if machine.versions["playwright"] is not None:
        rows["chromium"] = machine.chromium or "missing"
    return [[name, found] for name, found in rows.items()]


def cautions(machine: Diagnosis) -> list[str]:
    """What makes a replay here scatter, in sentences; empty on a quiet machine with cores enough."""
    said = []
    if machine.threads < 2:
        said.append("1 thread for 2 ranks: they wait for each other as much as for the wire")
    if machine.load is not None and machine.load > machine.threads:
        said.append(f"load {machine.load:.1f} on {machine.threads} threads: measured steps will scatter")
    return said
