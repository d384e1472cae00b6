"""Hardware that is computed, not measured: NCCL's cost model over a fabric, and how far it is off."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sim.clusters.nccl.constants import SOURCE
from sim.clusters.nccl.fabric import Fabric, fabric_of
from sim.clusters.nccl.model import as_staged, choose, collective_ns, filling_ns
from sim.costs.own_costs import OF_GENERATION, with_own_costs
from sim.errors import InputError
from sim.nouns.checks import one_of
from sim.nouns.cluster import NVLINKS, Cluster
from sim.nouns.gpus import GPUS
from sim.nouns.hardware import CURVES, Curve, CurvePoint, Hardware
from sim.units import format_number, format_percent, format_size

ALGORITHMS = ("auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain")
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


def curve(fabric: Fabric, collective: str, sizes: Iterable[int], algorithm: str | None = None) -> Curve:
    """The curve of ``collective`` at ``sizes`` in bytes, in ascending order, each once."""
    wanted = sorted(set(sizes))
    if not wanted:
        raise InputError("sizes: none; give at least one size in bytes")
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=collective_ns(fabric, collective, size, algorithm))
        for size in wanted
    )


def hardware_of(
    fabric: Fabric, name: str, sizes: Iterable[int] = SIZES, algorithm: str | None = None
) -> Hardware:
    """Curves of all five collectives at ``sizes`` in bytes, from published figures alone.

    ``algorithm`` is what all-reduces go by (None: NCCL's choice). ``spread.ranges`` states the range in which
    a measurement may be expected, as factors on the all-reduce curve, and ``spread`` the times of each size,
    without a count. The range is what the model does not know, not how one message scatters from the next. It
    is the same for all messages apart from what a pipeline takes to fill.
    """
    wanted = tuple(sizes)
    curves: dict[str, Any] = {
        collective: curve(fabric, collective, wanted, algorithm if collective == "all_reduce" else None)
        for collective in CURVES
    }
    sent = {
        point: method
        for point in curves["all_reduce"]
        if (method := choose(fabric, "all_reduce", point.num_bytes, algorithm)) is not None
    }
    filling = {point: filling_ns(fabric, "all_reduce", point.num_bytes, algorithm) for point in sent}
    low, high = uncertainty(fabric)
    expected = {
        str(point.num_bytes): {
            "min_ns": round((point.duration_ns - filling[point]) * low),
            "max_ns": round(point.duration_ns * high),
            "of": "what the cost model does not know: the range of other machines that were measured",
        }
        for point in sent
    }
    made = Hardware(
        name=name,
        world_size=fabric.world_size,
        **curves,
        spread={
            "all_reduce": expected,
            **({"ranges": {"all_reduce": {"low": low, "high": high}}} if sent else {}),
        },
        provenance={
            "source": "computed by NCCL's cost model from published figures; nothing of it is measured",
            "constants": SOURCE,
            "links": "what they give of NCCL's figures: medians of other machines (sim.clusters.nccl.model)",
            "fabric": asdict(fabric),
            "methods": {str(point.num_bytes): str(method) for point, method in sent.items()},
            "not_known": _not_known(fabric, filling),
        },
    )
    known = OF_GENERATION[fabric.generation]
    joined = fabric.ranks_per_host > 1 and fabric.intra.kind in NVLINKS
    boards = [name for name in known if "sxm" in name] if joined else []
    return with_own_costs(made, [GPUS[name] for name in boards or known])


def _not_known(fabric: Fabric, filling: dict[CurvePoint, int]) -> list[str]:
    """Sentences on what decides how far a measurement may be off."""
    said = []
    inter, staged = fabric.inter, as_staged(fabric).inter
    if inter is not None and staged is not None and staged != inter:
        said.append(
            f"data goes through host memory on its way to NICs, as without GPUDirect RDMA (GeForce, or a NIC "
            f"that is not below its GPU's PCIe switch): {format_number(staged.bytes_per_s / 1e9)} GB/s a "
            f"host are computed, one GPU of other machines had {MEASURED_THROUGH_HOST}; where NCCL's log "
            f"says GDRDMA, set gpu_direct"
        )
    shares = {point: ns / point.duration_ns for point, ns in filling.items()}
    most = max(shares, key=shares.__getitem__, default=None)
    if most is not None and shares[most]:
        said.append(
            f"NVLS: up to {format_percent(shares[most], 0)} of a time (at {format_size(most.num_bytes)}) is "
            f"its pipeline filling, less where GPUs copy faster than the switch reduces"
        )
    return said


def cluster_hardware(
    cluster: Cluster,
    ranks: Sequence[str] | None = None,
    beside: Sequence[Sequence[str]] = (),
    algorithm: str = "auto",
    *,
    sizes: Iterable[int] = SIZES,
) -> Hardware:
    """The collectives of a job on ``cluster``, computed by NCCL's own cost model: nothing is measured.

    All collectives but all-reduces always go by NCCL's choice.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank, such as ``host0.gpu3`` (None: the cluster's placement).
        beside: the ranks of other jobs that run at the same time and take their fair share of links.
        algorithm: what all-reduces go by: ``auto`` (NCCL's choice), or one of NCCL's such as ``ring``.
        sizes: of the points of each curve, in bytes.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins; or no such algorithm.
        NotModelledError: an algorithm that NCCL would not use there.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    fabric = fabric_of(cluster, ranks, beside=beside)
    forced = None if algorithm == "auto" else algorithm
    made = hardware_of(fabric, f"{cluster.name}, {fabric.world_size} ranks", sizes, forced)
    parted = [kind for kind in cluster.kinds if 1 < fabric.ranks_per_host < kind.gpus]
    if any(kind.staged or kind.step(kind.gpus).kind != "nvswitch" for kind in parted):
        made.provenance["not_known"].append(
            "which of a host's GPUs the job has: they are counted, not told apart; those that no NVLink "
            "joins, or of two sockets, may take several times as long"
        )
    return made
