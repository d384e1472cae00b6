"""Cases small enough to compute by hand, and any case by both engines."""

from dataclasses import replace

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired

BY_SIZE = ("after-backward", "arrival-counted", "flat-views", "last-hook", "last-hook-safe")
POLICIES = ("per-parameter-sync", "per-parameter-async", *BY_SIZE)
CAP_MB = 250 / 2**20  # buckets [2] and [1, 0]
# Copies in of 10, 20 and 30 ns for gradients 0, 1 and 2, and copies out of half of that.
HARDWARE = wired({0: 40}, copy_in_bytes_per_s=10e9, copy_out_bytes_per_s=20e9)


def three(*ready_ns: int, backward_ns: int = 35) -> Workload:
    """Gradients of 100, 200 and 300 bytes."""
    return handmade(ready_ns, [100, 200, 300], backward_ns=backward_ns)


def simulate(policy: str, workload: Workload, hardware: Hardware = HARDWARE, **caps: float) -> Timeline:
    """By both engines, which must agree."""
    given_caps = (caps or {"bucket_cap_mb": CAP_MB}) if policy in BY_SIZE else {}
    assignment = sim.assign(workload, policy, **given_caps)  # type: ignore[arg-type]
    by_simpy = sim.simulate(workload, hardware, assignment, "simpy")
    by_recurrence = sim.simulate(workload, hardware, assignment, "analytic")
    assert replace(by_recurrence, engine="simpy") == by_simpy
    return by_simpy
