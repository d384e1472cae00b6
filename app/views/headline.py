"""How bad is it: the cards of a step and the sentence that names what limits it."""

from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.cached import Played
from app.words import labels
from app.words.switches import switches_beyond
from sim.units import format_ms, format_percent

# Keys of the places in which the browser draws while a slider moves.
CARDS, SENTENCE = "cards", "sentence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A figure with its name above and what it is a part of below; ``told`` explains it."""

    label: str
    value: str
    told: str | None = None
    below: str | None = None


def step_cards(shown: Played, as_measured: Played | None = None) -> tuple[Card, Card, Card]:
    """The cards of a step, but for its gain; ``as_measured`` is the same on the measured machine."""
    report = shown.report
    before = (
        None if as_measured is None else f"on the measured machine: {format_ms(as_measured.report.step_ns)}"
    )
    return (
        Card(label="Step time", value=format_ms(report.step_ns), told=labels.HELP["step"], below=before),
        Card(
            label="Exposed communication",
            value=format_ms(report.exposed_comm_ns),
            told=labels.HELP["exposed"],
            below=_exposed_words(shown),
        ),
        Card(label="Overlap", value=format_percent(report.overlap_ratio), told=labels.HELP["overlap"]),
    )


def show(shown: Played, as_measured: Played | None = None) -> tuple[DeltaGenerator, DeltaGenerator]:
    """The cards and the sentence; ``as_measured`` is the same on the measured machine, if this is another.

    Returns the gain's place, for ``draw`` once the default is played, and one right under the cards.
    """
    report = shown.report
    with st.container(key=CARDS):
        *columns, gain_column = st.columns(4)
    for column, card in zip(columns, step_cards(shown, as_measured), strict=True):
        draw(column, card)
    place = gain_column.empty()
    draw(place, _gain_card("…", "of its step"))
    below = st.container()
    with st.container(key=SENTENCE):
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
    """The share of the step; where earlier micro-batches reduce as well, in how many."""
    report = shown.report
    share = f"{labels.share(report.exposed_comm_ns, report.step_ns)} of the step"
    batches = len(report.exposed_by_micro_batch_ns)
    return share if batches <= 1 else f"{share}, in {batches} micro-batches"


def gain_card(
    shown: Played,
    default: Played,
    possible: Played | None,
) -> Card:
    """The gain of what is shown and, below it, what could be gained, where that was searched for.

    ``possible`` is what is recommended, played for the same job under the same switches.
    """
    base = default.report.step_ns
    saved = base - shown.report.step_ns
    beyond = ", switches and all" if switches_beyond(shown.assignment, default.assignment) else ""
    words = f"{labels.share(saved, base)} of its step{beyond}"
    if possible is not None and possible.report.step_ns < shown.report.step_ns:
        words = f"possible: {format_ms(base - possible.report.step_ns)}"
    return _gain_card(format_ms(saved), words)


def _gain_card(value: str, below: str) -> Card:
    return Card(label="Gain against DDP's default", value=value, told=labels.HELP["gain"], below=below)


def draw(place: DeltaGenerator, card: Card) -> None:
    """Draw a card at its place."""
    place.metric(
        card.label,
        card.value,
        card.below,
        delta_color="off",
        delta_arrow="off",
        help=card.told,
        border=True,
        height="stretch",
    )
