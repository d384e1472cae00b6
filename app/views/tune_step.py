"""A step on the Tune page: its cards, the sentence that names what limits it, its timeline."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.drag.states import State, mark
from app.figures.timeline import draw_timeline, path_marks, timeline_data
from app.playing import Played
from app.widgets import Card, chart, draw_card
from app.words import estimated_sentence, lacks_a_part, plain, sentence, share, switches_beyond
from sim.units import NS_PER_MS, format_ms, format_percent

# Keys of the places in which the browser draws while a slider moves.
CARDS, SENTENCE = "cards", "sentence"


def step_cards(shown: Played, as_measured: Played | None = None) -> tuple[Card, Card, Card]:
    """The cards of a step, but for its gain; ``as_measured`` is the same on the measured machine."""
    report = shown.report
    before = (
        None if as_measured is None else f"on the measured machine: {format_ms(as_measured.report.step_ns)}"
    )
    return (
        Card(
            label="Step time",
            value=format_ms(report.step_ns),
            told="Forward + loss + backward with synchronisation + optimizer, and what comes before forward.",
            below=before,
        ),
        Card(
            label="Exposed communication",
            value=format_ms(report.exposed_comm_ns),
            told="End of synchronisation minus a plain backward: all that synchronising gradients "
            "adds, be it waiting, copies, launches or interference. Of several micro-batches it "
            "is that of the last; where the others synchronise as well, what all of them add is "
            "told below.",
            below=_exposed_words(shown),
        ),
        Card(
            label="Overlap",
            value=format_percent(report.overlap_ratio),
            told="Time in which the compute lane and at least one collective are busy, over the time "
            "in which at least one collective is busy; of several micro-batches, in the last.",
        ),
    )


def headline(shown: Played, as_measured: Played | None = None) -> tuple[DeltaGenerator, DeltaGenerator]:
    """The cards and the sentence; ``as_measured`` is the same on the measured machine, if this is another.

    Returns the gain's place, for ``draw_card`` once the default is played, and one right under the cards.
    """
    report = shown.report
    with st.container(key=CARDS):
        *columns, gain_column = st.columns(4)
    for column, card in zip(columns, step_cards(shown, as_measured), strict=True):
        draw_card(column, card)
    place = gain_column.empty()
    draw_card(place, _gain_card("…", "of its step"))
    below = st.container()
    with st.container(key=SENTENCE):
        st.markdown(f"**{sentence(report.verdict)}**")
    estimated = estimated_sentence(shown.timeline.workload)
    if estimated is not None:
        st.warning(plain(estimated))
    for note in report.notes:
        if lacks_a_part(note):
            st.warning(sentence(note))
        else:
            st.caption(sentence(note))
    return place, below


def _exposed_words(shown: Played) -> str:
    """The share of the step; where earlier micro-batches reduce as well, in how many."""
    report = shown.report
    told = f"{share(report.exposed_comm_ns, report.step_ns)} of the step"
    batches = len(report.exposed_by_micro_batch_ns)
    return told if batches <= 1 else f"{told}, in {batches} micro-batches"


def gain_card(shown: Played, default: Played, possible: Played | None) -> Card:
    """The gain of what is shown and, below it, what could be gained, where that was searched for.

    ``possible`` is what is recommended, played for the same job under the same switches.
    """
    base = default.report.step_ns
    saved = base - shown.report.step_ns
    beyond = ", switches and all" if switches_beyond(shown.assignment, default.assignment) else ""
    words = f"{share(saved, base)} of its step{beyond}"
    if possible is not None and possible.report.step_ns < shown.report.step_ns:
        words = f"possible: {format_ms(base - possible.report.step_ns)}"
    return _gain_card(format_ms(saved), words)


def _gain_card(value: str, below: str) -> Card:
    return Card(
        label="Gain against DDP's default",
        value=value,
        told="Step under DDP's default minus step under the assignment shown, with as many "
        "micro-batches. Possible: with what is recommended, under the switches set.",
        below=below,
    )


# The key of the place in which the browser draws while a slider moves.
TIMELINE = "timeline"


@st.fragment
def step_timeline(state: State, shown: Played, as_measured: Played | None = None) -> None:
    """The figure, with the switch of the path above it; turning that draws nothing else anew.

    ``as_measured`` is the same assignment on the machine that was measured, drawn beneath.
    """
    marked = st.toggle(
        "Mark the critical path",
        value=True,
        key="path",
        bind="query-params",
        help="The chain of work, transfers and copies that decides when the last gradient is "
        "available: shortening anything else would not shorten the step. It runs as a thin "
        "band above the bars of a lane.",
    )
    data = timeline_data(shown.timeline)
    marks = path_marks(shown.timeline, shown.path) if marked else ()
    figure = draw_timeline(data, marks, meta=mark(state))
    before = None if as_measured is None else draw_timeline(timeline_data(as_measured.timeline))
    if before is not None and as_measured is not None:  # one scale for both
        last_ms = max(shown.timeline.sync_end_ns, as_measured.timeline.sync_end_ns) / NS_PER_MS
        for each in (figure, before):
            each.update_xaxes(range=[0, 1.01 * last_ms])
        before.update_layout(height=before.layout.height - 80, showlegend=False, margin={"t": 0})
        before.update_xaxes(title=None)  # as above: so the sweep stays near the timeline
    chart(figure, TIMELINE, "Timeline of compute, communication and copies")
    st.caption(
        "The same colour is the same bucket on every figure. Hatched: exposed, after "
        "backward has ended. Dotted: copies into a bucket. Hover for a bucket's life; drag "
        "to zoom, double-click to go back."
    )
    if data.note:
        st.info(data.note)
    if before is not None:
        st.markdown("**The same on the machine as it was measured**")
        chart(before, "timeline_as_measured", "The same timeline on the machine as it was measured")
