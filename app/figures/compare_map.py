"""Where each candidate cuts: gradients in ready order, coloured by bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import plotly.graph_objects as go

from app.figures.style import bucket_colour, framed, safe
from app.figures.timeline import MAX_SPANS
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.units import MIB, format_number


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
        row = _row(name, workload, assignment)
        blocks += row if len(row) <= share else _thinned(row, -(-2 * workload.total_bytes // share))
    return tuple(blocks)


def _row(name: str, workload: Workload, assignment: Assignment) -> list[Block]:
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


def _thinned(blocks: Sequence[Block], least_bytes: int) -> list[Block]:
    """Neighbours together that lie in one slot of ``least_bytes``."""
    thinned = []
    for _, group in groupby(blocks, key=lambda block: block.start_bytes // max(1, least_bytes)):
        members = list(group)
        if len(members) == 1:
            thinned.append(members[0])
            continue
        size = sum(block.num_bytes for block in members)
        thinned.append(
            Block(
                row=members[0].row,
                bucket=None,
                start_bytes=members[0].start_bytes,
                num_bytes=size,
                text=f"<b>{safe(members[0].row)}</b><br>{len(members)} blocks, "
                f"{format_number(size / MIB)} MiB",
            )
        )
    return thinned


def draw_map(blocks: Sequence[Block]) -> go.Figure:
    """One row a candidate, the first on top."""
    figure = go.Figure()
    rows = list(dict.fromkeys(block.row for block in blocks))
    figure.add_bar(
        orientation="h",
        y=[safe(block.row) for block in blocks],
        base=[block.start_bytes / MIB for block in blocks],
        x=[block.num_bytes / MIB for block in blocks],
        marker={
            "color": [bucket_colour(block.bucket) for block in blocks],
            "line": {"width": 0.5 if len(blocks) <= 600 else 0, "color": "rgba(255,255,255,0.7)"},
        },
        customdata=[block.text for block in blocks],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_yaxes(
        categoryorder="array", categoryarray=[safe(row) for row in rows[::-1]], showgrid=False
    )
    figure.update_xaxes(title="gradients in ready order, MiB")
    return framed(figure, 80 + 36 * len(rows), barmode="overlay", bargap=0.3)
