"""export: an assignment taken home, as indices, lines, flags or a trace."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import sim
from sim.cli.next_steps import suggest, to_replay
from sim.cli.options import WorkloadFile, file_option, option, write
from sim.cli.own_job import Parts, load_inputs, tell_doubtful
from sim.cli.printing import emit, note
from sim.costs.doubts import doubts_about_buckets
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job

Output = Annotated[Path | None, file_option("Write here.")]


class Target(StrEnum):
    """What to export."""

    BUCKET_INDICES = "bucket-indices"
    SNIPPET = "snippet"
    ASSIGNMENT = "assignment"
    MEGATRON_FLAGS = "megatron-flags"
    PERFETTO = "perfetto"
    TRANSFORMERS = "transformers"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    RAY = "ray"
    MMENGINE = "mmengine"
    FAIRSEQ = "fairseq"


_WITHOUT_TIMES = (Target.BUCKET_INDICES, Target.SNIPPET, Target.ASSIGNMENT, Target.MEGATRON_FLAGS)


def export(
    workload_file: WorkloadFile,
    hardware_file: Path | None = option(
        "The hardware file to tune for, and to take times from.", "--hardware"
    ),
    assignment_file: Path | None = option("Export this assignment instead of the best.", "--assignment"),
    target: Target = option(
        "What to export, or the framework that you train with.", "--as", default=Target.BUCKET_INDICES
    ),
    parts: Parts = False,
    output: Output = None,
) -> None:
    """Print an assignment for use elsewhere: lines to paste, bucket_indices, or a trace for Perfetto."""
    hardware: Hardware | None = None
    if hardware_file is None:
        workload = sim.load_workload(workload_file)
    elif assignment_file is not None and target in _WITHOUT_TIMES:
        workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    else:
        workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json=True)
    assignment: Assignment
    setting: Setting | None = None
    if assignment_file is not None:
        assignment = sim.load_assignment(assignment_file)
        assignment.check_fits(workload)
        assignment = as_the_job(workload, assignment)
    elif hardware is not None:
        if target is Target.MEGATRON_FLAGS:
            assignment = sim.best_of(workload, hardware, "megatron").assignment
        else:
            found = sim.tune(workload, hardware)
            assignment, setting = found.assignment, found.setting
    else:
        raise InputError("export: give --hardware to export the best assignment, or --assignment")
    if hardware is not None:
        tell_doubtful(workload, hardware)
    for line in doubts_about_buckets(workload, assignment, hardware):
        note(line)
    text = _exported(target, workload, hardware, assignment, setting)
    if output is None:
        emit(text)
    else:
        write(output, text)
    if target is Target.PERFETTO:
        suggest("open the trace in https://ui.perfetto.dev")
    elif assignment_file is not None or target is not Target.MEGATRON_FLAGS:  # that best one is in no file
        suggest(to_replay(workload_file, hardware_file, hardware, assignment_file))


def _exported(
    target: Target,
    workload: Workload,
    hardware: Hardware | None,
    assignment: Assignment,
    setting: Setting | None,
) -> str:
    """The text of ``assignment`` for ``target``; ``setting``: what ``tune`` says to set, for a framework."""
    if target is Target.SNIPPET:
        return sim.snippet(assignment, workload)
    if target is Target.ASSIGNMENT:
        return sim.to_text(assignment)
    if target is Target.BUCKET_INDICES:
        return sim.bucket_indices_json(assignment, workload)
    if target is Target.MEGATRON_FLAGS:
        return sim.megatron_flags(assignment, workload)
    if hardware is None:
        raise InputError(f"export: --as {target} needs --hardware")
    if target is Target.PERFETTO:
        return sim.perfetto_json(sim.simulate(workload, hardware, assignment))
    return sim.nearest_setting(workload, hardware, assignment, target.value, setting=setting).lines
