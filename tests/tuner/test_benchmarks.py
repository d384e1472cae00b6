"""Every benchmark once, at a size at which it takes no time: not a measurement, but a check that it runs."""

import pytest

from sim.tuner.problem import Problem
from tests.machines import machine, model
from traces.tools.bench.__main__ import tell
from traces.tools.bench.catalogue import ENTRIES, Entry, best
from traces.tools.bench.plain_dp import earliest_finish

FEW = 13


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.table}; {entry.row}")
def test_an_entry_runs_and_judges_its_answer(entry: Entry) -> None:
    answer = entry.prepare(FEW)()
    assert entry.judge is None or entry.judge(FEW, answer)


@pytest.mark.parametrize("name", ["affine", "concave"])
@pytest.mark.parametrize("count", [2, FEW, 161])
def test_the_plain_programme_is_exact_without_copies(name: str, count: int) -> None:
    buckets = earliest_finish(Problem(model(count, name), machine(name)))
    end = Problem(model(count, name), machine(name)).sync_end_ns(buckets)
    # The programme counts in floats, the engines round each all-reduce.
    assert end == pytest.approx(best(name, count).sync_end_ns, abs=len(buckets))


def test_rows_become_tables() -> None:
    row = {"table": "T", "size": 161, "seconds": [0.5, 0.5, 0.5], "worth": "best"}
    told = tell(
        [{**row, "row": "ours", "is_reference": True}, {**row, "row": "theirs", "seconds": [1, 1]}], ""
    )
    assert "| ours | 500 ms (0 ns), 1x |" in told
    assert "| theirs | 1 s (0 ns), 2x |" in told
    assert "| theirs | best |" in told
