"""Parts of a record's picture that Tune and Validate share: verdict, table, steps, buckets, mechanisms."""

from typing import Any

import streamlit as st

from app.cached import Played
from app.figures.measured import (
    attribution_data,
    draw_attribution,
    draw_overlay,
    draw_steps,
    overlay_data,
    steps_data,
)
from app.figures.style import CHART
from app.words import labels
from app.words import validate as words
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES
from sim.nouns.comparison import Agreement, CandidateAgreement, Regret
from sim.nouns.report import Report
from sim.units import format_percent


def copies() -> bool:
    """The ablation: whether the model has the copies into and out of buckets."""
    return st.toggle(
        "Model the copies into and out of buckets",
        value=True,
        key="copies",
        bind="query-params",
        help=labels.HELP["copies"],
    )


def verdict(agreement: Agreement) -> None:
    """The outcome of the stated rule, the rule, the best, and the targets."""
    outcome = labels.plain(labels.verdict_words(agreement))
    if agreement.passed is None:
        st.info(outcome, icon=":material/info:")
    elif agreement.passed:
        st.success(outcome, icon=":material/check_circle:")
    else:
        st.warning(outcome, icon=":material/error:")
    st.caption(labels.plain(labels.rule_words(agreement)))
    if agreement.passed is None:
        return
    best = words.best_words(agreement)
    st.markdown(
        labels.plain(best if agreement.regret is None else f"{best} {regret_words(agreement.regret)}")
    )
    targets = words.targets_sentence(agreement)
    if targets is not None:
        st.caption(labels.plain(targets))


def regret_words(regret: Regret) -> str:
    """What the candidate ``recommended`` lost against the best measured, in one sentence."""
    if not regret.regret_ns:
        return 'The candidate "recommended" was the fastest.'
    shown = f"over {regret.paired_rounds} rounds, too few for an interval"
    if regret.has_interval:
        shown = f"95 % interval {labels.interval_words(regret.low_ns, regret.high_ns, told=True)} ms"
    return (
        f'The candidate "recommended" was {regret.regret_ns / 1e6:.2f} ms '
        f"({format_percent(regret.relative, 2)}) "
        f"behind {regret.best}, {shown}{': within noise' if regret.within_noise else ''}."
    )


def table(agreement: Agreement) -> None:
    """A row a candidate."""
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
        column_config={**dict.fromkeys(times, two), "error, %": signed, "bucket ends, %": two},
        alt="Measured and predicted figures of each candidate",
    )


def steps(agreement: Agreement) -> None:
    """All candidates: measured with its interval, and predicted."""
    st.plotly_chart(
        draw_steps(steps_data(agreement)),
        key="steps",
        config=CHART,
        alt="Measured and predicted step of each candidate",
    )


def attribution(agreement: Agreement) -> None:
    """Where each candidate's error comes from, with a sentence for the largest."""
    rows = attribution_data(agreement)
    sentence = words.mechanism_sentence(rows)
    if sentence is None:
        st.info("The error cannot be attributed: that takes plain and noop runs, and every bucket traced.")
        return
    st.markdown(labels.plain(sentence))
    st.plotly_chart(
        draw_attribution(rows),
        key="attribution",
        config=CHART,
        alt="Error of the end of synchronisation of each candidate, by mechanism",
    )
    st.caption(words.ATTRIBUTION_CAPTION)


def row_of(agreement: Agreement, shown: Played) -> CandidateAgreement | None:
    """The measured candidate that is what the page shows: the same buckets, system and switches.

    And predicted alike, each bucket to the nanosecond: so no what-if, no slowest rank and no other
    micro-batches make the one differ from the other. ``agreement`` is one with copies in the model.
    """
    return next((row for row in agreement.rows if _means(row.predicted) == _means(shown.report)), None)


def _means(report: Report) -> tuple[Any, ...]:
    """All of a report that tells one assignment on one machine from another, not how it was computed."""
    kwargs = {k: v for k, v in report.provenance["ddp_kwargs"].items() if k not in CAP_KWARGS}
    return (
        "ddp" if report.policy in DDP_POLICIES else report.policy,
        [sorted(bucket) for bucket in report.bucket_indices],
        kwargs,
        report.buckets,
        report.pre_forward_ns,
        report.backward_end_ns,
        report.post_sync_ns,
        report.accumulation_ns,
        report.optimizer_ns,
        report.step_ns,
    )


def overlay(row: CandidateAgreement) -> None:
    """The buckets of one candidate, measured under predicted."""
    if not row.buckets:
        st.info("This candidate was measured without a trace of its buckets.")
        return
    data = overlay_data(row)
    st.plotly_chart(
        draw_overlay(data),
        key="overlay_chart",
        config=CHART,
        alt="Measured and predicted buckets of one candidate",
    )
    st.caption(labels.overlay_caption({pair.since for pair in data.pairs}))
