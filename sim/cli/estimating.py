"""estimate: a workload for those who cannot profile."""

import math
from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.output_options import file_option, write
from sim.cli.printing import emit_noun, say
from sim.cli.simulating import AsJson
from sim.errors import InputError
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_ms


def estimate(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="Returns (model, batch) or a step.")
    ],
    output: Annotated[Path, file_option("Write the workload here.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the factory.")
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="key=value for the factory, as record has it.")
    ] = None,
    backward_ms: Annotated[float | None, typer.Option(help="A plain backward, as measured.")] = None,
    forward_ms: Annotated[
        float | None, typer.Option(help="Forward; left out: by its work beside backward's.")
    ] = None,
    optimizer_ms: Annotated[
        float | None, typer.Option(help="Optimizer; left out: by a fused AdamW's bytes.")
    ] = None,
    step_ms: Annotated[
        float | None, typer.Option(help="A whole step on one device, split over the parts left out.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="A GPU of the table, such as a100-80gb-sxm.")] = None,
    device_flops: Annotated[
        float | None, typer.Option(help="Matrix FLOP/s of another device; with --device-bytes-per-s.")
    ] = None,
    device_bytes_per_s: Annotated[float | None, typer.Option(help="Its memory bandwidth.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Cast model and batch, such as bfloat16.")] = None,
    autocast: Annotated[str | None, typer.Option(help="Forward under autocast: bfloat16 or float16.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the workload.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate when backward makes each gradient ready, from a model's code and one known time."""
    from sim.recorder import parse_arguments
    from sim.recorder.estimate import estimate as estimate_step

    workload = estimate_step(
        factory,
        arguments=parse_arguments([*(words or []), *(arg or [])]),
        name=name or factory.rpartition(":")[2],
        backward_ns=_ns("backward_ms", backward_ms),
        forward_ns=_ns("forward_ms", forward_ms),
        optimizer_ns=_ns("optimizer_ms", optimizer_ms),
        step_ns=_ns("step_ms", step_ms),
        gpu=gpu,
        device_flops=device_flops,
        device_bytes_per_s=device_bytes_per_s,
        dtype=dtype,
        autocast=autocast,
    )
    write(output, sim.to_text(workload))
    if as_json:
        emit_noun(workload)
    else:
        _print(workload)


def _ns(what: str, ms: float | None) -> int | None:
    if ms is not None and not math.isfinite(ms):
        raise InputError(f"{what}: {ms} is not legal; give a finite time in ms")
    return None if ms is None else round(ms * NS_PER_MS)


def _print(workload: Workload) -> None:
    """What was estimated, from what, and how far to trust it."""
    say(
        f"{workload.name}: {len(workload.gradients)} gradients, {workload.total_bytes / 1e6:.1f} MB; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}"
    )
    facts = workload.provenance
    say(f"operators weighed by {facts['roofline']['device']}; walked on {facts['walked_on']}")
    for part in ("forward_ns", "backward_ns", "optimizer_ns"):
        say(f"{part.removesuffix('_ns')}: {facts['times'][part]}")
    if workload.band is not None:
        low, high = workload.band
        say(f"estimated, not recorded; a band of {low:.2f} to {high:.2f}: {facts['band']}")
