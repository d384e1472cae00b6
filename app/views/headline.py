"""How bad is it: the cards of a step and the sentence that names what limits it."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.cached import Played
from app.words import labels
from sim.nouns.recommendation import Recommendation
from sim.units import format_ms


def show(shown: Played) -> DeltaGenerator:
    """The cards and the sentence. Returns the gain's place: ``gain`` fills it once the default is played."""
    report = shown.report
    step, exposed, overlap, gain_column = st.columns(4)
    _card(step, "Step time", format_ms(report.step_ns), labels.HELP["step"])
    _card(
        exposed,
        "Exposed communication",
        format_ms(report.exposed_comm_ns),
        labels.HELP["exposed"],
        f"{labels.share(report.exposed_comm_ns, report.step_ns)} of the step",
    )
    _card(overlap, "Overlap", f"{report.overlap_ratio:.1%}", labels.HELP["overlap"])
    place = gain_column.empty()
    _card(place, "Gain against DDP's default", "…", labels.HELP["gain"], "of its step")
    st.markdown(f"**{labels.sentence(report.verdict)}**")
    estimated = labels.estimated_sentence(shown.timeline.workload)
    if estimated is not None:
        st.warning(labels.plain(estimated))
    for note in report.notes:
        st.caption(labels.plain(note))
    return place


def gain(place: DeltaGenerator, shown: Played, default: Played, found: Recommendation | None) -> None:
    """The gain of what is shown and, below it, what could be gained, where that was searched for.

    The search is for ranks that are alike, so beside a slowest rank it is not told.
    """
    base = default.report.step_ns
    saved = base - shown.report.step_ns
    words = f"{labels.share(saved, base)} of its step"
    alike = shown.timeline.slowest is None
    if found is not None and alike and found.report.step_ns < shown.report.step_ns:
        possible = base - found.report.step_ns
        words = f"possible: {format_ms(possible)}"
    _card(place, "Gain against DDP's default", format_ms(saved), labels.HELP["gain"], words)


def _card(place: DeltaGenerator, label: str, value: str, told: str, below: str | None = None) -> None:
    place.metric(
        label,
        value,
        below,
        delta_color="off",
        delta_arrow="off",
        help=told,
        border=True,
        height="stretch",
    )
