"""A picture of a cluster: what is linked with what, how fast, and which link holds a collective up."""

import re
from collections.abc import Sequence
from itertools import groupby

import plotly.graph_objects as go

from app.figures.machine import Machine, Part, PartKind, Wire, machine_of
from app.figures.machine_words import (
    KIND_WORDS,
    LINK_WORDS,
    box_words,
    part_text,
    rate_words,
    title_words,
    wire_text,
)
from app.figures.placing import Place, Plan, plan_of
from app.figures.strands import NOT_LOADED, Strand, strands_of
from app.figures.style import ALARM, LINE, framed, safe
from sim.nouns.cluster import Cluster, LinkKind
from sim.nouns.link_load import LinkLoad

_PIXELS = 900  # of a figure beside the sidebar, for what is legible; the figure itself follows its frame
_MARGIN_PIXELS = 110  # that the names of rows take of it
_FEWEST_COLUMNS = 14  # so that a small machine is not drawn huge
_ROW_PIXELS = 74
_DIGIT, _LETTER = 0.58, 0.64  # how wide they are at most, of their height
_DASHES: dict[LinkKind, str] = {"qpi": "dash", "memory": "dot"}
_FILLS: dict[PartKind, tuple[str, str]] = {  # ground and letters
    "gpu": ("#3A3F47", "#FFFFFF"),
    "nic": ("#0072B2", "#FFFFFF"),
    "switch": ("#0072B2", "#FFFFFF"),
    "nvswitch": ("#009E73", "#FFFFFF"),
    "pcie_switch": ("#CC79A7", "#1B1B1B"),
    "cpu": ("#8A8F98", "#1B1B1B"),
    "memory": ("#C9CCD1", "#1B1B1B"),
    "hosts": ("rgba(128,128,128,0.16)", LINE),
}
_IDLE = ("rgba(128,128,128,0.25)", LINE)  # a GPU on which no rank runs
_BOX = {"fillcolor": "rgba(128,128,128,0.09)", "line": {"color": "rgba(128,128,128,0.55)", "width": 1}}


def topology_figure(
    cluster: Cluster, loads: Sequence[LinkLoad] | None = None, name: str | None = None
) -> go.Figure:
    """The picture of ``cluster``; ``loads`` are what one collective puts on its links (``sim.link_loads``).

    ``name`` is told in place of the cluster's own.

    Clusters that are too large are summarised: the first host of each kind with all its parts, and counts of
    the others.
    """
    machine = machine_of(cluster, loads)
    return draw_topology(machine, plan_of(machine), name)


def draw_topology(machine: Machine, plan: Plan, name: str | None = None) -> go.Figure:
    """Hosts as boxes of parts, the network above them; hover over a part or a link for its figures."""
    figure = go.Figure()
    title, words = title_words(machine, name)
    for box in machine.boxes:
        _frame(figure, box.is_detailed, plan.boxes[box.first])
    strands = list(strands_of(machine, plan))
    _links(figure, strands, frozenset(part.name for part in machine.parts if part.kind == "switch"))
    shown = max(plan.width, _FEWEST_COLUMNS)
    column_pixels = (_PIXELS - _MARGIN_PIXELS) / shown
    for kind in KIND_WORDS:
        for idle in (False, True):
            parts = [part for part in machine.parts if part.kind == kind and _is_idle(part) == idle]
            if parts:
                _parts(figure, kind, parts, plan, column_pixels, idle=idle)
    _hovers(figure, strands)
    _words(figure, machine, plan, column_pixels)
    figure.update_xaxes(visible=False, range=[-0.3, shown + 0.3])
    figure.update_yaxes(
        range=[plan.bottom, plan.top],
        tickvals=list(plan.rows),
        ticktext=list(plan.rows.values()),
        tickfont={"size": 12, "color": LINE},
    )
    framed(
        figure,
        round(_ROW_PIXELS * (plan.top - plan.bottom) + 120),
        margin={"l": 8, "r": 8, "t": 64 + 18 * words.count("<br>"), "b": 48},
        title={
            "text": f"<b>{title}</b><br><sup>{words}</sup>",
            "x": 0,
            "xanchor": "left",
            "font": {"size": 17},
        },
        showlegend=True,
        legend={"orientation": "h", "yanchor": "top", "y": -0.02, "x": 0},
        hovermode="closest",
        hoverdistance=12,
    )
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False)
    return figure


def _frame(figure: go.Figure, is_detailed: bool, place: Place) -> None:
    if is_detailed:
        figure.add_shape(
            type="rect",
            x0=place.left,
            x1=place.right,
            y0=place.y - place.height / 2,
            y1=place.y + place.height / 2,
            layer="below",
            **_BOX,
        )


def _links(figure: go.Figure, strands: Sequence[Strand], switches: frozenset[str]) -> None:
    """One trace for all links of a kind, width and colour; one entry of the legend for each kind."""

    def key(strand: Strand) -> tuple[int, bool, str, float]:
        order = list(LINK_WORDS).index(strand.wire.kind)
        return order, strand.colour == NOT_LOADED, strand.colour, -strand.width

    told: set[str] = set()
    for (_, _, colour, width), group in groupby(sorted(strands, key=key), key):
        members = list(group)
        kind = members[0].wire.kind
        name = legend_words(kind, colour, [one.wire for one in strands if one.wire.kind == kind], switches)
        xs: list[float | None] = []
        ys: list[float | None] = []
        for strand in members:
            xs += [*strand.xs, None]
            ys += [*strand.ys, None]
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=name not in told,
            line={"color": colour, "width": -width, "dash": _DASHES.get(kind, "solid")},
            opacity=0.85,
            hoverinfo="skip",
        )
        told.add(name)


def legend_words(kind: LinkKind, colour: str, wires: Sequence[Wire], switches: frozenset[str]) -> str:
    """``NVLink, 240 GB/s``: what the links of a kind carry each way; with loads, what a colour means."""
    if colour == ALARM:
        return "busiest: holds the all-reduce up"
    if colour == NOT_LOADED:
        return "not used by the all-reduce"
    between = [wire for wire in wires if wire.a in switches and wire.b in switches]
    ports = [wire for wire in wires if wire not in between]
    words = [_range_words(ports)] if ports else []
    if between:
        words.append(f"{_range_words(between)} between switches")
    return f"{LINK_WORDS[kind]}, {', '.join(words)}"


def _range_words(wires: Sequence[Wire]) -> str:
    low, high = min(wire.low_bytes_per_s for wire in wires), max(wire.high_bytes_per_s for wire in wires)
    return rate_words(low, high)


def _is_idle(part: Part) -> bool:
    """Whether it is a GPU on which no rank runs."""
    return part.kind == "gpu" and part.count == 1 and part.rank is None


def _parts(
    figure: go.Figure, kind: PartKind, parts: Sequence[Part], plan: Plan, column_pixels: float, *, idle: bool
) -> None:
    fill, ink = _IDLE if idle else _FILLS[kind]
    xs: list[float | None] = []
    ys: list[float | None] = []
    for part in parts:
        place = plan.places[part.name]
        low, high = place.y - place.height / 2, place.y + place.height / 2
        xs += [place.left, place.right, place.right, place.left, place.left, None]
        ys += [low, low, high, high, low, None]
    figure.add_scatter(
        x=xs,
        y=ys,
        mode="lines",
        fill="toself",
        fillcolor=fill,
        line={"color": LINE, "width": 1, "dash": "dot"} if kind == "hosts" else {"color": LINE, "width": 0.5},
        hoverinfo="skip",
        name="GPU without a rank",
        showlegend=idle,
    )
    texts = [_fitted(part, plan.places[part.name].width * column_pixels) for part in parts]
    small = min(size for _, size in texts)
    figure.add_scatter(
        x=[plan.places[part.name].x for part in parts],
        y=[plan.places[part.name].y for part in parts],
        mode="markers+text",
        name="GPUs without a rank" if idle else KIND_WORDS[kind],
        text=[text for text, _ in texts],
        textfont={"color": ink, "size": small},
        marker={"opacity": 0, "size": 18},
        customdata=[part_text(part) for part in parts],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def _fitted(part: Part, pixels: float) -> tuple[str, int]:
    """A part's name as far as there is room for it, and the size of its letters."""
    if part.kind == "hosts":
        return "", 12  # its words are larger
    whole = part.label if part.count == 1 or "more" in part.label else f"{part.label} ({part.count:,})"
    number = re.search(r"[\d.]+$", part.label)
    last = [number[0]] if number and part.count == 1 else [f"{part.count:,}"] if part.count > 1 else []
    for text, sizes in ((whole, (12, 11, 10)), *((one, (11, 10, 9, 8, 7)) for one in last)):
        for size in sizes:
            if len(text) * (_LETTER if text[0].isalpha() else _DIGIT) * size <= pixels:
                return safe(text), size
    return "", 12


def _hovers(figure: go.Figure, strands: Sequence[Strand]) -> None:
    """Places along each link that tell of it; a plotly line itself tells only at its ends."""
    xs, ys, texts = [], [], []
    for strand in strands:
        wire = strand.wire
        text = wire_text(wire, (wire.a, wire.b), strand.busy)
        if len(strand.xs) > 2:
            points = [(strand.xs[step], strand.ys[step]) for step in (3, 6, 9)]
        else:
            (x0, x1), (y0, y1) = strand.xs, strand.ys
            points = [(x0 + (x1 - x0) * step, y0 + (y1 - y0) * step) for step in (0.2, 0.5, 0.8)]
        for x, y in points:
            xs.append(x)
            ys.append(y)
            texts.append(text)
    if xs:
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="markers",
            name="links",
            marker={"opacity": 0, "size": 8},
            customdata=texts,
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
        )


def _words(figure: go.Figure, machine: Machine, plan: Plan, column_pixels: float) -> None:
    """Names of hosts, below them or inside."""
    is_only_kind = len({one.template.name for box in machine.boxes for one in box.segments}) == 1
    for box in machine.boxes:
        place = plan.boxes[box.first]
        bottom = place.y - place.height / 2
        figure.add_annotation(
            x=place.x,
            y=bottom - 0.24 if box.is_detailed else place.y,
            text=box_words(box, is_only_kind, place.width * column_pixels / 6.5),
            showarrow=False,
            font={"size": 12},
        )
