"""A scored record to take home: all of its figures, the rows of its table, one candidate in Perfetto."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sim.nouns.comparison import Agreement

_COLUMNS = (
    "name",
    "iterations",
    "measured_step_ns",
    "step_low_ns",
    "step_high_ns",
    "predicted_step_ns",
    "step_error",
    "measured_exposed_ns",
    "predicted_exposed_ns",
    "exposed_error",
    "measured_backward_end_ns",
    "measured_sync_end_ns",
    "median_bucket_end_error",
    "probe_effect",
)


def agreement_json(agreement: Agreement, where_from: Mapping[str, Any]) -> str:
    """Everything that was compared, with each candidate's predicted report, as JSON; times in ns."""
    document = {**asdict(agreement), "provenance": dict(where_from)}
    return json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def rows_csv(agreement: Agreement, where_from: Mapping[str, Any]) -> str:
    """A row a candidate; times in ns, errors as shares, the digests of the inputs in each row."""
    digests = ("tool", "workload_sha256", "hardware_sha256")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["record", *_COLUMNS, *digests])
    for row in agreement.rows:
        figures = (getattr(row, name) for name in _COLUMNS)
        writer.writerow([agreement.name, *figures, *(where_from[name] for name in digests)])
    return out.getvalue()
