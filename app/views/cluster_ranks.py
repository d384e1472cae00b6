"""What it costs that ranks differ: a part of the Cluster page."""

import streamlit as st

from app import cached_cluster
from app.cached_cluster import Made
from app.figures.ranks import distribution_figure
from app.figures.style import CHART
from app.words import cluster as labels_cluster
from app.words import labels
from sim.nouns.ranks import Ranks, SlowRanks
from sim.nouns.workload import Workload

JITTERS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)
PACES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
MOST_RANKS = 16_384  # a page is not to wait for minutes; the command plays more
_RANK_STEPS = 200_000


def show(workload: Workload, digest: str, made: Made, world_size: int) -> None:
    """Ask how ranks differ, and draw the steps that come of it."""
    st.subheader("What if ranks differ?")
    left, middle, right = st.columns(3)
    jitter = left.select_slider(
        "Jitter of each rank and step",
        JITTERS,
        format_func=_percent,
        key="jitter",
        bind="query-params",
        help=labels_cluster.HELP["jitter"],
    )
    spread = middle.select_slider(
        "Spread between ranks",
        JITTERS,
        format_func=_percent,
        key="spread",
        bind="query-params",
        help=labels_cluster.HELP["spread"],
    )
    pace = right.select_slider(
        "One slow rank, times as long",
        PACES,
        format_func=lambda value: f"{value:g}",
        key="slow",
        bind="query-params",
        help=labels_cluster.HELP["slow"],
    )
    if not jitter and not spread and pace == 1.0:
        st.info("All ranks are alike, and nobody waits. Move a slider to see what the slowest one costs.")
        return
    if world_size > MOST_RANKS:
        st.info(f"More than {MOST_RANKS:,} ranks: `bucketsim ranks` plays them.")
        return
    ranks = Ranks(
        name=words_of(jitter, spread, pace),
        pace_jitter=jitter,
        pace_spread=spread,
        slow=(SlowRanks(first=0, pace=pace),) if pace != 1.0 else (),
    )
    found = cached_cluster.differing(workload, digest, made, ranks, samples_for(world_size))
    default = found.rows[0].distribution
    best = next(row for row in found.rows if row.name == found.best_by_mean)
    st.markdown(f"**{labels.plain(labels_cluster.ranks_sentence(default, best))}**")
    st.plotly_chart(
        distribution_figure(found),
        key="ranks",
        config=CHART,
        alt="How many steps are not longer than a time, for each assignment",
    )
    st.caption(labels_cluster.RANKS_CAPTION)


def samples_for(world_size: int) -> int:
    """How many steps are played: 400, and fewer of very many ranks."""
    return max(20, min(400, _RANK_STEPS // world_size))


def words_of(jitter: float, spread: float, pace: float) -> str:
    """How ranks differ, in a few words."""
    words = [f"jitter {_percent(jitter)}"] if jitter else []
    words += [f"spread {_percent(spread)}"] if spread else []
    words += [f"rank 0 taking {pace:g} times as long"] if pace != 1.0 else []
    return ", ".join(words)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"
