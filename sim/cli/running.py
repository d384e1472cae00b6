"""doctor, demo, dash, box: what this machine can do, the loop on a recording, the dashboard, a box."""

import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import sim
from sim.cli.measuring import place_of
from sim.cli.options import RATES, AsJson, argument, directory_option, flag, option
from sim.cli.printing import emit, fail, line, note, print_table, say, suggest, without_suggestions
from sim.errors import InputError, MachineError
from sim.formats.documents import json_text
from sim.machine import cpu_model, is_root, load_average, physical_cores, usable_threads
from sim.units import format_ms, format_size

if TYPE_CHECKING:
    from sim.validator.capabilities import TorchFacts

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
_OPTIONAL = ("playwright",)
_TUNING = ("numpy", "simpy", "networkx")
_BY_CPU = ("record", "calibrate", "tune", "validate_loopback")
_PROBE_BITS = 10**9
_LATE_NS = 1_000_000
Obstacle = tuple[str, str] | None  # why something is not possible, and what to run


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
    """One step of the loop: what to run; where ``reason`` says why it is not possible, what to do instead."""

    name: str
    reason: str | None
    run: str

    @property
    def possible(self) -> bool:
        """Whether this machine can make the step."""
        return self.reason is None


# doctor


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
    machine = diagnose()
    steps = loop_steps(machine)
    obstacle = loop_obstacle(steps)
    if as_json:
        loop = {
            step.name: {"possible": step.possible, "reason": step.reason, "run": step.run} for step in steps
        }
        told = {"loop": loop, "closes": obstacle is None, "cautions": cautions(machine)}
        emit(json_text({"schema_version": 1, "kind": "diagnosis", **asdict(machine), **told}))
    else:
        print_table("this machine", ["what", "found"], _rows(machine))
        say("")
        for step in steps:
            can = "yes" if step.possible else f"no: {step.reason}"
            say(f"{step.name.replace('_', ' ')}: {can}{':' if step.possible else ';'} {step.run}")
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
    browser = Path(os.environ.get("BUCKETSIM_CHROMIUM", "/usr/bin/chromium"))  # where the tests look
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
        chromium=str(browser) if versions["playwright"] and browser.exists() else None,
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
        return str(error)


def _yes(holds: bool, otherwise: str = "") -> str:
    return "yes" if holds else f"no: {otherwise}" if otherwise else "no"


def _rows(machine: Diagnosis) -> list[list[str]]:
    cores = "" if machine.cores is None else f"{machine.cores} cores, "
    load = "" if machine.load is None else f", load {machine.load:.2f}"
    rows = [
        [name, found or "missing"]
        for name, found in machine.versions.items()
        if found is not None or name not in _OPTIONAL
    ]
    rows += [["processor", machine.cpu], ["processors", f"{cores}{machine.threads} threads{load}"]]
    torch = machine.torch
    if torch is None:
        rows.append(["torch", machine.torch_obstacle or ""])
    else:
        lacking = ", ".join(torch.missing_for_injection)
        late = f"{format_ms(torch.sleep_late_median_ns)}, one in ten {format_ms(torch.sleep_late_p90_ns)}"
        rows += [
            ["bucket_cap_mb_list", _yes(torch.bucket_cap_mb_list, "needs torch 2.11")],
            ["batched_grad_copy", _yes(torch.batched_grad_copy, "needs torch 2.12")],
            ["free bucket_indices", _yes(not lacking, f"lacks {lacking}")],
            ["torch.distributed", _yes(torch.distributed)],
            ["gloo", _yes(torch.gloo)],
            ["nccl", torch.nccl_version or _yes(torch.nccl)],
            ["mpi", _yes(torch.mpi)],
            ["CUDA of torch", torch.cuda or "none"],
            ["GPUs", str(len(torch.gpus))],
            *(
                [f"GPU {i}", f"{gpu.name}, {format_size(gpu.memory_bytes)}"]
                for i, gpu in enumerate(torch.gpus)
            ),
            ["sleeps end late by", late],
        ]
    rows += [
        ["root", _yes(machine.root)],
        ["iproute2", _yes(machine.iproute2)],
        ["cluster in a box", _yes(machine.box_obstacle is None, machine.box_obstacle or "")],
    ]
    if machine.versions["playwright"] is not None:
        rows.append(["chromium", machine.chromium or "missing"])
    return rows


def loop_steps(machine: Diagnosis) -> tuple[LoopStep, ...]:
    """Each step of the loop in order, with what makes it possible or what stands in its way."""
    torch, ranks, replay, gpu = _torch_obstacle(machine), *_rank_obstacles(machine), _gpu_obstacle(machine)
    gpus = 0 if machine.torch is None else len(machine.torch.gpus)
    nccl = torch or gpu
    if nccl is None and machine.torch is not None:
        if not (machine.torch.distributed and machine.torch.nccl):
            nccl = f"torch {machine.torch.version} is built without NCCL", _REINSTALL_TORCH
        elif gpus == 1:
            nccl = "1 GPU; several ranks on one GPU: gloo only, not NCCL", f"instead: {REPLAY}"
    missing = " ".join(package for package in _TUNING if machine.versions.get(package) is None)
    box = replay
    if box is None and machine.box_obstacle is not None:
        remedy = "start the container with --privileged" if machine.root else "run as root"
        remedy = remedy if machine.iproute2 else "apt-get install iproute2"
        box = machine.box_obstacle, f"{remedy}, or: {REPLAY}"
    ab = f"bucketsim ab MODULE:FACTORY --device cuda --ranks {gpus} --assignment assignment.json"
    steps: dict[str, tuple[Obstacle, str]] = {
        "record": (torch, RECORD.replace(" -o", " --device cuda -o") if gpus else RECORD),
        "calibrate": (ranks, f"bucketsim calibrate --ranks {max(2, gpus)} -o hardware.json"),
        "tune": ((f"{missing} missing", f"pip install {missing}") if missing else None, TUNE),
        "validate_loopback": (replay, REPLAY),
        "validate_box": (box, f"{_REPLAY} --box 2 --rate 4gbit -o measured"),
        "validate_nccl": (nccl, ab),
        # one rank whose wire is a curve on side streams: everything but the wire is real
        "validate_one_gpu": (replay or gpu, f"{_REPLAY} --link emulated --device cuda -o measured"),
    }
    return tuple(
        LoopStep(name=name, reason=obstacle[0] if obstacle else None, run=obstacle[1] if obstacle else run)
        for name, (obstacle, run) in steps.items()
    )


def loop_obstacle(steps: Sequence[LoopStep]) -> str | None:
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


def _torch_obstacle(machine: Diagnosis) -> Obstacle:
    """Why torch is of no use here."""
    if machine.torch is None:
        installed = machine.versions["torch"] is not None
        return machine.torch_obstacle or "no torch", _REINSTALL_TORCH if installed else _INSTALL_TORCH
    if tuple(map(int, machine.torch.version.split(".")[:2])) < _OLDEST_TORCH:
        return f"torch {machine.torch.version} is too old", _INSTALL_TORCH
    return None


def _rank_obstacles(machine: Diagnosis) -> tuple[Obstacle, Obstacle]:
    """Why no ranks can meet over gloo here; and why they replay no buckets that no keyword of DDP reaches."""
    obstacle: Obstacle = ("real ranks need Linux, not " + machine.platform, "run on Linux")
    if machine.platform == "linux":
        obstacle = _torch_obstacle(machine)
    torch = machine.torch
    if obstacle is not None or torch is None:
        return obstacle, obstacle
    for is_built, what in ((torch.distributed, "torch.distributed"), (torch.gloo, "gloo")):
        if not is_built:
            obstacle = f"torch {torch.version} is built without {what}", _REINSTALL_TORCH
            return obstacle, obstacle
    lacking = ", ".join(torch.missing_for_injection)
    return None, (
        (f"torch {torch.version} lacks {lacking} for free bucket_indices", _INSTALL_TORCH)
        if lacking
        else None
    )


def _gpu_obstacle(machine: Diagnosis) -> Obstacle:
    """Why torch computes on no GPU here."""
    if machine.torch is None or machine.torch.gpus:
        return None
    if not machine.nvidia_driver:
        return "no GPU", f"instead: {REPLAY}"
    if machine.torch.cuda is None:
        return f"torch {machine.torch.version} is built without CUDA", _REINSTALL_TORCH
    return "torch sees no GPU though nvidia-smi is here", "look at nvidia-smi and CUDA_VISIBLE_DEVICES"


# demo

FOLDER = "bucketsim-demo"
_BUNDLED = ("workloads", "hardware", "measured")
_RECORDING = Path("workloads", "gpt-13.8M-cpu.json")
_WIRE, _RECORD = Path("hardware", "box-2x4gbit.json"), Path("measured", "gpt-box-2x4gbit")


def demo(
    context: typer.Context,
    output: Path | None = directory_option(
        f"New directory for what is made; default: {FOLDER}, or {FOLDER}-2 and so on.", default=None
    ),
    files: bool = flag(
        "Only copy what is bundled to -o: workloads, hardware files, measured records.", "--files"
    ),
    no_dash: bool = flag("End without opening the dashboard.", "--no-dash"),
    port: int | None = option("Port of the dashboard on 127.0.0.1.", min=1, max=65535),
) -> None:
    """Open the dashboard; measure a link, tune a bundled recording and replay it on local ranks beside it."""
    from app.launch import command, default_traces

    traces = default_traces()
    if traces is None:
        raise MachineError("demo: this installation has no bundled recordings; reinstall bucketsim")
    if not (files or no_dash):
        _check_port(port)
    folder = _new_folder(output)
    if files:
        for name in _BUNDLED:
            shutil.copytree(traces / name, folder / name)
        note(f"wrote {', '.join(str(folder / name) for name in _BUNDLED)}")
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(traces / _RECORDING, folder / "workload.json")
    phases = _phases(folder, traces)
    note(
        f"The loop on a bundled recording, a GPT of 13.8 million parameters, in {len(phases)} commands. "
        f"Their files go to {folder}."
    )
    if no_dash:
        _run_all(context, phases)
        suggest(line("dash", "--watch", folder))
        return
    port = port or _free_port(8501)
    # It gives way to the ranks, whose times are measured, and looks for what they made every few seconds.
    argv = ["nice", *command(port=port, watch=folder)]
    with (folder / "dashboard.log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as page:
        note(
            f"The dashboard shows this job on the bundled link meanwhile: "
            f"http://127.0.0.1:{port}/?start=measured+run&record={_RECORD.name}"
        )
        try:
            _run_all(context, phases)
            note(f"\nAll of it on one screen: http://127.0.0.1:{port}/validate (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):
                page.wait()
        finally:
            page.terminate()


def _run_all(context: typer.Context, phases: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Say what comes, and run each line that is shown."""
    bucketsim = context.find_root().command
    with without_suggestions():
        for number, (what, words) in enumerate(phases, 1):
            note(f"\n{number} of {len(phases)}: {what}\n$ {line(*words)}")
            with bucketsim.make_context("bucketsim", list(words)) as inner:
                bucketsim.invoke(inner)


def _new_folder(output: Path | None) -> Path:
    """Where nothing is yet: ``output``, or the first name of ours that is free."""
    if output is None:
        names = (FOLDER if number == 1 else f"{FOLDER}-{number}" for number in count(1))
        return next(path for path in map(Path, names) if not path.exists())
    if output.exists() and any(output.iterdir()):
        raise InputError(f"--output: {output} holds files already; give a new or empty directory")
    return output


def _phases(folder: Path, traces: Path) -> list[tuple[str, tuple[str, ...]]]:
    """What each command for this machine is for, and its words: on a slow wire of its own, over loopback, or
    on what is bundled.
    """
    possible = {step.name: step for step in loop_steps(diagnose())}
    inputs = (str(folder / "workload.json"), "--hardware", str(folder / "hardware.json"))
    what = "which buckets are best, and is it worth it? Some seconds."
    tune = what, ("tune", *inputs, "-o", str(folder / "assignment.json"))
    if not possible["validate_loopback"].possible:
        note(f"No ranks can run here ({possible['validate_loopback'].reason}): what was measured is bundled.")
        shutil.copyfile(traces / _WIRE, folder / "hardware.json")
        shutil.copytree(traces / _RECORD, folder / "measured")
        return [tune, ("was it true, where ranks ran? Some seconds.", ("agree", str(folder / "measured")))]
    place = "two network namespaces, with a wire of 4 Gbit/s between them"
    where = ["--box", "2", "--rate", "4gbit"]
    if not possible["validate_box"].possible:
        place = f"two ranks over loopback (no cluster in a box here: {possible['validate_box'].reason})"
        where = ["--ranks", "2"]
    measure = ("calibrate", *where, "--largest", "64MiB", "--budget", "30", "-o", inputs[-1])
    replay = ("validate", *inputs, *where, "--rounds", "6", "-o", str(folder / "measured"))
    return [
        (f"what does a link carry? Here {place}. One or two minutes.", measure),
        tune,
        ("is it true, on real ranks? The answer, DDP's default and others; one or two minutes.", replay),
    ]


# dash, box


def dash(
    traces: Path | None = option("Directory of recordings; default: the bundled ones."),
    watch: Path | None = option("Directory that a job writes to with sim.record, or of further records."),
    hardware: Path | None = option("The machine of the watched job, as calibrate writes it."),
    port: int | None = option("Port on 127.0.0.1.", min=1, max=65535),
) -> None:
    """Open the dashboard on 127.0.0.1."""
    from app.launch import command

    for folder in (traces, watch):
        if folder is not None and not folder.is_dir():
            raise InputError(f"{folder}: not a directory")
    if hardware is not None:
        sim.load_hardware(hardware)
    _check_port(port)
    port = port or _free_port(8501)
    argv = command(port=port, traces=traces, watch=watch, hardware=hardware)
    note(f"dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)")
    os.execv(argv[0], argv)


def _free_port(first: int) -> int:
    """The first port from ``first`` on that nothing listens on."""
    for port in range(first, first + 100):
        if port_obstacle(port) is None:
            return port
    raise MachineError(f"dash: ports {first} to {first + 99} are all taken; name one with --port")


def _check_port(port: int | None) -> None:
    if port is not None and (obstacle := port_obstacle(port)) is not None:
        raise InputError(f"--port: {port} is not legal: {obstacle}; give one that is free, or none")


def port_obstacle(port: int) -> str | None:
    """Why nobody can listen on a port; None where one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def box(
    hosts: int = argument("How many hosts, each with one rank; 2 to 64.", "HOSTS", default=...),
    command: list[str] = argument(
        "What runs on each, such as -- python train.py --lr 1. Rank 0 has the terminal; what other "
        "ranks say goes to stderr, marked.",
        "-- COMMAND",
        default=...,
    ),
    rate: Sequence[int] = option(
        "The wire, such as 500mbit; or one a host: 4gbit,1gbit.", kind=RATES, default=...
    ),
) -> None:
    """Run your own command in a cluster in a box: a rank on each host, with torchrun's environment (root)."""
    from sim.validator.launch import run_in_box

    place = place_of(hosts, hosts, rate)
    note(f"{place.describe()}: {shlex.join(command)}")
    failure = run_in_box(place, command)
    if failure is not None:
        fail(f"box: {failure.describe()}; whatever still ran was ended")
        raise typer.Exit(failure.exit_code)
