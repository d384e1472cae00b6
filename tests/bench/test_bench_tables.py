"""Every entry of the catalogue at every size: what ``make bench`` writes into README.md.

Timed in processor time: all entries run in one thread, and what others do on the machine is not in it.
"""

import time
from typing import Any

import pytest

from tests.bench.catalogue import ENTRIES, Entry

pytestmark = pytest.mark.bench

SMALLEST = 13  # tensors
FEWEST, MOST, ENOUGH_S = 3, 100, 0.1  # rounds of an entry, and after what time there need not be more


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        pytest.param(entry, size, id=f"{entry.table}; {entry.row}; {size}")
        for entry in ENTRIES
        for size in entry.sizes
    ],
)
@pytest.mark.benchmark(disable_gc=True, timer=time.process_time)
def test_entry(entry: Entry, size: int, benchmark: Any) -> None:
    entry.prepare(SMALLEST)()  # compiles what it needs
    run = entry.prepare(size)
    began = time.process_time()
    run()
    took_s = time.process_time() - began
    answer = benchmark.pedantic(run, rounds=min(MOST, max(FEWEST, int(ENOUGH_S / max(took_s, 1e-6)))))
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
