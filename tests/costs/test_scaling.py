"""What-if factors: the same machine with another wire, the same model with another backward."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from tests.strategies import hardwares, workloads

factors = st.floats(0.01, 100)


@settings(max_examples=50)
@given(workloads(dressed=True), hardwares(dressed=True))
def test_factors_of_one_change_nothing(workload: Workload, hardware: Hardware) -> None:
    assert sim.scale(workload, hardware) == (workload, hardware)


@settings(max_examples=50)
@given(workloads(), hardwares(), factors)
def test_backward_scales_every_time_and_keeps_the_order(
    workload: Workload, hardware: Hardware, factor: float
) -> None:
    scaled, same = sim.scale(workload, hardware, backward=factor)
    assert same is hardware
    assert scaled.backward_ns == round(workload.backward_ns * factor)
    assert [g.ready_ns for g in scaled.gradients] == [round(g.ready_ns * factor) for g in workload.gradients]  # type: ignore[operator]
    assert (scaled.forward_ns, scaled.optimizer_ns) == (workload.forward_ns, workload.optimizer_ns)
    if workload.ready_order is not None:
        assert scaled.order() == workload.order()


@settings(max_examples=50)
@given(workloads(), hardwares(), factors, factors)
def test_latency_and_bandwidth_scale_the_curves(
    workload: Workload, hardware: Hardware, bandwidth: float, latency: float
) -> None:
    same, scaled = sim.scale(workload, hardware, bandwidth=bandwidth, latency=latency)
    assert same is workload
    for name in CURVES:
        before, after = getattr(hardware, name), getattr(scaled, name)
        if before is None:
            assert after is None
            continue
        least = min(point.duration_ns for point in before)
        for one, two in zip(before, after, strict=True):
            assert two.num_bytes == one.num_bytes
            expected = least * latency + (one.duration_ns - least) / bandwidth
            assert two.duration_ns == pytest.approx(expected, abs=0.51)


@pytest.mark.parametrize("name", ["bandwidth", "latency", "backward"])
@pytest.mark.parametrize("factor", [0.0, -1.0, 1e7, float("nan"), float("inf")])
def test_factors_beyond_reason_are_refused_by_name(name: str, factor: float) -> None:
    gradient = Gradient(index=0, name="p", shape=(), dtype="float32", num_bytes=4, ready_ns=1)
    workload = Workload(name="w", gradients=(gradient,), forward_ns=0, backward_ns=1, optimizer_ns=0)
    point = CurvePoint(num_bytes=0, duration_ns=1)
    with pytest.raises(InputError, match=name):
        sim.scale(workload, Hardware(name="h", world_size=1, all_reduce=(point,)), **{name: factor})
