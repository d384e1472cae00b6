"""The manual's table of sharded systems is what the records say, and predictions of them hold."""

from statistics import median

import sim
from tests.contracts import sharded
from tests.manual.pages import TRUTH, assert_holds
from tests.scoring import scored

LIMIT = 0.03
SYSTEMS = {"ddp", "megatron", "fully_shard", "replicate", "zero1", "zero2"}


def test_the_manual_has_every_sharded_system_with_its_measured_error() -> None:
    assert sharded.records()
    assert_holds(TRUTH, sharded.table())


def test_every_sharded_system_was_measured() -> None:
    measured = [one for directory in sharded.records() for one in sim.load_record(directory).measurements]
    assert {one.asked.policy for one in measured if one.asked is not None} >= SYSTEMS


def test_predictions_of_sharded_systems_hold() -> None:
    errors = {}
    for directory in sharded.records():
        agreement = scored(directory)
        assert agreement.order_right == agreement.order_pairs > 0
        errors |= {(directory.name, row.name): abs(row.step_error) for row in agreement.rows}
    assert median(errors.values()) <= 0.01
    assert max(errors.values()) <= LIMIT, errors


def test_they_were_calibrated_before_they_were_measured() -> None:
    for directory in sharded.records():
        record = sim.load_record(directory)
        assert record.hardware.low_rank_bytes_per_s is not None
        assert record.hardware.queued_gather_factor < 1
        for measurement in record.measurements:
            assert measurement.complete
            assert record.hardware.provenance["date"] < measurement.provenance["date"]
