"""cluster, scaling, ranks: machines that nobody measured, a workload on many sizes, ranks that differ."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import sim
from sim.cli import options
from sim.cli.options import HardwareAt, Kind, Pair, argument, as_dict, file_option, option, write
from sim.cli.predicting import executor_of, load_inputs
from sim.cli.printing import WORKLOAD, Answer, progress, say, say_notes, table, to_tune, to_tune_written
from sim.clusters.ranks import Ranks, SlowRanks
from sim.columns import SCALING, Column, ms, percent, plain, size
from sim.errors import InputError
from sim.formats.documents import load
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import NS_PER_S, format_ms, format_number, format_percent, format_time

if TYPE_CHECKING:
    from sim.clusters.distribution import AssignmentComparison, PairedRow
    from sim.clusters.scaling import ScalingRow

_LEAST, _MOST = 1 << 20, 32 << 20  # where DDP's buckets lie
_SHOWN = tuple(1 << power for power in range(10, 34, 2))
_TO_CLUSTER_PAGE = "bucketsim dash (its page Cluster draws this)"


_MEASURED = (
    "Hardware measured on the preset with other settings (hosts=2; ranks=4 for the first 4 GPUs) or on "
    "another cluster (C.json), to be extrapolated; may be repeated. Default: computed from data sheets."
)
Measured = Annotated[list[HardwareAt] | None, options.shared(_MEASURED, kind=options.HARDWARE_AT)]


@options.answers
def cluster(
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json"),
    settings: list[Pair] | None = argument(
        "Settings of the preset: hosts=4.", "[KEY=VALUE]...", default=None, kind=options.PAIR
    ),
    ranks: int | None = option("How many ranks the job has, host after host; default: all.", min=1),
    measured: Measured = None,
    output: Path | None = file_option("Write the hardware here.", default=None),
    save: Path | None = file_option(
        "Write the cluster here, to be changed by hand.", "--save-cluster", default=None
    ),
) -> Answer:
    """Compute a cluster's collectives by NCCL's own cost model, from data sheets: nothing is measured."""
    from sim.clusters.machines import sized

    chosen = sim.load_cluster(machine) if machine.endswith(".json") else machine
    given = as_dict(settings)
    made = sim.cluster(chosen, **given) if isinstance(chosen, str) else sized(chosen, given)
    if ranks is not None:
        made = sized(made, {}, None, ranks)
    if measured:
        hosts, axes = given.pop("hosts", None), {key: [value] for key, value in given.items()}
        hardware = sim.extrapolate_hardware([_measured(chosen, axes, at, hosts) for at in measured], made)
        what, advice = f"extrapolated from {len(measured)} measured", "spread holds the range of each size"
    else:
        hardware = sim.cluster_hardware(made)
        what, advice = "computed, not measured", "measure the link where you can"
    write(save, made, "--save-cluster")
    write(output, hardware)
    say(f"{what}{_how_far_off(hardware)}; {advice}")
    for point in hardware.provenance.get("odd_points", ()):
        say(f"mind: {point}; it stays as it is and says nothing of other sizes, so measure it again")
    for unknown in hardware.provenance.get("not_known", ()):
        say(f"not known: {unknown}")
    points = [point for point in hardware.all_reduce if point.num_bytes in _SHOWN]
    columns = curve_columns(hardware, hardware.spread.get("all_reduce", {}))
    title = f"{hardware.name}: all-reduce"
    ahead = to_tune_written(WORKLOAD, output)
    return Answer(hardware, lambda: table(title, columns, points, words=["by"]), ahead)


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
    if at.cluster is not None:
        return load(at.cluster, Cluster), hardware
    several = [key for key, values in axes.items() if key not in at.settings and len(values) > 1]
    if several:
        raise InputError(f"--measured: {at.file} does not say {several[0]}, which has several values; add it")
    settings = {key: values[0] for key, values in axes.items()} | at.settings
    count = at.sizes.get("hosts", None if at.sizes else hosts)
    return sized(machine, settings, count, at.sizes.get("ranks")), hardware


def _how_far_off(hardware: Hardware) -> str:
    """How far off buckets of 1 to 32 MiB may be, as the hardware's ``spread`` has it."""
    known = hardware.spread.get("all_reduce", {})
    off = [
        known[str(point.num_bytes)][field] / point.duration_ns
        for point in hardware.all_reduce
        for field in ("min_ns", "max_ns")
        if point.duration_ns and _LEAST <= point.num_bytes <= _MOST and str(point.num_bytes) in known
    ]
    if not off:
        return ""
    least, most = format_number(min(off), 2), format_number(max(off), 2)
    return f": 1 to 32 MiB may take {least} to {most} times as long"


def curve_columns(hardware: Hardware, expected: Mapping[str, Any]) -> list[Column[CurvePoint]]:
    """Of a point of its all-reduces: size, time, where that is ``expected`` by size, bus bandwidth as
    nccl-tests count it, and by which of NCCL's ways, where these are known.
    """
    from sim.nouns.collective import bus_factor

    factor = bus_factor("all_reduce", hardware.world_size) * NS_PER_S / 1e9
    methods: dict[str, Any] = hardware.provenance.get("methods", {})

    def bandwidth(point: CurvePoint) -> str | None:
        return f"{factor * point.num_bytes / point.duration_ns:.2f} GB/s" if point.duration_ns else None

    def within(point: CurvePoint) -> str:
        """Where a time may lie; of a measured point nothing is open."""
        known = expected.get(str(point.num_bytes))
        return f"{format_time(known['min_ns'])} to {format_time(known['max_ns'])}" if known else "measured"

    return [
        size("size", "num_bytes"),
        Column("time", lambda point: format_time(point.duration_ns)),
        *[Column("expected", within)] * bool(expected),
        Column("bus bandwidth", bandwidth),
        *[Column("by", lambda point: methods.get(str(point.num_bytes)))] * bool(methods),
    ]


# scaling


@options.answers
def scaling(
    workload_file: options.WorkloadFile,
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json"),
    settings: list[Pair] | None = argument(
        "Settings of the preset, each with its values, such as gpus=4,8.",
        "[KEY=V,V…]...",
        default=None,
        kind=options.AXIS,
    ),
    hosts: Sequence[int] | None = option(
        "Numbers of hosts; default: the machine's own.", kind=options.WHOLES
    ),
    world_size: Sequence[int] | None = option(
        "Numbers of GPUs, in place of --hosts; they fill host after host.", kind=options.WHOLES
    ),
    caps: options.Caps = None,
    measured: Measured = None,
    ranks: Path | None = option("A ranks file: how the ranks differ. Default: not at all."),
    jobs: options.Jobs = None,
    set_: options.JobSwitches = None,
    output: Path | None = file_option("Write CSV here.", default=None),
) -> Answer:
    """Predict how a workload scales: efficiency and best caps by number of GPUs, and why caps change."""
    workload = sim.load_workload(workload_file).with_switches(options.settings(set_))
    chosen = sim.load_cluster(machine) if machine.endswith(".json") else machine
    axes = as_dict(settings)
    if sizes := {"hosts", "world_size"} & axes.keys():
        raise InputError(f"KEY=V,V…: {min(sizes)} is no setting here; give --{min(sizes).replace('_', '-')}")
    with ExitStack() as stack:
        rows = sim.scaling(
            workload,
            chosen,
            hosts=hosts,
            world_size=world_size,
            settings=axes,
            caps_mb=caps,
            measured=[_measured(chosen, axes, at) for at in measured or []],
            ranks=None if ranks is None else sim.load_ranks(ranks),
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("scaling")),
        )
    write(output, sim.scaling_csv(rows))
    document = {"rows": [asdict(row) for row in rows]}
    return Answer(document, lambda: _print_scaling(workload, rows), _TO_CLUSTER_PAGE)


def _print_scaling(workload: Workload, rows: "Sequence[ScalingRow]") -> None:
    """A table for each series, why caps change in it, and how sure it all is."""
    for (machine, given), series in groupby(rows, key=lambda row: (row.machine, row.settings)):
        lines = tuple(series)
        title = f"{workload.name} on {machine}{', ' + given if given else ''}, {lines[0].source}"
        title += f"; {lines[0].jitter}, {lines[0].samples} steps" if lines[0].jitter else ""
        table(title, (*SCALING, _SAVES, *(_DIFFERING if lines[0].jitter else ())), lines)
        for row in lines:
            if row.reason:
                say(f"{row.reason_code}: {row.reason}")
    say(
        "efficiency: samples a second and GPU at the best cap, over those of one GPU alone with the same "
        "batch; exposed: at the best cap, copies and launches too; saves: the best cap against the default"
    )
    if workload.is_of_whole_buckets:
        say(f"caps and buckets are merges of the {len(workload.gradients)} buckets as recorded")
    for told in dict.fromkeys(row.own_costs for row in rows if row.own_costs):
        say(told)
    say_notes(row.doubts for row in rows if row.doubts)


_SAVES: "Column[ScalingRow]" = Column(
    "saves, %", lambda row: 100 * row.default_regret_ns / (row.default_step_ns or 1), ".1f"
)
_DIFFERING: "tuple[Column[ScalingRow], ...]" = (
    ms("mean", "mean_step_ns"),
    ms("p95", "p95_step_ns"),
    ms("the slowest costs", "slowest_cost_ns"),
    ms("default's mean", "default_mean_step_ns"),
)


# ranks


def _slow(text: str) -> SlowRanks:
    ends, _, factor = text.partition("=")
    first, dash, last = ends.partition("-")
    try:
        begin, end, pace = int(first), int(last if dash else first), float(factor)
        if end >= begin:
            return SlowRanks(first=begin, count=end - begin + 1, pace=pace)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not legal; give RANK=FACTOR, such as 3=1.2 or 8-15=1.05")


@options.answers
def ranks(
    workload_file: options.WorkloadFile,
    hardware_file: options.HardwareFile,
    ranks_file: Path | None = argument("A file of ranks, as -o writes.", "RANKS.json", default=None),
    pace_jitter: float = option(
        "How much each rank's pace varies from step to step: sigma of its logarithm, such as 0.02.",
        default=0.0,
    ),
    slow: list[SlowRanks] | None = option(
        "Ranks that take longer; may be repeated.", kind=Kind("RANK[-RANK]=FACTOR", _slow)
    ),
    assignment_file: options.AssignmentFile = None,
    caps: options.Caps = None,
    samples: int = option("Steps that are drawn.", default=1000),
    seed: int = option("Seed of all draws.", default=0),
    output: Path | None = file_option("Write these ranks here, to be changed by hand.", default=None),
    parts: options.Parts = False,
) -> Answer:
    """Predict the steps of ranks that differ: what the slowest rank costs, and what buckets change."""
    workload, hardware = load_inputs(workload_file, hardware_file, parts)
    if ranks_file is None:
        source = {"source": "bucketsim ranks"}
        given = Ranks(name="from options", pace_jitter=pace_jitter, slow=tuple(slow or ()), provenance=source)
    elif pace_jitter or slow or output is not None:
        raise InputError("RANKS.json: give it alone; --pace-jitter, --slow and -o make one")
    else:
        given = sim.load_ranks(ranks_file)
    assignments = {"DDP's default": sim.assign(workload)}
    if assignment_file is not None:
        assignments[str(assignment_file)] = as_the_job(workload, sim.load_assignment(assignment_file))
    for cap in caps or ():
        assignments[f"{format_number(cap, 6)} MiB"] = sim.assign(workload, bucket_cap_mb=cap)
    if output is not None:
        given.check_fits(hardware.world_size)
        write(output, given)
    with progress("steps") as report:
        compared = sim.compare_assignments(
            workload, hardware, assignments, given, samples=samples, seed=seed, progress=report
        )
    document = compared if len(compared.rows) > 1 else compared.rows[0].distribution
    return Answer(document, lambda: _print_ranks(workload, compared), to_tune(workload_file, hardware_file))


def _print_ranks(workload: Workload, compared: "AssignmentComparison") -> None:
    first = compared.rows[0].distribution
    title = f"{workload.name}: {first.samples:,} steps of {first.world_size:,} ranks"
    table(title, _STEPS if len(compared.rows) > 1 else _STEPS[:-1], compared.rows)
    if len(compared.rows) == 1:
        table("who came last (share of all collectives)", _CAME_LAST, first.parts)
    else:
        alike = f"; with ranks all alike {compared.best_by_nominal}"
        say(f"best with ranks that differ: {compared.best_by_mean}{alike}")
    for what in dict.fromkeys(one for row in compared.rows for one in row.distribution.not_known):
        say(f"not known, so it does not vary: {what}")
    say_notes(*(row.distribution.notes for row in compared.rows))


def _with_interval(value_ns: int, low_ns: int | None, high_ns: int | None) -> str:
    if low_ns is None or high_ns is None:
        return format_ms(value_ns)
    return f"{format_ms(value_ns)} [{format_ms(low_ns)}, {format_ms(high_ns)}]"


def _mean(row: "PairedRow") -> str:
    told = row.distribution
    return _with_interval(told.mean_step_ns, told.mean_low_ns, told.mean_high_ns)


def _cost(row: "PairedRow") -> str:
    told = row.distribution
    return f"{format_ms(told.slowest_cost_ns)} ({format_percent(told.slowest_cost_ns / told.mean_step_ns)})"


_STEPS: "tuple[Column[PairedRow], ...]" = (
    plain("buckets", "name"),
    plain("count", "distribution.bucket_count"),
    ms("all alike", "distribution.nominal_step_ns"),
    Column("mean", _mean),
    ms("95th percentile", "distribution.p95_step_ns"),
    Column("the slowest costs", _cost),
    Column("gain in the mean", lambda row: _with_interval(row.gain_ns, row.gain_low_ns, row.gain_high_ns)),
)
_CAME_LAST: tuple[Column[Any], ...] = (  # of a RankPart
    plain("ranks", "name"),
    plain("first", "first"),
    plain("count", "count"),
    Column("mean pace", lambda part: format_number(part.pace, 4)),
    percent("last", "last_share"),
    ms("collectives wait", "waited_ns"),
)
