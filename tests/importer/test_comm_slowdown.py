"""What computation costs all-reduces, out of traces of a known truth; and the steps predicted from it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.importer.kineto.several_ranks import Transfer
from sim.importer.kineto.slowed import FEWEST, find_comm_slowdown
from sim.nouns.comparison import CandidateAgreement
from sim.nouns.imported import Imported
from sim.nouns.records import Record
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job
from tests.importer.test_kineto_built import imported

# A transformer on a slow wire: all-reduces queue up, and the last ones run after backward.
LAYER = ((1024, 1024), (1024,))
JOB = Job(
    shapes=(*LAYER * 6, (4096, 1024)),
    buckets=(2, 2, 2, 2, 2, 2, 1),
    gradient_ns=(400_000, 100_000) * 6 + (300_000,),
    transfer_ns=(600_000,) * 6 + (2_400_000,),
    forward_ns=((1_500_000,) * 4,) * 5,
    offsets_ns=(0, 3_000_000, -2_000_000, 500_000),
)


def as_run(found: Imported) -> CandidateAgreement:
    assert found.workload is not None
    record = Record(
        name="as run",
        workload=found.workload,
        hardware=found.hardware[0],
        measurements=found.measurements,
    )
    (row,) = sim.agreement(record).rows
    return row


def exposed_ns(found: Imported) -> int:
    return int(found.details["steps"][0]["sync_end_ns"] - found.details["steps"][0]["backward_ns"])


@settings(deadline=None, max_examples=tries(20))
@given(slowdown=st.floats(1.05, 2.0), jitter=st.lists(st.floats(0.9, 1.1), min_size=5, max_size=5))
def test_the_slowdown_that_was_built_in_is_found(slowdown: float, jitter: list[float]) -> None:
    job = replace(JOB, comm_slowdown=slowdown, transfer_factors=tuple(jitter))
    found, _ = imported(job, Dialect())
    (hardware,) = found.hardware
    assert hardware.comm_slowdown == pytest.approx(slowdown, rel=max(jitter) / min(jitter) - 1 + 1e-3)


@pytest.mark.parametrize("slowdown", [1.0, 1.3, 1.7])
def test_a_step_is_predicted_from_transfers_that_nothing_runs_beside(slowdown: float) -> None:
    job = replace(JOB, comm_slowdown=slowdown)
    found, truth = imported(job, Dialect())
    (hardware,) = found.hardware
    sizes = {point.num_bytes: point.duration_ns for point in hardware.all_reduce}
    assert hardware.comm_slowdown == pytest.approx(slowdown, rel=1e-3)
    assert sizes[4 * 1024 * 1025] == pytest.approx(600_000, rel=1e-3)
    assert sizes[4 * 4096 * 1024] == pytest.approx(2_400_000, rel=1e-3)
    exposed = truth[0][0].sync_end_ns - truth[0][0].backward_end_ns
    assert exposed_ns(found) == exposed
    row = as_run(found)
    assert row.predicted.exposed_comm_ns == pytest.approx(exposed, rel=5e-3)
    assert max(abs(end.error_ns) for end in row.bucket_ends) < 30_000
    told = [line for line in found.found if "times as long beside backward as after it" in line]
    assert told[0].startswith(f"all-reduces take {slowdown:.2f} times as long")


def test_what_no_size_shows_is_not_guessed() -> None:
    """Sizes that ran on one side of backward's end only: the curve is as they ran, and that is said."""
    job = replace(JOB, transfer_ns=(50_000,) * 6 + (2_400_000,), comm_slowdown=1.4)
    found, _ = imported(job, Dialect())
    assert found.hardware[0].comm_slowdown == 1.0
    assert any(
        "what computation beside them costs all-reduces is not known" in line for line in found.assumed
    )
    assert not any("beside backward as after" in line for line in found.found)


def test_waits_for_ranks_that_are_missing_are_not_taken_for_computation() -> None:
    """A rank that others wait for, beside backward and not after it: of one rank no slow-down is told."""
    late = replace(JOB, forward_ns=((1_500_000, 2_500_000, 1_500_000, 1_500_000),) * 5)
    for ranks in (1, 3, 4):
        found, _ = imported(late, Dialect(), ranks=ranks)
        assert found.hardware[0].comm_slowdown == pytest.approx(1.0, abs=1e-3)
    found, _ = imported(replace(JOB, comm_slowdown=1.3), Dialect(), ranks=1)
    assert found.hardware[0].comm_slowdown == 1.0
    assert any("without a wait for ranks that are missing" in line for line in found.assumed)


@pytest.mark.parametrize("slowdown", [1.0, 1.3, 1.7])
def test_one_rank_tells_it_by_what_was_ready_longer_than_it_took(slowdown: float) -> None:
    job = replace(JOB, gradient_ns=(200_000, 50_000) * 6 + (2_000_000,), comm_slowdown=slowdown)
    found, _ = imported(job, Dialect(), ranks=1)
    assert found.hardware[0].comm_slowdown == pytest.approx(slowdown, rel=1e-3)
    row = as_run(found)
    assert max(abs(end.error_ns) for end in row.bucket_ends) < 50_000


@pytest.mark.parametrize("factors", [(1.0, 1.3, 1.2, 1.25, 1.3), (0.8, 1.0, 1.1, 1.0, 1.05)])
def test_one_rank_shows_what_queues_after_backward_without_its_least_step(factors: tuple[float, ...]) -> None:
    """What was sent behind another, after backward, waited for nobody: its median counts, not its best."""
    found, _ = imported(replace(JOB, transfer_factors=factors), Dialect(), ranks=1)
    middle = sorted(factors)[2]
    largest = found.hardware[0].all_reduce[-1]
    assert largest.duration_ns == pytest.approx(2_400_000 * middle, rel=1e-3)
    row = as_run(found)
    measured = row.measured_sync_end_ns - row.predicted.backward_end_ns
    least = sum(JOB.transfer_ns) * min(factors) - (row.predicted.backward_end_ns - 500_000)
    assert abs(row.predicted.exposed_comm_ns - measured) < 0.3 * abs(least - measured)


def transfer(num_bytes: int, duration_ns: int, beside_ns: int, *, is_shared: bool = False) -> Transfer:
    return Transfer(
        step=0,
        place=0,
        num_bytes=num_bytes,
        start_ns=0,
        end_ns=duration_ns,
        duration_ns=duration_ns,
        arrived_ns=(0,),
        waits_ns=(0,),
        beside_ns=beside_ns,
        is_shared=is_shared,
        is_waitless=False,
    )


def test_only_enough_transfers_that_have_the_wire_for_themselves_tell() -> None:
    beside, after = transfer(1000, 150, 150), transfer(1030, 103, 0)
    assert find_comm_slowdown([beside] * (FEWEST - 1) + [after] * 9) is None
    assert find_comm_slowdown([beside] * 9 + [after] * (FEWEST - 1)) is None
    assert find_comm_slowdown([beside] * 9 + [replace(after, is_shared=True)] * 9) is None
    assert find_comm_slowdown([beside] * 9 + [replace(after, num_bytes=1100)] * 9) is None
    assert find_comm_slowdown([beside] * 9 + [replace(after, beside_ns=50)] * 9) is None
    found = find_comm_slowdown([beside] * FEWEST + [after] * FEWEST)
    assert found is not None
    assert found.slowdown == pytest.approx(1.5)
    faster = find_comm_slowdown([replace(beside, duration_ns=80, beside_ns=80)] * 3 + [after] * 3)
    assert faster is not None
    assert (faster.slowdown, round(faster.ratio, 3)) == (1.0, 0.8)
