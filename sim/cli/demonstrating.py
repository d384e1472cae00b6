"""demo: the whole loop on a bundled recording, command by command, and the dashboard at its end."""

import shlex
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.diagnosing import diagnose
from sim.cli.loop_steps import loop_steps
from sim.cli.next_steps import suggest, to_look, without_suggestions
from sim.cli.output_options import directory_option
from sim.cli.printing import note
from sim.cli.showing import port_obstacle
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
    output: Annotated[
        Path | None,
        directory_option(f"New directory for what is made; default: {FOLDER}, or {FOLDER}-2 and so on."),
    ] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files", help="Only copy what is bundled to -o: workloads, hardware files, measured records."
        ),
    ] = False,
    no_dash: Annotated[bool, typer.Option("--no-dash", help="End without opening the dashboard.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the dashboard on 127.0.0.1.")
    ] = None,
) -> None:
    """Measure a link, tune a bundled recording, replay it on local ranks, and open the dashboard."""
    from app.launch import default_traces

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
    with without_suggestions():
        for number, phase in enumerate(phases, 1):
            _run(context, f"{number} of {len(phases)}", phase)
    if no_dash:
        suggest(to_look(folder))
        return
    ports = () if port is None else ("--port", str(port))
    _run(
        context, "The dashboard", _Phase("all of it on one screen", ("dash", "--watch", str(folder), *ports))
    )


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
