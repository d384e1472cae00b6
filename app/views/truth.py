"""Is it true? What real ranks did, beside what is predicted: the section of the Tune page."""

from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import cached, cached_records
from app.answering import Answer
from app.cached import Inputs, Played
from app.cached_records import Opened, Source
from app.figures.measured import attribution_data
from app.library import Library
from app.views import record_parts
from app.views.errors import told
from app.views.folding import folded
from app.views.record_parts import row_of
from app.words import labels
from app.words import tune as words
from app.words import validate as validate_words
from sim.errors import SimError
from sim.nouns.comparison import Agreement, CandidateAgreement


def show(
    library: Library,
    record: Source | None,
    inputs: Inputs,
    shown: Played,
    *,
    is_scaled: bool,
    warning: DeltaGenerator,
) -> CandidateAgreement | None:
    """Draw the section for the record that belongs to the inputs, if one does.

    ``warning`` is where a reader of the figures above is told that the comparison is an ablation. Returns the
    measured candidate that is what the page shows, None where none is.
    """
    st.subheader("Is it true?")
    if record is None:
        st.info(
            "No measured run belongs to this workload on this hardware. "
            + ("Start from a measured run to see one, or measure" if library.records else "Measure")
            + " your own with `bucketsim validate`."
        )
        return None
    if is_scaled:
        st.info(labels.NO_LONGER)
        return None
    with told():
        opened = cached_records.open_record(record)
        unlike = _unlike(opened, inputs)
        if unlike is None:
            return _compare(opened, shown, warning)
        st.info(unlike)
    return None


def of_answer(record: Source | None, inputs: Inputs, answer: Answer) -> str | None:
    """What real ranks took with the answer, if the run of these very inputs measured it; None where not."""
    if record is None or answer.pick == "default":
        return None
    try:
        opened = cached_records.open_record(record)
        if _unlike(opened, inputs) is not None:
            return None
        agreement = cached_records.agreement(opened)
    except SimError:  # told above, where the run is compared
        return None
    row = row_of(agreement, answer.played)
    return None if row is None else words.measured_sentence(row, row_of(agreement, answer.default))


def _unlike(opened: Opened, inputs: Inputs) -> str | None:
    """Why a run is not compared with ``inputs``; None where it was of just these."""
    if cached.as_measured(opened.key, lambda: opened.record).key != inputs.key:
        return words.OTHER_CONDITIONS
    return None


def _compare(opened: Opened, shown: Played, warning: DeltaGenerator) -> CandidateAgreement | None:
    copies = record_parts.copies()
    with st.spinner("Comparing with the measurement …"):
        whole = cached_records.agreement(opened)
        agreement = whole if copies else cached_records.agreement(opened, copies=False)
    if not copies:
        warning.warning(words.COPIES_OFF)
        st.warning(validate_words.COPIES_NOTE)
    same = row_of(whole, shown)
    if same is None:
        st.info(words.NOT_MEASURED, icon=":material/visibility_off:")
    record_parts.verdict(agreement)
    if any(row.name == "recommended" for row in agreement.rows):
        st.caption(words.RECOMMENDED_CANDIDATE)
    record_parts.table(agreement)
    record_parts.steps(agreement)
    if attribution_data(agreement):
        folded("Where the error comes from", "folded_error", partial(record_parts.attribution, agreement))
    _overlay(agreement, None if same is None else same.name)
    return same


@st.fragment
def _overlay(agreement: Agreement, same: str | None) -> None:
    names = [row.name for row in agreement.rows]
    if same is not None and st.session_state.get("overlay_follows") != same:
        st.session_state["overlay_follows"] = st.session_state["overlay"] = same
    name = st.selectbox(
        "Candidate", names, key="overlay", help="Follows the assignment shown, if it was measured."
    )
    record_parts.overlay(next(row for row in agreement.rows if row.name == name))
