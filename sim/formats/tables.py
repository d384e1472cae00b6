"""Tidy rows as CSV text."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from sim.nouns.rows import SweepRow
from sim.nouns.scaling_row import ScalingRow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def sweep_csv(rows: Iterable[SweepRow]) -> str:
    """A sweep as CSV: one row a candidate, times in ns; DDP's default has an empty ``bucket_cap_mb``."""
    return _csv(SweepRow, rows)


def scaling_csv(rows: Iterable[ScalingRow]) -> str:
    """A scaling view as CSV: one row a machine, times in ns; what is None is empty."""
    return _csv(ScalingRow, rows)


def _csv(kind: "type[DataclassInstance]", rows: "Iterable[DataclassInstance]") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(asdict(row))
    return text.getvalue()
