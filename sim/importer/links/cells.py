"""The cells of a table as timings: units, buffers in and out of place, and what a time is a statistic of."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median

from sim.errors import InputError
from sim.importer.links.blocks import TextBlock
from sim.importer.links.cell_units import UNCLEAR
from sim.importer.links.columns import NUMBER, TIME_UNITS, Column, Variant, named_collective
from sim.importer.links.endings import NCCL
from sim.importer.links.link_checks import bus_factor
from sim.importer.links.link_rows import LinkRow, LinkTable, Timing
from sim.importer.wording import plain

MOST_NS, MOST_BYTES = 10**15, 1 << 50  # eleven days, a pebibyte
_SCATTER = {"min": "min_ns", "p10": "p10_ns", "median": "median_ns", "p90": "p90_ns", "max": "max_ns"}


@dataclass(slots=True, kw_only=True)
class _Group:
    """The columns of one timing, by place in the row."""

    variant: Variant
    times: dict[str | None, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)


def read_cells(block: TextBlock, source: str, world_size: int | None = None) -> list[LinkTable]:
    """A block as tables, one for each collective, number of ranks and place that its columns tell apart.

    ``world_size`` serves where the block does not say on how many ranks bus bandwidths without times were
    measured.

    Raises:
        InputError: a time whose unit cannot be told, a size in units of two meanings, or times of the CPU.
    """
    columns = block.header.columns
    if _first(columns, "time") is None and _first(columns, "cputime") is not None:
        raise InputError(
            f"{source}: cputime is what a launch takes on the CPU; run nccl-tests without -C to have the time"
        )
    groups = _groups(columns)
    scale, unit_by = _time_scale(block, groups, source)
    size_at = _first(columns, "size")
    assert size_at is not None
    if columns[size_at].scale is None:
        raise InputError(
            f"{source}: column {columns[size_at].name!r}: a unit that is 10^n to some, 2^n to others; give "
            f"sizes in bytes (size_B)"
        )
    count_at, dtype_at = _first(columns, "count"), _first(columns, "dtype")
    sizes = [fields[size_at] for _, fields in block.rows]
    redop_at = _first(columns, "redop")
    redops = {fields[redop_at] for _, fields in block.rows} if redop_at is not None else set()
    rows: dict[tuple[str | None, int | None, str], list[LinkRow]] = defaultdict(list)
    broken = list(block.broken)
    for number, fields in block.rows:
        num_bytes = _whole(fields[size_at], columns[size_at].scale or Decimal(1), MOST_BYTES)
        key = _key(block, columns, fields)
        ratio = _time_ratio(key, block, world_size)
        timings = {
            group.variant: timing
            for group in groups
            if (timing := _timing(group, fields, block, scale, num_bytes, ratio)) is not None
        }
        if num_bytes is None or not timings:
            broken.append(number)
            continue
        row = LinkRow(
            where=f"{source}: line {number}",
            num_bytes=num_bytes,
            timings=timings,
            count=None if count_at is None else _whole(fields[count_at], Decimal(1), MOST_BYTES),
            dtype=None if dtype_at is None else fields[dtype_at],
        )
        rows[key].append(row)
    left_out = [f"{source}: line {block.cut}, cut off at the end of the file"] if block.cut else []
    if broken:
        left_out.append(f"{source}: {len(broken)} lines that are no whole row (the first: {min(broken)})")
    if block.strays:
        named = ", ".join(f"line {number} ({words})" for number, words in block.strays[:3])
        more = f" and {len(block.strays) - 3} more" if len(block.strays) > 3 else ""
        below = "" if block.ended is None else f" below the end of the table (line {block.ended})"
        left_out.append(f"{source}: {named}{more}{below}: rows of a run whose header is not there")
    if not rows and (unclear := next((cell for cell in sizes if UNCLEAR.search(cell)), None)) is not None:
        raise InputError(
            f"{source}: size {unclear!r}: a unit that is 10^n to some, 2^n to others; write KiB, MiB or bytes"
        )
    if not rows and any(group.others for group in groups if not group.times) and world_size is None:
        raise InputError(
            f"{source}: bus bandwidths without times or algorithm bandwidths, and it does not say on how "
            f"many ranks; give --world-size N"
        )
    tables = []
    for (collective, ranks, place), found in rows.items():
        known = (ranks, "its column") if ranks is not None else _ranks(block)
        said = block.said
        tables.append(
            LinkTable(
                source=source,
                rows=tuple(found),
                collective=collective,
                ranks=known[0],
                ranks_by=known[1],
                place=place,
                title=", ".join(filter(None, (said.headline, said.comment, said.command, said.origin))),
                redop=redops.pop() if len(redops) == 1 else None,
                statistic="median" if any("median" in group.times for group in groups) else "mean",
                iterations=block.said.iterations,
                devices=tuple(dict.fromkeys(plain(name) for _, name in block.said.ranks.values() if name)),
                hosts=tuple(dict.fromkeys(plain(host) for host, _ in block.said.ranks.values())),
                over=NCCL if _is_of_nccl_tests(columns) else said.over,
                left_out=tuple(left_out),
                unread=tuple(column.name for column in columns if column.kind == "other" and column.name),
                unit_by=unit_by,
            )
        )
        left_out = []
    return tables


def _ranks(block: TextBlock) -> tuple[int | None, str]:
    if block.said.ranks:
        return max(block.said.ranks) + 1, "its list of ranks"
    return block.said.num_ranks or (None, "")


def _time_ratio(
    key: tuple[str | None, int | None, str], block: TextBlock, world_size: int | None
) -> float | None:
    """Bus over algorithm bandwidth of a row; None where its ranks are not known."""
    ranks = key[1] or _ranks(block)[0] or world_size
    return None if ranks is None or ranks < 2 else bus_factor(key[0] or "all_reduce", ranks)


def _first(columns: tuple[Column, ...], kind: str) -> int | None:
    return next((place for place, column in enumerate(columns) if column.kind == kind), None)


def _groups(columns: tuple[Column, ...]) -> list[_Group]:
    """The columns of each timing. Where a statistic comes again, the second timing begins: in place."""
    groups = [_Group(variant="only")]
    # Where no column has a time, bandwidths stand for it.
    main = next((kind for kind in ("time", "algbw", "busbw") if _first(columns, kind) is not None), "time")
    by_name = any(column.kind == main and column.variant for column in columns)
    for place, column in enumerate(columns):
        if column.kind not in ("time", "algbw", "busbw", "wrong", "iterations"):
            continue
        if by_name:
            variant = column.variant or "only"
            group = next((group for group in groups if group.variant == variant), None)
            if group is None:
                group = _Group(variant=variant)
                groups.append(group)
        else:
            seen = groups[-1].times if main == "time" else groups[-1].others
            if column.kind == main and (column.statistic if main == "time" else main) in seen:
                groups.append(_Group(variant="in"))
            group = groups[-1]
        if column.kind == "time":
            group.times.setdefault(column.statistic, place)
        else:
            group.others.setdefault(column.kind, place)
    groups = [group for group in groups if group.times or (main != "time" and main in group.others)]
    if len(groups) > 1 and not by_name:
        groups[0].variant = "out"
    return groups[:2]


def _time_scale(block: TextBlock, groups: list[_Group], source: str) -> tuple[Decimal | None, str | None]:
    """ns in one unit of times without a unit, and why: by bandwidths beside them, or nccl-tests' columns."""
    columns = block.header.columns
    bare = [columns[place] for group in groups for place in group.times.values()]
    bare = [column for column in bare if column.scale is None]
    if not bare:
        return None, None
    size_at = _first(columns, "size")
    assert size_at is not None
    seconds = []
    for _, fields in block.rows:
        for group in groups:
            time = _number(fields[_main(group)]) if group.times else None
            size = _number(fields[size_at])
            for name in ("algbw", "busbw"):
                rate = _number(fields[group.others[name]]) if name in group.others else None
                if time and size and rate and rate > 0:
                    seconds.append(size / (time * rate * 10**9))
                    break
    if seconds:
        told = median(seconds)
        power = round(math.log10(told) / 3) if told > 0 else 1
        # A bus bandwidth lies between half and twice the algorithm's, far from the next unit.
        if -3 <= power <= 0 and 0.4 < float(told) / 1000.0**power < 2.5:
            unit = ("s", "ms", "us", "ns")[-power]
            return TIME_UNITS[unit], f"{source}: times are in {unit}, told by the bandwidths beside them"
    if _is_of_nccl_tests(columns):
        return TIME_UNITS["us"], f"{source}: times are in us, as nccl-tests writes these columns"
    raise InputError(
        f"{source}: column {bare[0].name!r}: its unit cannot be told; name it {bare[0].name}_us, _ms or _s"
    )


def _is_of_nccl_tests(columns: tuple[Column, ...]) -> bool:
    names = {column.name.lower().lstrip("#") for column in columns}
    return {"size", "count", "type", "time", "algbw", "busbw"} <= names and bool(names & {"wrong", "error"})


def _main(group: _Group) -> int:
    for statistic in ("median", None, "mean", "min", "max"):
        if statistic in group.times:
            return group.times[statistic]
    return next(iter(group.times.values()))


def _timing(
    group: _Group,
    fields: list[str],
    block: TextBlock,
    scale: Decimal | None,
    num_bytes: int | None,
    ratio: float | None,
) -> Timing | None:
    columns = block.header.columns
    if not group.times:
        return _by_bandwidth(group, fields, num_bytes, ratio)
    main = _main(group)
    time, unit = _number(fields[main]), columns[main].scale or scale
    if time is None or unit is None or not 0 < round(time * unit) <= MOST_NS:
        return None
    found: dict[str, int] = {}
    for statistic, place in group.times.items():
        value, factor = _number(fields[place]), columns[place].scale or scale
        if (
            statistic in _SCATTER
            and value is not None
            and factor is not None
            and 0 <= value * factor <= MOST_NS
        ):
            found[_SCATTER[statistic]] = round(value * factor)
    rates, wrong = _rates(group, fields), _wrong(group, fields)
    said = fields[group.others["iterations"]] if "iterations" in group.others else ""
    count = _whole(said, Decimal(1), 10**9) or _three(group, fields) or block.said.iterations
    if block.said.is_over_ranks or not set(found) - {"median_ns"}:
        found, count = {}, None
    return Timing(
        duration_ns=round(time * unit),
        slack_ns=_digit(time) * float(unit),
        rates=rates,
        wrong=wrong,
        scatter=found if count is None else {"count": count, **found},
    )


def _rates(group: _Group, fields: list[str]) -> dict[str, tuple[float, float]]:
    rates: dict[str, tuple[float, float]] = {}
    for name in ("algbw", "busbw"):
        if name in group.others and (rate := _number(fields[group.others[name]])) is not None and rate >= 0:
            rates[name] = float(rate), _digit(rate)
    return rates


def _wrong(group: _Group, fields: list[str]) -> float:
    return float((_number(fields[group.others["wrong"]]) if "wrong" in group.others else None) or 0)


def _by_bandwidth(
    group: _Group, fields: list[str], num_bytes: int | None, ratio: float | None
) -> Timing | None:
    """The time that the algorithm's bandwidth tells, or the bus's where its ``ratio`` to that is known.

    A GB/s is a byte in a ns.
    """
    rates = _rates(group, fields)
    name, factor = ("algbw", 1.0) if "algbw" in group.others else ("busbw", ratio)
    rate, digit = rates.get(name, (0.0, 0.0))
    if not num_bytes or factor is None or rate <= 0 or not 0 < (time := num_bytes * factor / rate) <= MOST_NS:
        return None
    return Timing(
        duration_ns=max(1, round(time)),
        slack_ns=time * digit / rate,
        rates=rates,
        wrong=_wrong(group, fields),
    )


def _three(group: _Group, fields: list[str]) -> int | None:
    """3 if the mean is that of the least, the median and the greatest, which are then all runs; else None."""
    values = [
        _number(fields[group.times[name]]) if name in group.times else None
        for name in ("min", "median", "max", "mean")
    ]
    if any(value is None for value in values):
        return None
    low, middle, high, mean = (float(value or 0) for value in values)
    return 3 if abs(low + middle + high - 3 * mean) <= 1e-9 * abs(mean) else None


def _key(
    block: TextBlock, columns: tuple[Column, ...], fields: list[str]
) -> tuple[str | None, int | None, str]:
    collective, ranks, places = None, None, []
    for column, cell in zip(columns, fields, strict=True):
        collective = collective or column.collective
        if column.kind == "collective":
            collective = named_collective(cell) or collective
        elif column.kind == "world_size":
            ranks = _whole(cell, Decimal(1), 10**7) or ranks
        elif column.kind == "place":
            places.append(f"{column.name} {cell}")
    return collective or block.said.collective, ranks, ", ".join(places)


def _number(cell: str) -> Decimal | None:
    """A plain number of at most 40 characters and a sane exponent; None where it is none."""
    if len(cell) > 40 or not NUMBER.fullmatch(cell):
        return None
    value = Decimal(cell)
    return value if value == 0 or -30 <= value.adjusted() <= 30 else None


def _digit(value: Decimal) -> float:
    """One unit of the last digit written."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return 10.0**exponent


def _whole(cell: str, scale: Decimal, most: int) -> int | None:
    value = _number(cell)
    if value is None or not 0 <= value * scale <= most:
        return None
    scaled = value * scale
    return int(scaled) if scaled == scaled.to_integral_value() else None
