"""Hardware that is computed, not measured: NCCL's cost model over a fabric, and how far it is off."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sim.costs.nccl.choosing import choose, curve
from sim.costs.nccl.fabric import NVLINKS, Fabric
from sim.costs.nccl.tuning import SOURCE
from sim.nouns.hardware import Curve, Hardware

SIZES = tuple(1 << power for power in range(3, 34))  # 8 B to 8 GiB

# Measured over computed, on machines that no prediction is tested on (tests/costs/measured_paths.py): over
# NVLink and networks, where one process that drives all GPUs is the slowest; through host memory, where the
# processor decides; and over PCIe from GPU to GPU, up to what it takes where NCCL goes through host memory
# after all, as it does by default between root ports (src/graph/paths.cc, ncclTopoCheckP2p).
OVER_LINKS = (0.9, 2.2)
THROUGH_HOST = (0.27, 2.9)
PEER_TO_PEER = (0.9, 6.0)


def uncertainty(fabric: Fabric) -> tuple[float, float]:
    """Least and greatest factor from a computed time to the time that would be measured."""
    if fabric.ranks_per_host == 1 or fabric.intra.kind in NVLINKS:
        return OVER_LINKS
    return THROUGH_HOST if fabric.intra.kind == "shm" else PEER_TO_PEER


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
            "links": "what they give of NCCL's figures: medians of other machines (sim.costs.nccl.paths)",
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
            "of": "what the cost model does not know: the range of other machines that were measured",
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
