"""doctor, demo, dash, box: what this machine can do, the loop on what is bundled, the dashboard, a box."""

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
from typing import Any, NamedTuple

import typer

import sim
from sim.cli import options
from sim.cli.measuring import place_of
from sim.cli.options import argument, directory_option, flag, option
from sim.cli.printing import Answer, fail, line, note, say, suggest, table, without_suggestions
from sim.columns import by_place
from sim.errors import InputError, MachineError
from sim.machine import cpu_model

PACKAGES = ("bucketsim", "torch", "simpy", "networkx", "plotly", "streamlit", "numpy", "playwright")
RECORD = "bucketsim record MODULE:FACTORY -o workload.json"
CALIBRATE = "bucketsim calibrate --ranks 2 -o hardware.json"
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
    cannot be asked. ``backends`` are those of torch.distributed, ``missing_for_injection`` is what free
    ``bucket_indices`` lack. ``threads`` are those that this process may use, ``load`` those that wanted to
    run in the last minute. ``box_obstacle`` is why no cluster in a box can be made; None: one was.
    """

    platform: str
    versions: dict[str, str | None]
    torch_obstacle: str | None = None
    backends: tuple[str, ...] = ()
    nccl: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] = ()
    missing_for_injection: tuple[str, ...] = ()
    cpu: str
    threads: int
    load: float | None
    box_obstacle: str | None


class Step(NamedTuple):
    """One step of the loop: what to run; where ``reason`` says why it is not possible, what to do instead."""

    possible: bool
    reason: str | None
    run: str


def _needs(at: Diagnosis) -> dict[str, tuple[str, str]]:
    """What the steps take: what is in its way ("" if nothing is), and what helps."""
    torch, lacks = at.versions["torch"] or "", ", ".join(at.missing_for_injection)
    missing = " ".join(name for name in ("numpy", "simpy", "networkx") if at.versions.get(name) is None)
    is_old = at.torch_obstacle is None and tuple(map(int, torch.split(".")[:2])) < _OLDEST_TORCH
    return {
        "Linux": ("" if at.platform == "linux" else "real ranks need Linux", "run on Linux"),
        "torch": (f"torch {torch} is too old" if is_old else at.torch_obstacle or "", _INSTALL_TORCH),
        "gloo": ("" if "gloo" in at.backends else "torch is built without gloo", _REINSTALL_TORCH),
        "nccl": ("" if "nccl" in at.backends else "torch is built without nccl", _REINSTALL_TORCH),
        "buckets": (lacks and f"torch lacks {lacks}", _INSTALL_TORCH),
        "tuner": (missing and f"{missing} missing", f"pip install {missing}"),
        "box": (at.box_obstacle or "", f"be root, with iproute2, in a container --privileged; or: {REPLAY}"),
        "GPU": ("" if at.gpus else "torch sees no GPU", f"look at nvidia-smi; or: {REPLAY}"),
        "GPUs": ("NCCL needs a GPU for each rank" if len(at.gpus) == 1 else "", f"instead: {REPLAY}"),
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
    steps, needs = {}, _needs(machine)
    for name, (wanted, run) in _LOOP.items():
        reason, helps = next((needs[one] for one in wanted if needs[one][0]), ("", ""))
        run = run.format(ranks=max(2, len(machine.gpus)))
        steps[name] = Step(not reason, reason or None, helps or run)
    return steps


@options.answers
def doctor() -> Answer:
    """Say what this machine has, and which steps of the loop can run here; exit 1 if the loop cannot."""
    machine = diagnose()
    steps = loop_steps(machine)
    broken = next((name for name in _BY_CPU if not steps[name].possible), None)
    loop = {name: step._asdict() for name, step in steps.items()}
    found = {"loop": loop, "closes": broken is None, "cautions": cautions(machine)}

    def show() -> None:
        table("this machine", by_place("what", "found"), _rows(machine).items(), words=["found"])
        say("")
        for name, step in steps.items():
            can = "yes:" if step.possible else f"no: {step.reason};"
            say(f"{name.replace('_', ' ')}: {can} {step.run}")
        for caution in cautions(machine):
            say(f"mind: {caution}")
        if broken is None:
            say("the loop can close here: record, calibrate, tune, validate over gloo")

    document = {"schema_version": 1, "kind": "diagnosis", **asdict(machine), **found}
    if broken is None:
        return Answer(document, show, "bucketsim demo (the loop on a bundled recording)")
    fail(f"doctor: the loop cannot close here: {broken}: {steps[broken].reason}; {steps[broken].run}")
    return Answer(document, show, code=1)


def diagnose() -> Diagnosis:
    """Look at this machine, in little more than the time torch takes to import; nothing is left behind."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # before this adds to it
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    return Diagnosis(
        platform=sys.platform,
        versions=versions,
        cpu=cpu_model(),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=load,
        box_obstacle=_box_obstacle(),
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
    found = asdict(machine)
    rows = {name: told or "missing" for name, told in found.pop("versions").items()}
    for name, told in found.items():
        told = ", ".join(told) if isinstance(told, tuple) else told
        rows[name.replace("_", " ")] = "none" if told in (None, "") else str(told)
    return rows


def cautions(machine: Diagnosis) -> list[str]:
    """What makes a replay here scatter, in sentences; empty on a quiet machine with cores enough."""
    said = []
    if machine.threads < 2:
        said.append("1 thread for 2 ranks: they wait for each other as much as for the wire")
    if machine.load is not None and machine.load > machine.threads:
        said.append(f"load {machine.load:.1f} on {machine.threads} threads: measured steps will scatter")
    return said


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
) -> None:
    """Open the dashboard; measure a link, tune a bundled recording and replay it on local ranks beside it."""
    from app.launch import command, default_traces

    traces = default_traces()
    if traces is None:
        raise MachineError("demo: this installation has no bundled recordings; reinstall bucketsim")
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
    port = _port(None)
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
    possible = loop_steps(diagnose())
    inputs = (str(folder / "workload.json"), "--hardware", str(folder / "hardware.json"))
    what = "which buckets are best, and is it worth it? Some seconds."
    tune = what, ("tune", *inputs, "-o", str(folder / "assignment.json"))
    loopback, box = possible["validate_loopback"], possible["validate_box"]
    if not loopback.possible:
        note(f"No ranks can run here ({loopback.reason}): what was measured is bundled.")
        shutil.copyfile(traces / _WIRE, folder / "hardware.json")
        shutil.copytree(traces / _RECORD, folder / "measured")
        return [tune, ("was it true, where ranks ran? Some seconds.", ("agree", str(folder / "measured")))]
    place = "two network namespaces, with a wire of 4 Gbit/s between them"
    where = ["--box", "2", "--rate", "4gbit"]
    if not box.possible:
        place = f"two ranks over loopback (no cluster in a box here: {box.reason})"
        where = ["--ranks", "2"]
    rounds = ("--rounds", "2", "--budget", "14")
    measure = ("calibrate", *where, "--workload", inputs[0], *rounds, "-o", inputs[-1])
    replay = ("validate", *inputs, *where, "--caps", "1", "--rounds", "5", "-o", str(folder / "measured"))
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

    for name, folder in {"--traces": traces, "--watch": watch}.items():
        if folder is not None and not folder.is_dir():
            raise InputError(f"{name}: {folder} is no directory; give one that exists")
    if hardware is not None:
        sim.load_hardware(hardware)
    port = _port(port)
    argv = command(port=port, traces=traces, watch=watch, hardware=hardware)
    note(f"dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)")
    os.execv(argv[0], argv)


def _port(asked: int | None) -> int:
    """The port that is asked for, else the first from 8501 on that nothing listens on."""
    for port in range(8501, 8601) if asked is None else [asked]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError as error:
                if asked is not None:
                    raise InputError(
                        f"--port: {port} is not legal: {error.strerror}; give a free one"
                    ) from None
    raise MachineError("dash: ports 8501 to 8600 are all taken; name one with --port")


def box(
    hosts: int = argument("How many hosts, each with one rank; 2 to 64.", "HOSTS"),
    command: list[str] = argument(
        "What runs on each, such as -- python train.py --lr 1. Rank 0 has the terminal; what other "
        "ranks say goes to stderr, marked.",
        "-- COMMAND",
    ),
    rate: Sequence[int] = option(
        "The wire, such as 500mbit; or one a host: 4gbit,1gbit.", kind=options.RATES, default=...
    ),
) -> None:
    """Run your own command in a cluster in a box: a rank on each host, with torchrun's environment (root)."""
    from sim.validator.launch import run_in_box

    place = place_of(hosts, hosts, rate)
    note(f"{place.describe()}: {shlex.join(command)}")
    if (failure := run_in_box(place, command)) is not None:
        code, words = failure
        fail(f"box: {words}; whatever still ran was ended")
        raise typer.Exit(code)
