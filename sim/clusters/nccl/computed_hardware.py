"""Hardware that is computed, not measured: NCCL's cost model over a fabric, and how far it is off."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sim.clusters.nccl.choosing import choose, curve, filling_ns
from sim.clusters.nccl.constants import SOURCE
from sim.clusters.nccl.fabric import NVLINKS, Fabric
from sim.clusters.nccl.paths import as_staged
from sim.costs.own_costs import OF_GENERATION, with_own_costs
from sim.nouns.gpus import GPUS
from sim.nouns.hardware import CURVES, Curve, Hardware
from sim.units import format_number, format_percent, format_size

SIZES = tuple(1 << power for power in range(3, 34))  # 8 B to 8 GiB

# Ranges of measured over computed times, from machines that no prediction is tested on
# (tests/clusters/measured_paths.py). Over NVLink and networks a single process that drives all GPUs is the
# slowest; through host memory the processor decides; over PCIe from GPU to GPU the slowest is NCCL going
# through host memory after all, as by default between root ports (src/graph/paths.cc, ncclTopoCheckP2p).
OVER_LINKS = (0.9, 2.2)
THROUGH_HOST = (0.27, 2.9)
MEASURED_THROUGH_HOST = "1.4 to 14.9 GB/s"
PEER_TO_PEER = (0.9, 6.0)


def uncertainty(fabric: Fabric) -> tuple[float, float]:
    """Least and greatest factor from a computed time to the time that would be measured.

    If data goes through host memory on its way to a NIC, the range is as wide as that of host memory; but its
    fast end is not faster than the network.
    """
    low, high = _within_hosts(fabric)
    inter, staged = fabric.inter, as_staged(fabric).inter
    if fabric.hosts > 1 and inter is not None and staged is not None and staged != inter:
        at_line_rate = OVER_LINKS[0] * staged.bytes_per_s / inter.bytes_per_s
        return min(low, max(THROUGH_HOST[0], at_line_rate)), max(high, THROUGH_HOST[1])
    return low, high


def _within_hosts(fabric: Fabric) -> tuple[float, float]:
    if fabric.ranks_per_host == 1 or fabric.intra.kind in NVLINKS:
        return OVER_LINKS
    return THROUGH_HOST if fabric.intra.kind == "shm" else PEER_TO_PEER


def hardware_of(fabric: Fabric, name: str, sizes: Iterable[int] = SIZES) -> Hardware:
    """Curves of all five collectives at ``sizes`` in bytes, from published figures alone.

    ``spread.ranges`` states the range in which a measurement may be expected, as factors on the all-reduce
    curve, and ``spread`` the times of each size, without a count. The range is what the model does not know,
    not how one message scatters from the next. It is the same for all messages apart from what a pipeline
    takes to fill.
    """
    wanted = tuple(sizes)
    curves: dict[str, Any] = {collective: curve(fabric, collective, wanted) for collective in CURVES}
    all_reduce = curves["all_reduce"]
    made = Hardware(
        name=name,
        world_size=fabric.world_size,
        **curves,
        spread={"all_reduce": _expected(fabric, all_reduce), **_ranges(fabric)},
        provenance={
            "source": "computed by NCCL's cost model from published figures; nothing of it is measured",
            "constants": SOURCE,
            "links": "what they give of NCCL's figures: medians of other machines (sim.clusters.nccl.paths)",
            "fabric": asdict(fabric),
            "methods": _methods(fabric, all_reduce),
            "not_known": _not_known(fabric, all_reduce),
        },
    )
    known = OF_GENERATION[fabric.generation]
    joined = fabric.ranks_per_host > 1 and fabric.intra.kind in NVLINKS
    boards = [name for name in known if "sxm" in name] if joined else []
    return with_own_costs(made, [GPUS[name] for name in boards or known])


def _ranges(fabric: Fabric) -> dict[str, Any]:
    if fabric.world_size == 1:
        return {}
    low, high = uncertainty(fabric)
    return {"ranges": {"all_reduce": {"low": low, "high": high}}}


def _expected(fabric: Fabric, points: Curve) -> dict[str, dict[str, Any]]:
    low, high = uncertainty(fabric)
    return {
        str(point.num_bytes): {
            "min_ns": round((point.duration_ns - filling_ns(fabric, "all_reduce", point.num_bytes)) * low),
            "max_ns": round(point.duration_ns * high),
            "of": "what the cost model does not know: the range of other machines that were measured",
        }
        for point in points
        if point.duration_ns
    }


def _not_known(fabric: Fabric, points: Curve) -> list[str]:
    """Sentences on what decides how far a measurement may be off."""
    said = []
    inter, staged = fabric.inter, as_staged(fabric).inter
    if inter is not None and staged is not None and staged != inter:
        said.append(
            f"data goes through host memory on its way to NICs, as without GPUDirect RDMA (GeForce, or a NIC "
            f"that is not below its GPU's PCIe switch): {format_number(staged.bytes_per_s / 1e9)} GB/s a "
            f"host are "
            f"computed, one GPU of other machines had {MEASURED_THROUGH_HOST}; where NCCL's log says GDRDMA, "
            f"set gpu_direct"
        )
    shares = {
        point.num_bytes: filling_ns(fabric, "all_reduce", point.num_bytes) / point.duration_ns
        for point in points
        if point.duration_ns
    }
    most = max(shares, key=shares.__getitem__, default=0)
    if shares.get(most):
        said.append(
            f"NVLS: up to {format_percent(shares[most], 0)} of a time (at {format_size(most)}) is its "
            f"pipeline filling, "
            f"less where GPUs copy faster than the switch reduces"
        )
    return said


def _methods(fabric: Fabric, points: Curve) -> dict[str, str]:
    chosen = {point.num_bytes: choose(fabric, "all_reduce", point.num_bytes) for point in points}
    return {str(size): str(method) for size, method in chosen.items() if method is not None}
