"""Is it true? What real ranks did, beside what is predicted: the section of the Tune page."""

import streamlit as st

from app import cached_records
from app.cached import Played
from app.cached_records import Source
from app.figures.measured import attribution_data
from app.library import Library
from app.views import record_parts
from app.views.errors import told
from app.views.record_parts import regret_words, row_of
from app.words import labels
from sim.nouns.comparison import Agreement

__all__ = ["regret_words", "row_of", "show"]


def show(library: Library, record: Source | None, shown: Played, *, is_scaled: bool) -> Agreement | None:
    """Draw the section for the record that belongs to the inputs, if one does.

    Returns the agreement that it showed, None where nothing measured applies.
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
        return _compare(record, shown)
    return None


def _compare(record: Source, shown: Played) -> Agreement:
    copies = record_parts.copies()
    with st.spinner("Comparing with the measurement …"):
        agreement = cached_records.agreement(cached_records.open_record(record), copies)
    record_parts.verdict(agreement)
    record_parts.table(agreement)
    record_parts.steps(agreement)
    if attribution_data(agreement):
        with st.expander("Where the error comes from"):
            record_parts.attribution(agreement)
    _overlay(agreement, shown)
    return agreement


@st.fragment
def _overlay(agreement: Agreement, shown: Played) -> None:
    names = [row.name for row in agreement.rows]
    same = row_of(agreement, shown)
    if same is not None and st.session_state.get("overlay_follows") != same.name:
        st.session_state["overlay_follows"] = st.session_state["overlay"] = same.name
    name = st.selectbox(
        "Candidate", names, key="overlay", help="Follows the assignment shown, if it was measured."
    )
    record_parts.overlay(next(row for row in agreement.rows if row.name == name))
