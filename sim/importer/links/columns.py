"""What a column of a table of collectives holds, told by its name and unit; and rows of any file."""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Literal

Kind = Literal[
    "size", "count", "dtype", "time", "cputime", "algbw", "busbw", "wrong", "collective", "world_size",
    "iterations", "place", "timestamp", "redop", "known", "other"
]  # fmt: skip
# Out of place the result goes to another buffer than the input came from; "only" where a table does not say.
Variant = Literal["out", "in", "only"]

TIME_UNITS = {
    name: Decimal(ns)
    for ns, names in (
        (10**9, "s sec seconds"),
        (10**6, "ms msec"),
        (10**3, "us usec µs μs"),
        (1, "ns nsec"),
    )
    for name in names.split()
}
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
MOST_NS, MOST_BYTES = 10**15, 1 << 50  # eleven days, a pebibyte
_SIZE_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

LONGEST_NAME = 80

_SIZES = {"size", "bytes", "num_bytes", "nbytes", "message", "msg", "payload"} | {
    f"{what}_size" for what in ("message", "msg", "data", "buffer", "tensor", "payload")
}
_TIMES = {"time", "latency", "lat", "duration", "elapsed", "runtime", "i"}
_STATISTICS = {
    **{name: name for name in ("min", "max", "median", "p10", "p90", "p95", "p99")},
    **dict.fromkeys(("mean", "avg", "average"), "mean"),
    **dict.fromkeys(("std", "stdev", "stddev"), "std"),
    "p50": "median",
}
_ALGBW = "algbw alg_bw algobw algo_bw algorithm_bw alg_bandwidth algo_bandwidth algorithm_bandwidth"
_PLACES = (
    "devices_per_node max_devices_per_node nodes num_nodes backend transport host hostname cluster machine "
    "system gpu gpu_type gpu_name device_name fabric interconnect network partition"
)
_NAMES: dict[str, Kind] = {
    **dict.fromkeys(("count", "elements", "num_elements", "nelem", "numel"), "count"),
    **dict.fromkeys(("type", "dtype", "datatype"), "dtype"),
    **dict.fromkeys(("root", "error", "i_cv%"), "known"),
    "redop": "redop",
    **dict.fromkeys(("cputime", "cpu_time"), "cputime"),
    **dict.fromkeys(_ALGBW.split(), "algbw"),
    **dict.fromkeys(("busbw", "bus_bw", "bus_bandwidth"), "busbw"),
    **dict.fromkeys(("#wrong", "wrong", "nwrong"), "wrong"),
    **dict.fromkeys(("op", "collective", "coll", "operation", "primitive"), "collective"),
    **dict.fromkeys(
        ("world_size", "world", "nranks", "num_ranks", "ranks", "num_workers", "nprocs", "num_gpus", "gpus"),
        "world_size",
    ),
    **dict.fromkeys(("iterations", "iters", "repeats"), "iterations"),
    **dict.fromkeys(_PLACES.split(), "place"),
    "timestamp": "timestamp",
    "rank": "known",
}
_VARIANTS: tuple[tuple[re.Pattern[str], Variant], ...] = (
    (re.compile(r"(?:^|_)(?:out_?of_?place|oop)(?=_|$)"), "out"),
    (re.compile(r"(?:^|_)(?:in_?place|ip)(?=_|$)"), "in"),
)
# In GB/s of 1e9 bytes: a small b is a bit, KiB and the like are binary.
RATE_UNITS = {
    f"{prefix}{unit}{per}": Decimal(power) * Decimal(size)
    for prefix, power in (("G", "1"), ("M", "0.001"), ("T", "1000"))
    for unit, size in (("B", "1"), ("b", "0.125"), ("bit", "0.125"))
    for per in ("ps", "/s", "_s")
} | {
    f"{prefix}iB{per}": Decimal(size) / 10**9
    for prefix, size in (("G", 1 << 30), ("M", 1 << 20))
    for per in ("ps", "/s", "_s")
}
_BANDWIDTH_UNIT = re.compile(r"[\s_]*[(\[]?([GMT](?:iB|B|bit|b)(?:ps|/s|_s))[)\]]?$")
_IN_BRACKETS = re.compile(r"(.*?)[\s_]*[(\[]([^)\]]*)[)\]]")
COLLECTIVE = re.compile(
    r"(all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|all[_-]?to[_-]?allv?|send[_-]?recv|hypercube"
    r"|broadcast|bcast|(?<![a-z])(?:reduce|scatter|gather)(?=_perf))",
    re.IGNORECASE,
)
_OURS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "bcast": "broadcast",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``scale`` turns its numbers into ns, bytes or GB/s (None: its unit is not told).

    ``statistic`` is that of a time (None: the time itself, whatever it is), ``variant`` the buffers' where
    the name says it.
    """

    name: str
    kind: Kind
    scale: Decimal | None = None
    statistic: str | None = None
    variant: Variant | None = None


def collective_in(text: str) -> str | None:
    """The first collective named in a text, in our spelling; those that fill no curve as they are written."""
    found = COLLECTIVE.search(text)
    if found is None:
        return None
    word = re.sub(r"[_-]", "", found[1].lower())
    return _OURS.get(word, word)


def named_collective(cell: str) -> str | None:
    """The collective that a cell names, in our spelling; None where it is no name of one."""
    word = re.sub(r"[\s_-]", "", cell.lower())
    if word in _OURS:
        return _OURS[word]
    return word if word in ("alltoall", "alltoallv", "sendrecv", "scatter", "gather", "reduce") else None


@lru_cache(maxsize=4096)
def column_of(name: str) -> Column:
    """What a column's name says of it."""
    name = name.strip().strip('"')
    if len(name) > LONGEST_NAME:
        return Column(name=name[:LONGEST_NAME], kind="other")
    rate = _BANDWIDTH_UNIT.search(name)
    text = (name if rate is None else name[: rate.start()]).lower()
    unit: str | None = None
    if (bracketed := _IN_BRACKETS.fullmatch(text)) is not None:
        text, unit = bracketed[1], bracketed[2].strip()
    text = re.sub(r"[\s.\-]+", "_", text).strip("_")
    variant: Variant | None = None
    for pattern, which in _VARIANTS:
        text, hits = pattern.subn("", text)
        variant = which if hits else variant
    text = text.strip("_")
    if text in _NAMES:
        scale = None if rate is None else RATE_UNITS[rate[1]]
        return Column(name=name, kind=_NAMES[text], scale=scale, variant=variant)
    words = text.split("_")
    has_unit = words[-1] in _SIZE_UNITS or words[-1] in ("kb", "mb", "gb")
    if unit is None and has_unit and "_".join(words[:-1]) in _SIZES:
        words, unit = words[:-1], words[-1]
    if "_".join(words) in _SIZES:
        size = _SIZE_UNITS.get(unit or "")
        return Column(name=name, kind="size", scale=None if size is None else Decimal(size))
    return _time_column(name, words, unit, variant)


def _time_column(name: str, words: list[str], unit: str | None, variant: Variant | None) -> Column:
    statistic = None
    rest = []
    for word in words:
        if word in _STATISTICS and statistic is None:
            statistic = _STATISTICS[word]
        elif word in TIME_UNITS and unit is None:
            unit = word
        else:
            rest.append(word)
    base = "_".join(rest)
    alone = base == "" and (statistic is not None or unit in ("ms", "us", "ns"))
    if base not in _TIMES and not alone:
        return Column(name=name, kind="other", variant=variant)
    if base == "i" and statistic is None:
        return Column(name=name, kind="other")
    return Column(
        name=name, kind="time", scale=TIME_UNITS.get(unit or ""), statistic=statistic, variant=variant
    )


# ---- rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long it took, in ns, and what else its row says of it.

    ``slack_ns`` is one unit of the last digit written. ``rates`` has ``algbw`` and ``busbw`` in GB/s (1e9
    bytes), each with one unit of its last digit. ``wrong`` counts wrong results. ``scatter`` holds members
    of a ``spread`` (``count``, ``min_ns``...).
    """

    duration_ns: int
    slack_ns: float
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: float = 0.0
    scatter: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One line of a table: ``num_bytes`` as nccl-tests counts them, timings by where the result went."""

    where: str
    num_bytes: int
    timings: dict[Variant, Timing]
    count: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The rows of one collective on one set of ranks, and what the file says of these.

    ``ranks`` is what the file says, ``ranks_by`` how it says it; None where only bandwidths may tell.
    ``place`` is what sets a table apart from others with as many ranks: ``devices_per_node 4``.
    ``title`` is what a headline or a command says of which run it is; ``redop`` the operation of its rows.
    ``statistic`` says what a time is: ``mean`` of nccl-tests' iterations, ``median``.
    ``over`` is the backend and the type of device by torch's names, where the benchmark is a known one.
    """

    source: str
    rows: tuple[LinkRow, ...]
    collective: str | None
    ranks: int | None = None
    ranks_by: str = ""
    place: str = ""
    title: str = ""
    redop: str | None = None
    statistic: str = "mean"
    iterations: int | None = None
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    over: tuple[str, str] | None = None
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def bus_factor(collective: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, 1.0)
