"""Every entry of the catalogue at every size: what ``make bench`` writes into README.md.

Timed in processor time: all entries run in one thread, and what others do on the machine is not in it.
"""

import gc
import time
from functools import cache
from typing import Any

import pytest

from tests.bench.catalogue import ENTRIES, Entry, Timed
from tests.bench.clock import CLOCK, hand_over

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
@pytest.mark.benchmark(timer=CLOCK)
def test_entry(entry: Entry, size: int, benchmark: Any) -> None:
    compile_kernels_of(entry)
    seconds, answer = rounds(entry.prepare(size))
    hand_over(benchmark, seconds)
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


@cache
def compile_kernels_of(entry: Entry) -> None:
    entry.prepare(SMALLEST)()


def rounds(run: Timed) -> tuple[list[float], Any]:
    """Seconds of each round, all of them counted, and what the last one answered."""
    seconds: list[float] = []
    gc.disable()
    try:
        while len(seconds) < FEWEST or (sum(seconds) < ENOUGH_S and len(seconds) < MOST):
            began = time.process_time()
            answer = run()
            seconds.append(time.process_time() - began)
    finally:
        gc.enable()
    return seconds, answer
