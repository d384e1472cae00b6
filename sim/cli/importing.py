"""import: what other tools and real training runs left behind, as our files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.printing import emit, note, table, write
from sim.cli.simulating import AsJson
from sim.errors import InputError, NotModelledError
from sim.formats.documents import json_text, to_text
from sim.formats.recorded import keep, measured_of, torn_ranks, warmup_steps, workload_of
from sim.formats.recordings import load_recording
from sim.nouns.recording import Recording
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size

WORKLOAD, MEASURED = "workload.json", "measured.json"
_LATER = ("auto", "kineto", "nccl-tests", "flight-recorder", "ddp-log", "chakra")


def import_(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="recording: what sim.record wrote.")],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="What to read.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write to.")],
    as_json: AsJson = False,
) -> None:
    """Turn a recording of a real training run into a workload and a summary of what was measured."""
    if form in _LATER:
        raise NotModelledError(f"FORMAT: {form!r} is not built yet; give recording")
    if form != "recording":
        raise InputError(f"FORMAT: {form!r} is not legal; give recording")
    if len(paths) != 1:
        raise InputError(f"PATH: {len(paths)} paths are not legal; give one directory of a recording")
    recording = load_recording(paths[0])
    workload, measured = workload_of(recording), measured_of(recording)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be made: {error.strerror or error}") from None
    write(output / WORKLOAD, to_text(workload))
    write(output / MEASURED, json_text(measured))
    summary = _summary(recording, workload)
    if as_json:
        files = [str(output / WORKLOAD), str(output / MEASURED)]
        emit(json_text({"kind": "import", "format": form, "files": files, **summary}))
        return
    for title in ("found", "assumed", "dropped"):
        for line in summary[title]:
            note(f"{title}: {line}")
    _print_buckets(measured)


def _summary(recording: Recording, workload: Workload) -> dict[str, list[str]]:
    """What was found, assumed and dropped, one line each."""
    header = recording.ranks[0].header
    kept = keep(recording)
    steps = sum(len(rank.steps) for rank in recording.ranks)
    found = [
        f"{len(recording.ranks)} of {recording.world_size} ranks, {header.level} level, {header.backend} on "
        f"{header.device}, {steps} steps in all",
        f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}; forward "
        f"{format_ms(workload.forward_ns)}, backward {format_ms(workload.backward_ns)}, optimizer "
        f"{format_ms(workload.optimizer_ns)}",
    ]
    if header.comm_hook is not None:
        found.append(f"the communication hook {header.comm_hook}")
    assumed = [
        f"made from {workload.provenance['made_from']} of rank {workload.provenance['rank']}, "
        f"{workload.provenance['rank_is']}",
        "backward starts at the end of forward; the loss is in it",
    ]
    if workload.ready_includes:
        assumed.append(
            f"the times contain {', '.join(workload.ready_includes)}; to be rid of them, run a few backwards "
            f"under no_sync while recording"
        )
    if not workload.provenance["optimizer_seen"]:
        assumed.append("no optimizer step was seen; optimizer_ns is 0")
    dropped = [f"the first {warmup_steps(recording)} steps of each rank, as warm-up"]
    shared = sum(rank.dropped for rank in kept)
    if shared:
        dropped.append(f"{shared} backwards that followed several forwards with gradients")
    if recording.missing_ranks:
        dropped.append(f"no file of ranks {', '.join(map(str, recording.missing_ranks))}")
    for rank in torn_ranks(recording):
        dropped.append(f"the last line of rank {rank}, which was cut off")
    return {"found": found, "assumed": assumed, "dropped": dropped}


def _print_buckets(measured: dict[str, Any]) -> None:
    if not measured["buckets"]:
        return
    table(
        "buckets, slowest rank, medians, from the end of forward",
        ["bucket", "size", "ready", "launch", "end", "last to launch"],
        [
            [
                str(row["index"]),
                format_size(row["num_bytes"]),
                format_ms(row["ready_ns"]),
                format_ms(row["launch_ns"]),
                format_ms(row["end_ns"]),
                ", ".join(f"rank {rank}: {count}" for rank, count in row["last_arriver"].items()),
            ]
            for row in measured["buckets"]
        ],
    )
