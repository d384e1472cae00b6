"""tune: the best assignment, its proof, what each knob reaches, and whether it matters."""

from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.next_steps import suggest, to_export, to_find_slower_links
from sim.cli.output_options import file_option, write
from sim.cli.own_job import Parts, load_job, tell_held
from sim.cli.panels import PREDICTING
from sim.cli.printing import emit_noun, progress, say, table
from sim.cli.simulating import AsJson, DdpSwitches, HardwareFile, WorkloadFile, ddp_switches
from sim.nouns.recommendation import Recommendation
from sim.nouns.robust import Robust
from sim.tuner.setting import tell_setting
from sim.units import format_ms, format_size, in_ms

ROBUST_ROWS = 8
MOST_SIZES = 8  # of buckets, that are told one by one


def tune(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    seed: Annotated[
        int, typer.Option(help="Seed of the steps that are drawn.", min=0, rich_help_panel=PREDICTING)
    ] = 0,
    draws: Annotated[
        int,
        typer.Option(
            help="How many steps are drawn, for the interval of the gain.", min=1, rich_help_panel=PREDICTING
        ),
    ] = 400,
    ddp: DdpSwitches = None,
    parts: Parts = False,
    output: Annotated[Path | None, file_option("Write the assignment here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best buckets, what they gain and how surely, and what each setting of DDP reaches."""
    job = load_job(workload_file, hardware_file, ddp_switches(ddp), parts=parts)
    workload, hardware = job.workload, job.hardware
    with progress("tuning") as report:
        answer = sim.tune(
            workload,
            hardware,
            seed=seed,
            draws=draws,
            progress=lambda words: report(0, None, f"({words})"),
        )
    if output is not None:
        write(output, sim.to_text(answer.assignment))
    if as_json:
        emit_noun(answer)
    else:
        print_answer(answer, f"{workload.name} on {hardware.name}")
        _print_below(answer, hardware.all_reduce[0].num_bytes)
        _print_tables(answer)
    tell_held(job, with_table=not as_json)
    if as_json:
        return
    if answer.gain.significant is False:
        suggest(to_find_slower_links(workload_file, hardware_file))
    else:
        suggest(to_export(workload_file, hardware_file, output))


def print_answer(answer: Recommendation, title: str) -> None:
    """What to do and what it is worth, how surely, and why."""
    buckets = answer.assignment.bucket_bytes or ()
    sizes = ", ".join(map(format_size, buckets))
    if len(buckets) > MOST_SIZES:
        sizes = f"{format_size(min(buckets))} to {format_size(max(buckets))} each"
    is_better = answer.gain.significant is not False or "default" not in answer.families
    is_kept = answer.assignment.bucket_indices == answer.baseline.bucket_indices
    what = "recommended" if is_better else "kept" if is_kept else "the best found"
    say(title)
    found = f"{what}: {len(answer.assignment.bucket_indices)} bucket(s): {sizes}"
    gain = f"gain: {answer.gain.sentence}"
    for line in (gain, found) if answer.gain.refuted else (found, gain):
        say(line)
    if answer.setting is not None:  # limits bar what a sweep finds
        say(f"set: {tell_setting(answer.setting, answer.against)}")
    say(f"proof: {'optimal' if answer.proved_optimal else 'not proved optimal'}; {answer.proof}")
    say(f"why: {answer.report.verdict}")
    say(f"{answer.against}: {answer.baseline.verdict}")
    say(f"caps: {answer.plateau.sentence}")
    for line in dict.fromkeys((*answer.notes, *answer.report.notes, *answer.baseline.notes)):
        say(f"note: {line}")


def _print_below(answer: Recommendation, least_bytes: int) -> None:
    """What was predicted with all-reduces smaller than the smallest that was measured."""
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


def _print_tables(answer: Recommendation) -> None:
    """What stands behind the answer: every knob, the steps that were drawn."""
    say("")
    table(
        "what each knob or rule reaches",
        ["knob or rule", "buckets", "step ms", "exposed ms", "regret ms", "buffers"],
        [
            [
                name,
                str(len(family.assignment.bucket_indices)),
                in_ms(family.report.step_ns),
                in_ms(family.report.exposed_comm_ns),
                in_ms(family.regret_ns),
                "" if family.report.memory is None else format_size(family.report.memory.peak_bytes),
            ]
            for name, family in sorted(answer.families.items(), key=lambda item: item[1].regret_ns)
        ],
    )
    for name, family in answer.families.items():
        if not family.complete and name not in ("bucket_indices", "bucket_cap_mb_list"):
            say(f"{name}: not all there are, but {family.how}")
    missing: dict[str, list[str]] = {}  # by reason, which begins with the system's name
    for name, why in answer.absent.items():
        missing.setdefault(why.removeprefix(f"{name.split()[0]}: "), []).append(name)
    for why, names in missing.items():
        say(f"not among them: {', '.join(names)}: {why}")
    if answer.robust is not None and answer.robust.draws > 1:
        _print_robust(answer.robust)


def _print_robust(robust: Robust) -> None:
    rows = sorted(robust.rows, key=lambda row: row.mean_step_ns)[:ROBUST_ROWS]
    table(
        f"over {robust.draws} steps drawn with seed {robust.seed}, the best {len(rows)} by their mean",
        ["candidate", "mean ms", "p95 ms", "gain ms", "interval" if robust.rests_on else "95 % interval"],
        [
            [
                row.name,
                in_ms(row.mean_step_ns),
                in_ms(row.p95_step_ns),
                in_ms(row.gain_ns),
                f"{in_ms(row.gain_low_ns)} to {in_ms(row.gain_high_ns)}",
            ]
            for row in rows
        ],
    )
    say(
        f"chosen by mean: {robust.mean_choice}; by 95th percentile: {robust.p95_choice} "
        f"(a shorter one only where it is surely shorter)"
    )
    if robust.noise_ns is not None:
        say(f"one step of DDP's default varies by {format_ms(robust.noise_ns)}")
    for line in robust.not_known:
        say(f"not known, and taken as exact: {line}")
