"""tune, export, anchor: the best buckets and why, how they get home, and a machine made true for one step."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sim
from sim.cli import options, printing
from sim.cli.options import MS, as_dict, choice, file_option, option, write
from sim.cli.predicting import load_inputs, load_job, tell_held
from sim.cli.printing import emit, line, note, progress, say, say_notes, suggest, table
from sim.columns import FAMILIES, Column, by_place, of_part
from sim.costs.doubts import doubts_about
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Family, Recommendation, Setting
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_ms, format_number, format_percent, format_size, in_ms, parse_cap_mb

if TYPE_CHECKING:
    from sim.truth.fit import Anchored, MeasuredStep

_MOST_SIZES = 8  # of buckets, that are told one by one
TUNED = ("ddp", "zero1", "zero2", "megatron", "fully_shard")  # whose buckets are tuned
ASSIGNMENT = Path("assignment.json")


def tune(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    seed: int = option("Seed of the steps that are drawn.", panel=options.PREDICTING, min=0, default=0),
    draws: int = option("Steps drawn for the gain's interval.", panel=options.PREDICTING, min=1, default=400),
    policy: str = option(
        "Of another system than DDP the best size of its own buckets alone.",
        kind=choice(*TUNED),
        default="ddp",
    ),
    set_: options.Settings = None,
    parts: options.Parts = False,
    output: Path | None = file_option("Write the assignment here.", default=None),
    as_json: options.AsJson = False,
) -> None:
    """Find the best buckets, what they gain and how surely, and what each setting of DDP reaches."""
    if policy != "ddp":
        if set_:
            raise InputError(
                "tune: --set gives settings of DistributedDataParallel; leave it or --policy out"
            )
        _tune_other(*load_inputs(workload_file, hardware_file, parts, as_json), policy, output, as_json)
        return
    job = load_job(workload_file, hardware_file, options.settings(set_), parts=parts)
    workload, hardware = job.workload, job.hardware
    with progress("tuning") as report:
        answer = sim.tune(
            workload, hardware, seed=seed, draws=draws, progress=lambda words: report(0, None, f"({words})")
        )
    if output is not None:
        write(output, sim.to_text(answer.assignment))
    if as_json:
        emit(answer)
    else:
        print_answer(answer, f"{workload.name} on {hardware.name}", hardware.all_reduce[0].num_bytes)
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
        emit(report)
        return
    plain_step = sim.simulate(workload, hardware, sim.assign(workload, policy))
    sizes = ", ".join(f"{name}={value}" for name, value in found.assignment.settings.items())
    say(f"{workload.name} on {hardware.name}, {policy}")
    say(f"best: {sizes or 'as it is'}: {len(report.buckets)} bucket(s), {format_ms(report.step_ns)} a step")
    say(f"its default: {format_ms(plain_step.step_ns)} a step; tried: {found.how}")
    say(f"why: {report.verdict}")
    say_notes(report.notes)


def print_answer(answer: Recommendation, title: str, least_bytes: int) -> None:
    """What to do and what it is worth, how surely, and why; and what stands behind it: what was not measured
    (below ``least_bytes``), every knob, and how steps vary."""
    from sim.tuner.setting import tell_setting

    buckets, gain = answer.assignment.bucket_bytes or (), answer.gain
    sizes = ", ".join(map(format_size, buckets))
    if len(buckets) > _MOST_SIZES:
        sizes = f"{format_size(min(buckets))} to {format_size(max(buckets))} each"
    is_better = gain.significant is not False or "default" not in answer.families
    is_kept = answer.assignment.bucket_indices == answer.baseline.bucket_indices
    what = "recommended" if is_better else "kept" if is_kept else "the best found"
    found = f"{what}: {len(answer.assignment.bucket_indices)} bucket(s): {sizes}"
    worth = f"gain: {gain.sentence}"
    for told in (title, worth, found) if gain.refuted else (title, found, worth):
        say(told)
    if answer.setting is not None:  # limits bar what a sweep finds
        say(f"set: {tell_setting(answer.setting, answer.against)}")
    say(f"proof: {'optimal' if answer.proved_optimal else 'not proved optimal'}; {answer.proof}")
    say(f"why: {answer.report.verdict}")
    say(f"{answer.against}: {answer.baseline.verdict}")
    say(f"caps: {answer.plateau.sentence}")
    say_notes(answer.notes, answer.report.notes, answer.baseline.notes)
    below = [
        name
        for name, family in answer.families.items()
        if min(family.assignment.bucket_bytes or (least_bytes,)) < least_bytes
    ]
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
    if gain.noise_ns is not None:
        say(f"one step of DDP's default varies by {format_ms(gain.noise_ns)}")
    for unknown in gain.not_known:
        say(f"not known, and taken as exact: {unknown}")


# export

# What an assignment is written as without any times; and what takes tune's setting.
_ALONE: dict[str, Callable[[Assignment, Workload], str]] = {
    "bucket-indices": lambda assignment, workload: sim.bucket_indices_json(assignment, workload),
    "snippet": lambda assignment, workload: sim.snippet(assignment, workload),
    "assignment": lambda assignment, _: sim.to_text(assignment),
    "megatron-flags": lambda assignment, workload: sim.megatron_flags(assignment, workload),
}
TARGETS = (*_ALONE, "perfetto", "transformers", "accelerate", "lightning", "ray", "mmengine")


def export(
    workload_file: options.WorkloadFile,
    hardware_file: Path | None = option("The hardware to tune for, and to take times from.", "--hardware"),
    assignment_file: Path | None = option("Export this assignment instead of the best.", "--assignment"),
    target: str = option(
        "What to export, or the framework that you train with.",
        "--as",
        kind=choice(*TARGETS),
        default="bucket-indices",
    ),
    parts: options.Parts = False,
    output: Path | None = file_option("Write here.", default=None),
) -> None:
    """Print an assignment for use elsewhere: lines to paste, bucket_indices, or a trace for Perfetto."""
    setting: Setting | None = None
    hardware: Hardware | None = None
    if hardware_file is None:
        if target not in _ALONE:
            raise InputError(f"export: --as {target} needs --hardware")
        if assignment_file is None:
            raise InputError("export: give --hardware to export the best assignment, or --assignment")
        workload = sim.load_workload(workload_file)
    else:
        as_given = parts or (assignment_file is not None and target in _ALONE)
        workload, hardware = load_inputs(workload_file, hardware_file, as_given, as_json=True)
    if assignment_file is not None:
        assignment = sim.load_assignment(assignment_file)
        assignment.check_fits(workload)
        assignment = as_the_job(workload, assignment)
    elif target == "megatron-flags":
        assert hardware is not None
        assignment = sim.best_of(workload, hardware, "megatron").assignment
    else:
        assert hardware is not None
        found = sim.tune(workload, hardware)
        assignment, setting = found.assignment, found.setting
    for doubt in () if hardware is None else doubts_about(workload, hardware):
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
        suggest(printing.to_replay(workload_file, hardware_file, hardware, assignment_file))


# anchor

_CAPS = ("bucket_cap_mb", "first_bucket_mb")


class _Step(NamedTuple):
    """One step as the command line gives it: what it is called, and what was measured."""

    label: str
    measured: "MeasuredStep"


def anchor(
    workload_file: options.WorkloadFile,
    hardware_file: Path = option(
        "A hardware file: a link measured beside the step.", "--hardware", default=...
    ),
    measured: list[Any] = option(
        "A step as it runs now: bucket_cap_mb=25,step_ms=159.6 and, where known, noise_ms and DDP's "
        "switches. The first corrects the hardware; others are compared with it.",
        kind=options.PAIRS,
        default=...,
    ),
    factor: Any = option(
        "The factor to determine; default: the slow-down that is not known.",
        kind=choice("mutual", "compute_slowdown", "comm_slowdown", "curve"),
    ),
    output: Path | None = file_option("Write the hardware here.", default=None),
    as_json: options.AsJson = False,
) -> None:
    """Fit a hardware file to one measured step: how much link and computing slow each other down."""

    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    steps = [_step(workload, as_dict(pairs, "--measured")) for pairs in measured]
    found = sim.anchor(workload, hardware, steps[0].measured, factor=factor)
    checks = [_check(workload, hardware, found, step) for step in steps]
    if output is not None:
        write(output, sim.to_text(found.hardware))
    if as_json:
        emit({"kind": "anchor", **_facts(found), "checks": checks})
        return
    _print_anchored(found, checks)
    if found.fits:  # not over the file that was corrected
        named = Path(f"{hardware_file.stem}-anchored.json")
        suggest(printing.to_tune_written(workload_file, output, named))


def _step(workload: Workload, given: dict[str, Any]) -> _Step:
    """One ``--measured``."""
    from sim.truth.fit import MeasuredStep

    if "step_ms" not in given:
        raise InputError("--measured: has no step_ms; give it, such as step_ms=159.6")
    if {"workload", "iteration"} & given.keys():
        raise InputError("--measured: workload and iteration are no switches")
    try:
        step_ns = MS.reader(str(given.pop("step_ms")))
        noise_ns = MS.reader(str(given.pop("noise_ms"))) if "noise_ms" in given else None
    except ValueError as error:
        raise InputError(f"--measured: {error}; times are in ms") from None
    given |= {name: parse_cap_mb(str(given[name])) for name in _CAPS if name in given}
    told = (f"{name}={format_number(x, 6) if isinstance(x, float) else x}" for name, x in given.items())
    made = sim.assign(workload, **given)
    label = ", ".join(told) or "default"
    return _Step(label, MeasuredStep(assignment=made, step_ns=step_ns, noise_ns=noise_ns))


def _check(workload: Workload, hardware: Hardware, found: "Anchored", step: _Step) -> dict[str, Any]:
    """A measured step beside the one by the parts alone, anchored, and the least and most by any factor."""
    machines = (hardware, found.hardware, *(other.hardware for other in found.readings[1:]))
    parts_ns, *steps_ns = (
        sim.simulate(workload, one, step.measured.assignment, "analytic").step_ns for one in machines
    )
    return {
        "row": step.label,
        "measured_ns": step.measured.step_ns,
        "parts_alone_ns": parts_ns,
        "predicted_ns": steps_ns[0],
        "least_ns": min(steps_ns),
        "most_ns": max(steps_ns),
        "error": (steps_ns[0] - step.measured.step_ns) / step.measured.step_ns,
    }


def _facts(found: "Anchored") -> dict[str, Any]:
    names = ("factor", "value", "fits", "measured_ns", "plain_ns", "predicted_ns", "residual_ns")
    return {
        **{name: getattr(found, name) for name in (*names, "reasons", "notes")},
        "launch_cost_ns": found.hardware.launch_cost_ns,
        "readings": [{"what": one.what, "value": one.value, "weight": one.weight} for one in found.readings],
    }


def _print_anchored(found: "Anchored", checks: list[dict[str, Any]]) -> None:
    for reason in found.reasons:
        say(reason)
    others = ", ".join(
        f"{one.what} {format_number(one.value, 4)} ({format_percent(one.weight, 0)})"
        for one in found.readings[1:]
    )
    say(
        f"{'' if found.fits else 'no fit: '}{found.factor} {format_number(found.value, 4)}: a step of "
        f"{format_ms(found.predicted_ns)}, measured {format_ms(found.measured_ns)}, "
        f"{format_ms(found.plain_ns)} without" + (f"; or instead {others}" if others else "")
    )

    def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
        ends = tuple(in_ms(row[name]) for name in ("least_ns", "most_ns"))
        times = (in_ms(row[name]) for name in ("measured_ns", "parts_alone_ns", "predicted_ns"))
        others = "" if ends[0] == ends[1] else " to ".join(ends)
        return (row["row"], *times, others, format_percent(row["error"], 2, sign=True))

    heads = by_place("", "measured", "parts alone", "anchored", "by other factors", "error")
    table("steps, ms", heads, map(cells, checks))
    say_notes(found.notes)
