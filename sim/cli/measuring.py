"""record, calibrate: what is measured on this machine."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import sim
from sim.cli.next_steps import WORKLOAD, suggest, to_calibrate, to_tune
from sim.cli.on_device import Backend, Device, device_of_link, device_of_model
from sim.cli.options import MEASURING, AsJson, argument, file_option, flag, option, write_measured
from sim.cli.placing import Box, Prepare, Ranks, Rate, place_of, tell_commands
from sim.cli.printing import emit_noun, note, progress, say
from sim.formats.files import check_directory, check_writable
from sim.nouns.hardware import Hardware
from sim.units import format_ms, format_size, parse_size

if TYPE_CHECKING:
    from sim.validator.candidates.carriers import Carrier


class ReplayMode(StrEnum):
    """What the ranks compute."""

    PACED = "paced"
    MODEL = "model"


class LinkKind(StrEnum):
    """What the buckets travel over."""

    REAL = "real"
    EMULATED = "emulated"


def record(
    factory: str = argument(
        "An importable function that returns (model, batch), with model(*batch) a scalar loss, or a callable "
        "that runs one training step; such as my.module:factory.",
        "MODULE:FACTORY",
        default=...,
    ),
    output: Path = file_option("Write the workload here."),
    arg: list[str] | None = option("An argument for the factory; repeatable.", "--arg", metavar="KEY=VALUE"),
    name: str | None = option("Name of the workload; default: the class of the model."),
    device: Device = None,
    dtype: str | None = option("Cast model and batch, such as bfloat16."),
    repeats: int = option("Iterations that are recorded.", default=10),
    warmup: int = option("Iterations before these, which are not.", default=3),
    as_json: AsJson = False,
) -> None:
    """Run a real model and write down when backward makes each gradient ready."""
    from sim.recorder.factory import load_factory, parse_arguments
    from sim.recorder.profile import record as record_step

    arguments = parse_arguments(arg or [])
    made = load_factory(factory, arguments=arguments)
    with progress("recording") as report:
        workload = record_step(
            made,
            name=name,
            device=device_of_model(device, None),
            dtype=dtype,
            warmup=warmup,
            repeats=repeats,
            progress=report,
            factory_spec=factory,
            arguments=arguments,
        )
    write_measured(output, sim.to_text(workload))
    if as_json:
        emit_noun(workload)
        return
    say(
        f"{workload.name}: {len(workload.gradients)} gradients, {workload.total_bytes / 1e6:.1f} MB; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}"
    )
    suggest(to_calibrate(output))


def calibrate(
    output: Path = option(
        "Write the hardware here; with --prepare a directory.", "-o", "--output", default=...
    ),
    ranks: Ranks = 2,
    box: Box = None,
    rate: Rate = None,
    workload: Path | None = option("Measure no larger messages than this workload sends: faster."),
    largest: str | None = option(
        "Largest message. Default: what --workload sends at most, else 256MiB.", panel=MEASURING
    ),
    rounds: int = option("Rounds; each measures every size once.", panel=MEASURING, default=5),
    budget: float = option(
        "Seconds for further rounds of the sizes that still scatter.", panel=MEASURING, min=0, default=120
    ),
    again: bool = flag(
        "Measure only the doubtful sizes of the file that -o names again, and replace them.", "--again"
    ),
    mode: ReplayMode = option(
        "paced: collectives alone; model: also how they and computing slow each other down.",
        panel=MEASURING,
        default=ReplayMode.PACED,
    ),
    prepare: Prepare = False,
    device: Device = None,
    backend: Backend = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a link carries: how long collectives of each size take, between GPUs where they are."""
    from sim.validator.calibrate import calibrate as measure
    from sim.validator.calibrate import measure_again
    from sim.validator.candidates.carriers import Carrier

    if again and (device or backend):
        raise typer.BadParameter("--again: on the device that the file was measured on; leave out --device")
    if box is not None and device not in (None, "cpu"):
        raise typer.BadParameter("--box: its wires carry the CPU's tensors; leave out --device")
    largest_bytes = _largest_bytes(largest, workload)
    if prepare:
        if box is not None or rate is not None or as_json or again:
            raise typer.BadParameter(
                "--prepare: torchrun or srun starts the ranks; leave out --box, --rate, --again, --json"
            )
        check_directory(output, "--output")
        carrier = Carrier(device=device_of_link(device, ranks, elsewhere=True, boxed=False), backend=backend)
        _prepare(output, ranks, largest_bytes, rounds, budget, mode, carrier)
        return
    check_writable(output, "--output")
    place = place_of(ranks, box, rate)
    with progress("calibrating") as shown:
        report = _announced(shown)
        if again:
            hardware = measure_again(place, sim.load_hardware(output), budget_s=budget, progress=report)
        else:
            on = device_of_link(device, place.world_size, elsewhere=False, boxed=box is not None)
            hardware = measure(
                place,
                carrier=Carrier(device=on, backend=backend),
                largest=largest_bytes,
                rounds=rounds,
                budget_s=budget,
                mode=mode.value,
                progress=report,
            )
    tell_hardware(hardware, output, as_json)


def _largest_bytes(asked: str | None, workload: Path | None) -> int:
    """What is asked for, or the power of two in which all gradients of the workload together fit."""
    if asked is not None or workload is None:
        return parse_size(asked or "256MiB")
    return max(4096, 1 << (sim.load_workload(workload).total_bytes - 1).bit_length())


def _announced(report: Callable[..., None]) -> Callable[[int, int, str], None]:
    """``report``, and once a line that stays: how long it will take, as soon as that can be told."""
    told = False

    def tell(done: int, total: int, what: str) -> None:
        nonlocal told
        if not told:
            told = True
            note(f"calibrating: {what}")
        report(done, total, what)

    return tell


def _prepare(
    directory: Path,
    world_size: int,
    largest: int,
    rounds: int,
    budget_s: float,
    mode: ReplayMode,
    carrier: "Carrier",
) -> None:
    from sim.validator.calibrate import prepare_calibration

    job_file = prepare_calibration(
        directory,
        world_size,
        largest=largest,
        rounds=rounds,
        budget_s=budget_s,
        mode=mode.value,
        carrier=carrier,
    )
    tell_commands(job_file, f"bucketsim gather {directory} -o wire.json")


def tell_hardware(hardware: Hardware, output: Path, as_json: bool) -> None:
    """Write a hardware that was measured, and say what is in it."""
    write_measured(output, sim.to_text(hardware))
    if as_json:
        emit_noun(hardware)
        return
    top = hardware.all_reduce[-1]
    say(
        f"{hardware.name}: {top.num_bytes / top.duration_ns:.2f} GB/s at {format_size(top.num_bytes)}, "
        f"{format_ms(hardware.all_reduce[0].duration_ns)} at 4 KiB, launch "
        f"{hardware.launch_cost_ns / 1e3:.0f} us; of two all-reduces at once each takes "
        f"{hardware.channel_slowdown:.2f} times as long"
    )
    doubtful = hardware.provenance["doubtful"]
    for one in doubtful:
        note(f"doubtful: {format_size(one['num_bytes'])} {one['why']}")
    if doubtful:
        note("measure these sizes again, when the machine is quiet: the same command with --again")
    suggest(to_tune(WORKLOAD, output))
