"""tune, export, anchor: the best buckets and why, how they get home, and a machine made true for one step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.options import (
    CAPS,
    FITTING,
    MS,
    PAIRS,
    PREDICTING,
    AsJson,
    HardwareFile,
    Kind,
    Parts,
    Settings,
    WorkloadFile,
    as_dict,
    choice,
    commas,
    file_option,
    flag,
    option,
    settings,
    write,
)
from sim.cli.predicting import load_inputs, load_job, tell_doubtful, tell_held
from sim.cli.printing import (
    emit,
    emit_noun,
    line,
    note,
    print_table,
    progress,
    say,
    say_notes,
    suggest,
    table,
    to_replay,
    to_tune_written,
)
from sim.columns import FAMILIES, Column, of_part
from sim.costs.doubts import doubts_about_buckets
from sim.costs.own_costs import with_memory_bandwidth
from sim.errors import AssignmentError, InputError
from sim.formats.documents import json_text, load
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Family, Recommendation, Setting
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.truth.anchor import InStepTimes, in_step_times
from sim.units import format_ms, format_number, format_percent, format_size, in_ms, parse_cap_mb

if TYPE_CHECKING:
    from sim.truth.anchor import Anchored, MeasuredStep

MOST_SIZES = 8  # of buckets, that are told one by one
TUNED = ("ddp", "zero1", "zero2", "megatron", "fully_shard")  # whose buckets are tuned
ASSIGNMENT = Path("assignment.json")


def tune(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    seed: int = option("Seed of the steps that are drawn.", panel=PREDICTING, min=0, default=0),
    draws: int = option("Steps drawn for the gain's interval.", panel=PREDICTING, min=1, default=400),
    policy: str = option(
        "Of another system than DDP the best size of its own buckets alone.",
        kind=choice(*TUNED),
        default="ddp",
    ),
    set_: Settings = None,
    parts: Parts = False,
    output: Path | None = file_option("Write the assignment here.", default=None),
    as_json: AsJson = False,
) -> None:
    """Find the best buckets, what they gain and how surely, and what each setting of DDP reaches."""
    if policy != "ddp":
        if set_:
            raise InputError(
                "tune: --set gives settings of DistributedDataParallel; leave it or --policy out"
            )
        workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
        _tune_other(workload, hardware, policy, output, as_json)
        return
    job = load_job(workload_file, hardware_file, settings(set_), parts=parts)
    workload, hardware = job.workload, job.hardware
    with progress("tuning") as report:
        answer = sim.tune(
            workload, hardware, seed=seed, draws=draws, progress=lambda words: report(0, None, f"({words})")
        )
    if output is not None:
        write(output, sim.to_text(answer.assignment))
    if as_json:
        emit_noun(answer)
    else:
        print_answer(answer, f"{workload.name} on {hardware.name}")
        _print_families(answer, hardware.all_reduce[0].num_bytes)
    tell_held(job, as_json=as_json)
    if as_json:
        return
    if answer.gain.significant is False:
        sweep = line("sweep", workload_file, "--hardware", hardware_file, "--bandwidth", "0.1,0.3,1")
        suggest(f"keep DDP's default; on which slower link buckets would matter: {sweep}")
        return
    # The lines need no hardware, but what comes after them does: a replay on the link that was tuned for.
    is_kept = output is not None and output.is_file()
    given = ("--hardware", hardware_file, "--assignment", output if is_kept else ASSIGNMENT)
    export = line("export", workload_file, *given, "--as", "snippet")
    suggest(export if is_kept else f"the same with -o {ASSIGNMENT}; then: {export}")


def _tune_other(
    workload: Workload, hardware: Hardware, policy: str, output: Path | None, as_json: bool
) -> None:
    """The best size of another system's buckets, against that system's default."""
    found = sim.best_of(workload, hardware, policy)
    report = sim.summarize(sim.simulate(workload, hardware, found.assignment))
    if output is not None:
        write(output, sim.to_text(found.assignment))
    if as_json:
        emit_noun(report)
        return
    plain_step = sim.simulate(workload, hardware, sim.assign(workload, policy))
    sizes = ", ".join(f"{name}={value}" for name, value in found.assignment.settings.items())
    say(f"{workload.name} on {hardware.name}, {policy}")
    say(f"best: {sizes or 'as it is'}: {len(report.buckets)} bucket(s), {format_ms(report.step_ns)} a step")
    say(f"its default: {format_ms(plain_step.step_ns)} a step; tried: {found.how}")
    say(f"why: {report.verdict}")
    say_notes(report.notes)


def print_answer(answer: Recommendation, title: str) -> None:
    """What to do and what it is worth, how surely, and why."""
    from sim.tuner.setting import tell_setting

    buckets = answer.assignment.bucket_bytes or ()
    sizes = ", ".join(map(format_size, buckets))
    if len(buckets) > MOST_SIZES:
        sizes = f"{format_size(min(buckets))} to {format_size(max(buckets))} each"
    is_better = answer.gain.significant is not False or "default" not in answer.families
    is_kept = answer.assignment.bucket_indices == answer.baseline.bucket_indices
    what = "recommended" if is_better else "kept" if is_kept else "the best found"
    found = f"{what}: {len(answer.assignment.bucket_indices)} bucket(s): {sizes}"
    gain = f"gain: {answer.gain.sentence}"
    for told in (title, gain, found) if answer.gain.refuted else (title, found, gain):
        say(told)
    if answer.setting is not None:  # limits bar what a sweep finds
        say(f"set: {tell_setting(answer.setting, answer.against)}")
    say(f"proof: {'optimal' if answer.proved_optimal else 'not proved optimal'}; {answer.proof}")
    say(f"why: {answer.report.verdict}")
    say(f"{answer.against}: {answer.baseline.verdict}")
    say(f"caps: {answer.plateau.sentence}")
    say_notes(answer.notes, answer.report.notes, answer.baseline.notes)


def _print_families(answer: Recommendation, least_bytes: int) -> None:
    """What stands behind the answer: what was not measured, every knob, and how steps vary."""

    def smallest(family: Family) -> int:
        return min(family.assignment.bucket_bytes or (least_bytes,))

    below = [name for name, family in answer.families.items() if smallest(family) < least_bytes]
    if below:
        say(
            f"below {format_size(least_bytes)}, the smallest size of the curve, all-reduces are taken to "
            f"last as long as that one; measure smaller ones to be sure of {', '.join(below)}"
        )
    say("")
    rows = sorted(answer.families.items(), key=lambda item: item[1].regret_ns)
    knob: Column[tuple[str, Family]] = Column("knob", itemgetter(0))
    table("what each knob reaches", (knob, *of_part(itemgetter(1), FAMILIES)), rows)
    for name, family in answer.families.items():
        if not family.complete and name not in ("bucket_indices", "bucket_cap_mb_list"):
            say(f"{name}: not all there are, but {family.how}")
    if answer.gain.noise_ns is not None:
        say(f"one step of DDP's default varies by {format_ms(answer.gain.noise_ns)}")
    for what in answer.gain.not_known:
        say(f"not known, and taken as exact: {what}")


# export

_ALONE: dict[
    str, Callable[[Assignment, Workload], str]
] = {  # what an assignment is written as, without any times
    "bucket-indices": lambda assignment, workload: sim.bucket_indices_json(assignment, workload),
    "snippet": lambda assignment, workload: sim.snippet(assignment, workload),
    "assignment": lambda assignment, _: sim.to_text(assignment),
    "megatron-flags": lambda assignment, workload: sim.megatron_flags(assignment, workload),
}
TARGETS = (
    *(*_ALONE, "perfetto"),
    *("transformers", "accelerate", "lightning", "ray", "mmengine"),  # with tune's setting
)


def export(
    workload_file: WorkloadFile,
    hardware_file: Path | None = option("The hardware to tune for, and to take times from.", "--hardware"),
    assignment_file: Path | None = option("Export this assignment instead of the best.", "--assignment"),
    target: str = option(
        "What to export, or the framework that you train with.",
        "--as",
        kind=choice(*TARGETS),
        default="bucket-indices",
    ),
    parts: Parts = False,
    output: Path | None = file_option("Write here.", default=None),
) -> None:
    """Print an assignment for use elsewhere: lines to paste, bucket_indices, or a trace for Perfetto."""
    if hardware_file is None and target not in _ALONE:
        raise InputError(f"export: --as {target} needs --hardware")
    if hardware_file is None and assignment_file is None:
        raise InputError("export: give --hardware to export the best assignment, or --assignment")
    hardware: Hardware | None = None
    if hardware_file is None:
        workload = sim.load_workload(workload_file)
    elif assignment_file is not None and target in _ALONE:
        workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    else:
        workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json=True)
    setting: Setting | None = None
    if assignment_file is not None:
        assignment = sim.load_assignment(assignment_file)
        assignment.check_fits(workload)
        assignment = as_the_job(workload, assignment)
    else:
        assert hardware is not None
        if target == "megatron-flags":
            assignment = sim.best_of(workload, hardware, "megatron").assignment
        else:
            found = sim.tune(workload, hardware)
            assignment, setting = found.assignment, found.setting
    if hardware is not None:
        tell_doubtful(workload, hardware)
    for doubt in doubts_about_buckets(workload, assignment, hardware):
        note(doubt)
    if target in _ALONE:
        text = _ALONE[target](assignment, workload)
    else:
        assert hardware is not None
        if target == "perfetto":
            text = sim.perfetto_json(sim.simulate(workload, hardware, assignment))
        else:
            text = sim.nearest_setting(workload, hardware, assignment, target, setting=setting).lines
    if output is None:
        emit(text)
    else:
        write(output, text)
    if target == "perfetto":
        suggest("open the trace in https://ui.perfetto.dev")
    elif assignment_file is not None or target != "megatron-flags":  # that best one is in no file
        suggest(to_replay(workload_file, hardware_file, hardware, assignment_file))


# anchor

_TIMES = ("step_ms", "backward_ms", "noise_ms")
_CAPS = ("bucket_cap_mb", "first_bucket_mb")
_BYTES_PER_GB = 1e9
_IN_STEP = Kind("MS,…|M.json", lambda text: Path(text) if text.endswith(".json") else commas(MS).reader(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step as the command line gives it: settings for ``sim.assign``, and what was measured."""

    label: str
    settings: dict[str, Any]
    measured: "MeasuredStep"


def anchor(
    workload_file: WorkloadFile,
    hardware_file: Path = option(
        "A hardware file: a link measured beside the step.", "--hardware", default=...
    ),
    measured: list[Any] = option(
        "A step as it runs now: bucket_cap_mb=25,step_ms=159.6 and, where known, backward_ms, "
        "noise_ms and DDP's switches. The first corrects the hardware; others are compared with it.",
        kind=PAIRS,
        default=...,
    ),
    in_step: Any = option(
        "Durations of that step's all-reduces in ms, in launch order; or the measurement that import made of "
        "a trace, whose buckets are the step's where it names none.",
        panel=FITTING,
        kind=_IN_STEP,
    ),
    after_backward_ms: int | None = option(
        "How much of these durations lies after the end of backward.", panel=FITTING, kind=MS
    ),
    factor: Any = option(
        "The factor to determine; default: the slow-down that is not known.",
        panel=FITTING,
        kind=choice("mutual", "compute_slowdown", "comm_slowdown", "curve"),
    ),
    launch_cost: bool = flag(
        "Also determine the fixed cost of a collective, from the second --measured.",
        "--launch-cost",
        panel=FITTING,
    ),
    memory_bandwidth: float | None = option(
        "Bandwidth of the GPU's memory, GB/s: what copies cost, where the file has no cost.", panel=FITTING
    ),
    caps: Sequence[float] | None = option("Further caps to predict.", kind=CAPS),
    output: Path | None = file_option("Write the hardware here.", default=None),
    as_json: AsJson = False,
) -> None:
    """Fit a hardware file to one measured step: how much link and computing slow each other down."""
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    if memory_bandwidth is not None:
        hardware = with_memory_bandwidth(hardware, memory_bandwidth * _BYTES_PER_GB)
    seen, trace = _seen(in_step, after_backward_ms)
    steps = [
        _step(workload, as_dict(pairs, "--measured"), None if place else trace)
        for place, pairs in enumerate(measured)
    ]
    if launch_cost and len(steps) < 2:
        raise InputError("--launch-cost: takes a second --measured, with another number of buckets")
    found = sim.anchor(
        workload,
        hardware,
        steps[0].measured,
        factor=factor,
        seen=seen,
        second=steps[1].measured if launch_cost else None,
    )

    def figures(assignment: Assignment) -> dict[str, int]:
        """The step by the parts alone, anchored, and the least and most by any factor."""
        machines = (hardware, found.hardware, *(other.hardware for other in found.readings[1:]))
        parts_ns, *steps_ns = (
            sim.simulate(workload, one, assignment, "analytic").step_ns for one in machines
        )
        told = {"predicted_ns": steps_ns[0], "least_ns": min(steps_ns), "most_ns": max(steps_ns)}
        return {"parts_alone_ns": parts_ns, **told}

    checks: list[dict[str, Any]] = []
    for step in steps:
        told, measured_ns = figures(step.measured.assignment), step.measured.step_ns
        error = (told["predicted_ns"] - measured_ns) / measured_ns
        checks.append({"row": step.label, "measured_ns": measured_ns, **told, "error": error})
    predictions: list[dict[str, Any]] = [
        {"bucket_cap_mb": cap, **figures(sim.assign(workload, **{**steps[0].settings, "bucket_cap_mb": cap}))}
        for cap in caps or ()
    ]
    if output is not None:
        write(output, sim.to_text(found.hardware))
    if as_json:
        emit(json_text({"kind": "anchor", **_facts(found), "checks": checks, "predictions": predictions}))
        return
    _print_anchored(found, checks, predictions)
    if found.fits:  # not over the file that was corrected
        suggest(to_tune_written(workload_file, output, Path(f"{hardware_file.stem}-anchored.json")))


def _step(workload: Workload, given: dict[str, Any], trace: Measurement | None) -> _Step:
    """One ``--measured``; of a step whose durations are a trace's, with the trace's buckets."""
    from sim.truth.anchor import MeasuredStep

    if "step_ms" not in given:
        raise InputError("--measured: has no step_ms; give it, such as step_ms=159.6")
    if {"workload", "iteration"} & given.keys():
        raise InputError("--measured: workload and iteration are no switches")
    try:
        times = {name: MS.reader(str(given.pop(name))) for name in _TIMES if name in given}
    except ValueError as error:
        raise InputError(f"--measured: {error}; times are in ms") from None
    given |= {name: parse_cap_mb(str(given[name])) for name in _CAPS if name in given}
    told = (f"{name}={format_number(x, 6) if isinstance(x, float) else x}" for name, x in given.items())
    label, assignment = ", ".join(told) or "default", None
    if trace is not None:
        assert trace.asked is not None
        if not given:
            label, assignment = trace.name, trace.asked
            try:
                assignment.check_fits(workload)
            except AssignmentError as error:
                raise InputError(f"--in-step: the trace is of other gradients: {error}") from None
            switches = {**assignment.ddp_kwargs, **assignment.settings}
            given = {name: value for name, value in switches.items() if name not in CAP_KWARGS}
        elif sim.assign(workload, **given).bucket_indices != trace.asked.bucket_indices:
            raise InputError(
                f"--measured: {label} does not make the {len(trace.asked.bucket_indices)} buckets that "
                f"--in-step has durations of; leave the options out, and they are the trace's"
            )
    measured = MeasuredStep(
        assignment=sim.assign(workload, **given) if assignment is None else assignment,
        step_ns=times["step_ms"],
        sync_end_ns=times.get("backward_ms"),
        noise_ns=times.get("noise_ms"),
    )
    return _Step(label=label, settings=given, measured=measured)


def _seen(
    in_step: Path | list[int] | None, after_backward_ns: int | None
) -> tuple[InStepTimes | None, Measurement | None]:
    """Durations in the step, and the measurement that they are from, if they are from one."""
    if isinstance(in_step, list):
        return InStepTimes(durations_ns=tuple(in_step), after_backward_ns=after_backward_ns), None
    if after_backward_ns is not None:
        raise InputError(
            "--after-backward-ms: belongs to durations that --in-step lists; give them, or leave it"
        )
    if in_step is None:
        return None, None
    trace = load(in_step, Measurement)
    if trace.asked is None:
        raise InputError(f"{in_step}: role={trace.role!r} is not legal here; give a candidate, as import's")
    return in_step_times(trace), trace


def _facts(found: "Anchored") -> dict[str, Any]:
    names = ("factor", "value", "fits", "fitted", "measured_ns", "plain_ns", "predicted_ns", "residual_ns")
    return {
        **{name: getattr(found, name) for name in (*names, "reasons", "notes")},
        "launch_cost_ns": found.hardware.launch_cost_ns,
        "readings": [{"what": one.what, "value": one.value, "weight": one.weight} for one in found.readings],
    }


def _print_anchored(
    found: "Anchored", checks: list[dict[str, Any]], predictions: list[dict[str, Any]]
) -> None:
    for reason in found.reasons:
        say(reason)
    others = ", ".join(
        f"{one.what} {format_number(one.value, 4)} ({format_percent(one.weight, 0)})"
        for one in found.readings[1:]
    )
    say(
        f"{'' if found.fits else 'no fit: '}{found.factor} {format_number(found.value, 4)}: a "
        f"{'step' if found.fitted == 'step' else 'backward'} of {format_ms(found.predicted_ns)}, measured "
        f"{format_ms(found.measured_ns)}, {format_ms(found.plain_ns)} without; left over "
        f"{found.residual_ns} ns" + (f"; or instead {others}" if others else "")
    )
    if found.fitted == "sync_end":
        say(
            "the given backward is made true, not the step: what is left in its row is the error of forward "
            "and optimizer"
        )
    rows = []
    for row in (*checks, *predictions):
        least, most = in_ms(row["least_ns"]), in_ms(row["most_ns"])
        rows.append(
            [
                row.get("row") or f"bucket_cap_mb={format_number(row['bucket_cap_mb'], 6)}",
                in_ms(row["measured_ns"]) if "measured_ns" in row else "",
                in_ms(row["parts_alone_ns"]),
                in_ms(row["predicted_ns"]),
                "" if least == most else f"{least} to {most}",
                format_percent(row["error"], 2, sign=True) if "error" in row else "",
            ]
        )
    heads = ["", "measured", "parts alone", "anchored", "by other factors", "error"]
    print_table("steps, ms", heads, rows)
    say_notes(found.notes)
