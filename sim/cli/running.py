"""demo, dash, box: the loop on a bundled recording, the dashboard, one's own command in a box."""

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import typer

import sim
from sim.cli.doctor import diagnose, loop_steps
from sim.cli.measuring import place_of
from sim.cli.options import RATES, argument, directory_option, flag, option
from sim.cli.printing import fail, line, note, suggest, without_suggestions
from sim.errors import InputError, MachineError

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
    measure = ("calibrate", *where, "--largest", "64MiB", "--rounds", "4", "--budget", "15", "-o", inputs[-1])
    replay = ("validate", *inputs, *where, "--caps", "1,10", "--rounds", "5", "-o", str(folder / "measured"))
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
    hosts: int = argument("How many hosts, each with one rank; 2 to 64.", "HOSTS"),
    command: list[str] = argument(
        "What runs on each, such as -- python train.py --lr 1. Rank 0 has the terminal; what other "
        "ranks say goes to stderr, marked.",
        "-- COMMAND",
    ),
    rate: Sequence[int] = option(
        "The wire, such as 500mbit; or one a host: 4gbit,1gbit.", kind=RATES, default=...
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
