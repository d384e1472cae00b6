"""How bad is it: the cards of a step and the sentence that names what limits it."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.cached import Played
from app.words import labels
from sim.units import format_ms


def show(shown: Played, as_measured: Played | None = None) -> tuple[DeltaGenerator, DeltaGenerator]:
    """The cards and the sentence; ``as_measured`` is the same on the measured machine, if this is another.

    Returns the gain's place, which ``gain`` fills once the default is played, and one right under the cards.
    """
    report = shown.report
    step, exposed, overlap, gain_column = st.columns(4)
    before = "" if as_measured is None else f"as measured: {format_ms(as_measured.report.step_ns)}"
    _card(step, "Step time", format_ms(report.step_ns), labels.HELP["step"], before or None)
    _card(
        exposed,
        "Exposed communication",
        format_ms(report.exposed_comm_ns),
        labels.HELP["exposed"],
        _exposed_words(shown),
    )
    _card(overlap, "Overlap", f"{report.overlap_ratio:.1%}", labels.HELP["overlap"])
    place = gain_column.empty()
    _card(place, "Gain against DDP's default", "…", labels.HELP["gain"], "of its step")
    below = st.container()
    st.markdown(f"**{labels.sentence(report.verdict)}**")
    estimated = labels.estimated_sentence(shown.timeline.workload)
    if estimated is not None:
        st.warning(labels.plain(estimated))
    for note in report.notes:
        if labels.lacks_a_part(note):
            st.warning(labels.sentence(note))
        else:
            st.caption(labels.sentence(note))
    return place, below


def _exposed_words(shown: Played) -> str:
    """The share of the step; where earlier micro-batches synchronise as well, what all of them add."""
    report, workload = shown.report, shown.timeline.workload
    settings = shown.assignment.settings
    batches = settings.get("accumulation_steps", settings.get("gradient_accumulation_steps", 1))
    plain_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    earlier_ns = report.accumulation_ns - (batches - 1) * plain_ns
    if earlier_ns <= 0:
        return f"{labels.share(report.exposed_comm_ns, report.step_ns)} of the step"
    return f"the last of {batches}; all: {format_ms(report.exposed_comm_ns + earlier_ns)}"


def gain(
    place: DeltaGenerator,
    shown: Played,
    default: Played,
    possible: Played | None,
) -> None:
    """The gain of what is shown and, below it, what could be gained, where that was searched for.

    ``possible`` is what is recommended, played for the same job under the same switches.
    """
    base = default.report.step_ns
    saved = base - shown.report.step_ns
    words = f"{labels.share(saved, base)} of its step"
    if possible is not None and possible.report.step_ns < shown.report.step_ns:
        words = f"possible: {format_ms(base - possible.report.step_ns)}"
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
