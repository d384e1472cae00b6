"""Hardware that is computed, not measured: NCCL's cost model over a fabric, and how far it is off."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sim.clusters.fabric import Fabric, fabric_of
from sim.clusters.nccl_model import as_delivered, choose, collective_ns, filling_us
from sim.clusters.nccl_tables import SOURCE
from sim.costs.doubts import with_own_costs
from sim.nouns.cluster import NVLINKS, Cluster
from sim.nouns.gpus import GPUS
from sim.nouns.hardware import CURVES, CurvePoint, Hardware
from sim.units import format_number

SIZES = tuple(1 << power for power in range(3, 34))  # 8 B to 8 GiB

# Ranges of measured over computed times, from machines that no prediction is tested on
# (tests/clusters/published_fabrics.py). Over NVLink and networks a single process that drives all GPUs is the
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
    low, high = OVER_LINKS
    if fabric.ranks_per_host > 1 and fabric.intra.kind not in NVLINKS:
        low, high = THROUGH_HOST if fabric.intra.kind == "shm" else PEER_TO_PEER
    if (staged := _staged_share(fabric)) < 1:
        low, high = min(low, max(THROUGH_HOST[0], OVER_LINKS[0] * staged)), max(high, THROUGH_HOST[1])
    return low, high


def _staged_share(fabric: Fabric) -> float:
    """What host memory leaves of what the network carries; 1 where nothing goes through it."""
    inter = fabric.inter
    if fabric.hosts == 1 or inter is None or inter.staged_bytes_per_s is None:
        return 1.0
    return inter.staged_bytes_per_s / inter.bytes_per_s


def hardware_of(fabric: Fabric, name: str, sizes: Iterable[int] = SIZES) -> Hardware:
    """Curves of all collectives at ``sizes`` in bytes, from published figures alone.

    ``spread.ranges`` states the range in which a measurement may be expected, as factors on the all-reduce
    curve, and ``spread`` the times of each size, without a count. The range is what the model does not know,
    not how one message scatters from the next. It is the same for all messages apart from what a pipeline
    takes to fill, which its fast end has none of.
    """
    wanted = sorted(set(sizes))
    curves: dict[str, Any] = {
        collective: tuple(
            CurvePoint(num_bytes=size, duration_ns=collective_ns(fabric, collective, size)) for size in wanted
        )
        for collective in CURVES
    }
    low, high = uncertainty(fabric)
    methods = {size: choose(fabric, "all_reduce", size) for size in wanted}
    expected = {}
    for point in curves["all_reduce"]:
        size = point.num_bytes
        if (method := methods[size]) is not None:
            given = as_delivered(fabric, method, size)
            filling_ns = round(filling_us(given, "all_reduce", size, method) * 1000)
            expected[str(size)] = {
                "min_ns": round((point.duration_ns - filling_ns) * low),
                "max_ns": round(point.duration_ns * high),
                "of": "what the cost model does not know: the range of other machines that were measured",
            }
    made = Hardware(
        name=name,
        world_size=fabric.world_size,
        **curves,
        spread={
            "all_reduce": expected,
            **({"ranges": {"all_reduce": {"low": low, "high": high}}} if expected else {}),
        },
        provenance={
            "source": "computed by NCCL's cost model from published figures; nothing of it is measured",
            "constants": SOURCE,
            "links": "what they give of NCCL's figures: medians of other machines",
            "fabric": asdict(fabric),
            "methods": {str(size): str(method) for size, method in methods.items() if method is not None},
            "not_known": _not_known(fabric),
        },
    )
    known = [gpu for gpu in GPUS.values() if gpu.generation == fabric.generation]
    joined = fabric.ranks_per_host > 1 and fabric.intra.kind in NVLINKS
    boards = [gpu for gpu in known if "sxm" in gpu.name] if joined else []
    return with_own_costs(made, boards or known)


def _not_known(fabric: Fabric) -> list[str]:
    """Sentences on what decides how far a measurement may be off."""
    inter = fabric.inter
    if inter is None or inter.staged_bytes_per_s is None or _staged_share(fabric) == 1:
        return []
    return [
        f"data goes through host memory on its way to NICs, as without GPUDirect RDMA (GeForce, or a NIC "
        f"that is not below its GPU's PCIe switch): {format_number(inter.staged_bytes_per_s / 1e9)} GB/s "
        f"a host are computed, one GPU of other machines had {MEASURED_THROUGH_HOST}; where NCCL's log "
        f"says GDRDMA, set gpu_direct"
    ]


def cluster_hardware(cluster: Cluster, ranks: Sequence[str] | None = None) -> Hardware:
    """The collectives of a job on ``cluster``, computed by NCCL's own cost model: nothing is measured.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank, such as ``host0.gpu3`` (None: the cluster's placement).

    Raises:
        InputError: ranks that are no GPUs, or that no way joins.
    """
    fabric = fabric_of(cluster, ranks)
    made = hardware_of(fabric, f"{cluster.name}, {fabric.world_size} ranks")
    parted = [kind for kind in cluster.kinds if 1 < fabric.ranks_per_host < kind.gpus]
    if any(kind.staged or kind.step(kind.gpus).kind != "nvswitch" for kind in parted):
        made.provenance["not_known"].append(
            "which of a host's GPUs the job has: they are counted, not told apart; those that no NVLink "
            "joins, or of two sockets, may take several times as long"
        )
    return made
