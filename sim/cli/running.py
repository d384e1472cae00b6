"""demo, dash, box: the loop on a bundled recording, the dashboard, and any command in a box of hosts."""

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import typer

import sim
from sim.cli.diagnosing import diagnose, loop_steps
from sim.cli.next_steps import suggest, to_look, without_suggestions
from sim.cli.options import argument, directory_option, flag, option
from sim.cli.placing import place_of
from sim.cli.printing import fail, note
from sim.errors import InputError, MachineError

FOLDER = "bucketsim-demo"
_BUNDLED = ("workloads", "hardware", "measured")
_RECORDING = Path("workloads", "gpt-13.8M-cpu.json")
_WIRE, _RECORD = Path("hardware", "box-2x4gbit.json"), Path("measured", "gpt-box-2x4gbit")
_BOX, _LOOPBACK = "--box 2 --rate 4gbit", "--ranks 2"


@dataclass(frozen=True, slots=True)
class _Phase:
    """One command of the demonstration, and what it is for, in words."""

    what: str
    words: tuple[str, ...]


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
    if port is not None and not (files or no_dash) and (obstacle := port_obstacle(port)) is not None:
        raise InputError(f"--port: {port} is not legal: {obstacle}; give one that is free, or none")
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
        suggest(to_look(folder))
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


def _run_all(context: typer.Context, phases: Sequence[_Phase]) -> None:
    with without_suggestions():
        for number, phase in enumerate(phases, 1):
            _run(context, f"{number} of {len(phases)}", phase)


def _new_folder(output: Path | None) -> Path:
    """Where nothing is yet: ``output``, or the first name of ours that is free."""
    if output is None:
        names = (FOLDER if number == 1 else f"{FOLDER}-{number}" for number in count(1))
        return next(path for path in map(Path, names) if not path.exists())
    if output.exists() and any(output.iterdir()):
        raise InputError(f"--output: {output} holds files already; give a new or empty directory")
    return output


def _phases(folder: Path, traces: Path) -> list[_Phase]:
    """The commands for this machine: on a slow wire of its own, over loopback, or on what is bundled."""
    machine = diagnose()
    possible = {step.name: step for step in loop_steps(machine)}
    inputs = (str(folder / "workload.json"), "--hardware", str(folder / "hardware.json"))
    answer = ("-o", str(folder / "assignment.json"))
    tune = _Phase("which buckets are best, and is it worth it? Some seconds.", ("tune", *inputs, *answer))
    if not possible["validate_loopback"].possible:
        note(f"No ranks can run here ({possible['validate_loopback'].reason}): what was measured is bundled.")
        shutil.copyfile(traces / _WIRE, folder / "hardware.json")
        shutil.copytree(traces / _RECORD, folder / "measured")
        scored = _Phase("was it true, where ranks ran? Some seconds.", ("agree", str(folder / "measured")))
        return [tune, scored]
    if possible["validate_box"].possible:
        place, where = "two network namespaces, with a wire of 4 Gbit/s between them", _BOX
    else:
        place = f"two ranks over loopback (no cluster in a box here: {possible['validate_box'].reason})"
        where = _LOOPBACK
    measure = ("calibrate", *where.split(), "--largest", "64MiB", "--budget", "30", "-o", inputs[-1])
    replay = ("validate", *inputs, *where.split(), "--rounds", "6", "-o", str(folder / "measured"))
    return [
        _Phase(f"what does a link carry? Here {place}. One or two minutes.", measure),
        tune,
        _Phase(
            "is it true, on real ranks? The answer, DDP's default and others; one or two minutes.", replay
        ),
    ]


def _run(context: typer.Context, place: str, phase: _Phase) -> None:
    """Say what comes, and run the line that is shown."""
    note(f"\n{place}: {phase.what}\n$ {shlex.join(('bucketsim', *phase.words))}")
    bucketsim = context.find_root().command
    with bucketsim.make_context("bucketsim", list(phase.words)) as inner:
        bucketsim.invoke(inner)


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
    if port is not None and (obstacle := port_obstacle(port)) is not None:
        raise InputError(f"--port: {port} is not legal: {obstacle}; give one that is free, or none")
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
    rate: str = option("The wire, such as 500mbit; or one a host: 4gbit,1gbit.", default=...),
) -> None:
    """Run your own command in a cluster in a box: a rank on each host, with torchrun's environment (root)."""
    from sim.validator.launch import run_in_box

    place = place_of(hosts, hosts, rate)
    note(f"{place.describe()}: {shlex.join(command)}")
    failure = run_in_box(place, command)
    if failure is not None:
        fail(f"box: {failure.describe()}; whatever still ran was ended")
        raise typer.Exit(failure.exit_code)
