"""cluster: the hardware of a machine that nobody measured, computed from published figures."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.cli.next_steps import WORKLOAD, suggest, to_tune_written
from sim.cli.options import AsJson, argument, file_option, flag, key_values, option, write
from sim.cli.printing import emit_noun, note, say, table
from sim.clusters.machines import check_preset
from sim.errors import InputError
from sim.formats.documents import load, to_text
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster, check_ranks
from sim.nouns.hardware import CURVES, MAX_RANKS, Hardware
from sim.units import NS_PER_S, format_number, format_size, format_time

if TYPE_CHECKING:
    from sim.clusters.links import LinkLoad


_LEAST, _MOST = 1 << 20, 32 << 20  # where DDP's buckets lie
_RANKS = "GPUs such as host0.gpu0,host1.gpu0, or how many of the first"


def cluster(
    machine: str = argument("A preset's name, or a cluster.", "PRESET|C.json", default=...),
    settings: list[str] | None = argument("Settings of the preset, such as hosts=4.", "[KEY=VALUE]..."),
    ranks: str | None = option(f"Where the job's ranks are: {_RANKS}. Default: all."),
    beside: list[str] | None = option("The GPUs of another job that runs at the same time; may be repeated."),
    algorithm: str = option(
        "How all-reduces run: auto (NCCL's choice), ring, tree, nvls, nvls_tree, collnet_direct, "
        "collnet_chain.",
        default="auto",
    ),
    collective: str = option(
        f"The collective whose curve is printed: {', '.join(CURVES)}.", default="all_reduce"
    ),
    measured: list[str] | None = option(
        "Hardware measured on the preset with other settings (hosts=2; ranks=4 for the first 4 "
        "GPUs) or on another cluster; may be repeated. Its curves are taken to this cluster.",
        metavar="H.json@KEY=VALUE,...|H.json@C.json",
    ),
    loads: bool = flag("Print also what one all-reduce puts on each link between hosts.", "--loads"),
    output: Path | None = file_option("Write the hardware here.", default=None),
    save: Path | None = file_option(
        "Write the cluster here, to be changed by hand.", "--save-cluster", default=None
    ),
    as_json: AsJson = False,
) -> None:
    """Compute a cluster's collectives by NCCL's own cost model, from data sheets: nothing is measured."""
    one_of("--collective", collective, CURVES)
    if loads and as_json:
        raise InputError("--loads: not legal with --json, which is one hardware; sim.link_loads gives them")
    if loads and algorithm not in ("auto", "ring", "tree"):
        raise InputError(f"--loads: not known for --algorithm {algorithm}; give ring or tree")
    if measured and (beside or algorithm != "auto"):
        raise InputError(
            "--measured: not legal with --beside or --algorithm; a measurement has its own algorithm"
        )
    made = _placed(_machine(machine, settings or []), ranks, "--ranks")
    others = [_gpus(made, text, "--beside") for text in beside or []]
    _check_free(made, others)
    if measured:
        hardware = _extrapolated(machine, settings or [], measured, made)
        what = f"extrapolated from {len(measured)} measurement{'s' if len(measured) > 1 else ''}"
        basis = _how_far_off(hardware, collective, what, "spread holds the range of each size")
    else:
        hardware = sim.cluster_hardware(made, beside=others, algorithm=algorithm)
        what, advice = "computed, not measured", "measure the link where you can"
        basis = _how_far_off(hardware, collective, what, advice)
    loaded = "ring" if algorithm == "auto" else algorithm
    shown = sim.link_loads(made, algorithm=loaded) if loads else ()
    if save is not None:
        write(save, to_text(made), "--save-cluster")
    if output is not None:
        write(output, to_text(hardware))
    if as_json:
        for line in basis:
            note(line)
        emit_noun(hardware)
        return
    for line in basis:
        say(line)
    print_curve(hardware, collective)
    if loads:
        print_loads(shown, loaded)
    suggest(to_tune_written(WORKLOAD, output))


def preset_or_file(machine: str) -> str | Cluster:
    """The name of a preset, or the cluster in a file. Raises ``InputError`` for what is neither."""
    if machine.endswith(".json"):
        return sim.load_cluster(machine)
    try:
        check_preset(machine)
    except InputError as error:
        raise InputError(f"PRESET|C.json: {error}, or the JSON file of a cluster") from None
    return machine


def _machine(machine: str, settings: list[str]) -> Cluster:
    given = key_values(settings, "KEY=VALUE")
    if given and machine.endswith(".json"):
        raise InputError(f"KEY=VALUE: {next(iter(given))!r} is not legal with a file; change the file")
    found = preset_or_file(machine)
    return sim.cluster(found, **given) if isinstance(found, str) else found


def _placed(cluster: Cluster, text: str | None, option: str) -> Cluster:
    """The cluster with the ranks that ``text`` names, or so many of the first."""
    if text is None:
        return cluster
    if not text.isascii() or not text.isdigit():
        return replace(cluster, placement=_gpus(cluster, text, option))
    first = cluster.placement if cluster.placement is not None else cluster.all_gpus()
    count = int(text) if len(text) <= len(str(MAX_RANKS)) else MAX_RANKS + 1
    placement = tuple(islice(first, count))
    if len(placement) != count or not placement or count > MAX_RANKS:
        said = text if len(text) <= 20 else f"{text[:20]}..."
        raise InputError(
            f"{option}: {said} is not legal; {cluster.name!r} has {len(placement) or 'at least 1'} ranks, so "
            f"give {_RANKS}"
        )
    return replace(cluster, placement=placement)


def _check_free(cluster: Cluster, others: list[tuple[str, ...]]) -> None:
    """Raise ``InputError`` where another job has a GPU of this one, and say how this one gives it up."""
    own = set(cluster.placement if cluster.placement is not None else cluster.all_gpus()) if others else set()
    for gpus in others:
        taken = sorted(own.intersection(gpus))
        if taken:
            raise InputError(
                f"--beside: {taken[0]} is not legal; a rank of this job is there, and a GPU holds one, so "
                f"give the GPUs of this job with --ranks"
            )


def _gpus(cluster: Cluster, text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    check_ranks(cluster, names, option)
    return names


def _extrapolated(machine: str, settings: list[str], measured: list[str], made: Cluster) -> Hardware:
    """Curves measured elsewhere, taken to ``made``."""
    pairs = []
    for text in measured:
        path, at, where = text.partition("@")
        if not path or not at or not where:
            raise InputError(
                f"--measured: {text!r} is not legal; give a hardware and where it was measured, such as "
                f"H.json@hosts=2"
            )
        if where.endswith(".json"):
            cluster = load(where, Cluster)
        else:
            changed = key_values(where.split(","), "--measured")
            ranks = changed.pop("ranks", None)
            known = {**key_values(settings, "KEY=VALUE"), **changed}
            cluster = _machine(machine, [f"{key}={value}" for key, value in known.items()])
            cluster = _placed(cluster, None if ranks is None else str(ranks), "--measured ranks")
        hardware = sim.load_hardware(path)
        if hardware.world_size == 1:
            raise InputError(
                f"--measured: {path} is not legal; it has one rank, which measures no collective"
            )
        pairs.append((cluster, hardware))
    return sim.extrapolate_hardware(pairs, made)


def _how_far_off(hardware: Hardware, collective: str, what: str, advice: str) -> list[str]:
    """How far off buckets of 1 to 32 MiB may be, as the hardware's ``spread`` has it, and what decides it."""
    known = hardware.spread.get(collective, {})
    off = [
        (known[str(point.num_bytes)][field] / point.duration_ns)
        for point in getattr(hardware, collective) or ()
        for field in ("min_ns", "max_ns")
        if point.duration_ns and _LEAST <= point.num_bytes <= _MOST and str(point.num_bytes) in known
    ]
    said = (
        f"{what}: 1 to 32 MiB may take {format_number(min(off), 2)} to {format_number(max(off), 2)} times "
        f"as long"
        if off
        else what
    )
    told = hardware.provenance
    return [
        f"{said}; {advice}",
        *(
            f"mind: {line}; it stays as it is and says nothing of other sizes, so measure it again"
            for line in told.get("odd_points", ())
        ),
        *(f"not known: {line}" for line in told.get("not_known", ())),
    ]


_SHOWN = tuple(1 << power for power in range(10, 34, 2))
_MOST_LOADS = 16


def print_curve(hardware: Hardware, collective: str) -> None:
    """Times, where they may lie, and bus bandwidths (as nccl-tests count them) at powers of four."""
    methods: dict[str, Any] = hardware.provenance.get("methods", {}) if collective == "all_reduce" else {}
    expected: dict[str, Any] = hardware.spread.get(collective, {})
    factor = bus_factor(collective, hardware.world_size)
    rows = [
        {
            "size": format_size(point.num_bytes),
            "time": format_time(point.duration_ns),
            "expected": _range(expected.get(str(point.num_bytes))),
            "bus bandwidth": f"{factor * point.num_bytes * NS_PER_S / point.duration_ns / 1e9:.1f} GB/s"
            if point.duration_ns
            else "-",
            "by": str(methods.get(str(point.num_bytes), "-")),
        }
        for point in getattr(hardware, collective) or ()
        if point.num_bytes in _SHOWN
    ]
    left_out = {*(() if methods else ("by",)), *(() if expected else ("expected",))}
    columns = [name for name in ("size", "time", "expected", "bus bandwidth", "by") if name not in left_out]
    table(
        f"{hardware.name}: {collective.replace('_', '-')}",
        columns,
        [[row[name] for name in columns] for row in rows],
        words=["by"],
    )


def _range(known: dict[str, Any] | None) -> str:
    """Where a time may lie; of a measured point nothing is open."""
    return (
        "measured" if known is None else f"{format_time(known['min_ns'])} to {format_time(known['max_ns'])}"
    )


def print_loads(loads: "Sequence[LinkLoad]", algorithm: str) -> None:
    """The links between hosts that are busy longest, for 1 GiB of message; equal figures in one row."""
    rows: dict[tuple[str, ...], list[LinkLoad]] = {}
    for one in loads:
        key = (
            f"{format_number(one.bytes_per_s / 1e9, 4)} GB/s",
            format_number(one.share, 4),
            format_time(round(one.s_per_byte * (1 << 30) * NS_PER_S)),
        )
        rows.setdefault(key, []).append(one)
    table(
        f"links between hosts by the time that 1 GiB by {algorithm} keeps them busy",
        ["link", "of", "carries", "bytes per byte", "busy"],
        [
            [f"{alike[0].a} > {alike[0].b}", str(len(alike)), *key]
            for key, alike in list(rows.items())[:_MOST_LOADS]
        ],
    )


def bus_factor(collective: str, world_size: int) -> float:
    """What nccl-tests multiply the message's rate by (nccl-tests doc/PERFORMANCE.md)."""
    if collective == "broadcast":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (world_size - 1) / world_size
