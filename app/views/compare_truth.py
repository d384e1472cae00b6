"""Is it true? Measured steps of those candidates that real ranks ran."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import cached_records
from app.cached import Inputs
from app.cached_compare import Result
from app.library import Library
from app.views.errors import told
from app.views.record_parts import row_of
from app.views.sources import Given, measured_run
from app.words import compare as words
from app.words import labels
from sim.nouns.comparison import Agreement, CandidateAgreement


def show(given: Given, library: Library, results: Sequence[Result]) -> None:
    """Draw the section, for the measured run that belongs to the page's inputs, if one does."""
    st.subheader("Is it true?")
    measured = measured_run(library, given)
    if measured is None:
        st.info(words.NOT_MEASURED)
        return
    with told():
        agreement = cached_records.agreement(cached_records.open_record(measured))
        rows = truth_rows(agreement, results, given.inputs)
        if not rows:
            st.info(words.NOT_MEASURED)
            return
        two = st.column_config.NumberColumn(format="%.2f")
        signed = st.column_config.NumberColumn(format="%+.2f")
        st.dataframe(
            rows,
            hide_index=True,
            column_config={
                "candidate": st.column_config.TextColumn(pinned=True),
                **{name: two for name in rows[0] if name.endswith(", ms")},
                "error, %": signed,
                "faster than A, measured, ms": signed,
                "faster than A, predicted, ms": signed,
            },
        )
        st.caption(labels.plain(labels.rule_words(agreement)))


def measured_of(agreement: Agreement, result: Result, measured: Inputs) -> CandidateAgreement | None:
    """The measured candidate that is this one: the same buckets, and the same prediction to the nanosecond.

    Buckets alone would not do: switches change a step, and a machine does that is not that of ``measured``,
    by whatever name it was chosen.
    """
    row = row_of(agreement, result.played)
    same = row is not None and row.predicted_step_ns == result.played.report.step_ns
    return row if same and result.inputs.key == measured.key else None


def truth_rows(agreement: Agreement, results: Sequence[Result], measured: Inputs) -> list[dict[str, Any]]:
    """A row a measured candidate, of those on the inputs that were ``measured``; what it gains on A where A
    was measured too.
    """
    found = [(one, row) for one in results if (row := measured_of(agreement, one, measured)) is not None]
    base = next((row for one, row in found if one is results[0] and one.letter == "A"), None)
    rows = []
    for one, row in found:
        told: dict[str, Any] = {
            "candidate": one.name,
            "measured as": row.name,
            "measured, ms": row.measured_step_ns / 1e6,
            "95 % interval": labels.interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval),
            "predicted, ms": row.predicted_step_ns / 1e6,
            "error, %": row.step_error * 100,
        }
        if base is not None:
            told["faster than A, measured, ms"] = (base.measured_step_ns - row.measured_step_ns) / 1e6
            told["faster than A, predicted, ms"] = (base.predicted_step_ns - row.predicted_step_ns) / 1e6
        rows.append(told)
    return rows
