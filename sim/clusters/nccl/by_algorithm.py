"""Hardware of a job whose all-reduces all go by one of NCCL's algorithms."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sim.clusters.nccl.choosing import methods, nccl_time_ns, time_ns
from sim.clusters.nccl.computed_hardware import SIZES, hardware_of
from sim.clusters.nccl.from_cluster import fabric_of
from sim.errors import NotModelledError
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CurvePoint, Hardware

ALGORITHMS = ("auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain")


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
    made = hardware_of(fabric, f"{cluster.name}, {fabric.world_size} ranks", sizes)
    if algorithm == "auto" or fabric.world_size == 1:
        return made
    known = methods(fabric, "all_reduce")
    fitting = [method for method in known if method.algorithm == algorithm]
    if not fitting:
        raise NotModelledError(
            f"algorithm: {algorithm} is not for {fabric.world_size} ranks on {fabric.hosts} hosts of this "
            f"kind; NCCL has {', '.join(sorted({method.algorithm for method in known}))} there"
        )

    def time(num_bytes: int) -> int:
        method = min(fitting, key=lambda each: nccl_time_ns(fabric, "all_reduce", num_bytes, each))
        return time_ns(fabric, "all_reduce", num_bytes, method)

    chosen = tuple(
        CurvePoint(num_bytes=point.num_bytes, duration_ns=time(point.num_bytes)) for point in made.all_reduce
    )
    return replace(
        made,
        all_reduce=chosen,
        spread={**made.spread, "all_reduce": _stretched(made, chosen)},
        provenance={
            **made.provenance,
            "methods": {str(point.num_bytes): algorithm for point in chosen},
        },
    )


def _stretched(made: Hardware, points: Sequence[CurvePoint]) -> dict[str, Any]:
    """The range of each point, as far off in proportion as that of NCCL's choice."""
    before: dict[str, Any] = made.spread.get("all_reduce", {})
    own = {str(point.num_bytes): point.duration_ns for point in made.all_reduce}
    spread = {}
    for point in points:
        key = str(point.num_bytes)
        if key in before and own[key]:
            factor = point.duration_ns / own[key]
            spread[key] = {
                field: round(value * factor) if field.endswith("_ns") else value
                for field, value in before[key].items()
            }
    return spread
