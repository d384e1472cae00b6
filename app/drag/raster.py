"""A timeline as far as pixels tell apart: each lane a row of cells, neighbours alike told once."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from app.figures.timeline import Mark, Span, pattern

CELLS = 2048  # across the step: finer than the pixels of a figure that is less than 2,000 wide
PATTERNS = ("", "/", ".", "|", "x", "-")
_NOTHING = -1


def lane_runs(spans: Iterable[Span], until_ns: int) -> list[int]:
    """One lane as [style, cells, style, cells, ...], from 0 to ``until_ns`` in ``CELLS`` cells.

    A style is ``-1`` where nothing is, else the number of the bucket plus 1 (0: of none) times the number of
    patterns plus the pattern's. What is shorter than a cell shows where nothing longer does; neighbours are
    told apart by bucket and pattern, so that there are never more runs than cells.
    """
    cells = [_NOTHING] * CELLS
    for span in sorted(spans, key=lambda span: span.end_ns - span.start_ns):
        first, last = _cell(span.start_ns, until_ns), _cell(span.end_ns, until_ns)
        first = min(first, CELLS - 1)
        length = max(1, last - first)
        bucket = 0 if span.bucket is None else span.bucket + 1
        style = bucket * len(PATTERNS) + PATTERNS.index(pattern(span))
        cells[first : first + length] = [style] * length
    runs = []
    for style, run in groupby(cells):
        runs += [style, len(list(run))]
    return runs


def mark_runs(marks: Sequence[Mark], lanes: Sequence[str], until_ns: int) -> list[list[int]]:
    """The critical path as [lane, first cell, cells], without what is shorter than half a cell."""
    found = []
    for mark in marks:
        first, last = _cell(mark.start_ns, until_ns), _cell(mark.end_ns, until_ns)
        if last > first and mark.lane in lanes:
            found.append([lanes.index(mark.lane), first, last - first])
    return found


def _cell(at_ns: int, until_ns: int) -> int:
    return round(at_ns * CELLS / until_ns) if until_ns else 0
