"""estimate: a workload for those who cannot profile."""

import math
from pathlib import Path

import sim
from sim.cli.next_steps import suggest, to_calibrate
from sim.cli.options import MODEL, TIMES, AsJson, argument, file_option, option, write
from sim.cli.printing import emit_noun, note, say
from sim.errors import InputError
from sim.nouns.gpus import GPUS
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_ms


def estimate(
    factory: str = argument(
        "An importable function that returns (model, batch), or a step.", "MODULE:FACTORY", default=...
    ),
    output: Path = file_option("Write the workload here."),
    words: list[str] | None = argument("Arguments of the factory.", "[KEY=VALUE]..."),
    arg: list[str] | None = option(
        "An argument for the factory, as record has it.", panel=MODEL, metavar="KEY=VALUE"
    ),
    backward_ms: float | None = option("Backward without communication, as measured, ms."),
    forward_ms: float | None = option(
        "Forward, ms; left out: computed from backward by their FLOPs and bytes.", panel=TIMES
    ),
    optimizer_ms: float | None = option(
        "Optimizer, ms; left out: computed from the bytes of a fused AdamW.", panel=TIMES
    ),
    step_ms: float | None = option(
        "A whole step on one device, ms: what is left of it goes to the times that are not given.",
        panel=TIMES,
    ),
    gpu: str | None = option(
        f"The GPU, for the weights of operators, one of {', '.join(GPUS)}; v100, rtx4090."
    ),
    device_flops: float | None = option(
        "Matrix FLOP/s of another device; with --device-bytes-per-s.", panel=TIMES
    ),
    device_bytes_per_s: float | None = option("Memory bandwidth of that device, byte/s.", panel=TIMES),
    dtype: str | None = option("Cast model and batch, such as bfloat16.", panel=MODEL),
    autocast: str | None = option("Forward under autocast: bfloat16 or float16.", panel=MODEL),
    name: str | None = option("Name of the workload; default: the class of the model.", panel=MODEL),
    as_json: AsJson = False,
) -> None:
    """Estimate when backward makes each gradient ready, from a model's code and one known time."""
    from sim.recorder.estimate import estimate as estimate_step
    from sim.recorder.factory import parse_arguments

    workload = estimate_step(
        factory,
        arguments=parse_arguments([*(words or []), *(arg or [])]),
        name=name,
        backward_ns=_ns("backward_ms", backward_ms),
        forward_ns=_ns("forward_ms", forward_ms),
        optimizer_ns=_ns("optimizer_ms", optimizer_ms),
        step_ns=_ns("step_ms", step_ms),
        gpu=gpu,
        device_flops=device_flops,
        device_bytes_per_s=device_bytes_per_s,
        dtype=dtype,
        autocast=autocast,
        tell=note,
    )
    write(output, sim.to_text(workload))
    if as_json:
        emit_noun(workload)
    else:
        _print(workload)
        suggest(to_calibrate(output))


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
