"""DDP under torch.compile: the manual's table is what the record says, and predictions of it hold."""

from statistics import median

import sim
from tests.manual.pages import MODELLED, assert_holds
from tests.training.compiled import TRACES, scored, table
from tests.training.compiled_train import CASES


def test_the_manual_has_the_table() -> None:
    assert_holds(MODELLED, table())


def test_what_the_eager_recording_says_of_compiled_steps_holds() -> None:
    """Ready order and buckets are those that were seen, steps within 4 %, in the predicted order."""
    (folder,) = sim.find_records(TRACES)
    record, agreement = sim.load_record(folder), scored(folder)
    assert {row.name for row in agreement.rows} == set(CASES)
    for measured in record.candidates:
        assert measured.asked is not None
        assert measured.asked.bucket_indices == measured.observed, measured.name
        own = sim.load_workload(folder / "own" / f"{measured.name}.json")
        played = sim.simulate(record.workload, record.hardware, measured.asked, "analytic").workload
        assert played.order() == own.order(), measured.name
    errors = [abs(row.step_error) for row in agreement.rows]
    assert median(errors) <= 0.015
    assert max(errors) <= 0.04
    assert agreement.order_right == agreement.order_pairs > 0
