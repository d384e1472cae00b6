"""Every benchmark once, at a size at which it takes no time: not a measurement, but a check that it runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.tuner.problem import Problem
from tests.bench.catalogue import ENTRIES, Entry, best
from tests.bench.conftest import Tables
from tests.bench.machines import machine, model
from tests.bench.plain_dp import earliest_finish

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


def measured(row: str, size: int, median: float, **more: Any) -> dict[str, Any]:
    info = {"table": "T", "row": row, "size": size, "is_reference": False, "units": None, "unit": ""}
    return info | {"worth": "", "median": median, "iqr": median / 10} | more


def test_what_is_measured_is_written_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A run that is cut off keeps its rows, and says that others are missing."""
    target = tmp_path / "README.md"
    tables = Tables(request.config, target)
    done = SimpleNamespace(
        extra_info=measured("ours", 161, 0), stats=SimpleNamespace(stats=SimpleNamespace(median=0.5, iqr=0))
    )
    items = [
        SimpleNamespace(fixturenames=("benchmark",), funcargs={"benchmark": each})
        for each in (SimpleNamespace(extra_info={}, stats=None), done, done)
    ]
    tables.pytest_collection_finish(SimpleNamespace(items=items[1:]))
    tables.pytest_runtest_teardown(items[0])
    assert not target.exists()
    tables.pytest_runtest_teardown(items[1])
    assert "| ours | 500 ms (0 ns) |" in target.read_text()
    assert "Cut off: 1 more" in target.read_text()
    tables.pytest_runtest_teardown(items[2])
    assert "Cut off" not in target.read_text()
