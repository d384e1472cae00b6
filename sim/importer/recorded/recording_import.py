"""Imports what ``sim.record`` wrote during a real training run, as other formats are imported."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.recorded import RECORDING
from sim.importer.recorded.kept_steps import keep, warmup_steps
from sim.importer.recorded.recorded_run import as_run
from sim.importer.recorded.recorded_steps import measured_of, torn_ranks, workload_of
from sim.nouns.imported import Imported, ImportOptions
from sim.units import format_ms, format_ranks, format_size

MEASURED = "measured"


def read_recording(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """A workload and, in ``details["measured"]``, medians of steps and buckets, from one recording.

    Args:
        paths: its directory, or files of one directory's ranks.
        options: only the name counts; a recording holds the rest.

    Raises:
        InputError: several recordings, or as ``load_recording`` and ``workload_of``.
        NotModelledError: as ``workload_of``.
    """
    folders = list(dict.fromkeys(path.parent if path.is_file() else path for path in paths))
    if len(folders) != 1:
        raise InputError(f"PATH: {len(folders)} paths are not legal; give one directory of a recording")
    recording = load_recording(folders[0])
    workload, measured = workload_of(recording), measured_of(recording)
    if options.name:
        workload = replace(workload, name=options.name)
    header = recording.ranks[0].header
    kept = keep(recording)
    steps = sum(len(rank.steps) for rank in recording.ranks)
    found = [
        f"{len(recording.ranks)} of {recording.world_size} ranks, {header.level} level, {header.backend} on "
        f"{header.device_type}, {steps} steps in all",
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
    if workload.extensions:
        assumed.append(
            "the model ran under torch.compile: gradients are ready where its cuts end, and the cuts stay"
        )
    if workload.ready_includes:
        assumed.append(
            f"the times contain {', '.join(workload.ready_includes)}; to be rid of them, run a few backwards "
            f"under no_sync while recording"
        )
    if not workload.provenance["optimizer_seen"]:
        assumed.append("no optimizer step was seen; optimizer_ns is 0")
    run, missing = as_run(recording, workload), []
    if isinstance(run, str):
        missing.append(f"the job's own step, to hold predictions to: {run}")
    dropped = [f"the first {warmup_steps(recording)} steps of each rank, as warm-up"]
    shared = sum(rank.dropped for rank in kept)
    if shared:
        dropped.append(f"{shared} backwards that followed several forwards with gradients")
    if recording.missing_ranks:
        dropped.append(f"no file of {format_ranks(recording.missing_ranks)}")
    later = sorted(path.name for path in folders[0].glob("restart-*") if path.is_dir())
    if later:
        dropped.append(f"later starts of the job, each to be imported by itself: {', '.join(later)}")
    if torn := torn_ranks(recording):
        dropped.append(f"the last line of {format_ranks(torn)}, which was cut off")
    return Imported(
        format=RECORDING.name,
        name=workload.name,
        workload=workload,
        measurements=() if isinstance(run, str) else (run,),
        found=tuple(found),
        assumed=tuple(assumed),
        missing=tuple(missing),
        dropped=tuple(dropped),
        doubtful=tuple(workload.provenance["doubtful"]),
        details={MEASURED: measured},
    )
