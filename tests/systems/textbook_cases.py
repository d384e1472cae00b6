"""Cases small enough to compute by hand, and any case by both engines."""

from dataclasses import replace
from typing import Any

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Gradient, Workload

BY_SIZE = ("after-backward", "arrival-counted", "flat-views", "last-hook", "last-hook-safe")
POLICIES = ("per-parameter-sync", "per-parameter-async", *BY_SIZE)
CAP_MB = 250 / 2**20  # buckets [2] and [1, 0]
HARDWARE = Hardware(
    name="by hand",
    world_size=2,
    all_reduce=(CurvePoint(num_bytes=0, duration_ns=40),),
    copy_in_bytes_per_s=10e9,  # 10, 20 and 30 ns for gradients 0, 1 and 2
    copy_out_bytes_per_s=20e9,  # 5, 10 and 15 ns
)


def three(*ready_ns: int, backward_ns: int = 35, **more: Any) -> Workload:
    """Gradients of 100, 200 and 300 bytes; ``more`` is what they have in common."""
    return Workload(
        name="three",
        gradients=tuple(
            Gradient(
                index=index,
                name=f"p{index}",
                shape=(),
                dtype="float32",
                num_bytes=100 * (index + 1),
                ready_ns=ready,
                **more,
            )
            for index, ready in enumerate(ready_ns)
        ),
        forward_ns=0,
        backward_ns=backward_ns,
        optimizer_ns=0,
    )


def simulate(policy: str, workload: Workload, hardware: Hardware = HARDWARE, **caps: float) -> Timeline:
    """By both engines, which must agree."""
    given_caps = (caps or {"bucket_cap_mb": CAP_MB}) if policy in BY_SIZE else {}
    assignment = sim.assign(workload, policy, **given_caps)  # type: ignore[arg-type]
    by_simpy = sim.simulate(workload, hardware, assignment, "simpy")
    by_recurrence = sim.simulate(workload, hardware, assignment, "analytic")
    assert replace(by_recurrence, engine="simpy") == by_simpy
    return by_simpy
