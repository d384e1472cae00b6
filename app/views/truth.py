"""Is it true? What real ranks did, beside what is predicted."""

from pathlib import Path

import streamlit as st

from app import cached
from app.cached import Played
from app.figures.measured import (
    attribution_data,
    draw_attribution,
    draw_overlay,
    draw_steps,
    overlay_data,
    steps_data,
)
from app.library import Library
from app.views.errors import told
from app.words import labels
from sim.nouns.comparison import Agreement, CandidateAgreement, Regret

_CHART = {"displaylogo": False}


def show(library: Library, record: Path | None, shown: Played, *, is_scaled: bool) -> Agreement | None:
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


def _compare(record: Path, shown: Played) -> Agreement:
    copies = st.toggle(
        "Model the copies into and out of buckets",
        value=True,
        key="copies",
        bind="query-params",
        help=labels.HELP["copies"],
    )
    agreement = cached.agreement(record, copies)
    _verdict(agreement)
    _table(agreement)
    st.plotly_chart(
        draw_steps(steps_data(agreement)),
        key="steps",
        config=_CHART,
        alt="Measured and predicted step of each candidate",
    )
    _attribution(agreement)
    _overlay(agreement, shown)
    return agreement


def row_of(agreement: Agreement, shown: Played) -> CandidateAgreement | None:
    """The measured candidate with the very buckets that the page shows."""
    buckets = [sorted(bucket) for bucket in shown.assignment.bucket_indices]
    rows = (row for row in agreement.rows if [sorted(b) for b in row.bucket_indices] == buckets)
    return next(rows, None)


def _verdict(agreement: Agreement) -> None:
    words = labels.plain(labels.verdict_words(agreement))
    if agreement.passed is None:
        st.info(words, icon=":material/info:")
    elif agreement.passed:
        st.success(words, icon=":material/check_circle:")
    else:
        st.warning(words, icon=":material/error:")
    st.caption(labels.plain(labels.rule_words(agreement)))
    if agreement.passed is None:
        return
    if agreement.best_measured == agreement.best_predicted:
        best = f"Best measured and best predicted: {agreement.best_measured}."
    else:
        near = "within noise of it" if agreement.best_within_noise else "not within noise of it"
        best = (
            f"Best measured: {agreement.best_measured}; best predicted: {agreement.best_predicted}, {near}."
        )
    st.markdown(
        labels.plain(best if agreement.regret is None else f"{best} {regret_words(agreement.regret)}")
    )
    if agreement.targets:
        met = sum(check.met is True for check in agreement.targets)
        missed = ", ".join(check.name for check in agreement.targets if check.met is False)
        st.caption(
            labels.plain(
                f"Targets, set for paced replays in the box: {met} of {len(agreement.targets)} met"
                f"{f'; missed: {missed}' if missed else ''}."
            )
        )


def regret_words(regret: Regret) -> str:
    """What the recommendation lost against the best measured, in one sentence."""
    if not regret.regret_ns:
        return "The recommendation was the fastest."
    shown = f"over {regret.paired_rounds} rounds, too few for an interval"
    if regret.has_interval:
        shown = f"95 % interval {labels.interval_words(regret.low_ns, regret.high_ns, told=True)} ms"
    return (
        f"The recommendation was {regret.regret_ns / 1e6:.2f} ms ({regret.relative:.2%}) behind "
        f"{regret.best}, {shown}{': within noise' if regret.within_noise else ''}."
    )


def _attribution(agreement: Agreement) -> None:
    rows = attribution_data(agreement)
    if not rows:
        return
    with st.expander("Where the error comes from"):
        st.plotly_chart(
            draw_attribution(rows),
            key="attribution",
            config=_CHART,
            alt="Error of the end of synchronisation of each candidate, by mechanism",
        )
        st.caption(
            "The prediction is turned into the measurement one mechanism at a time; each bar is what its "
            "turn changed, and they add up to the error. Left: predicted too short."
        )


def _table(agreement: Agreement) -> None:
    rows = [
        {
            "candidate": row.name,
            "buckets": len(row.bucket_indices),
            "measured, ms": row.measured_step_ns / 1e6,
            "95 % interval": labels.interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval),
            "predicted, ms": row.predicted_step_ns / 1e6,
            "error, %": row.step_error * 100,
            "exposed measured, ms": row.measured_exposed_ns / 1e6,
            "exposed predicted, ms": row.predicted_exposed_ns / 1e6,
            "bucket ends, %": None
            if row.median_bucket_end_error is None
            else row.median_bucket_end_error * 100,
            "iterations": row.iterations,
        }
        for row in agreement.rows
    ]
    two = st.column_config.NumberColumn(format="%.2f")
    signed = st.column_config.NumberColumn(format="%+.2f")
    times = [name for name in rows[0] if name.endswith(" ms") and "interval" not in name]
    st.dataframe(
        rows,
        hide_index=True,
        column_config={
            **dict.fromkeys(times, two),
            "error, %": signed,
            "bucket ends, %": two,
        },
    )


@st.fragment
def _overlay(agreement: Agreement, shown: Played) -> None:
    names = [row.name for row in agreement.rows]
    same = row_of(agreement, shown)
    if same is not None and st.session_state.get("overlay_follows") != same.name:
        st.session_state["overlay_follows"] = st.session_state["overlay"] = same.name
    name = st.selectbox(
        "Candidate", names, key="overlay", help="Follows the assignment shown, if it was measured."
    )
    row = next(row for row in agreement.rows if row.name == name)
    if not row.buckets:
        st.info("This candidate was measured without a trace of its buckets.")
        return
    data = overlay_data(row)
    st.plotly_chart(
        draw_overlay(data),
        key="overlay_chart",
        config=_CHART,
        alt="Measured and predicted buckets of one candidate",
    )
    st.caption(labels.overlay_caption({pair.since for pair in data.pairs}))
