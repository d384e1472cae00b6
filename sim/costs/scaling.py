"""What-if: the same machine with another bandwidth or latency, the same model with another backward."""

from dataclasses import replace

from sim.errors import InputError
from sim.nouns.hardware import CURVES, Curve, CurvePoint, Hardware
from sim.nouns.workload import Workload


def scale(
    workload: Workload,
    hardware: Hardware,
    *,
    bandwidth: float = 1.0,
    latency: float = 1.0,
    backward: float = 1.0,
) -> tuple[Workload, Hardware]:
    """Workload and hardware with factors applied.

    ``latency`` multiplies the smallest duration of each curve, ``bandwidth`` divides what lies above it;
    ``backward`` multiplies ready times and ``backward_ns``. Factors of 1 change nothing.
    """
    for name, factor in (("bandwidth", bandwidth), ("latency", latency), ("backward", backward)):
        if not 1e-6 <= factor <= 1e6:
            raise InputError(f"{name}: a factor of {factor} is not legal; give 1e-6 to 1e6")
    if backward != 1.0:
        workload = replace(
            workload,
            backward_ns=round(workload.backward_ns * backward),
            gradients=tuple(
                replace(g, ready_ns=None if g.ready_ns is None else round(g.ready_ns * backward))
                for g in workload.gradients
            ),
            samples=tuple(
                tuple(None if time is None else round(time * backward) for time in sample)
                for sample in workload.samples
            ),
        )
    if bandwidth != 1.0 or latency != 1.0:
        curves: dict[str, Curve] = {
            name: _scale_curve(curve, bandwidth, latency)
            for name in CURVES
            if (curve := getattr(hardware, name)) is not None
        }
        hardware = replace(hardware, **curves)  # type: ignore[arg-type]
    return workload, hardware


def _scale_curve(curve: Curve, bandwidth: float, latency: float) -> Curve:
    least = min(point.duration_ns for point in curve)
    return tuple(
        CurvePoint(
            num_bytes=point.num_bytes,
            duration_ns=round(least * latency + (point.duration_ns - least) / bandwidth),
        )
        for point in curve
    )
