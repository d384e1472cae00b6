"""The error of sync_end, by mechanism: worlds that differ from the model in one thing only."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement, Record
from sim.nouns.workload import Workload
from sim.truth.ladder import Attribution, attribute
from sim.units import divide_half_even, transfer_ns
from tests.effort import tries
from tests.handmade import handmade, measurement, wired

MS = 1_000_000
MIB = 1 << 20
COUNT = 12
PARTS = ("compute_ns", "copy_ns", "launch_ns", "communication_ns", "wait_ns")
ROUNDING = 2 * COUNT  # a nanosecond a copy and a stretched instant


def make_workload(sizes: list[int], gaps_ms: list[int]) -> Workload:
    ready = [sum(gaps_ms[: place + 1]) * MS for place in range(len(sizes))]
    times = {"forward_ns": 10 * MS, "backward_ns": ready[-1] + MS, "optimizer_ns": MS}
    return handmade(ready[::-1], sizes, **times)


def make_hardware(**more: Any) -> Hardware:
    values = {
        "launch_cost_ns": 40_000,
        "launch_blocks_compute": True,
        "copy_in_bytes_per_s": 8e9,
        "copy_out_bytes_per_s": 9e9,
    }
    return wired({0: 400_000, MIB: 3 * MS}, **values | more)


def step(backward_end: int, sync_end: int) -> MeasuredIteration:
    return MeasuredIteration(step_ns=sync_end + 11 * MS, backward_end_ns=backward_end, sync_end_ns=sync_end)


def lane(
    name: str, role: Any, backward_end: int, sync_end: int, asked: Assignment | None = None, **more: Any
) -> Measurement:
    return measurement(name, asked, [step(backward_end, sync_end)], role=role, **more)


def measured_in(
    workload: Workload, hardware: Hardware, assignment: Assignment, *, late_ns: int = 0
) -> tuple[Measurement, ...]:
    """What a replay measures where ``workload`` and ``hardware`` are the truth; ``late_ns``: the return of
    the last wait."""
    sizes = [gradient.num_bytes for gradient in workload.gradients]
    copied_in = workload.backward_ns + sum(transfer_ns(size, hardware.copy_in_bytes_per_s) for size in sizes)
    timeline = sim.simulate(workload, hardware, assignment)
    launched_before, buckets = 0, []
    for bucket in timeline.buckets:
        buckets.append(
            MeasuredBucket(
                index=bucket.index,
                ready_ns=max(bucket.ready_ns, launched_before),  # a hook is called after the one before
                launch_ns=bucket.launch_ns,
                start_ns=None,
                end_ns=bucket.end_ns,
            )
        )
        launched_before = bucket.launch_ns
    seen = step(timeline.backward_end_ns, timeline.sync_end_ns)
    return (
        lane("plain", "plain", workload.backward_ns, workload.backward_ns),
        lane(
            "noop",
            "noop",
            copied_in,
            copied_in + transfer_ns(sum(sizes), hardware.copy_out_bytes_per_s),
        ),
        lane(
            "c",
            "candidate",
            timeline.backward_end_ns,
            timeline.sync_end_ns + late_ns,
            asked=assignment,
            traced=(replace(seen, buckets=tuple(buckets)),),
        ),
    )


def attributed(record: Record) -> Attribution:
    found = attribute(record, record.candidates[0])
    assert found is not None
    parts = [getattr(found, part) for part in PARTS]
    assert sum(parts) == found.total_ns
    return found


def slower_backward(workload: Workload, percent: int) -> Workload:
    return replace(
        workload,
        backward_ns=divide_half_even(workload.backward_ns * percent, 100),
        gradients=tuple(
            replace(g, ready_ns=divide_half_even((g.ready_ns or 0) * percent, 100))
            for g in workload.gradients
        ),
    )


def slower_wire(hardware: Hardware, percent: int) -> Hardware:
    return replace(
        hardware,
        all_reduce=tuple(
            replace(point, duration_ns=point.duration_ns * percent // 100) for point in hardware.all_reduce
        ),
    )


workloads = st.builds(
    make_workload,
    st.lists(st.sampled_from([4096, MIB // 4, MIB, 3 * MIB]), min_size=COUNT, max_size=COUNT),
    st.lists(st.integers(0, 9), min_size=COUNT, max_size=COUNT),
)
machines = st.builds(
    make_hardware,
    comm_channels=st.sampled_from([1, 2]),
    channel_slowdown=st.sampled_from([1.0, 2.0]),
    comm_slowdown=st.sampled_from([1.0, 1.25]),
    launch_blocks_compute=st.booleans(),
)
# Where what overlaps slows down, an error of one mechanism changes what the others take, all but the compute
# lane's own. Launches are free here: a stretched launch is measured as a dear one.
contended = st.builds(
    make_hardware,
    comm_channels=st.sampled_from([1, 2]),
    channel_slowdown=st.sampled_from([1.0, 2.0]),
    compute_slowdown=st.sampled_from([1.0, 1.1]),
    comm_slowdown=st.sampled_from([1.0, 1.25]),
    launch_cost_ns=st.just(0),
)
caps = st.sampled_from([0.2, 1.0, 4.0, 1000.0])
factors = st.integers(60, 180).filter(lambda percent: abs(percent - 100) > 5)


@settings(max_examples=tries(60))
@given(workloads, machines, caps, factors, st.sampled_from(["compute", "copy", "launch", "communication"]))
def test_one_mechanism_that_is_off_gets_all_of_the_error(
    workload: Workload, hardware: Hardware, cap: float, percent: int, mechanism: str
) -> None:
    assignment = sim.assign(workload, bucket_cap_mb=cap)
    true_workload, true_hardware = workload, hardware
    if mechanism == "compute":
        true_workload = slower_backward(workload, percent)
    elif mechanism == "copy":
        true_hardware = replace(
            hardware, copy_in_bytes_per_s=8e11 / percent, copy_out_bytes_per_s=9e11 / percent
        )
    elif mechanism == "launch":
        true_hardware = replace(hardware, launch_cost_ns=400 * percent)
    else:
        true_hardware = slower_wire(hardware, percent)
    found = attributed(
        Record(
            name="r",
            workload=workload,
            hardware=hardware,
            measurements=measured_in(true_workload, true_hardware, assignment),
        )
    )
    truth = sim.simulate(true_workload, true_hardware, assignment).sync_end_ns
    predicted = sim.simulate(workload, hardware, assignment).sync_end_ns
    assert found.total_ns == predicted - truth
    for part in PARTS:
        expected = found.total_ns if part == f"{mechanism}_ns" else 0
        assert getattr(found, part) == pytest.approx(expected, abs=ROUNDING), part


@settings(max_examples=tries(60))
@given(workloads, contended, caps, factors, st.integers(-MS, 20 * MS))
def test_a_slower_backward_is_compute_and_a_late_return_a_wait_whatever_slows_down(
    workload: Workload, hardware: Hardware, cap: float, percent: int, late: int
) -> None:
    assignment = sim.assign(workload, bucket_cap_mb=cap)
    measurements = measured_in(slower_backward(workload, percent), hardware, assignment, late_ns=late)
    found = attributed(Record(name="r", workload=workload, hardware=hardware, measurements=measurements))
    assert found.wait_ns == pytest.approx(-late, abs=2 * ROUNDING)
    assert found.compute_ns == pytest.approx(found.total_ns + late, abs=2 * ROUNDING)


@settings(max_examples=tries(40))
@given(workloads, machines, caps, factors, factors, factors, factors, st.integers(0, 5 * MS))
def test_parts_add_up_where_everything_is_off(
    workload: Workload,
    hardware: Hardware,
    cap: float,
    backward: int,
    copy: int,
    launch: int,
    wire: int,
    late: int,
) -> None:
    """``attributed`` asserts the sum; what each mechanism gets, all being simulated, leaves the wait."""
    assignment = sim.assign(workload, bucket_cap_mb=cap)
    truth = slower_wire(replace(hardware, copy_in_bytes_per_s=8e11 / copy, launch_cost_ns=400 * launch), wire)
    measurements = measured_in(slower_backward(workload, backward), truth, assignment, late_ns=late)
    found = attributed(Record(name="r", workload=workload, hardware=hardware, measurements=measurements))
    assert found.wait_ns == pytest.approx(-late, abs=ROUNDING)


def test_what_hides_behind_something_else_counts_for_nothing() -> None:
    """A wire that is always behind: only the last bucket's copy back is not hidden by a wait."""
    workload, hardware = make_workload([MIB] * 4, [1] * 4), make_hardware()
    truth = replace(hardware, copy_out_bytes_per_s=3e9)
    measurements = measured_in(workload, truth, sim.assign(workload, bucket_cap_mb=1))
    found = attributed(Record(name="r", workload=workload, hardware=hardware, measurements=measurements))
    one = transfer_ns(MIB, 9e9) - transfer_ns(MIB, 3e9)
    assert found.copy_ns == pytest.approx(one, abs=ROUNDING)
    assert found.total_ns == one


@pytest.fixture
def recorded() -> Record:
    workload, hardware = make_workload([MIB] * 6, [2] * 6), make_hardware()
    measurements = measured_in(workload, hardware, sim.assign(workload, bucket_cap_mb=1))
    return Record(name="r", workload=workload, hardware=hardware, measurements=measurements)


def test_without_what_it_takes_nothing_is_attributed(recorded: Record) -> None:
    """Plain and noop runs, every stamp, and traces of the same buckets; others beside them do not hurt."""
    for missing in ("plain", "noop"):
        record = replace(recorded, measurements=tuple(m for m in recorded.measurements if m.role != missing))
        assert sim.agreement(record).rows[0].attribution is None
    candidate = recorded.candidates[0]
    (seen,) = candidate.traced
    fewer = replace(seen, buckets=seen.buckets[:1])
    blind: list[dict[str, Any]] = [{"ready_ns": None}, {"launch_ns": None}, {"end_ns": None}]
    lacking = [replace(seen, buckets=(replace(seen.buckets[0], **one), *seen.buckets[1:])) for one in blind]
    for traced in ((), (fewer,), *((one,) for one in lacking)):
        assert attribute(recorded, replace(candidate, traced=traced)) is None
    assert attribute(recorded, replace(candidate, traced=(fewer, seen))) == attributed(recorded)


def test_the_facade_attributes_with_the_machine_that_it_predicts_with(recorded: Record) -> None:
    """Without copies in the model, what they cost is the copies' part."""
    bare = replace(recorded.hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
    for hardware, has_copies in ((recorded.hardware, True), (bare, False)):
        found = sim.agreement(replace(recorded, hardware=hardware)).rows[0].attribution
        assert found is not None
        assert (abs(found.total_ns) <= ROUNDING) == has_copies
        assert found.copy_ns == pytest.approx(found.total_ns, abs=ROUNDING)
