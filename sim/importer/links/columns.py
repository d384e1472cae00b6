"""What a column of a table of collectives holds, told by its name and unit; and the rows of any file."""

import re
from collections.abc import Mapping
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

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
MOST_NS, MOST_BYTES = 10**15, 1 << 50  # eleven days, a pebibyte
_LONGEST_NAME = 80

_TIMES = ((10**9, "s sec seconds"), (10**6, "ms msec"), (10**3, "us usec µs μs"), (1, "ns nsec"))
TIME_UNITS = {name: Decimal(ns) for ns, all_ in _TIMES for name in all_.split()}
# nccl-tests' own K is 2^10. KB and MB are 10^n to some, 2^n to others: None, not read.
_SIZES = ((0, "b byte bytes"), (10, "k kib"), (20, "m mib"), (30, "g gib"), (40, "t tib"))
SIZE_UNITS = {name: Decimal(1 << power) for power, all_ in _SIZES for name in all_.split()} | dict.fromkeys(
    ("kb", "mb", "gb", "tb")
)
# In GB/s of 1e9 bytes: a small b is a bit, MiB and GiB are binary.
RATE_UNITS = {
    f"{prefix}{unit}{per}": Decimal(factor) * Decimal(size)
    for prefix, factor in (("M", "0.001"), ("G", "1"), ("T", "1000"))
    for unit, size in (("B", "1"), ("b", "0.125"), ("bit", "0.125"))
    for per in ("ps", "/s")
} | {f"{prefix}iB/s": Decimal(1 << power) / 10**9 for prefix, power in (("M", 20), ("G", 30))}
UNITS: Mapping[str, Mapping[str, Decimal | None]] = {
    "time": TIME_UNITS,
    "size": SIZE_UNITS,
    "algbw": RATE_UNITS,
    "busbw": RATE_UNITS,
}
# What columns are called, with an underscore for whatever stands between words.
_CALLED: dict[Kind, str] = {
    "size": """size num nbytes message msg payload message_size msg_size data_size buffer_size tensor_size
        payload_size""",  # num_bytes: bytes is its unit
    "time": "time latency lat duration elapsed runtime i",
    "cputime": "cputime cpu_time",
    "algbw": """algbw alg_bw algobw algo_bw algorithm_bw alg_bandwidth algo_bandwidth
        algorithm_bandwidth""",
    "busbw": "busbw bus_bw bus_bandwidth",
    "wrong": "wrong nwrong",
    "count": "count elements num_elements nelem numel",
    "dtype": "type dtype datatype",
    "redop": "redop",
    "collective": "op collective coll operation primitive",
    "world_size": "world_size world nranks num_ranks ranks num_workers nprocs num_gpus gpus",
    "iterations": "iterations iters repeats",
    "place": """devices_per_node nodes num_nodes backend transport host hostname cluster machine system gpu
        gpu_type gpu_name device_name max_devices_per_node fabric interconnect network partition""",
    "timestamp": "timestamp",
    "known": "root error i_cv% rank",
}
_NAMES = {name: kind for kind, names in _CALLED.items() for name in names.split()}
_STATISTICS = {
    **{name: name for name in ("min", "max", "median", "p10", "p90", "p95", "p99", "std", "mean")},
    **{"avg": "mean", "average": "mean", "stdev": "std", "stddev": "std", "p50": "median"},
}
_VARIANTS: dict[str, Variant] = {"oop": "out", "ip": "in"}
COLLECTIVE = re.compile(
    r"(all[\s_-]?reduce|reduce[\s_-]?scatter|all[\s_-]?gather|all[\s_-]?to[\s_-]?allv?|send[_-]?recv"
    r"|hypercube|broadcast|bcast|(?<![a-z])(?:reduce|scatter|gather)(?=_perf))",
    re.IGNORECASE,
)
_OURS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
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
    word = "" if found is None else re.sub(r"[\s_-]", "", found[1].lower())
    return _OURS.get(word, word) or None


def unit_of(kind: str, word: str) -> tuple[bool, Decimal | None]:
    """Whether a word is a unit of such a column, and its scale; None where it has two meanings."""
    units = UNITS.get(kind, {})
    key = word if units is RATE_UNITS else word.lower()
    return key in units, units.get(key)


@lru_cache(maxsize=4096)
def column_of(name: str) -> Column:
    """What a column's name says of it: what it holds, a statistic, a variant and a unit, in any order."""
    name = name.strip().strip('"')
    if len(name) > _LONGEST_NAME:
        return Column(name=name[:_LONGEST_NAME], kind="other")
    text = name.lstrip("#").replace("_", " ")
    for words, short in ((r"out[ -]?of[ -]?place", "oop"), (r"in[ -]?place", "ip")):
        text = re.sub(rf"\b{words}\b", short, text, flags=re.IGNORECASE)
    variant: Variant | None = None
    statistic, unit, rest = None, "", list[str]()
    for word in filter(None, re.split(r"[\s.()\[\]-]+", text)):
        low = word.lower()
        if low in _VARIANTS:
            variant = _VARIANTS[low]
        elif low in _STATISTICS and statistic is None:
            statistic = _STATISTICS[low]
        elif not unit and any(unit_of(kind, word)[0] for kind in UNITS):
            unit = word
        else:
            rest.append(low)
    alone: Kind = (
        "size" if unit == "bytes" else "time" if statistic or unit in ("ms", "us", "ns") else "other"
    )
    kind = _NAMES.get("_".join(rest), "other") if rest else alone
    is_unit, scale = unit_of(kind, unit)
    if (unit and not is_unit) or (statistic and kind != "time") or (rest == ["i"] and not statistic):
        return Column(name=name, kind="other")
    if kind == "size" and not unit:
        scale = Decimal(1)
    return Column(name=name, kind=kind, scale=scale, statistic=statistic, variant=variant)


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
    ``title`` is what a headline, a command or columns say of which run it is; ``redop`` the operation of its
    rows. ``statistic`` says what a time is: ``mean`` of nccl-tests' iterations, ``median``.
    ``over`` is the backend and the type of device by torch's names, where the benchmark is a known one.
    """

    source: str
    rows: tuple[LinkRow, ...]
    collective: str | None
    ranks: int | None = None
    ranks_by: str = ""
    title: str = ""
    redop: str | None = None
    statistic: str = "mean"
    iterations: int | None = None
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    over: tuple[str, str] | None = None
    left_out: tuple[str, ...] = ()


def bus_factor(collective: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, 1.0)
