"""Cells that bear a unit or marks between thousands, as plain numbers in the unit of their column."""

import re
from dataclasses import replace
from decimal import Decimal

from sim.importer.links.blocks import Header, TextBlock
from sim.importer.links.columns import NUMBER, RATE_UNITS, TIME_UNITS, Column

# nccl-tests' own: a K is 2^10. KB and MB are 10^n to some, 2^n to others, and are not read.
_SIZES = {"": 1, "B": 1} | {
    f"{prefix}{end}": 1 << power
    for prefix, power in (("K", 10), ("k", 10), ("M", 20), ("G", 30), ("T", 40))
    for end in ("", "iB")
}
UNCLEAR = re.compile(r"\d\s*[KMGT]B$", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,_' \u202f\u00a0])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_WITH_UNIT = re.compile(r"(.*\d\.?)\s*([A-Za-zµμ/]+)")


def with_units(fields: list[str], block: TextBlock) -> list[str]:
    """The fields as plain numbers; a column of times that its header gives no unit gets one in ``block``."""
    columns = block.header.columns
    if len(fields) != len(columns):
        return fields
    made = [_plain(cell, column) for cell, column in zip(fields, columns, strict=True)]
    given = [unit for _, unit in made]
    if any(given):
        block.header = Header(
            columns=tuple(
                replace(column, scale=unit or column.scale)
                for column, unit in zip(columns, given, strict=True)
            ),
            delimiter=block.header.delimiter,
        )
    return [cell for cell, _ in made]


def _plain(cell: str, column: Column) -> tuple[str, Decimal | None]:
    """A cell in its column's unit, and the unit where only the cell gives it."""
    if column.kind not in ("size", "count", "time", "algbw", "busbw", "iterations", "world_size"):
        return cell, None
    is_rate = column.kind in ("algbw", "busbw")
    if NUMBER.fullmatch(cell):
        return (_times(cell, column.scale) if is_rate and column.scale not in (None, 1) else cell), None
    if len(cell) > 40:
        return cell, None
    if _THOUSANDS.fullmatch(cell):
        cell = re.sub(r"(?<=\d)[,_' \u202f\u00a0](?=\d)", "", cell)
        return _plain(cell, column)
    found = _WITH_UNIT.fullmatch(cell)
    if found is None:
        return cell, None
    number = re.sub(r"(?<=\d)[,_' \u202f\u00a0](?=\d{3})", "", found[1].strip())
    if not NUMBER.fullmatch(number):
        return cell, None
    if is_rate:
        return (_times(number, RATE_UNITS[found[2]]) if found[2] in RATE_UNITS else cell), None
    if column.kind == "time":
        unit = TIME_UNITS.get(found[2].lower())
        if unit is None:
            return cell, None
        scale = column.scale or TIME_UNITS["us"]
        return str(Decimal(number).scaleb((unit / scale).adjusted())), None if column.scale else scale
    if column.kind == "size" and found[2] in _SIZES:
        return str(Decimal(number) * _SIZES[found[2]] / (column.scale or 1)), None
    return cell, None


def _times(number: str, scale: Decimal | None) -> str:
    """The number in GB/s, with as many digits as it had."""
    value = Decimal(number)
    digit = value.as_tuple().exponent
    assert isinstance(digit, int)
    shift = (scale or Decimal(1)).adjusted()
    return str((value * (scale or 1)).quantize(Decimal(1).scaleb(digit + shift)))
