"""Tidy rows as CSV text."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields

from sim.nouns.rows import SweepRow


def sweep_csv(rows: Iterable[SweepRow]) -> str:
    """A sweep as CSV: one row a candidate, times in ns; DDP's default has an empty ``bucket_cap_mb``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(SweepRow)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(asdict(row))
    return text.getvalue()
