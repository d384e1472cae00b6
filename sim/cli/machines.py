"""cluster, scaling, ranks: machines that nobody measured, a workload on many sizes, ranks that differ."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.options import (
    CANDIDATES,
    CAPS,
    HARDWARE_AT,
    LINK,
    PAIR,
    PREDICTING,
    RANKS_DIFFER,
    WHOLES,
    AsJson,
    BucketCap,
    HardwareAt,
    HardwareFile,
    Jobs,
    Kind,
    Pair,
    Parts,
    Settings,
    WorkloadFile,
    argument,
    as_dict,
    choice,
    file_option,
    option,
    write,
)
from sim.cli.options import settings as settings_of
from sim.cli.predicting import executor_of, load_inputs
from sim.cli.printing import (
    WORKLOAD,
    emit,
    emit_noun,
    note,
    print_table,
    progress,
    say,
    say_notes,
    suggest,
    table,
    to_tune_written,
)
from sim.clusters.machines import check_preset
from sim.clusters.ranks import Ranks, SlowRanks
from sim.columns import SCALING, Column, ms, percent, plain, size
from sim.errors import InputError
from sim.formats.documents import load, to_text
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster, check_ranks
from sim.nouns.hardware import CURVES, MAX_RANKS, CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import (
    NS_PER_MS,
    NS_PER_S,
    format_mib_range,
    format_ms,
    format_number,
    format_percent,
    format_time,
)

if TYPE_CHECKING:
    from sim.clusters.distribution import AssignmentComparison, RankPart, StepDistribution
    from sim.clusters.scaling import ScalingRow

_LEAST, _MOST = 1 << 20, 32 << 20  # where DDP's buckets lie
_RANKS = "GPUs such as host0.gpu0,host1.gpu0, or how many of the first"
_ALGORITHMS = ("auto", "ring", "tree", "nvls", "nvls_tree")
_TO_CLUSTER_PAGE = "bucketsim dash (its page Cluster draws this)"


def cluster(
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json", default=...),
    settings: list[Pair] | None = argument("Settings of the preset: hosts=4.", "[KEY=VALUE]...", kind=PAIR),
    ranks: str | None = option(f"Where the job's ranks are: {_RANKS}. Default: all."),
    algorithm: str = option(
        "How all-reduces run; auto: NCCL's choice.",
        kind=choice(*_ALGORITHMS),
        metavar="ALGORITHM",
        default="auto",
    ),
    collective: str = option(
        "The collective whose curve is printed.",
        kind=choice(*CURVES),
        metavar="COLLECTIVE",
        default="all_reduce",
    ),
    measured: list[HardwareAt] | None = option(
        "Hardware measured on the preset with other settings (hosts=2; ranks=4 for the first 4 "
        "GPUs) or on another cluster (C.json); may be repeated. Its curves are taken to this cluster.",
        kind=HARDWARE_AT,
    ),
    output: Path | None = file_option("Write the hardware here.", default=None),
    save: Path | None = file_option(
        "Write the cluster here, to be changed by hand.", "--save-cluster", default=None
    ),
    as_json: AsJson = False,
) -> None:
    """Compute a cluster's collectives by NCCL's own cost model, from data sheets: nothing is measured."""
    if measured and algorithm != "auto":
        raise InputError("--measured: not legal with --algorithm; it has its own algorithm")
    chosen, given = _preset_or_file(machine), as_dict(settings)
    if isinstance(chosen, str):
        whole = sim.cluster(chosen, **given)
    elif given:
        raise InputError(f"KEY=VALUE: {next(iter(given))!r} is not legal with a file; change the file")
    else:
        whole = chosen
    made = _placed(whole, ranks)
    if measured:
        hosts = given.pop("hosts", None)
        axes = {key: [value] for key, value in given.items()}
        hardware = sim.extrapolate_hardware([_measured(chosen, axes, at, hosts) for at in measured], made)
        what = f"extrapolated from {len(measured)} measurement{'s' if len(measured) > 1 else ''}"
        basis = _how_far_off(hardware, collective, what, "spread holds the range of each size")
    else:
        hardware = sim.cluster_hardware(made, algorithm=algorithm)
        advice = "measure the link where you can"
        basis = _how_far_off(hardware, collective, "computed, not measured", advice)
    if save is not None:
        write(save, to_text(made), "--save-cluster")
    if output is not None:
        write(output, to_text(hardware))
    for told in basis:
        (note if as_json else say)(told)
    if as_json:
        emit_noun(hardware)
        return
    _print_curve(hardware, collective)
    suggest(to_tune_written(WORKLOAD, output))


def _preset_or_file(machine: str) -> str | Cluster:
    """The name of a preset, or the cluster in a file. Raises ``InputError`` for what is neither."""
    if machine.endswith(".json"):
        return sim.load_cluster(machine)
    try:
        check_preset(machine)
    except InputError as error:
        raise InputError(f"PRESET|C.json: {error}, or the JSON file of a cluster") from None
    return machine


def _placed(cluster: Cluster, text: str | None) -> Cluster:
    """The cluster with the ranks that ``--ranks`` names, or so many of the first."""
    if text is None:
        return cluster
    if not text.isascii() or not text.isdigit():
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        check_ranks(cluster, names, "--ranks")
        return replace(cluster, placement=names)
    first = cluster.placement if cluster.placement is not None else cluster.all_gpus()
    count = int(text) if len(text) <= len(str(MAX_RANKS)) else MAX_RANKS + 1
    placement = tuple(islice(first, count))
    if len(placement) != count or not placement or count > MAX_RANKS:
        raise InputError(
            f"--ranks: {text:.20} is not legal; {cluster.name!r} has {len(placement) or 'at least 1'} ranks, "
            f"so give {_RANKS}"
        )
    return replace(cluster, placement=placement)


def _measured(
    machine: str | Cluster, axes: Mapping[str, list[Any]], at: HardwareAt, hosts: Any = None
) -> tuple[Cluster, Hardware]:
    """What was measured, and the cluster it was measured on: another one, or the machine in another size.

    Settings that are not said are the machine's own, which ``axes`` has; so are ``hosts``, without ranks.
    """
    from sim.clusters.machines import sized

    hardware = sim.load_hardware(at.file)
    if hardware.world_size == 1:
        raise InputError(f"--measured: {at.file} is not legal; it has one rank, which measures no collective")
    if isinstance(at.where, Path):
        return load(at.where, Cluster), hardware
    given = dict(at.where)
    sizes = {name: given.pop(name) for name in ("hosts", "ranks") if name in given}
    if len(sizes) > 1 or not all(isinstance(count, int) for count in sizes.values()):
        raise InputError(f"--measured: {at.file}@…: give one of hosts=N and ranks=N, and settings")
    for key, values in axes.items():
        if key not in given and len(values) > 1:
            raise InputError(
                f"--measured: {at.file} does not say {key}, which has {len(values)} values; add {key}=…"
            )
        given.setdefault(key, values[0])
    count = sizes.get("hosts", None if sizes else hosts)
    return sized(machine, given, count, sizes.get("ranks")), hardware


def _how_far_off(hardware: Hardware, collective: str, what: str, advice: str) -> list[str]:
    """How far off buckets of 1 to 32 MiB may be, as the hardware's ``spread`` has it, and what decides it."""
    known = hardware.spread.get(collective, {})
    off = [
        (known[str(point.num_bytes)][field] / point.duration_ns)
        for point in getattr(hardware, collective) or ()
        for field in ("min_ns", "max_ns")
        if point.duration_ns and _LEAST <= point.num_bytes <= _MOST and str(point.num_bytes) in known
    ]
    if off:
        least, most = format_number(min(off), 2), format_number(max(off), 2)
        what = f"{what}: 1 to 32 MiB may take {least} to {most} times as long"
    told = hardware.provenance
    again = "it stays as it is and says nothing of other sizes, so measure it again"
    return [
        f"{what}; {advice}",
        *(f"mind: {point}; {again}" for point in told.get("odd_points", ())),
        *(f"not known: {one}" for one in told.get("not_known", ())),
    ]


_SHOWN = tuple(1 << power for power in range(10, 34, 2))


def curve_columns(collective: str, world_size: int) -> list[Column[CurvePoint]]:
    """A point's size, time and bus bandwidth, as nccl-tests count it."""
    from sim.importer.links.link_hardware import bus_factor

    factor = bus_factor(collective, world_size) * NS_PER_S / 1e9

    def bandwidth(point: CurvePoint) -> str | None:
        return f"{factor * point.num_bytes / point.duration_ns:.2f} GB/s" if point.duration_ns else None

    return [
        size("size", "num_bytes"),
        Column("time", lambda point: format_time(point.duration_ns)),
        Column("bus bandwidth", bandwidth),
    ]


def _print_curve(hardware: Hardware, collective: str) -> None:
    """Times, where they may lie, and bus bandwidths at powers of four."""
    methods: dict[str, Any] = hardware.provenance.get("methods", {}) if collective == "all_reduce" else {}
    expected: dict[str, Any] = hardware.spread.get(collective, {})

    def within(point: CurvePoint) -> str:
        """Where a time may lie; of a measured point nothing is open."""
        known = expected.get(str(point.num_bytes))
        return f"{format_time(known['min_ns'])} to {format_time(known['max_ns'])}" if known else "measured"

    columns = curve_columns(collective, hardware.world_size)
    if expected:
        columns.insert(2, Column("expected", within))
    if methods:
        columns.append(Column("by", lambda point: methods.get(str(point.num_bytes))))
    points = [point for point in getattr(hardware, collective) or () if point.num_bytes in _SHOWN]
    table(f"{hardware.name}: {collective.replace('_', '-')}", columns, points, words=["by"])


# scaling


def _axis(text: str) -> Pair:
    key, equals, values = text.partition("=")
    if not key or not equals or not all(values.split(",")):
        raise ValueError(f"{text!r} is not legal; give key=value,value")
    return Pair(key, [PAIR.reader(f"{key}={value}").value for value in values.split(",")])


def scaling(
    workload_file: WorkloadFile,
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json", default=...),
    settings: list[Pair] | None = argument(
        "Settings of the preset, each with its values, such as gpus=4,8.",
        "[KEY=V,V…]...",
        kind=Kind("KEY=V,V…", _axis),
    ),
    hosts: Sequence[int] | None = option("Numbers of hosts; default: the machine's own.", kind=WHOLES),
    world_size: Sequence[int] | None = option(
        "Numbers of GPUs, in place of --hosts; they fill host after host.", kind=WHOLES
    ),
    caps: Sequence[float] | None = option(
        "Caps to choose from; default: all that make different buckets.", kind=CAPS
    ),
    measured: list[HardwareAt] | None = option(
        "Hardware measured on so many hosts of this kind (or ranks=N), to be extrapolated; settings "
        "may follow: H.json@hosts=2,gpus=4. Default: computed from data sheets.",
        panel=LINK,
        kind=HARDWARE_AT,
    ),
    ranks: Path | None = option(
        "A ranks file: how the ranks differ. Default: not at all.", panel=RANKS_DIFFER
    ),
    samples: int = option("Steps drawn where ranks differ.", panel=RANKS_DIFFER, min=1, default=200),
    seed: int = option("Seed of these draws.", panel=RANKS_DIFFER, min=0, default=0),
    jobs: Jobs = None,
    set_: Settings = None,
    figure: Path | None = file_option("Write a figure (HTML) here.", "--figure", default=None),
    as_json: AsJson = False,
    output: Path | None = file_option("Write CSV here.", default=None),
) -> None:
    """Predict how a workload scales: efficiency and best caps by number of GPUs, and why caps change."""
    workload = sim.load_workload(workload_file).with_switches(settings_of(set_))
    chosen, axes = _preset_or_file(machine), as_dict(settings)
    if sizes := {"hosts", "world_size"} & axes.keys():
        raise InputError(f"KEY=V,V…: {min(sizes)} is no setting here; give --{min(sizes).replace('_', '-')}")
    differing = None if ranks is None else sim.load_ranks(ranks)
    with ExitStack() as stack:
        rows = sim.scaling(
            workload,
            chosen,
            hosts=hosts,
            world_size=world_size,
            settings=axes,
            caps_mb=caps,
            measured=[_measured(chosen, axes, at) for at in measured or []],
            ranks=differing,
            samples=samples,
            seed=seed,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("scaling")),
        )
    if output is not None:
        write(output, sim.scaling_csv(rows))
    if figure is not None:
        from app.figures.cluster import scaling_figure  # plotly, which only a figure waits for

        write(figure, scaling_figure(rows).to_html(include_plotlyjs=True), "--figure")
    if as_json:
        emit(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
        return
    _print_scaling(workload.name, rows)
    if workload.is_of_whole_buckets:
        say(
            f"best buckets and caps are over merges of the {len(workload.gradients)} buckets as recorded "
            f"only: gradients are not told apart; profile with record_shapes=True, or import with --model"
        )
    suggest(_TO_CLUSTER_PAGE)


def _share(name: str, saved: str, step: str) -> "Column[ScalingRow]":
    return Column(name, lambda row: format_percent(getattr(row, saved) / (getattr(row, step) or 1)))


def _around(row: "ScalingRow") -> str:
    """The caps around the best that are as good, and how many stretches of others are."""
    more = row.cap_num_stretches - 1
    ends = format_mib_range(row.cap_low_mb, row.cap_high_mb)
    return f"{ends}, {more} more" if more else ends


def _in_range(row: "ScalingRow") -> str:
    """What the best cap saves at both ends of the curve's range."""
    low_ns, high_ns = row.default_regret_low_ns, row.default_regret_high_ns
    ends = (low_ns, row.cap_step_low_ns + low_ns), (high_ns, row.cap_step_high_ns + high_ns)
    return " to ".join(format_percent(saved / step if step else 0.0) for saved, step in ends)


_GPUS: Column[Any] = SCALING[0]
_CAPS: "tuple[Column[ScalingRow], ...]" = (
    _GPUS,
    Column("best", lambda row: format_number(row.bucket_cap_mb, 6)),
    Column("as good around it", _around),
    _share("saves", "default_regret_ns", "default_step_ns"),
    Column("in range", _in_range),
    Column("all-reduce of the model", lambda row: row.all_reduce_method),
)
_DIFFERING: "tuple[Column[ScalingRow], ...]" = (
    _GPUS,
    ms("mean", "mean_step_ns"),
    ms("p95", "p95_step_ns"),
    ms("the slowest costs", "slowest_cost_ns"),
    _share("efficiency", "single_step_ns", "mean_step_ns"),
    ms("default's mean", "default_mean_step_ns"),
)


def _print_scaling(workload: str, rows: "Sequence[ScalingRow]") -> None:
    """Two tables for each series, and below them why caps change, and how sure it all is."""
    for (machine, settings), series in groupby(rows, key=lambda row: (row.machine, row.settings)):
        lines = tuple(series)
        title = f"{workload} on {machine}{', ' + settings if settings else ''}"
        table(f"{title}: {lines[0].source} all-reduces", SCALING[:-1], lines)
        table("bucket_cap_mb, MiB", _CAPS, lines, words=["all-reduce of the model"])
        if lines[0].jitter:
            title = f"{lines[0].jitter}: over {lines[0].samples} steps at the best cap"
            table(title, _DIFFERING, lines)
        for row in lines:
            if row.reason:
                say(f"{row.reason_code}: {row.reason}")
    say(
        "efficiency: samples a second and GPU at the best cap, over those of one GPU alone with the same "
        "batch; exposed: at the best cap, copies and launches too; best buckets: no cut that is contiguous "
        "in ready order is better, where that is proved"
    )
    for told in dict.fromkeys(row.own_costs for row in rows if row.own_costs):
        say(told)
    say_notes(row.doubts for row in rows if row.doubts)
    if any(row.cap_step_low_ns != row.cap_step_high_ns for row in rows):
        ends = [(row.cap_regret_low_ns, row.cap_step_low_ns) for row in rows]
        ends += [(row.cap_regret_high_ns, row.cap_step_high_ns) for row in rows]
        loss = max((lost_ns / step_ns for lost_ns, step_ns in ends if step_ns), default=0.0)
        say(
            "all-reduces have a range: in range is what the best cap saves from its fast to its slow end, "
            f"where it loses {format_percent(loss)} at most against the cap that is best there"
        )


# ranks


def _slow(text: str) -> SlowRanks:
    ends, equals, factor = text.partition("=")
    first, dash, last = ends.partition("-")
    try:
        begin, pace = int(first), float(factor)
        end = int(last) if dash else begin
    except ValueError:
        equals = ""
    if not equals or end < begin:
        raise ValueError(f"{text!r} is not legal; give RANK=FACTOR, such as 3=1.2 or 8-15=1.05")
    return SlowRanks(first=begin, count=end - begin + 1, pace=pace)


def _stalls(text: str) -> tuple[float, int]:
    try:
        probability, milliseconds = map(float, text.split(","))
        return probability, round(milliseconds * NS_PER_MS)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not legal; give P,MS, such as 0.001,50") from None


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
    slow: list[SlowRanks] | None = option(
        "Ranks that take longer; may be repeated.", kind=Kind("RANK[-RANK]=FACTOR", _slow)
    ),
    stalls: Any = option(
        "In a share P of its steps a rank stands still for MS milliseconds, its GPU idle.",
        kind=Kind("P,MS", _stalls),
    ),
    assignment_file: Path | None = option(
        "An assignment file instead of DDP's default.", "--assignment", panel=CANDIDATES
    ),
    bucket_cap_mb: BucketCap = None,
    caps: Sequence[float] | None = option(
        "Caps, each compared with DDP's default on the same draws.", panel=CANDIDATES, kind=CAPS
    ),
    samples: int = option("Steps that are drawn.", panel=PREDICTING, default=1000),
    seed: int = option("Seed of all draws.", panel=PREDICTING, default=0),
    output: Path | None = file_option("Write these ranks here, to be changed by hand.", default=None),
    parts: Parts = False,
    as_json: AsJson = False,
) -> None:
    """Predict the steps of ranks that differ: what the slowest rank costs, and what buckets change."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts, as_json)
    if ranks_file is None:
        given = Ranks(
            name="from options",
            pace_jitter=pace_jitter,
            pace_spread=pace_spread,
            slow=tuple(slow or ()),
            stall_probability=stalls[0] if stalls else 0.0,
            stall_ns=stalls[1] if stalls else 0,
            provenance={"source": "bucketsim ranks"},
        )
    elif pace_jitter or pace_spread or slow or stalls:
        raise InputError("RANKS.json: give it alone, or --pace-jitter and its kin")
    elif output is not None:
        raise InputError("-o: not legal with RANKS.json, which is there already; change a copy of it")
    else:
        given = sim.load_ranks(ranks_file)
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
            progress=report,
        )
    told = compared if len(compared.rows) > 1 else compared.rows[0].distribution
    if as_json:
        emit_noun(told)
        return
    if len(compared.rows) > 1:
        _print_comparison(compared)
    else:
        _print_distribution(compared.rows[0].distribution)
    for what in dict.fromkeys(one for row in compared.rows for one in row.distribution.not_known):
        say(f"not known, so it does not vary: {what}")
    say_notes(*(row.distribution.notes for row in compared.rows))
    suggest(_TO_CLUSTER_PAGE)


def _assignments(
    workload: Workload,
    assignment_file: Path | None,
    bucket_cap_mb: float | None,
    caps: Sequence[float] | None,
) -> dict[str, Assignment]:
    """By name; the first is what others are compared with."""
    if (assignment_file is not None) + (bucket_cap_mb is not None) + (caps is not None) > 1:
        raise InputError("--caps: give one of --assignment, --bucket-cap-mb and --caps")
    if assignment_file is not None:
        return {str(assignment_file): as_the_job(workload, sim.load_assignment(assignment_file))}
    made = {} if bucket_cap_mb is not None else {"DDP's default": sim.assign(workload)}
    for cap in caps or ([] if bucket_cap_mb is None else [bucket_cap_mb]):
        made[f"{format_number(cap, 6)} MiB"] = sim.assign(workload, bucket_cap_mb=cap)
    return made


def _cost(cost_ns: int, step_ns: int) -> str:
    return f"{format_ms(cost_ns)} ({format_percent(cost_ns / step_ns)})" if step_ns else format_ms(cost_ns)


def _with_interval(value_ns: int, low_ns: int | None, high_ns: int | None) -> str:
    if low_ns is None or high_ns is None:
        return format_ms(value_ns)
    return f"{format_ms(value_ns)} [{format_ms(low_ns)}, {format_ms(high_ns)}]"


def _print_distribution(told: "StepDistribution") -> None:
    print_table(
        f"{told.workload}: {told.samples:,} steps, {told.world_size:,} ranks, {told.bucket_count} bucket(s)",
        ["figure", "value"],
        [
            ["mean step", _with_interval(told.mean_step_ns, told.mean_low_ns, told.mean_high_ns)],
            ["median", format_ms(told.median_step_ns)],
            ["5th and 95th percentile", f"{format_ms(told.p5_step_ns)}, {format_ms(told.p95_step_ns)}"],
            ["99th percentile", format_ms(told.p99_step_ns)],
            ["if all ranks were the workload", format_ms(told.nominal_step_ns)],
            ["the slowest costs", _cost(told.slowest_cost_ns, told.mean_step_ns)],
            ["its collectives wait for the last rank", format_ms(told.waited_ns)],
        ],
    )
    parts: tuple[RankPart, ...] = told.parts if len(told.parts) > 1 else told.parts + told.worst
    table(
        "who came last (share of all collectives)",
        (
            plain("ranks", "name"),
            plain("first", "first"),
            plain("count", "count"),
            Column("mean pace", lambda part: format_number(part.pace, 4)),
            percent("last", "last_share"),
            ms("collectives wait", "waited_ns"),
        ),
        parts,
    )


def _print_comparison(compared: "AssignmentComparison") -> None:
    first = compared.rows[0].distribution
    table(
        f"{first.workload}: {first.samples:,} steps of {first.world_size:,} ranks, the same for every row",
        (
            plain("buckets", "name"),
            plain("count", "distribution.bucket_count"),
            ms("all alike", "distribution.nominal_step_ns"),
            ms("mean", "distribution.mean_step_ns"),
            ms("95th percentile", "distribution.p95_step_ns"),
            ms("slowest costs", "distribution.slowest_cost_ns"),
            Column(
                "gain in the mean",
                lambda row: _with_interval(row.gain_ns, row.gain_low_ns, row.gain_high_ns),
            ),
        ),
        compared.rows,
    )
    if compared.best_by_mean == compared.best_by_nominal:
        say(f"best with ranks that differ, and with ranks all alike: {compared.best_by_mean}")
    else:
        say(
            f"best with ranks that differ: {compared.best_by_mean}; with ranks all alike it would be "
            f"{compared.best_by_nominal}"
        )
