"""tune: the best assignment, its proof, what each knob reaches, and whether it matters."""

from enum import StrEnum
from pathlib import Path

import sim
from sim.cli.next_steps import suggest, to_export, to_find_slower_links
from sim.cli.options import (
    PREDICTING,
    AsJson,
    DdpSwitches,
    HardwareFile,
    WorkloadFile,
    ddp_switches,
    file_option,
    option,
    write,
)
from sim.cli.own_job import Parts, load_inputs, load_job, tell_held
from sim.cli.printing import emit_noun, progress, say, table
from sim.errors import InputError
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size, in_ms

MOST_SIZES = 8  # of buckets, that are told one by one


class Policy(StrEnum):
    """Whose buckets are tuned."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    MEGATRON = "megatron"
    FULLY_SHARD = "fully_shard"


def tune(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    seed: int = option("Seed of the steps that are drawn.", panel=PREDICTING, min=0, default=0),
    draws: int = option(
        "How many steps are drawn, for the interval of the gain.", panel=PREDICTING, min=1, default=400
    ),
    policy: Policy = option(
        "Of another system than DDP the best size of its own buckets alone.", default=Policy.DDP
    ),
    ddp: DdpSwitches = None,
    parts: Parts = False,
    output: Path | None = file_option("Write the assignment here.", default=None),
    as_json: AsJson = False,
) -> None:
    """Find the best buckets, what they gain and how surely, and what each setting of DDP reaches."""
    if policy is not Policy.DDP:
        if ddp:
            raise InputError("tune: --ddp sets switches of DistributedDataParallel; leave it or --policy out")
        workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
        _tune_other(workload, hardware, policy.value, output, as_json)
        return
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
    plain = sim.simulate(workload, hardware, sim.assign(workload, policy))
    sizes = ", ".join(f"{name}={value}" for name, value in found.assignment.settings.items())
    say(f"{workload.name} on {hardware.name}, {policy}")
    say(f"best: {sizes or 'as it is'}: {len(report.buckets)} bucket(s), {format_ms(report.step_ns)} a step")
    say(f"its default: {format_ms(plain.step_ns)} a step; tried: {found.how}")
    say(f"why: {report.verdict}")
    for line in report.notes:
        say(f"note: {line}")


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
    from sim.tuner.setting import tell_setting

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
    """What stands behind the answer: every knob, and how steps vary."""
    say("")
    table(
        "what each knob reaches",
        ["knob", "buckets", "step ms", "exposed ms", "regret ms", "buffers"],
        [
            [
                name,
                str(len(family.assignment.bucket_indices)),
                in_ms(family.report.step_ns),
                in_ms(family.report.exposed_comm_ns),
                in_ms(family.regret_ns),
                "" if family.report.buffer_bytes is None else format_size(family.report.buffer_bytes),
            ]
            for name, family in sorted(answer.families.items(), key=lambda item: item[1].regret_ns)
        ],
    )
    for name, family in answer.families.items():
        if not family.complete and name not in ("bucket_indices", "bucket_cap_mb_list"):
            say(f"{name}: not all there are, but {family.how}")
    if answer.gain.noise_ns is not None:
        say(f"one step of DDP's default varies by {format_ms(answer.gain.noise_ns)}")
    for line in answer.gain.not_known:
        say(f"not known, and taken as exact: {line}")
