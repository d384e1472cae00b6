"""One record: verdict, table, the pictures of it, its origin, and files to take home."""

from collections.abc import Callable

import streamlit as st

import sim
from app import cached_records
from app.cached_records import Opened
from app.figures.iterations import draw_strips, strips_data
from app.figures.order import draw_order, order_data
from app.figures.parity import draw_parity, end_points, step_points
from app.figures.style import CHART
from app.provenance import origin_words, provenance
from app.record_exports import agreement_json, rows_csv
from app.views import export, record_parts
from app.words import labels
from app.words import validate as words
from sim.nouns.comparison import Agreement, CandidateAgreement


def show(opened: Opened, name: str) -> None:
    """Draw a record.

    Raises:
        SimError: it cannot be scored.
    """
    record = opened.record
    st.subheader(labels.plain(name))
    if record.candidates:
        st.caption(labels.plain(f"{record.workload.name} on {record.hardware.name}"))
    copies = record_parts.copies()
    with st.spinner("Comparing with the measurement …"):
        agreement = cached_records.agreement(opened, copies)
    if not copies:
        st.warning(words.COPIES_NOTE)
    record_parts.verdict(agreement)
    st.markdown(labels.plain(words.unseen_sentence(record)))
    st.caption(words.MODE_WORDS[agreement.mode])
    record_parts.table(agreement)
    look = st.segmented_control(
        "Look at",
        list(words.LOOKS),
        default="steps",
        required=True,
        format_func=words.LOOKS.__getitem__,
        key="look",
        bind="query-params",
        help=words.HELP["look"],
    )
    if look == "buckets":
        row = _candidate(agreement)
        record_parts.overlay(row)
    else:
        _pictures(opened, agreement)[look or "steps"]()
        row = _candidate(agreement)  # all of them are shown: it chooses what is taken home
    _take_home(opened, agreement, row, name, copies)
    with st.expander("Where it comes from"):
        for line in words.origin_lines(record):
            st.markdown(f"- {labels.plain(line)}")


def _candidate(agreement: Agreement) -> CandidateAgreement:
    names = [row.name for row in agreement.rows]
    if st.session_state.get("candidate") not in (None, *names):
        del st.session_state["candidate"]  # another record's
    name = st.selectbox(
        "Candidate", names, key="candidate", bind="query-params", help=words.HELP["candidate"], width=320
    )
    return next(row for row in agreement.rows if row.name == name)


def _pictures(opened: Opened, agreement: Agreement) -> dict[str, Callable[[], None]]:
    return {
        "steps": lambda: record_parts.steps(agreement),
        "order": lambda: _order(agreement),
        "parity": lambda: _parity(opened, agreement),
        "ends": lambda: _ends(agreement),
        "iterations": lambda: _iterations(opened, agreement),
        "why": lambda: record_parts.attribution(agreement),
    }


def _order(agreement: Agreement) -> None:
    data = order_data(agreement)
    st.markdown(labels.plain(words.order_sentence(data)))
    st.plotly_chart(
        draw_order(data),
        key="order",
        config={**CHART, "displayModeBar": False},
        alt="Candidates ranked by measured and by predicted step",
    )
    st.caption(words.ORDER_CAPTION)


def _parity(opened: Opened, agreement: Agreement) -> None:
    st.plotly_chart(
        draw_parity(step_points(agreement), sim.error_limit(opened.record), "step"),
        key="parity",
        config=CHART,
        alt="Predicted step over measured step of each candidate",
    )
    st.caption(words.PARITY_CAPTION)


def _ends(agreement: Agreement) -> None:
    points = end_points(agreement)
    if not points:
        st.info("No end of a bucket can be told: nothing was traced.")
        return
    st.plotly_chart(
        draw_parity(points, None, "bucket end"),
        key="ends",
        config=CHART,
        alt="Predicted over measured end of each bucket of each candidate",
    )
    st.caption(words.ENDS_CAPTION)


def _iterations(opened: Opened, agreement: Agreement) -> None:
    st.plotly_chart(
        draw_strips(strips_data(opened.record, agreement)),
        key="iterations",
        config=CHART,
        alt="Every measured iteration of each candidate, and its prediction",
    )
    st.caption(words.ITERATIONS_CAPTION)


def _take_home(
    opened: Opened, agreement: Agreement, row: CandidateAgreement, name: str, copies: bool
) -> None:
    where_from = provenance(cached_records.inputs(opened), {})
    if not copies:
        where_from["copies"] = "not modelled"
    file = labels.file_safe(name)

    def perfetto() -> str:
        timeline = cached_records.timeline(opened, row.name, copies)
        return sim.perfetto_json(timeline, row, provenance=where_from)

    buttons: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        ("Agreement JSON", lambda: agreement_json(agreement, where_from), "json", "Everything compared"),
        ("Rows CSV", lambda: rows_csv(agreement, where_from), "csv", "The table, times in ns"),
        (
            "Perfetto JSON",
            perfetto,
            f"{labels.file_safe(row.name)}.trace.json",
            "The chosen candidate, measured under predicted; open it in ui.perfetto.dev",
        ),
    )
    with st.container(horizontal=True):
        for label, make, ending, told in buttons:
            export.download(label, make, f"{file}.{ending}", told)
    st.caption(labels.plain(origin_words(where_from)))
