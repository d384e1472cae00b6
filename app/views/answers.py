"""What to set: a strip under the cards, and below the sweep the lines to paste, with the rest folded away."""

from functools import partial

import streamlit as st

import sim
from app.answering import Answer
from app.cached import Inputs
from app.choosing import Choice
from app.views import export, knobs, reasons
from app.views.folding import folded
from app.words import labels
from app.words import tune as words
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Recommendation
from sim.units import format_number


def strip(answer: Answer, choice: Choice, under: str) -> None:
    """The answer in a line, with the button that shows it; before any figure."""
    is_cap_shown = choice.pick == "cap" and choice.cap_mb == answer.cap_mb and choice.first_mb is None
    is_shown = is_cap_shown if answer.pick == "cap" else choice.pick == answer.pick
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"**{labels.plain(words.answer_sentence(answer, under))}**", width="stretch")
        st.button(
            "Shown" if is_shown else "Apply the recommended",
            key="apply",
            on_click=knobs.show_answer,
            args=(answer.pick, answer.cap_mb if answer.pick == "cap" else None, choice),
            disabled=is_shown,
            type="primary",
            icon=":material/check:",
        )
        if answer.pick == "recommended" and answer.cap_mb is not None:
            st.button(
                f"Show bucket_cap_mb={format_number(answer.cap_mb, 6)}".replace("_", "\\_"),
                key="apply_cap",
                on_click=knobs.show_answer,
                args=("cap", answer.cap_mb, choice),
                disabled=is_cap_shown,
            )


def show(
    inputs: Inputs, found: Recommendation, answer: Answer, under: str, measured: str | None = None
) -> None:
    """The answer whole; ``found`` is what the search found, which knows nothing of ``under``.

    ``measured`` is what real ranks took with it, in a sentence.
    """
    with st.container(border=True):
        st.subheader("Recommended")
        st.markdown(f"**{labels.plain(words.answer_sentence(answer, under))}**")
        if measured is not None:
            st.markdown(labels.plain(measured))
        if answer.pick != "default":
            _lines(answer.played.assignment, inputs)
        if not under:
            st.markdown(labels.plain(found.plateau.sentence))
        for note in found.notes:
            st.info(labels.sentence(note), icon=":material/info:")
        title = labels.plain(words.best_title(found, answer.best, under))
        folded(title, "folded_best", partial(_best, inputs, found, answer, under))
        reasons.show(found, answer, under)


def _best(inputs: Inputs, found: Recommendation, answer: Answer, under: str) -> None:
    """The best buckets that were found, wherever they are cut, and how good they are."""
    if under and answer.best is not None:
        saved_ns = answer.default.report.step_ns - answer.best.report.step_ns
        st.markdown(
            f"**{labels.plain(words.possible_sentence(answer.best.report.step_ns, saved_ns, under))}**"
        )
    if under:
        st.caption(labels.plain(words.found_without(under)))
    st.markdown(f"**{labels.sentence(found.gain.sentence)}**")
    if not found.proved_optimal:
        st.badge(words.NOT_PROVED, color="orange")
    elif inputs.workload.is_of_whole_buckets:
        st.badge(words.PROVED_OVER_MERGES, color="orange")
    else:
        st.badge(words.PROVED, icon=":material/verified:", color="green")
    st.markdown(labels.sentence(found.proof))
    _lines(found.assignment if answer.best is None else answer.best.assignment, inputs)


def _lines(assignment: Assignment, inputs: Inputs) -> None:
    try:
        lines = sim.snippet(assignment, inputs.workload, torch=export.torch_asked())
    except SimError as error:
        st.info(labels.plain(str(error)))
        return
    st.code(lines, language="python", wrap_lines=True)
