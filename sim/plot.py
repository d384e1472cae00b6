"""The dashboard's figures for whoever has no page: plotly figures, which a notebook shows as they are.

``from sim import plot``; plotly comes with bucketsim. Each figure is the page's own, made by the same lines.
"""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

import plotly.graph_objects as go

from app.figures.compare import draw_breakdown, draw_sweep
from app.figures.records import draw_steps
from app.figures.timeline import draw_stacked, draw_timeline, path_marks, stacked_data, timeline_data
from sim.errors import InputError
from sim.metrics.bottleneck import critical_path
from sim.metrics.step import summarize
from sim.nouns.recommendation import Recommendation
from sim.nouns.timeline import Timeline
from sim.truth.scoring import Agreement
from sim.tuner.sweep import SweepRow


def timeline(played: Timeline) -> go.Figure:
    """One step as ``sim.simulate`` played it: a lane a row (ms), and its critical path."""
    return draw_timeline(timeline_data(played), path_marks(played, critical_path(played)))


def sweep(rows: Sequence[SweepRow], found: Recommendation | None = None) -> go.Figure:
    """Step time (ms) over ``bucket_cap_mb`` (MiB) as ``sim.sweep`` found it, DDP's default beside the curve.

    ``found`` is what ``sim.tune`` answers for the same files: caps that are as good as the best are shaded,
    the best buckets' step is dotted, and the cap to set has a star.
    """
    if found is None:
        return draw_sweep(rows)
    return draw_sweep(rows, found.plateau, best_ns=found.report.step_ns, star_mb=found.setting.cap_mb)


def compare(played: Mapping[str, Timeline], *, parts: bool = False) -> go.Figure:
    """Several steps by name: their timelines on one axis; with ``parts`` where each one's time goes.

    Raises:
        InputError: more than 26 steps, or none.
    """
    if not 1 <= len(played) <= len(ascii_uppercase):
        raise InputError(f"compare: {len(played)} steps are not legal; give 1 to {len(ascii_uppercase)}")
    if parts:
        return draw_breakdown({name: summarize(one) for name, one in played.items()}, played)
    named = zip(ascii_uppercase, played.items(), strict=False)
    return draw_stacked(stacked_data([(letter, name, one) for letter, (name, one) in named])[0])


def measured(agreement: Agreement) -> go.Figure:
    """Each candidate's step of ``sim.agreement``: as real ranks took it (95 % interval), and as predicted."""
    return draw_steps(agreement)
