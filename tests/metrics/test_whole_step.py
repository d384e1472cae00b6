"""What is told of a step holds for all of it: every micro-batch, every part, every bound by simulation."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Buffer, Workload
from tests.bench.machines import model

MS = 10**6
SYSTEMS = {
    "ddp": {},
    "each micro-batch": {"accumulation_steps": 4, "no_sync": False},
    "the last micro-batch": {"accumulation_steps": 4},
    "zero1": {"policy": "zero1", "gradient_accumulation_steps": 3},
    "zero2": {"policy": "zero2", "gradient_accumulation_steps": 3},
    "megatron": {"policy": "megatron", "num_microbatches": 2},
    "fully_shard": {"policy": "fully_shard"},
}


def wire(latency_ns: int, ns_a_mib: int) -> Hardware:
    curve = tuple(
        CurvePoint(num_bytes=size, duration_ns=latency_ns + size * ns_a_mib // 2**20) for size in (0, 2**30)
    )
    return Hardware(name="wire", world_size=4, **dict.fromkeys(CURVES, curve))


def play(workload: Workload, hardware: Hardware, assignment: Assignment) -> Timeline:
    return sim.simulate(workload, hardware, assignment, "analytic")


def faster(hardware: Hardware) -> Hardware:
    """Twice the bandwidth: what grows with bytes takes half."""
    halved = {
        name: tuple(
            replace(point, duration_ns=curve[0].duration_ns + (point.duration_ns - curve[0].duration_ns) // 2)
            for point in curve
        )
        for name in CURVES
        if (curve := hardware.curve(name)) is not None
    }
    return replace(hardware, **halved)


@given(
    st.sampled_from(sorted(SYSTEMS)),
    st.integers(2, 24),
    st.integers(0, 2 * MS),
    st.integers(MS // 100, 20 * MS),
    st.floats(0.01, 30),
)
def test_parts_add_up_and_bounds_hold(
    system: str, count: int, latency_ns: int, ns_a_mib: int, cap: float
) -> None:
    workload, hardware = model(count, "affine"), wire(latency_ns, ns_a_mib)
    options = dict(SYSTEMS[system])
    if options.get("policy", "ddp") == "ddp":
        options["bucket_cap_mb"] = cap
    assignment = sim.assign(workload, **options)
    timeline = play(workload, hardware, assignment)
    report = sim.summarize(timeline)
    assert sum(report.parts_ns.values()) == report.step_ns
    assert sum(report.exposed_by_micro_batch_ns) == report.exposed_comm_ns
    quick = sim.summarize(play(workload, faster(hardware), assignment))
    free = sim.summarize(play(workload, wire(0, 0), assignment))
    if report.verdict_code == "compute-bound":
        assert exposable(report) - exposable(free) <= report.exposed_comm_ns
    if report.verdict_code == "bandwidth-bound" and report.verdict_saves_ns is not None:
        assert exposable(report) - exposable(quick) <= report.verdict_saves_ns


def exposable(report: Report) -> int:
    """The step without what is gathered before forward and after the optimizer."""
    return report.step_ns - report.pre_forward_ns - report.post_sync_ns


def test_every_micro_batch_that_reduces_is_exposed() -> None:
    workload, hardware = model(12, "affine"), wire(MS, 4 * MS)
    one = sim.summarize(play(workload, hardware, sim.assign(workload, bucket_cap_mb=4)))
    each = sim.assign(workload, bucket_cap_mb=4, accumulation_steps=4, no_sync=False)
    all_four = sim.summarize(play(workload, hardware, each))
    assert all_four.exposed_by_micro_batch_ns == (one.exposed_comm_ns,) * 4
    assert all_four.exposed_comm_ns == 4 * one.exposed_comm_ns
    last = sim.summarize(
        play(workload, hardware, sim.assign(workload, bucket_cap_mb=4, accumulation_steps=4))
    )
    assert last.exposed_by_micro_batch_ns == (one.exposed_comm_ns,)


@pytest.mark.parametrize("num_bytes", [0, 1 << 16, 1 << 28])
def test_buffers_that_take_time_before_forward_have_a_line(num_bytes: int) -> None:
    workload = replace(
        model(12, "affine"), buffers=(Buffer(dtype="float32", num_bytes=num_bytes),) if num_bytes else ()
    )
    report = sim.summarize(play(workload, wire(MS // 10, 4 * MS), sim.assign(workload)))
    took = report.parts_ns.get("before forward: buffers", 0)
    assert took == report.pre_forward_ns
    assert ("broadcast_buffers=False" in report.verdict) == (took > 0.005 * report.step_ns)
    without = sim.summarize(
        play(workload, wire(MS // 10, 4 * MS), sim.assign(workload, broadcast_buffers=False))
    )
    assert report.step_ns - without.step_ns == took
