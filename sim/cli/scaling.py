"""scaling, ranks: a workload on machines of many sizes, and on ranks that differ."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.machines import preset_or_file
from sim.cli.next_steps import TO_CLUSTER_PAGE, suggest
from sim.cli.options import (
    CANDIDATES,
    LINK,
    PREDICTING,
    RANKS_DIFFER,
    AsJson,
    BucketCap,
    DdpSwitches,
    HardwareFile,
    MaxRows,
    WorkloadFile,
    argument,
    caps_of,
    ddp_switches,
    file_option,
    key_values,
    option,
    values_of,
    write,
)
from sim.cli.own_job import Parts, load_inputs
from sim.cli.predicting import executor_of
from sim.cli.printing import emit, emit_noun, progress, say, table
from sim.clusters.ranks import Ranks, SlowRanks, load_groups
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import (
    NS_PER_MS,
    format_mib_range,
    format_ms,
    format_number,
    format_percent,
    format_size,
    in_ms,
    parse_cap_mb,
)

if TYPE_CHECKING:
    from sim.clusters.distribution import AssignmentComparison, RankPart, StepDistribution
    from sim.clusters.scaling import ScalingRow


def scaling(
    workload_file: WorkloadFile,
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json", default=...),
    settings: list[str] | None = argument(
        "Settings of the preset, each with its values, such as gpus=4,8.", "[KEY=V,V…]..."
    ),
    hosts: str | None = option("Numbers of hosts, comma-separated; default: the machine's own."),
    world_size: str | None = option("Numbers of GPUs, in place of --hosts; they fill host after host."),
    caps: str | None = option(
        "Caps in MiB to choose from, comma-separated; default: all that make different buckets."
    ),
    measured: list[str] | None = option(
        "Hardware measured on so many hosts of this kind (or ranks=N), to be extrapolated; settings "
        "may follow: H.json@hosts=2,gpus=4. Default: computed from data sheets.",
        panel=LINK,
        metavar="H.json@hosts=N",
    ),
    local: Path | None = option(
        "A hardware file for copies, launches and slow-downs. Default: these cost nothing.", panel=LINK
    ),
    ranks: Path | None = option(
        "A ranks file: how the ranks differ. Default: not at all.", panel=RANKS_DIFFER
    ),
    samples: int = option("Steps drawn where ranks differ.", panel=RANKS_DIFFER, min=1, default=200),
    seed: int = option("Seed of these draws.", panel=RANKS_DIFFER, min=0, default=0),
    jobs: int | None = option("Processes, at most one a core; default: 1.", panel=PREDICTING, min=1),
    ddp: DdpSwitches = None,
    max_rows: MaxRows = 10_000,
    figure: Path | None = file_option("Write a figure (HTML) here.", "--figure", default=None),
    as_json: AsJson = False,
    output: Path | None = file_option("Write CSV here.", default=None),
) -> None:
    """Predict how a workload scales: efficiency and best caps by number of GPUs, and why caps change."""
    workload = sim.load_workload(workload_file).with_switches(ddp_switches(ddp))
    chosen = preset_or_file(machine)
    axes = _axes(settings or [])
    differing = None if ranks is None else sim.load_ranks(ranks)
    with ExitStack() as stack:
        rows = sim.scaling(
            workload,
            chosen,
            hosts=None if hosts is None else values_of("--hosts", hosts, _whole),
            world_size=None if world_size is None else values_of("--world-size", world_size, _whole),
            settings=axes,
            caps_mb=None if caps is None else values_of("--caps", caps, parse_cap_mb),
            measured=[_measured(chosen, axes, text) for text in measured or []],
            local=None if local is None else sim.load_hardware(local),
            ranks=differing,
            others=None if ranks is None or differing is None else load_groups(ranks, differing),
            samples=samples,
            seed=seed,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("scaling")),
            max_rows=max_rows,
        )
    if output is not None:
        write(output, sim.scaling_csv(rows))
    if figure is not None:
        _draw(rows, figure)
    if as_json:
        emit(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print_rows(workload.name, rows)
        if workload.is_of_whole_buckets:
            say(
                f"best buckets and caps are over merges of the {len(workload.gradients)} buckets as recorded "
                f"only: gradients are not told apart; profile with record_shapes=True, or import with --model"
            )
        suggest(TO_CLUSTER_PAGE)


def print_rows(workload: str, rows: "Sequence[ScalingRow]") -> None:
    """Two tables for each series, and below them why caps change, and how sure it all is."""
    for (machine, settings), series in groupby(rows, key=lambda row: (row.machine, row.settings)):
        lines = tuple(series)
        _print_steps(f"{workload} on {machine}{', ' + settings if settings else ''}", lines)
        _print_caps(lines)
        _print_ranks(lines)
        for row in lines:
            if row.reason:
                say(f"{row.reason_code}: {row.reason}")
    unproved = "" if all(row.proved_optimal for row in rows) else ", which is not proved where there is a ?"
    say(
        "efficiency: samples a second and GPU at the best cap, over those of one GPU alone with the same "
        "batch; exposed: at the best cap, copies and launches too; best buckets: no cut that is contiguous "
        f"in ready order is better{unproved}"
    )
    for line in dict.fromkeys(row.own_costs for row in rows if row.own_costs):
        say(line)
    for line in dict.fromkeys(row.doubts for row in rows if row.doubts):
        say(f"note: {line}")
    if any(row.cap_step_low_ns != row.cap_step_high_ns for row in rows):
        losses = [
            max(
                row.cap_regret_low_ns / row.cap_step_low_ns,
                row.cap_regret_high_ns / row.cap_step_high_ns,
            )
            for row in rows
            if row.cap_step_low_ns
        ]
        say(
            "all-reduces have a range: in range is what the best cap saves from its fast to its slow end, "
            f"where it loses {format_percent(max(losses, default=0.0))} at most against the cap that is "
            f"best there"
        )


def _print_steps(title: str, rows: "Sequence[ScalingRow]") -> None:
    table(
        f"{title}: ms, {rows[0].source} all-reduces",
        ["GPUs", "all-reduce", "default", "best cap", "best buckets", "exposed", "efficiency"],
        [
            [
                str(row.world_size),
                in_ms(row.all_reduce_ns),
                in_ms(row.default_step_ns),
                in_ms(row.cap_step_ns),
                f"{in_ms(row.optimum_step_ns)}{'' if row.proved_optimal else '?'}",
                in_ms(row.cap_exposed_comm_ns),
                format_percent(row.cap_efficiency),
            ]
            for row in rows
        ],
    )


def _print_caps(rows: "Sequence[ScalingRow]") -> None:
    table(
        "bucket_cap_mb, MiB",
        ["GPUs", "best", "as good around it", "saves", "in range", "all-reduce of the model"],
        [
            [
                str(row.world_size),
                format_number(row.bucket_cap_mb, 6),
                around_words(row),
                _share(row.default_regret_ns, row.default_step_ns),
                f"{_share(row.default_regret_low_ns, row.cap_step_low_ns + row.default_regret_low_ns)} to "
                f"{_share(row.default_regret_high_ns, row.cap_step_high_ns + row.default_regret_high_ns)}",
                row.all_reduce_method or "-",
            ]
            for row in rows
        ],
        words=["all-reduce of the model"],
    )


def around_words(row: "ScalingRow") -> str:
    """The caps around the best that are as good, and how many stretches of others are."""
    more = row.cap_num_stretches - 1
    ends = format_mib_range(row.cap_low_mb, row.cap_high_mb)
    return f"{ends}, {more} more" if more else ends


def _print_ranks(rows: "Sequence[ScalingRow]") -> None:
    """What steps are where ranks differ."""
    if not rows[0].jitter:
        return
    table(
        f"{rows[0].jitter}: ms over {rows[0].samples} steps at the best cap",
        ["GPUs", "mean", "p95", "the slowest costs", "efficiency", "default's mean"],
        [
            [
                str(row.world_size),
                *map(in_ms, (row.mean_step_ns or 0, row.p95_step_ns or 0, row.slowest_cost_ns or 0)),
                _share(row.single_step_ns, row.mean_step_ns or 0),
                in_ms(row.default_mean_step_ns or 0),
            ]
            for row in rows
        ],
    )


def _share(saved_ns: int, step_ns: int) -> str:
    return format_percent(saved_ns / step_ns if step_ns else 0.0)


def _axes(words: list[str]) -> dict[str, list[Any]]:
    """``key=value,value``: each key with its values."""
    axes: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if key in ("hosts", "world_size"):
            raise InputError(
                f"KEY=V,V…: {word!r} is not legal; give --{key.replace('_', '-')} {values or 'N'}"
            )
        if not equals or not key or key in axes:
            raise InputError(f"KEY=V,V…: {word!r} is not legal; give key=value,value, each key once")
        parts = values_of(key, values, str)
        axes[key] = [key_values([f"{key}={part}"], "KEY=V,V…")[key] for part in parts]
    return axes


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("give whole numbers with commas between them")
    return int(text)


def _measured(machine: str | Cluster, axes: dict[str, list[Any]], text: str) -> tuple[Cluster, Hardware]:
    """A cluster of the machine's kind and what was measured there.

    From ``H.json@hosts=2,gpus=4``; ``ranks=N`` in place of hosts; neither: the machine's own size.
    """
    from sim.clusters.scaling import sized

    file, _, words = text.rpartition("@")
    given = key_values(words.split(","), "--measured") if file and words else {}
    hosts, ranks = given.pop("hosts", None), given.pop("ranks", None)
    if not file or not words or not all(isinstance(size, int | None) for size in (hosts, ranks)):
        raise InputError(f"--measured: {text!r} is not legal; give H.json@hosts=N, or ranks=N or settings")
    if hosts is not None and ranks is not None:
        raise InputError(f"--measured: {text!r} is not legal; give hosts or ranks, not both")
    for key, values in axes.items():
        if key not in given and len(values) > 1:
            raise InputError(
                f"--measured: {text!r} does not say {key}, which has {len(values)} values; add {key}=…"
            )
        given.setdefault(key, values[0])
    return sized(machine, given, hosts, ranks), sim.load_hardware(file)


def _draw(rows: "Sequence[ScalingRow]", path: Path) -> None:
    from app.figures.cluster import scaling_figure  # plotly, which only a figure waits for

    write(path, scaling_figure(rows).to_html(include_plotlyjs=True), "--figure")


_DEFAULT = "DDP's default"


def ranks(
    workload_file: WorkloadFile,
    hardware_file: HardwareFile,
    ranks_file: Path | None = argument("A file of ranks, instead of the options.", "RANKS.json"),
    pace_jitter: float = option(
        "How much each rank's pace varies from step to step: sigma of its logarithm, such as 0.02.",
        default=0.0,
    ),
    pace_spread: float = option(
        "How much ranks differ all along (the GPU lottery): sigma of the logarithm of their pace.",
        default=0.0,
    ),
    slow: list[str] | None = option(
        "Ranks that take longer: RANK=FACTOR or FIRST-LAST=FACTOR; may be repeated."
    ),
    stalls: str | None = option(
        "P,MS: in a share P of its steps a rank stands still for MS milliseconds, its GPU idle."
    ),
    assignment_file: Path | None = option(
        "An assignment file instead of DDP's default.", "--assignment", panel=CANDIDATES
    ),
    bucket_cap_mb: BucketCap = None,
    caps: str | None = option(
        "Caps in MiB, comma-separated: each compared with DDP's default on the same draws.", panel=CANDIDATES
    ),
    samples: int = option("Steps that are drawn.", panel=PREDICTING, default=1000),
    seed: int = option("Seed of all draws.", panel=PREDICTING, default=0),
    output: Path | None = file_option("Write these ranks here, to be changed by hand.", default=None),
    figure: Path | None = file_option("Write a figure (HTML) here.", "--figure", default=None),
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict the steps of ranks that differ: what the slowest rank costs, and what buckets change."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    given = _ranks(pace_jitter, pace_spread, slow or [], stalls)
    others: dict[str, Workload] = {}
    if ranks_file is not None:
        if given != _ranks(0.0, 0.0, [], None):
            raise InputError("RANKS.json: give it alone, or --pace-jitter and its kin")
        if output is not None:
            raise InputError("-o: not legal with RANKS.json, which is there already; change a copy of it")
        given = sim.load_ranks(ranks_file)
        others = load_groups(ranks_file, given)
    assignments = _assignments(workload, assignment_file, bucket_cap_mb, caps)
    if output is not None:
        given.check_fits(hardware.world_size)
        write(output, sim.to_text(given))
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
        _draw_steps(compared if len(compared.rows) > 1 else told, figure)
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


def _draw_steps(told: "StepDistribution | AssignmentComparison", path: Path) -> None:
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


def _print_distribution(told: "StepDistribution") -> None:
    table(
        f"{told.workload}: {told.samples:,} steps, {told.world_size:,} ranks, {told.bucket_count} bucket(s)",
        ["figure", "value"],
        [
            ["mean step", _with_interval(told.mean_step_ns, told.mean_low_ns, told.mean_high_ns)],
            ["median", format_ms(told.median_step_ns)],
            ["5th and 95th percentile", f"{format_ms(told.p5_step_ns)}, {format_ms(told.p95_step_ns)}"],
            ["99th percentile", format_ms(told.p99_step_ns)],
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


def _print_comparison(compared: "AssignmentComparison") -> None:
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
