"""Rows of a link benchmark, whatever file they came from: one collective of one size, timed."""

from dataclasses import dataclass, field

from sim.importer.links.columns import Variant


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
    unit_by: str | None = None
