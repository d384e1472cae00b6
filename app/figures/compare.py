"""What sets steps apart: where their time goes, where each cuts, and how their lengths differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import plotly.graph_objects as go

from app.figures.style import (
    ALARM,
    BUCKETS,
    GOOD,
    LEGEND_ABOVE,
    LINE,
    NEUTRAL,
    bars,
    bucket_colour,
    figure,
    instant,
    ms,
    rows_axis,
    safe,
)
from app.figures.timeline import MAX_SPANS
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.assignment import Assignment
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.units import MIB, format_number

# Parts of a step: in words, their colour and pattern.
PARTS = {
    "rest": ("forward, optimizer and the like", "#B4B8BF", ""),
    "parameters": ("parameters, before forward and after the optimizer", BUCKETS[3], "."),
    "compute": ("backward alone", BUCKETS[0], ""),
    "overlapped": ("backward and communication", BUCKETS[4], ""),
    "exposed": ("communication alone", ALARM, "/"),
    "idle": ("neither: copies back, waiting", NEUTRAL, ""),
}


def breakdown(report: Report, timeline: Timeline | None = None) -> dict[str, int]:
    """The parts of a reported step, ns: unions of intervals, so two channels at work count once.

    Without its ``timeline`` it is taken for one of DDP: it sends buckets alone, and backward never waits.
    """
    if timeline is None:
        sent = [(bucket.start_ns, bucket.end_ns) for bucket in report.buckets]
        lane = [(0, report.backward_end_ns)]
    else:
        sent = [(played.start_ns, played.end_ns) for played in timeline.collectives]
        lane = [(span.start_ns, span.end_ns) for span in timeline.compute]
    overlapped, busy = intersection_length(lane, sent), length(union(sent))
    compute = length(union(lane)) - overlapped
    earlier = sum(report.exposed_by_micro_batch_ns[:-1])
    return {
        "rest": report.step_ns - report.sync_end_ns - report.outside_ns - earlier,
        "parameters": report.outside_ns,
        "compute": compute,
        "overlapped": overlapped,
        "exposed": busy - overlapped + earlier,
        "idle": report.sync_end_ns - busy - compute,
    }


def draw_breakdown(
    reports: Mapping[str, Report], timelines: Mapping[str, Timeline] | None = None
) -> go.Figure:
    """A stacked bar an assignment, the first on top; ``timelines`` by the same names."""
    names = [safe(name) for name in reports]
    rows = [breakdown(report, (timelines or {}).get(name)) for name, report in reports.items()]
    return figure(
        [
            bars(
                words,
                names,
                [ms(row[part]) for row in rows],
                colour,
                pattern=pattern,
                hover=f"%{{y}}<br>{words}: %{{x:.2f}} ms",
            )
            for part, (words, colour, pattern) in PARTS.items()
        ],
        110 + 44 * len(rows),
        xaxis={"title": "one step, ms"},
        yaxis={"autorange": "reversed", "showgrid": False},
        barmode="stack",
        bargap=0.3,
        legend=LEGEND_ABOVE | {"traceorder": "normal"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbours in ready order that share a bucket; None: of several, too thin to draw apart."""

    row: str
    bucket: int | None
    start_bytes: int
    num_bytes: int
    text: str


def map_data(
    candidates: Sequence[tuple[str, Workload, Assignment]], max_blocks: int = MAX_SPANS
) -> tuple[Block, ...]:
    """Blocks of ``(name, workload, assignment)``, row by row; gradients never ready come last."""
    share = max(1, max_blocks // max(1, len(candidates)))
    blocks: list[Block] = []
    for name, workload, assignment in candidates:
        row = _blocks(name, workload, assignment)
        if len(row) > share:  # neighbours together that lie in one slot of so many bytes
            least = max(1, -(-2 * workload.total_bytes // share))
            slots = groupby(row, key=lambda block: block.start_bytes // least)
            row = [_together([*members]) for _, members in slots]
        blocks += row
    return tuple(blocks)


def _blocks(name: str, workload: Workload, assignment: Assignment) -> list[Block]:
    home = {index: number for number, bucket in enumerate(assignment.bucket_indices) for index in bucket}
    ready = workload.order()
    order = [*ready, *sorted(set(range(len(workload.gradients))) - set(ready))]
    blocks, reached = [], 0
    for bucket, members in groupby(order, key=home.__getitem__):
        gradients = [workload.gradients[index] for index in members]
        size = sum(gradient.num_bytes for gradient in gradients)
        names = ", ".join(safe(gradient.name, 40) for gradient in gradients[:3])
        more = f" and {len(gradients) - 3} more" if len(gradients) > 3 else ""
        text = (
            f"<b>{safe(name)}</b><br>bucket {bucket}: {format_number(size / MIB)} MiB here<br>"
            f"{len(gradients)} gradient{'s' if len(gradients) > 1 else ''}: {names}{more}"
        )
        blocks.append(Block(row=name, bucket=bucket, start_bytes=reached, num_bytes=size, text=text))
        reached += size
    return blocks


def _together(members: list[Block]) -> Block:
    if len(members) == 1:
        return members[0]
    row, start, size = members[0].row, members[0].start_bytes, sum(block.num_bytes for block in members)
    text = f"<b>{safe(row)}</b><br>{len(members)} blocks, {format_number(size / MIB)} MiB"
    return Block(row=row, bucket=None, start_bytes=start, num_bytes=size, text=text)


def draw_map(blocks: Sequence[Block]) -> go.Figure:
    """One row a candidate, the first on top."""
    rows = [safe(row) for row in dict.fromkeys(block.row for block in blocks)]
    edge = {"width": 0.5 if len(blocks) <= 600 else 0, "color": "rgba(255,255,255,0.7)"}
    drawn = bars(
        None,
        [safe(block.row) for block in blocks],
        [block.num_bytes / MIB for block in blocks],
        [bucket_colour(block.bucket) for block in blocks],
        hover=[block.text for block in blocks],
        base=[block.start_bytes / MIB for block in blocks],
        marker={"line": edge},
        showlegend=False,
    )
    axes = {"xaxis": {"title": "gradients in ready order, MiB"}, "yaxis": rows_axis(rows)}
    return figure([drawn], 80 + 36 * len(rows), **axes, barmode="overlay", bargap=0.3)


def draw_deltas(steps_ns: Mapping[str, int]) -> go.Figure:
    """Each step against the first, which is left out."""
    base, *others = steps_ns.items()
    return _waterfall([(name, 0, step - base[1]) for name, step in others], "ms against A (left: faster)")


def draw_parts(changes: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> go.Figure:
    """``(cause, [(part, change in ns)])`` as bars that begin where the one before ended, and their total.

    Parts that change nothing are left out; the cause is named where there are several.
    """
    rows, reached = [], 0
    for cause, parts in changes:
        for part, change in parts:
            if change:
                rows.append((f"{part} ({cause})" if len(changes) > 1 else part, reached, change))
                reached += change
    title = "change of the step, ms (left: shorter)"
    return _waterfall([*rows, ("together", 0, reached)], title, is_summed=True)


def _waterfall(rows: Sequence[tuple[str, int, int]], title: str, *, is_summed: bool = False) -> go.Figure:
    """Bars of (name, from, change) around zero: orange is longer, green shorter, grey the sum at the end."""
    ends = [0, *(at for _, at, _ in rows), *(at + change for _, at, change in rows)]
    low, high = ms(min(ends)), ms(max(ends))
    room = 0.2 * (high - low) or 1.0  # for the figures beside short bars
    colours = [ALARM if change > 0 else GOOD for _, _, change in rows]
    drawn = bars(
        None,
        [safe(name) for name, _, _ in rows],
        [ms(change) for _, _, change in rows],
        [*colours[:-1], NEUTRAL] if is_summed else colours,
        hover="%{y}<br>%{text} ms",
        base=[ms(at) for _, at, _ in rows],
        text=[f"{ms(change):+,.2f}" for _, _, change in rows],
        textposition="auto",
        cliponaxis=False,
        showlegend=False,
    )
    return figure(
        [drawn],
        80 + 34 * len(rows),
        xaxis={"title": title, "range": (low - room, high + room)},
        yaxis={"autorange": "reversed", "showgrid": False},
        shapes=[instant(0, "", colour=LINE, showlegend=False)],
        bargap=0.25,
    )
