"""simulate, explain: from files to figures, without torch."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli.explanations import print_explanation
from sim.cli.next_steps import suggest, to_replay, to_simulate, to_tune
from sim.cli.own_job import Parts, load_inputs
from sim.cli.panels import PREDICTING, SYSTEM
from sim.cli.printing import emit_noun, say, table
from sim.errors import InputError
from sim.nouns.ddp_switches import ARGUMENTS, SETTINGS
from sim.nouns.hardware import Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.systems.registry import POLICIES
from sim.units import format_ms, format_number, format_percent, format_size, in_ms, parse_cap_mb

WorkloadFile = Annotated[
    Path, typer.Argument(metavar="WORKLOAD.json", help="A workload: recorded, imported or estimated.")
]
HardwareFile = Annotated[Path, typer.Option("--hardware", help="A hardware file: calibrated or imported.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
PolicyName = Annotated[str, typer.Option(help=f"The system: {', '.join(POLICIES)}.", rich_help_panel=SYSTEM)]
BucketCap = Annotated[
    str | None,
    typer.Option(help="DDP's bucket_cap_mb: MiB, or a size such as 25MiB. Left out: DDP's default."),
]
FirstBucket = Annotated[str | None, typer.Option(help="Cap of the first bucket, MiB.")]
BucketCapList = Annotated[
    str | None, typer.Option(help="DDP's bucket_cap_mb_list: a cap for each bucket, MiB, comma-separated.")
]
_DDP_NAMES = ", ".join((*ARGUMENTS, *SETTINGS))
DdpSwitches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help=f"A switch of DDP; repeatable: {_DDP_NAMES}.", rich_help_panel=SYSTEM
    ),
]
ZeroSwitches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting of DeepSpeed, by its own name; repeatable.",
        rich_help_panel=SYSTEM,
    ),
]
ReduceBucketSize = Annotated[
    int | None, typer.Option(help="ZeRO's reduce_bucket_size, elements.", rich_help_panel=SYSTEM)
]
MegatronSwitches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting of Megatron-Core, by its own name; repeatable.",
        rich_help_panel=SYSTEM,
    ),
]
Fsdp2Switches = Annotated[
    list[str] | None,
    typer.Option(
        "--fsdp",
        metavar="KEY=VALUE",
        help="A setting of fully_shard, by its own name; repeatable.",
        rich_help_panel=SYSTEM,
    ),
]


class Engine(StrEnum):
    """The two engines; equal to the nanosecond."""

    SIMPY = "simpy"
    ANALYTIC = "analytic"


EngineName = Annotated[
    Engine, typer.Option(help="Which clock runs it; both give the same times.", rich_help_panel=PREDICTING)
]


def caps_of(text: str | None, option: str) -> list[float] | None:
    """Caps in MiB with commas between them; None where none are given."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise InputError(f"{option}: {text!r} is not legal; give caps in MiB, such as 1,25")
    return [parse_cap_mb(part) for part in parts]


def key_values(pairs: list[str], option: str) -> dict[str, Any]:
    """``key=value`` words; values are JSON or Python's constants, and text where they are neither.

    Raises:
        InputError: a word that is no ``key=value``, a key given twice, or a number of thousands of digits.
    """
    return {name: key_value(name, text, option) for name, text in key_texts(pairs, option).items()}


def key_texts(pairs: list[str], option: str) -> dict[str, str]:
    """As ``key_values``, each value as it was written."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{option}: {pair!r} is not legal; give key=value")
        if name in found:
            raise InputError(f"{option}: {name} is given twice; give it once")
        found[name] = value
    return found


def key_value(name: str, text: str, option: str) -> Any:
    """The value of one ``key=value`` word, as ``key_values`` takes it."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError):  # Python reads no integer of over 4300 digits
        raise InputError(f"{option}: {name}={text[:20]}... is not legal; it is too long") from None


def _switches(option: str, pairs: list[str]) -> dict[str, Any]:
    switches = key_values(pairs, option)
    for name in ("workload", "world_size", "iterations"):
        if name in switches:
            raise InputError(f"{option}: {name} is no switch")
    for name in ("policy", "iteration", "bucket_cap_mb", "bucket_cap_mb_list", "first_bucket_mb"):
        if name in switches:
            raise InputError(f"{option}: {name} has an option of its own: --{name.replace('_', '-')}")
    return switches


def ddp_switches(pairs: list[str] | None) -> dict[str, Any]:
    """The switches that ``--ddp`` gives."""
    return _switches("--ddp", pairs or [])


def _iteration(text: str) -> Iteration:
    if text == "steady":
        return "steady"
    if text in ("1", "2", "3"):
        return int(text)
    raise InputError(f"--iteration: {text!r} is not legal; give steady, 1, 2 or 3")


def _options(
    ddp: list[str] | None,
    zero: list[str] | None,
    reduce_bucket_size: int | None,
    megatron: list[str] | None,
    fsdp: list[str] | None,
) -> dict[str, Any]:
    """Switches of the system, from the options that give them."""
    options = {
        **ddp_switches(ddp),
        **_switches("--zero", zero or []),
        **_switches("--megatron", megatron or []),
        **_switches("--fsdp", fsdp or []),
    }
    if (units := options.get("units")) is not None:
        options["units"] = str(units)  # names of modules, some of which are numbers
    if reduce_bucket_size is not None:
        if "reduce_bucket_size" in options:
            raise InputError("--zero: reduce_bucket_size has an option of its own: --reduce-bucket-size")
        options["reduce_bucket_size"] = reduce_bucket_size
    return options


def _given(
    policy: str,
    bucket_cap_mb: str | None,
    first_bucket_mb: str | None,
    bucket_cap_mb_list: str | None,
    ddp: list[str] | None,
    zero: list[str] | None,
    reduce_bucket_size: int | None,
    megatron: list[str] | None,
    fsdp: list[str] | None,
) -> dict[str, Any]:
    """What ``sim.assign`` and ``sim.explain`` are called with."""
    is_zero = policy.startswith("zero")
    if (zero or reduce_bucket_size is not None) and not is_zero:
        raise InputError(f"--zero and --reduce-bucket-size: belong to zero1 and zero2, not to {policy!r}")
    if megatron and policy != "megatron":
        raise InputError(f"--megatron: belongs to megatron, not to {policy!r}")
    if fsdp and policy != "fully_shard":
        raise InputError(f"--fsdp: belongs to fully_shard, not to {policy!r}")
    own = "--zero" if is_zero else {"megatron": "--megatron", "fully_shard": "--fsdp"}.get(policy)
    if ddp and own:
        raise InputError(f"--ddp: belongs to DistributedDataParallel, not to {policy!r}; give {own}")
    return {
        "policy": policy,
        "bucket_cap_mb": None if bucket_cap_mb is None else parse_cap_mb(bucket_cap_mb),
        "first_bucket_mb": None if first_bucket_mb is None else parse_cap_mb(first_bucket_mb),
        "bucket_cap_mb_list": caps_of(bucket_cap_mb_list, "--bucket-cap-mb-list"),
        **_options(ddp, zero, reduce_bucket_size, megatron, fsdp),
    }


def simulate(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    policy: PolicyName = "ddp",
    bucket_cap_mb: BucketCap = None,
    first_bucket_mb: FirstBucket = None,
    bucket_cap_mb_list: BucketCapList = None,
    ddp: DdpSwitches = None,
    zero: ZeroSwitches = None,
    reduce_bucket_size: ReduceBucketSize = None,
    megatron: MegatronSwitches = None,
    fsdp: Fsdp2Switches = None,
    iteration: Annotated[
        str,
        typer.Option(help="1, 2, 3, or steady for all later iterations.", rich_help_panel=PREDICTING),
    ] = "steady",
    assignment_file: Annotated[
        Path | None,
        typer.Option("--assignment", help="An assignment file, such as tune writes, in place of caps."),
    ] = None,
    slowest: Annotated[
        str | None,
        typer.Option(
            help="The slowest other rank: a factor on backward, or its workload file.",
            rich_help_panel=PREDICTING,
        ),
    ] = None,
    engine: EngineName = Engine.SIMPY,
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict one step with given buckets: how long it is, and where the time goes."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    number = _iteration(iteration)
    caps = (bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list)
    others = (zero, reduce_bucket_size, megatron, fsdp)
    caps_and_switches = (*caps, ddp, *others)
    if assignment_file is not None:
        if policy != "ddp" or any(given is not None for given in (*caps, *others)):
            raise InputError("--assignment: give it without a policy and caps; --ddp alone goes with it")
        assignment = as_the_job(workload, sim.load_assignment(assignment_file), **ddp_switches(ddp))
    else:
        assignment = sim.assign(workload, iteration=number, **_given(policy, *caps_and_switches))
    other = None if slowest is None else _slowest(slowest, workload, hardware)
    timeline = sim.simulate(workload, hardware, assignment, engine.value, iteration=number, slowest=other)
    report = sim.summarize(timeline)
    if as_json:
        emit_noun(report)
    else:
        print_report(report, workload)
        if assignment_file is None:
            suggest(to_tune(workload_file, hardware_file))
        else:
            suggest(to_replay(workload_file, hardware_file, hardware, assignment_file))


def _slowest(text: str, workload: Workload, hardware: Hardware) -> Workload:
    """The workload as the slowest other rank runs it, from a factor or a file."""
    try:
        factor = float(text)
    except ValueError:
        return sim.load_workload(text)
    if not factor >= 1:
        raise InputError(f"--slowest: {text!r} is not legal; give a factor of 1 or more, or a workload file")
    slower, _ = sim.scale(workload, hardware, backward=factor)
    return replace(slower, name=f"{workload.name}, backward x {format_number(factor, 6)}")


def explain(
    workload_file: WorkloadFile,
    policy: PolicyName = "ddp",
    bucket_cap_mb: BucketCap = None,
    first_bucket_mb: FirstBucket = None,
    bucket_cap_mb_list: BucketCapList = None,
    ddp: DdpSwitches = None,
    zero: ZeroSwitches = None,
    reduce_bucket_size: ReduceBucketSize = None,
    megatron: MegatronSwitches = None,
    fsdp: Fsdp2Switches = None,
    ranks: Annotated[int, typer.Option(help="World size.", min=1)] = 2,
    iterations: Annotated[int, typer.Option(help="How many iterations, from the first.")] = 3,
    as_json: AsJson = False,
) -> None:
    """List every collective of iterations 1, 2 and 3 in order, with its bytes and what launches it."""
    workload = sim.load_workload(workload_file)
    caps = (bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list)
    given = _given(policy, *caps, ddp, zero, reduce_bucket_size, megatron, fsdp)
    told = sim.explain(workload, world_size=ranks, iterations=iterations, **given)
    if as_json:
        emit_noun(told)
    else:
        print_explanation(told)
        suggest(to_simulate(workload_file))


def print_report(report: Report, workload: Workload) -> None:
    """A report for people."""
    share = report.exposed_comm_ns / report.step_ns if report.step_ns else 0.0
    table(
        f"{workload.name}: {report.policy}, {len(report.buckets)} bucket(s)",
        ["figure", "value"],
        [
            ["step", format_ms(report.step_ns)],
            [
                "exposed communication",
                f"{format_ms(report.exposed_comm_ns)} ({format_percent(share)} of the step)",
            ],
            *(
                [f"  of micro-batch {number}", format_ms(exposed)]
                for number, exposed in enumerate(report.exposed_by_micro_batch_ns, start=1)
                if len(report.exposed_by_micro_batch_ns) > 1
            ),
            ["overlap", format_percent(report.overlap_ratio)],
            ["backward ends", format_ms(report.backward_end_ns)],
            ["gradients available", format_ms(report.sync_end_ns)],
        ],
    )
    table(
        "parts of the step",
        ["part", "ms", "of the step"],
        [
            [name, in_ms(took), format_percent(took / report.step_ns)]
            for name, took in report.parts_ns.items()
            if report.step_ns
        ],
    )
    waits = ["waited"] if any(row.late_ns for row in report.buckets) else []
    table(
        "buckets (ms from the start of backward)",
        ["bucket", "size", "ready", "launch", *waits, "start", "end", "available"],
        [
            [
                str(row.index),
                format_size(row.num_bytes),
                *(
                    in_ms(time)
                    for time in (
                        *(row.ready_ns, row.launch_ns),
                        *((row.late_ns,) if waits else ()),
                        *(row.start_ns, row.end_ns, row.available_ns),
                    )
                ),
            ]
            for row in report.buckets
        ],
    )
    say(report.verdict)
    for line in report.notes:
        say(f"note: {line}")
