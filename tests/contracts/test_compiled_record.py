"""DDP under torch.compile: the manual's tables are what the records say, and predictions of them hold."""

from pathlib import Path
from statistics import median

import pytest

import sim
from tests.manual.pages import MODELLED, assert_holds
from traces.tools.compiled import TRACES, played, scored, table
from traces.tools.compiled_train import CASES

RECORDS = sim.find_records(TRACES)


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_the_manual_has_the_table(folder: Path) -> None:
    assert_holds(MODELLED, table(folder))


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_what_the_eager_recording_says_of_compiled_steps_holds(folder: Path) -> None:
    """Ready order and buckets are those that were seen, steps within 4 %, in the predicted order."""
    record = sim.load_record(folder)
    said, agreement = played(record), scored(record)
    assert {row.name for row in agreement.rows} == set(CASES)
    for measured in record.candidates:
        assert measured.asked is not None
        assert measured.asked.bucket_indices == measured.observed, measured.name
    for path in (folder / "own").iterdir():
        assert said[path.stem].workload.order() == sim.load_workload(path).order(), path.stem
    errors = [abs(row.step_error) for row in agreement.rows]
    assert median(errors) <= 0.015
    assert max(errors) <= 0.04
    assert agreement.order_right == agreement.order_pairs > 0
