"""tune, export, anchor: the best buckets and why, how they get home, and a machine made true for one step."""

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli import options, printing
from sim.cli.options import MS, as_dict, choice, file_option, option, write
from sim.cli.predicting import load_inputs, load_job, tell_held
from sim.cli.printing import Answer, emit, line, note, progress, say, say_notes, suggest, table, wants_json
from sim.columns import FAMILIES, Column, of_part
from sim.costs.doubts import doubts_about
from sim.errors import InputError
from sim.nouns.assignment import OTHERS, Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Family, Recommendation
from sim.nouns.report import Report
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_ms, format_number, format_percent, format_size, parse_cap_mb

if TYPE_CHECKING:
    from sim.truth.fit import Anchored
    from sim.tuner.others import BestSize

_MOST_SIZES = 8  # of buckets, that are told one by one
ASSIGNMENT = Path("assignment.json")


@options.answers
def tune(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    seed: int = option("Seed of the steps that are drawn.", min=0, default=0),
    draws: int = option("Steps drawn for the gain's interval.", min=1, default=400),
    policy: str = option(
        "Of another system than DDP the best size of its own buckets alone.",
        kind=choice("ddp", *OTHERS),
        default="ddp",
    ),
    set_: options.JobSwitches = None,
    parts: options.Parts = False,
    output: Path | None = file_option("Write the assignment here.", default=None),
) -> Answer:
    """Find the best buckets, what they gain and how surely, and what each setting of DDP reaches."""
    if policy != "ddp" and set_:
        raise InputError("tune: --set gives settings of DDP; leave it or --policy out")
    switches = options.settings(set_)
    job = load_job(workload_file, hardware_file, parts, switches)
    workload, hardware = job.workload, job.hardware
    title = f"{workload.name} on {hardware.name}"
    if policy != "ddp":
        best = sim.best_of(workload, hardware, policy)
        report = sim.summarize(sim.simulate(workload, hardware, best.assignment))
        own_ns = sim.simulate(workload, hardware, sim.assign(workload, policy)).step_ns
        write(output, best.assignment)
        return Answer(report, lambda: _print_other(f"{title}, {policy}", best, report, own_ns))
    with progress("tuning") as told:
        answer = sim.tune(
            workload, hardware, seed=seed, draws=draws, progress=lambda words: told(0, None, f"({words})")
        )
    write(output, answer.assignment)
    # The lines need no hardware, but what comes after them does: a replay on the link that was tuned for.
    is_kept = output is not None and output.is_file()
    given = ("--hardware", hardware_file, "--assignment", output if is_kept else ASSIGNMENT)
    ahead = line("export", workload_file, *given, "--as", "snippet")
    if not is_kept:
        ahead = f"the same with -o {ASSIGNMENT}; then: {ahead}"
    if answer.gain.significant is False:
        again = ("--bandwidth", "0.1,0.3,1", *printing.set_again(switches))
        slower = line("sweep", workload_file, "--hardware", hardware_file, *again)
        ahead = f"keep {answer.against}; on which slower link buckets would matter: {slower}"
    if wants_json.get():
        tell_held(job)

    def show() -> None:
        print_answer(answer, title, hardware.all_reduce[0].num_bytes)
        tell_held(job)

    return Answer(answer, show, ahead)


def _print_other(title: str, best: "BestSize", report: Report, own_ns: int) -> None:
    """The best size of another system's buckets, against that system's default."""
    sizes = ", ".join(f"{name}={value}" for name, value in best.assignment.settings.items())
    say(title)
    say(f"best: {sizes or 'as it is'}: {len(report.buckets)} bucket(s), {format_ms(report.step_ns)} a step")
    say(f"its default: {format_ms(own_ns)} a step; tried: {best.how}")
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
    is_kept = answer.assignment.bucket_indices == answer.baseline.bucket_indices
    what = "recommended" if gain.significant is not False else "kept" if is_kept else "the best found"
    found = f"{what}: {len(answer.assignment.bucket_indices)} bucket(s): {sizes}"
    worth = f"gain: {gain.sentence}"
    for told in (title, worth, found) if gain.refuted else (title, found, worth):
        say(told)
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
            f"below {format_size(least_bytes)}, the smallest size of the curve, times are those of a line; "
            f"measure smaller ones to be sure of {', '.join(below)}"
        )
    say("")
    rows = sorted(answer.families.items(), key=lambda item: item[1].regret_ns)
    knob: Column[tuple[str, Family]] = Column("knob", itemgetter(0))
    table("what each knob reaches", (knob, *of_part(itemgetter(1), FAMILIES)), rows)
    if not (caps := answer.families["bucket_cap_mb"]).complete:
        say(f"bucket_cap_mb: not all there are, but {caps.how}")
    if gain.noise_ns is not None:
        say(f"one step of DDP's default varies by {format_ms(gain.noise_ns)}")
    for unknown in gain.not_known:
        say(f"not known, and taken as exact: {unknown}")


# export

# What an assignment is written as without any times; and what takes tune's setting.
_ALONE: dict[str, Callable[[Assignment, Workload], str]] = {
    "snippet": lambda assignment, workload: sim.snippet(assignment, workload),
    "assignment": lambda assignment, _: sim.to_text(assignment),
    "megatron-flags": lambda assignment, workload: sim.megatron_flags(assignment, workload),
}
TARGETS = (*_ALONE, "perfetto", "transformers", "accelerate", "lightning", "ray", "mmengine")


def export(
    workload_file: options.WorkloadFile,
    hardware_file: Path | None = option("The hardware to tune for, and to take times from.", "--hardware"),
    assignment_file: options.AssignmentFile = None,
    target: str = option(
        "What to export, or the framework that you train with.",
        "--as",
        kind=choice(*TARGETS),
        default="snippet",
    ),
    parts: options.Parts = False,
    output: Path | None = file_option("Write here.", default=None),
) -> None:
    """Print an assignment for use elsewhere: lines to paste, its file, or a trace for Perfetto."""
    found: Recommendation | None = None
    hardware: Hardware | None = None
    if hardware_file is None:
        if target not in _ALONE:
            raise InputError(f"export: --as {target} needs --hardware")
        if assignment_file is None:
            raise InputError("export: give --hardware to export the best assignment, or --assignment")
        workload = sim.load_workload(workload_file)
    else:
        as_given = parts or (assignment_file is not None and target in _ALONE)
        with printing.one_document():
            workload, hardware = load_inputs(workload_file, hardware_file, as_given)
    if assignment_file is not None:
        assignment = sim.load_assignment(assignment_file)
        assignment.check_fits(workload)
        assignment = as_the_job(workload, assignment)
    elif target == "megatron-flags":
        assert hardware is not None
        assignment = sim.best_of(workload, hardware, "megatron").assignment
    else:
        assert hardware is not None
        from sim.tuner.setting import tell_setting  # with numba, which the start of a command is spared

        found = sim.tune(workload, hardware)
        assignment = found.assignment
        if target in _ALONE and found.setting.pick != "recommended":
            note(
                f"the best buckets there are; to set tune says: {tell_setting(found.setting, found.against)}"
            )
    for doubt in () if hardware is None else doubts_about(workload, hardware):
        note(doubt)
    if target in _ALONE:
        text = _ALONE[target](assignment, workload)
    else:
        assert hardware is not None
        if target == "perfetto":
            text = sim.perfetto_json(sim.simulate(workload, hardware, assignment))
        else:  # what tune says to set, where these are the buckets that it recommends
            found = found or sim.tune(workload, hardware)
            is_its = _said(found.assignment) == _said(assignment)
            setting = found.setting if is_its else None
            text = sim.nearest_setting(workload, hardware, assignment, target, setting=setting).lines
    if output is None:
        emit(text)
    else:
        write(output, text)
    if target == "perfetto":
        suggest("open the trace in https://ui.perfetto.dev")
    elif assignment_file is not None or target != "megatron-flags":  # that best one is in no file
        suggest(printing.to_replay(workload_file, hardware_file, hardware, assignment_file))


def _said(assignment: Assignment) -> tuple[object, ...]:
    """The buckets and what gives them, whatever file they come from."""
    return assignment.bucket_indices, assignment.ddp_kwargs, assignment.settings


# anchor

_FACTORS = ("mutual", "compute_slowdown", "comm_slowdown", "curve")


@options.answers
def anchor(
    workload_file: options.WorkloadFile,
    hardware_file: Path = option(
        "A hardware file: a link measured beside the step.", "--hardware", default=...
    ),
    measured: Any = option(
        "The step as it runs now: bucket_cap_mb=25,step_ms=159.6, with DDP's switches.",
        kind=options.PAIRS,
        default=...,
    ),
    factor: Any = option(
        "The factor to determine; default: the slow-down that is not known.",
        kind=choice(*_FACTORS),
    ),
    output: Path | None = file_option("Write the hardware here.", default=None),
) -> Answer:
    """Fit a hardware file to one measured step: how much link and computing slow each other down."""
    workload, hardware = sim.load_workload(workload_file), sim.load_hardware(hardware_file)
    assignment, step_ns = _measured(workload, as_dict(measured, "--measured"))
    found = sim.anchor(workload, hardware, assignment, step_ns, factor=factor)
    write(output, found.hardware)
    names = ("factor", "value", "fits", "measured_ns", "plain_ns", "predicted_ns", "residual_ns", "notes")
    document = {
        "kind": "anchor",
        **{name: getattr(found, name) for name in names},
        "launch_cost_ns": found.hardware.launch_cost_ns,
        "readings": [
            {name: getattr(one, name) for name in ("what", "value", "weight", "own_costs")}
            for one in found.readings
        ],
    }
    named = Path(f"{hardware_file.stem}-anchored.json")  # not over the file that was corrected
    ahead = printing.to_tune_written(workload_file, output, named) if found.fits else ""
    return Answer(document, lambda: _print_anchored(found), ahead)


def _measured(workload: Workload, given: dict[str, Any]) -> tuple[Assignment, int]:
    """``--measured``: the step's assignment, and what it took in ns."""
    if "step_ms" not in given:
        raise InputError("--measured: has no step_ms; give it, such as step_ms=159.6")
    if others := {"workload", "iteration"} & given.keys():
        raise InputError(f"--measured: {min(others)} is no switch")
    try:
        if float(text := str(given.pop("step_ms"))) < 1e-6:  # a ns
            raise ValueError(f"step_ms: {text} is not legal; give more than 0")
        step_ns = MS.reader(text)
    except ValueError as error:
        raise InputError(f"--measured: {error}; times are in ms") from None
    caps = given.keys() & {"bucket_cap_mb", "first_bucket_mb"}
    given |= {name: parse_cap_mb(str(given[name])) for name in caps}
    return sim.assign(workload, **given), step_ns


def _print_anchored(found: "Anchored") -> None:
    own, *others = (
        f"{one.what} {format_number(one.value, 4)}"
        + (f" with {one.own_costs} own costs" if one.own_costs != "as taken" else "")
        + (f" ({format_percent(one.weight, 0)})" if len(found.readings) > 1 else "")
        for one in found.readings
    )
    say(
        f"{'' if found.fits else 'no fit: '}{own}: a step of "
        f"{format_ms(found.predicted_ns)}, measured {format_ms(found.measured_ns)}, "
        f"{format_ms(found.plain_ns)} without" + (f"; or instead {', '.join(others)}" if others else "")
    )
    likeliest = max(found.readings, key=lambda one: one.weight)
    if likeliest.what != found.factor:
        how = f"; to compute from it: --factor {likeliest.what}" if likeliest.what in _FACTORS else ""
        say(f"the likeliest reading is another{how}")
    say_notes(found.notes)
