"""The facade's part for clusters and for jobs that share one; it is offered by ``sim.api``."""

import os
from collections.abc import Sequence
from typing import Any

from sim.formats import documents
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.jobs import Job, JobsReport
from sim.nouns.link_load import LinkLoad


def hardware_beside(
    hardware: Hardware, cluster: Cluster, ranks: Sequence[str], beside: Sequence[Sequence[str]]
) -> Hardware:
    """``hardware``, of a job alone, as it is while the rings of other jobs run without a pause.

    The wire's part of every collective goes at the job's fair share of the links; latencies stay.

    Args:
        hardware: measured or computed with nothing else on the links.
        cluster: where all of them run.
        ranks: the GPU of each rank, such as ``host0.gpu0``.
        beside: those of each other job.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, that no way joins, or not as many as
            ``hardware`` has.
    """
    from sim.clusters.jobs import neighbours  # networkx, which nothing else here needs

    return neighbours.hardware_beside(hardware, cluster, ranks, beside)


def hardware_on(
    hardware: Hardware, cluster: Cluster, ranks: Sequence[str], other: Cluster, other_ranks: Sequence[str]
) -> Hardware:
    """``hardware``, of ``ranks`` on ``cluster``, as it is for as many ranks on another cluster.

    The wire's part of every collective goes at the bandwidth of the other's rings; latencies stay.

    Raises:
        InputError: as ``hardware_beside``.
    """
    from sim.clusters.jobs import neighbours

    return neighbours.hardware_on(hardware, cluster, ranks, other, other_ranks)


def play_jobs(
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    steps: int = 50,
    warmup: int = 10,
    offsets_ns: Sequence[int] | None = None,
    starts: int = 1,
) -> JobsReport:
    """What each job's steps are while all of them run on ``cluster``, and which links they share.

    While collectives of several jobs are under way, each goes at its fair share of the links. Jobs with steps
    of one length keep the phase that they start in, and it decides how much of their communication meets:
    ``starts`` shows by how much.

    Args:
        jobs: each with the GPU of each of its ranks, and its hardware as it is alone.
        cluster: the machine.
        steps: how many each job plays at least; quicker ones go on until the last has.
        warmup: of these the first so many are left out of the figures.
        offsets_ns: when each job starts; None: all at once.
        starts: how many starts are played: in each further one job ``j`` is ``j`` times as many even parts of
            its own step later, within a step. The figures are those of the first.

    Raises:
        InputError: an argument that is not legal; no jobs, two of one name, ranks that are no GPUs or that
            two jobs have, or not as many as a job's hardware has.
        AssignmentError, NotModelledError: as ``simulate``.
    """
    from sim.clusters.jobs import contention as sharing

    return sharing.play_jobs(jobs, cluster, steps=steps, warmup=warmup, offsets_ns=offsets_ns, starts=starts)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """A Cluster from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Cluster)


def cluster(preset: str, **settings: Any) -> Cluster:
    """A ready-made cluster, such as ``cluster("dgx_h100", hosts=4)``.

    Raises ``InputError`` for a name or a setting that is not known, and says which are.
    """
    from sim.clusters.topology import presets  # networkx, which nothing else here needs

    return presets.preset(preset, **settings)


def cluster_hardware(
    cluster: Cluster,
    ranks: Sequence[str] | None = None,
    beside: Sequence[Sequence[str]] = (),
    algorithm: str = "auto",
) -> Hardware:
    """The collectives of a job on ``cluster``, computed by NCCL's own cost model: nothing is measured.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank, such as ``host0.gpu3`` (None: the cluster's placement).
        beside: the ranks of other jobs that run at the same time and take their fair share of links.
        algorithm: what all-reduces go by: ``auto`` (NCCL's choice), one of NCCL's such as ``ring`` or
            ``tree``, or a textbook's ``hierarchical`` or ``halving_doubling``.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins; or no such algorithm.
        NotModelledError: an algorithm that NCCL would not use there, or no textbook knows.
    """
    from sim.clusters.nccl.by_algorithm import hardware_by  # networkx, which nothing else here needs

    return hardware_by(cluster, ranks, beside=beside, algorithm=algorithm)


def link_loads(
    cluster: Cluster, ranks: Sequence[str] | None = None, algorithm: str = "ring"
) -> tuple[LinkLoad, ...]:
    """Bytes over each link, in each direction, per byte of the message of one all-reduce.

    The link that is busy longest comes first. Up to 64 hosts each link has its own name; beyond, links alike
    are one with a count.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank (None: the cluster's placement).
        algorithm: ``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``hierarchical`` or ``halving_doubling``.

    Raises:
        InputError: ranks that are no GPUs or that no way joins, or an algorithm that is not known.
        NotModelledError: an algorithm that is not for these ranks.
    """
    from sim.clusters.topology import loads

    return loads.link_loads(cluster, ranks, algorithm)
