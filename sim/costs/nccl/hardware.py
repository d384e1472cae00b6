"""Hardware that is computed, not measured: NCCL's cost model over a fabric, and how far it is off."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sim.costs.nccl.choosing import choose, curve
from sim.costs.nccl.fabric import NVLINKS, Fabric
from sim.costs.nccl.tuning import SOURCE
from sim.nouns.hardware import Curve, Hardware

SIZES = tuple(1 << power for power in range(3, 34))  # 8 B to 8 GiB

# Measured over computed, for nine in ten sizes of 1 MiB to 1 GiB, on public systems whose hosts have NVLink,
# and on those that go through PCIe and host memory, where NCCL counts what the slot could carry.
OVER_LINKS = (0.8, 2.0)
THROUGH_HOST = (0.8, 4.5)


def uncertainty(fabric: Fabric) -> tuple[float, float]:
    """Least and greatest factor from a computed time to the time that would be measured."""
    through_host = fabric.ranks_per_host > 1 and fabric.intra.kind not in NVLINKS
    return THROUGH_HOST if through_host else OVER_LINKS


def hardware_of(fabric: Fabric, name: str, sizes: Iterable[int] = SIZES) -> Hardware:
    """Curves of all five collectives at ``sizes`` in bytes, from published figures alone.

    ``spread`` keeps for each size the range in which a measurement may be expected, without a count: it is
    what the model does not know, the same for all messages, and no scatter from one to the next.
    """
    wanted = tuple(sizes)
    all_reduce = curve(fabric, "all_reduce", wanted)
    return Hardware(
        name=name,
        world_size=fabric.world_size,
        all_reduce=all_reduce,
        reduce_scatter=curve(fabric, "reduce_scatter", wanted),
        all_gather=curve(fabric, "all_gather", wanted),
        reduce=curve(fabric, "reduce", wanted),
        broadcast=curve(fabric, "broadcast", wanted),
        spread={"all_reduce": _expected(fabric, all_reduce)},
        provenance={
            "source": "computed by NCCL's cost model from published figures; nothing of it is measured",
            "constants": SOURCE,
            "fabric": asdict(fabric),
            "methods": _methods(fabric, all_reduce),
        },
    )


def _expected(fabric: Fabric, points: Curve) -> dict[str, dict[str, Any]]:
    low, high = uncertainty(fabric)
    return {
        str(point.num_bytes): {
            "min_ns": round(point.duration_ns * low),
            "max_ns": round(point.duration_ns * high),
            "of": "what the cost model does not know; nine measurements in ten lie within",
        }
        for point in points
        if point.duration_ns
    }


def _methods(fabric: Fabric, points: Curve) -> dict[str, str]:
    chosen = {point.num_bytes: choose(fabric, "all_reduce", point.num_bytes) for point in points}
    return {
        str(size): f"{method.algorithm} {method.protocol}"
        for size, method in chosen.items()
        if method is not None
    }
