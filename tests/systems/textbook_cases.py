"""Textbook cases: small enough to compute by hand, any by both engines, and random ones for real ranks."""

import random
from dataclasses import replace
from typing import Any

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.textbook import BY_SIZE, STYLES
from tests.handmade import handmade, wired

POLICIES = tuple(STYLES)
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


# For real ranks.

WIDTHS = (8, 12, 20, 33)


def random_textbook(policy: str, seed: int, *, mixed: bool) -> dict[str, Any]:
    """3 to 9 layers: every kind, frozen parameters, a layer used twice, recomputed, or, where ``mixed``, of
    another dtype; and a cap of any size up to 64 KiB, 0, or just the bytes of the last few parameters."""
    from tests.systems.ddp_models import Net  # torch, which cases by hand do without

    chance = random.Random(seed)
    width = chance.choice(WIDTHS)
    layers: list[dict[str, Any]] = []
    for _ in range(chance.randint(3, 9)):
        kind = chance.choice(("linear", "linear", "norm", "conv", "batch_norm", "encoder", "embedding"))
        layer: dict[str, Any] = {"kind": kind, "width": width}
        if kind in ("linear", "conv"):
            layer["out"] = width = chance.choice(WIDTHS)
            layer["bias"] = chance.random() < 0.8
        if kind == "embedding":
            layer["rows"] = chance.randint(2, 40)
        if kind in ("linear", "norm", "encoder") and layer.get("out", layer["width"]) == layer["width"]:
            layer["times"] = chance.choice((1, 1, 2))
        if kind in ("linear", "norm") and chance.random() < 0.15:
            layer["checkpoint"] = "saved"
        if kind in ("linear", "norm", "conv") and layers and chance.random() < 0.15:
            layer["frozen"] = ["weight"]
        if mixed and kind in ("linear", "norm", "embedding") and chance.random() < 0.4:
            layer["dtype"] = chance.choice(("float32", "float64", "bfloat16"))
        layers.append(layer)
    chance = random.Random(seed)
    match chance.choice(("any", "any", "just", "just", "none")):
        case "any":
            cap = 2 ** chance.uniform(4, 16)
        case "just":
            sizes = [p.nbytes for p in Net(layers, 0).parameters() if p.requires_grad]
            cap = sum(sizes[-chance.randint(1, 3) :])
        case _:
            cap = 0
    return {"policy": policy, "layers": layers, "bucket_cap_mb": cap / 2**20}


def textbook_cases(seeds: range) -> list[dict[str, Any]]:
    """For each seed a random model under each policy; published last-hook code knows one dtype (A7.5)."""
    return [random_textbook(one, seed, mixed=one != "last-hook") for seed in seeds for one in POLICIES]
