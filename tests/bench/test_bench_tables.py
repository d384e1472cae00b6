"""Every entry of the catalogue at every size: what ``make bench`` writes into README.md.

Timed in processor time: all entries run in one thread, and what others do on the machine is not in it.
"""

import time
from typing import Any

import pytest

from tests.bench.catalogue import ENTRIES, Entry

pytestmark = pytest.mark.bench


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        pytest.param(entry, size, id=f"{entry.table}; {entry.row}; {size}")
        for entry in ENTRIES
        for size in entry.sizes
    ],
)
@pytest.mark.benchmark(min_rounds=5, max_time=0.3, disable_gc=True, timer=time.process_time)
def test_entry(entry: Entry, size: int, benchmark: Any) -> None:
    run = entry.prepare(size)
    run()  # compiles what it needs
    answer = benchmark(run)
    benchmark.group = entry.table
    benchmark.extra_info |= {
        "table": entry.table,
        "row": entry.row,
        "size": size,
        "is_reference": entry.is_reference,
        "units": entry.units,
        "unit": entry.unit,
        "worth": "" if entry.judge is None else entry.judge(size, answer),
    }
