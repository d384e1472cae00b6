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

from sim.cli import options
from sim.cli.printing import emit, say, suggest, table
from sim.columns import by_place
from sim.errors import MachineError
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

    possible: bool
    reason: str | None
    run: str


def _of_torch(machine: Diagnosis) -> str | None:
    said = machine.versions["torch"] or ""
    is_old = machine.torch_obstacle is None and tuple(map(int, said.split(".")[:2])) < _OLDEST_TORCH
    return f"torch {said} is too old" if is_old else machine.torch_obstacle


# What a step takes: what is in its way, if anything is, and what helps.
_NEEDS: dict[str, tuple[Callable[[Diagnosis], str | bool | None], str]] = {
    "Linux": (lambda at: at.platform != "linux" and "real ranks need Linux", "run on Linux"),
    "torch": (_of_torch, _INSTALL_TORCH),
    "gloo": (lambda at: "gloo" not in at.backends and "torch is built without gloo", _REINSTALL_TORCH),
    "nccl": (lambda at: "nccl" not in at.backends and "torch is built without nccl", _REINSTALL_TORCH),
    "buckets": (
        lambda at: bool(at.missing_for_injection) and f"torch lacks {', '.join(at.missing_for_injection)}",
        _INSTALL_TORCH,
    ),
    "tuner": (
        lambda at: (
            any(at.versions.get(name) is None for name in ("numpy", "simpy", "networkx"))
            and "a package of the tuner is missing"
        ),
        "pip install numpy simpy networkx",
    ),
    "box": (
        lambda at: at.box_obstacle,
        f"be root, with iproute2 (in a container: start it with --privileged), or: {REPLAY}",
    ),
    "GPU": (
        lambda at: not at.gpus and "torch sees no GPU",
        f"look at nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda, or: {REPLAY}",
    ),
    "GPUs": (
        lambda at: len(at.gpus) == 1 and "NCCL needs a GPU a rank, and here is one",
        f"instead: {REPLAY}",
    ),
}
_RANKS = ("Linux", "torch", "gloo")
_LOOP: dict[str, tuple[tuple[str, ...], str]] = {
    "record": (("torch",), RECORD),
    "calibrate": (_RANKS, "bucketsim calibrate --ranks {ranks} -o hardware.json"),
    "tune": (("tuner",), TUNE),
    "validate_loopback": ((*_RANKS, "buckets"), REPLAY),
    "validate_box": ((*_RANKS, "buckets", "box"), f"{_REPLAY} --box 2 --rate 4gbit -o measured"),
    "validate_nccl": (
        ("torch", "GPU", "nccl", "GPUs"),
        "bucketsim ab MODULE:FACTORY --device cuda --ranks {ranks} --assignment assignment.json",
    ),
    # one rank whose wire is a curve on side streams: everything but the wire is real
    "validate_one_gpu": (
        (*_RANKS, "buckets", "GPU"),
        f"{_REPLAY} --link emulated --device cuda -o measured",
    ),
}


def loop_steps(machine: Diagnosis) -> dict[str, Step]:
    """Each step of the loop by name, in order, with what makes it possible or what stands in its way."""
    steps = {}
    for name, (needs, run) in _LOOP.items():
        in_the_way = ((_NEEDS[need][0](machine), _NEEDS[need][1]) for need in needs)
        reason, helps = next((one for one in in_the_way if one[0]), (None, ""))
        run = run.format(ranks=max(2, len(machine.gpus)))
        steps[name] = Step(not reason, str(reason) if reason else None, helps or run)
    return steps


def doctor(as_json: options.AsJson = False) -> None:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
    machine = diagnose()
    steps = loop_steps(machine)
    broken = next((name for name in _BY_CPU if not steps[name].possible), None)
    if as_json:
        loop = {name: step._asdict() for name, step in steps.items()}
        found = {"loop": loop, "closes": broken is None, "cautions": cautions(machine)}
        emit({"schema_version": 1, "kind": "diagnosis", **asdict(machine), **found})
    else:
        table("this machine", by_place("what", "found"), _rows(machine).items(), words=["found"])
        say("")
        for name, step in steps.items():
            can = "yes:" if step.possible else f"no: {step.reason};"
            say(f"{name.replace('_', ' ')}: {can} {step.run}")
        for caution in cautions(machine):
            say(f"mind: {caution}")
    if broken is not None:
        told = f"{broken}: {steps[broken].reason}; {steps[broken].run}"
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


def _rows(machine: Diagnosis) -> dict[str, str]:
    cores = "" if machine.cores is None else f"{machine.cores} cores, "
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    rows = {name: found or "missing" for name, found in machine.versions.items()}
    rows |= {"processor": machine.cpu, "processors": f"{cores}{machine.threads} threads{load}"}
    if machine.torch_obstacle is not None:
        rows["torch"] = machine.torch_obstacle
    rows |= {name: "yes" if there else "no: needs a newer torch" for name, there in machine.keywords.items()}
    rows |= {"lacks for free bucket_indices": ", ".join(machine.missing_for_injection) or "nothing"}
    rows |= {"backends": ", ".join(machine.backends) or "none", "nccl": machine.nccl or "no"}
    rows |= {"CUDA of torch": machine.cuda or "none", "GPUs": "; ".join(machine.gpus) or "none"}
    return rows | {
        "cluster in a box": machine.box_obstacle or "yes",
        "chromium": machine.chromium or "missing",
    }


def cautions(machine: Diagnosis) -> list[str]:
    """What makes a replay here scatter, in sentences; empty on a quiet machine with cores enough."""
    said = []
    if machine.threads < 2:
        said.append("1 thread for 2 ranks: they wait for each other as much as for the wire")
    if machine.load is not None and machine.load > machine.threads:
        said.append(f"load {machine.load:.1f} on {machine.threads} threads: measured steps will scatter")
    return said
