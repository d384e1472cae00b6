"""ranks: steps of a job whose ranks differ, what the slowest costs, and what each bucket cap makes of it."""

from pathlib import Path
from typing import Annotated

import typer

import sim
from sim.cli.next_steps import TO_CLUSTER_PAGE, suggest
from sim.cli.output_options import file_option, write
from sim.cli.own_job import Parts, load_inputs
from sim.cli.panels import CANDIDATES, PREDICTING
from sim.cli.printing import emit_noun, progress, say, table
from sim.cli.simulating import AsJson, BucketCap, HardwareFile, WorkloadFile, caps_of
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.ranks import Ranks, SlowRanks
from sim.nouns.step_distribution import AssignmentComparison, RankPart, StepDistribution
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import NS_PER_MS, format_ms, format_number, format_percent, format_size, parse_cap_mb

_DEFAULT = "DDP's default"


def ranks(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    ranks_file: Annotated[
        Path | None, typer.Argument(metavar="RANKS.json", help="A file of ranks, instead of the options.")
    ] = None,
    pace_jitter: Annotated[
        float,
        typer.Option(
            help="How much each rank's pace varies from step to step: sigma of its logarithm, such as 0.02."
        ),
    ] = 0.0,
    pace_spread: Annotated[
        float,
        typer.Option(
            help="How much ranks differ all along (the GPU lottery): sigma of the logarithm of their pace."
        ),
    ] = 0.0,
    slow: Annotated[
        list[str] | None,
        typer.Option(help="Ranks that take longer: RANK=FACTOR or FIRST-LAST=FACTOR; may be repeated."),
    ] = None,
    stalls: Annotated[
        str | None,
        typer.Option(
            help="P,MS: in a share P of its steps a rank stands still for MS milliseconds, its GPU idle."
        ),
    ] = None,
    assignment_file: Annotated[
        Path | None,
        typer.Option(
            "--assignment", help="An assignment file instead of DDP's default.", rich_help_panel=CANDIDATES
        ),
    ] = None,
    bucket_cap_mb: BucketCap = None,
    caps: Annotated[
        str | None,
        typer.Option(
            help="Caps in MiB, comma-separated: each compared with DDP's default on the same draws.",
            rich_help_panel=CANDIDATES,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Steps that are drawn.", rich_help_panel=PREDICTING)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all draws.", rich_help_panel=PREDICTING)] = 0,
    output: Annotated[Path | None, file_option("Write these ranks here, to be changed by hand.")] = None,
    figure: Annotated[Path | None, file_option("Write a figure (HTML) here.", "--figure")] = None,
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict the steps of ranks that differ: what the slowest rank costs, and what buckets change."""
    from sim.clusters.ranks.rank_files import load_groups, moved

    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    given = _ranks(pace_jitter, pace_spread, slow or [], stalls)
    others: dict[str, Workload] = {}
    if ranks_file is not None:
        if given != _ranks(0.0, 0.0, [], None):
            raise InputError("RANKS.json: give it alone, or --pace-jitter and its kin")
        given = sim.load_ranks(ranks_file)
        others = load_groups(ranks_file, given)
    assignments = _assignments(workload, assignment_file, bucket_cap_mb, caps)
    if output is not None:
        given.check_fits(hardware.world_size)
        write(output, sim.to_text(given if ranks_file is None else moved(given, ranks_file, output)))
    with progress("steps") as report:
        compared = sim.compare_assignments(
            workload,
            hardware,
            assignments,
            given,
            samples=samples,
            seed=seed,
            others=others,
            progress=report,
        )
    told = compared.rows[0].distribution
    if figure is not None:
        _draw(compared if len(compared.rows) > 1 else told, figure)
    if as_json:
        emit_noun(compared if len(compared.rows) > 1 else told)
        return
    if len(compared.rows) > 1:
        _print_comparison(compared)
    else:
        _print_distribution(told)
    for line in dict.fromkeys(line for row in compared.rows for line in row.distribution.not_known):
        say(f"not known, so it does not vary: {line}")
    for line in dict.fromkeys(line for row in compared.rows for line in row.distribution.notes):
        say(f"note: {line}")
    suggest(TO_CLUSTER_PAGE)


def _draw(told: StepDistribution | AssignmentComparison, path: Path) -> None:
    from app.figures.cluster import distribution_figure  # plotly, which only a figure waits for

    write(path, distribution_figure(told).to_html(include_plotlyjs=True), "--figure")


def _ranks(pace_jitter: float, pace_spread: float, slow: list[str], stalls: str | None) -> Ranks:
    """The ranks that the options describe."""
    probability, stall_ns = 0.0, 0
    if stalls is not None:
        try:
            probability, milliseconds = map(float, stalls.split(","))
            stall_ns = round(milliseconds * NS_PER_MS)
        except (ValueError, OverflowError):
            raise InputError(f"--stalls: {stalls!r} is not legal; give P,MS, such as 0.001,50") from None
    return Ranks(
        name="from options",
        pace_jitter=pace_jitter,
        pace_spread=pace_spread,
        slow=tuple(map(_slow, slow)),
        stall_probability=probability,
        stall_ns=stall_ns,
        provenance={"source": "bucketsim ranks"},
    )


def _slow(text: str) -> SlowRanks:
    ends, equals, factor = text.partition("=")
    first, dash, last = ends.partition("-")
    try:
        pace = float(factor)
        begin = int(first)
        end = int(last) if dash else begin
    except ValueError:
        equals = ""
    if not equals or end < begin:
        raise InputError(f"--slow: {text!r} is not legal; give RANK=FACTOR, such as 3=1.2 or 8-15=1.05")
    return SlowRanks(first=begin, count=end - begin + 1, pace=pace)


def _assignments(
    workload: Workload, assignment_file: Path | None, bucket_cap_mb: str | None, caps: str | None
) -> dict[str, Assignment]:
    """By name; the first is what others are compared with."""
    if (assignment_file is not None) + (bucket_cap_mb is not None) + (caps is not None) > 1:
        raise InputError("--caps: give one of --assignment, --bucket-cap-mb and --caps")
    if assignment_file is not None:
        return {str(assignment_file): as_the_job(workload, sim.load_assignment(assignment_file))}
    if bucket_cap_mb is not None:
        cap = parse_cap_mb(bucket_cap_mb)
        return {f"{format_number(cap, 6)} MiB": sim.assign(workload, bucket_cap_mb=cap)}
    made = {_DEFAULT: sim.assign(workload)}
    for cap in caps_of(caps, "--caps") or ():
        made[f"{format_number(cap, 6)} MiB"] = sim.assign(workload, bucket_cap_mb=cap)
    return made


def _print_distribution(told: StepDistribution) -> None:
    table(
        f"{told.workload}: {told.samples:,} steps, {told.world_size:,} ranks, {told.bucket_count} bucket(s)",
        ["figure", "value"],
        [
            ["mean step", _with_interval(told.mean_step_ns, told.mean_low_ns, told.mean_high_ns)],
            *_quantile_rows(told),
            ["if all ranks were the workload", format_ms(told.nominal_step_ns)],
            ["the slowest costs", _cost(told.slowest_cost_ns, told.mean_step_ns)],
            [
                f"if all computed the mean, pace {format_number(told.mean_pace, 4)}",
                format_ms(told.even_step_ns),
            ],
            ["unevenness costs", _cost(told.imbalance_cost_ns, told.mean_step_ns)],
            ["its collectives wait for the last rank", format_ms(told.waited_ns)],
        ],
    )
    rows: tuple[RankPart, ...] = told.parts if len(told.parts) > 1 else told.parts + told.worst
    table(
        "who came last (share of all collectives)",
        ["ranks", "first", "count", "mean pace", "last", "collectives wait"],
        [
            [
                part.name,
                str(part.first),
                str(part.count),
                format_number(part.pace, 4),
                format_percent(part.last_share),
                format_ms(part.waited_ns),
            ]
            for part in rows
        ],
    )
    table(
        "collectives, in the order of launches (waiting for the last rank, means over steps)",
        ["bucket", "size", "a rank waits", "the first waits", "ranks wait in"],
        [
            [
                "-" if one.bucket is None else str(one.bucket),
                format_size(one.num_bytes),
                format_ms(one.waited_ns),
                format_ms(one.longest_ns),
                format_percent(one.straggler_share),
            ]
            for one in told.collectives
        ],
    )


def _quantile_rows(told: StepDistribution) -> list[list[str]]:
    return [
        ["median", format_ms(told.median_step_ns)],
        ["5th and 95th percentile", f"{format_ms(told.p5_step_ns)}, {format_ms(told.p95_step_ns)}"],
        ["99th percentile", format_ms(told.p99_step_ns)],
    ]


def _print_comparison(compared: AssignmentComparison) -> None:
    first = compared.rows[0].distribution
    table(
        f"{first.workload}: {first.samples:,} steps of {first.world_size:,} ranks, the same for every row",
        ["buckets", "count", "all alike", "mean", "95th percentile", "slowest costs", "gain in the mean"],
        [
            [
                row.name,
                str(row.distribution.bucket_count),
                format_ms(row.distribution.nominal_step_ns),
                format_ms(row.distribution.mean_step_ns),
                format_ms(row.distribution.p95_step_ns),
                _cost(row.distribution.slowest_cost_ns, row.distribution.mean_step_ns),
                _with_interval(row.gain_ns, row.gain_low_ns, row.gain_high_ns),
            ]
            for row in compared.rows
        ],
    )
    if compared.best_by_mean == compared.best_by_nominal:
        say(f"best with ranks that differ, and with ranks all alike: {compared.best_by_mean}")
    else:
        say(
            f"best with ranks that differ: {compared.best_by_mean}; with ranks all alike it would be "
            f"{compared.best_by_nominal}"
        )


def _cost(cost_ns: int, step_ns: int) -> str:
    return f"{format_ms(cost_ns)} ({format_percent(cost_ns / step_ns)})" if step_ns else format_ms(cost_ns)


def _with_interval(value_ns: int, low_ns: int | None, high_ns: int | None) -> str:
    if low_ns is None or high_ns is None:
        return format_ms(value_ns)
    return f"{format_ms(value_ns)} [{format_ms(low_ns)}, {format_ms(high_ns)}]"
