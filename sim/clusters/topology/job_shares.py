"""What each job gets, where jobs share links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sim.clusters.topology.rings import Rings, rings_of
from sim.clusters.topology.routes import routes_of
from sim.clusters.topology.shares import max_min_shares
from sim.clusters.topology.traffic import TRAFFIC, hosts_alike
from sim.errors import InputError
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster

Name = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShare:
    """A job beside others: the bus bandwidth of each of its rings, all at one pace, and of all together."""

    rings: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        """The job's bus bandwidth; 0 for one rank, which sends nothing."""
        return float(sum(self.rings))


def ring_shares(*jobs: Rings, algorithm: str = "ring") -> list[JobShare]:
    """Max-min fair shares of jobs that run at once on one cluster.

    NCCL cuts a message into equal parts, one for each channel, so that all channels of a job, and all steps
    of each, go at one pace: that of the step that gets least. Where jobs meet, each crossing of a link gets
    as much as any other. Hosts that all jobs use alike count once.

    Args:
        jobs: rings of the same cluster, on different GPUs.
        algorithm: what all of them run, one of ``TRAFFIC``.

    Raises:
        InputError: two jobs on one GPU.
    """
    _no_gpu_twice(jobs)
    traffic = [TRAFFIC[algorithm](rings) for rings in jobs]
    flows: list[dict[Name, float]] = [{} for _ in jobs]
    capacity: dict[Name, float] = {}
    for uses_of_host, hosts in hosts_alike(traffic).items():
        for job, number in uses_of_host:
            kind = traffic[job].within[number]
            routes = routes_of(kind.template)
            for link, times in kind.times.items():
                name = (f"host{hosts[0]}", *link)
                capacity[name] = routes.bytes_per_s(link)
                flows[job][name] = times
    for flow, each in zip(flows, traffic, strict=True):
        for way, times in each.between.items():
            flow[way] = times
            if way not in capacity:
                capacity[way] = each.wiring.bytes_per_s(way)
    shares = []
    paces = _paces(flows, capacity)
    for rings, each, pace in zip(jobs, traffic, paces, strict=True):
        # nccl-tests' bus bandwidth: the message's rate times 2 (n - 1) / n.
        bus = pace / each.part * 2 * (rings.world_size - 1) / rings.world_size if rings.channels else 0.0
        shares.append(JobShare(rings=(bus / max(1, rings.channels),) * rings.channels))
    return shares


def _paces(flows: list[dict[Name, float]], capacity: dict[Name, float]) -> list[float]:
    """The max-min fair pace of each job; of one alone the least, over links, of capacity over crossings."""
    if len(flows) > 1:
        return max_min_shares(flows, capacity)
    return [min((capacity[link] / times for link, times in flows[0].items() if times), default=math.inf)]


def job_bandwidths(cluster: Cluster, jobs: Sequence[Sequence[str]], algorithm: str = "ring") -> list[float]:
    """The bus bandwidth of each job in bytes/s while all of them run; 0 for one rank, which sends nothing.

    Args:
        cluster: the machine.
        jobs: the ranks of each, as full names of GPUs.
        algorithm: what all of them run: ``ring`` or ``tree``.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins; another algorithm.
    """
    one_of("algorithm", algorithm, TRAFFIC)
    shares = ring_shares(*(rings_of(cluster, ranks) for ranks in jobs), algorithm=algorithm)
    return [share.bytes_per_s for share in shares]


def _no_gpu_twice(jobs: Sequence[Rings]) -> None:
    taken: dict[int, set[str]] = {}
    for rings in jobs if len(jobs) > 1 else ():
        for host, gpus in zip(rings.hosts, rings.gpus, strict=True):
            both = taken.setdefault(host, set()) & set(gpus)
            if both:
                raise InputError(
                    f"jobs: host{host}.{min(both)} holds ranks of two jobs; each GPU holds one rank"
                )
            taken[host] |= set(gpus)
