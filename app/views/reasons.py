"""Beside the recommendation: why a step takes what it takes, and whether a gain shows."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from app.answering import Answer
from app.views.folding import folded
from app.words import labels
from app.words import tune as words
from app.words.tune import COLUMN_HELP
from sim.nouns.path import PathSpan
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.robust import Robust


def show(found: Recommendation, answer: Answer, under: str) -> None:
    """Two expanders.

    Paths are those of what the page plays, under its switches and beside its ranks; how steps vary is known
    without them.
    """
    folded("Why: the critical path", "folded_why", partial(_why, answer))
    without = labels.plain(f", without {under}") if under else ""
    if found.robust is not None:
        folded(f"Does it show? Steps as they vary{without}", "folded_robust", partial(_robust, found.robust))


def _why(answer: Answer) -> None:
    for title, played in words.reasoned(answer).items():
        _path(title, played.report, played.path)


def _path(title: str, report: Report, path: Sequence[PathSpan]) -> None:
    st.markdown(f"**{labels.plain(title)}**: {labels.sentence(report.verdict)}")
    st.dataframe(
        [
            {
                "what": row.words,
                "bucket": row.bucket,
                "from, ms": row.start_ns / 1e6,
                "to, ms": row.end_ns / 1e6,
                "takes, ms": (row.end_ns - row.start_ns) / 1e6,
            }
            for row in labels.path_rows(path)
        ],
        hide_index=True,
        column_config=_columns(("what", "bucket"), ("from, ms", "to, ms", "takes, ms")),
        placeholder="",
    )


def _columns(words: Sequence[str], numbers: Sequence[str]) -> dict[str, Any]:
    """Columns with their help; numbers to two places."""
    return {name: st.column_config.Column(help=COLUMN_HELP[name]) for name in words} | {
        name: st.column_config.NumberColumn(format="%.2f", help=COLUMN_HELP[name]) for name in numbers
    }


def _robust(robust: Robust) -> None:
    if robust.draws > 1:
        st.dataframe(
            [
                {
                    "candidate": labels.family_words(row.name),
                    "mean, ms": row.mean_step_ns / 1e6,
                    "95th percentile, ms": row.p95_step_ns / 1e6,
                    "gain, ms": row.gain_ns / 1e6,
                    "at least, ms": row.gain_low_ns / 1e6,
                    "at most, ms": row.gain_high_ns / 1e6,
                }
                for row in sorted(robust.rows, key=lambda row: row.mean_step_ns)
            ],
            hide_index=True,
            column_config=_columns(
                ("candidate",),
                ("mean, ms", "95th percentile, ms", "gain, ms", "at least, ms", "at most, ms"),
            ),
        )
    st.caption(labels.plain(labels.robust_sentence(robust)))
