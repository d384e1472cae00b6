"""Agreements as JSON: what ``agree --json`` and ``import --json`` print of them."""

from dataclasses import asdict
from typing import Any

from sim.cli.scores import Scored
from sim.nouns.comparison import BucketEnd, CandidateAgreement

_INTERVALS = ("step_low_ns", "step_high_ns", "exposed_low_ns", "exposed_high_ns")


def score_document(scored: Scored) -> dict[str, Any]:
    """What ``agree --json`` prints for one record."""
    return {
        **asdict(scored.agreement),
        "rows": [_row_document(row) for row in scored.agreement.rows],
        "without_copies": {
            "median_step_error": scored.without.median_step_error,
            "worst_step_error": scored.without.worst_step_error,
        },
    }


def bucket_end_document(end: BucketEnd) -> dict[str, Any]:
    """The end of a bucket as JSON; of too few iterations without an interval."""
    return asdict(end) | ({} if end.has_interval else {"low_ns": None, "high_ns": None})


def _row_document(row: CandidateAgreement) -> dict[str, Any]:
    facts = {**asdict(row), "bucket_ends": [bucket_end_document(end) for end in row.bucket_ends]}
    return facts if row.has_interval else facts | dict.fromkeys(_INTERVALS)
