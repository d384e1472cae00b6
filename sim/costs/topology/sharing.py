"""What each ring of each job gets, where they share links."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.costs.topology.packing import uses
from sim.costs.topology.rings import Rings
from sim.costs.topology.routes import routes_of
from sim.costs.topology.shares import max_min_shares
from sim.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShare:
    """A job's rings beside those of other jobs: bytes/s of each ring, and of all together."""

    rings: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        """The bus bandwidth of the job's rings together; 0 for one rank, which sends nothing."""
        return float(sum(self.rings))


def ring_shares(*jobs: Rings) -> list[JobShare]:
    """Max-min fair shares of the rings of jobs that run at once on one cluster.

    A ring goes at one pace all round, since all its steps carry the same bytes; so it takes of every link its
    rate as often as it crosses it. Hosts that all jobs use alike count once.

    Args:
        jobs: rings of the same cluster, on different GPUs.

    Raises:
        InputError: two jobs on one GPU.
    """
    flows: list[dict[tuple[str, ...], float]] = [{} for job in jobs for _ in range(job.channels)]
    capacity: dict[tuple[str, ...], float] = {}
    firsts = [sum(job.channels for job in jobs[:number]) for number in range(len(jobs))]
    for host, uses_of_host in _alike(jobs).items():
        for job, place in uses_of_host:
            rings = jobs[job]
            if not rings.channels:
                continue
            graph = routes_of(rings.host_rings[rings.kinds[place]].template)
            for ring in range(rings.channels):
                for link, times in uses(rings.local(ring, place)).items():
                    name = (f"host{host}", *link)
                    capacity[name] = graph.bytes_per_s(link)
                    flows[firsts[job] + ring][name] = times
    for first, rings in zip(firsts, jobs, strict=True):
        if len(rings.hosts) == 1:
            continue
        for ring in range(rings.channels):
            flow = flows[first + ring]
            for place in range(len(rings.hosts)):
                for link in rings.between(ring, place):
                    flow[link] = flow.get(link, 0.0) + 1
                    if link not in capacity:
                        capacity[link] = rings.wiring.bytes_per_s(link)
    rates = max_min_shares(flows, capacity)
    return [
        JobShare(rings=tuple(rates[first : first + job.channels]))
        for first, job in zip(firsts, jobs, strict=True)
    ]


def _alike(jobs: Sequence[Rings]) -> dict[int, list[tuple[int, int]]]:
    """One host of each way in which jobs use hosts: its number, and job and place of each use."""
    used: dict[int, list[tuple[int, int]]] = {}
    for job, rings in enumerate(jobs):
        for place, host in enumerate(rings.hosts):
            used.setdefault(host, []).append((job, place))
    kept: dict[tuple[tuple[int, int, int], ...], int] = {}
    for host, uses_of_host in used.items():
        if len(uses_of_host) > 1:
            _no_gpu_twice(jobs, host, uses_of_host)
        kept.setdefault(tuple((job, jobs[job].kinds[place], place % 2) for job, place in uses_of_host), host)
    return {host: used[host] for host in kept.values()}


def _no_gpu_twice(jobs: Sequence[Rings], host: int, uses_of_host: list[tuple[int, int]]) -> None:
    taken: set[str] = set()
    for job, place in uses_of_host:
        gpus = jobs[job].host_rings[jobs[job].kinds[place]].gpus if jobs[job].channels else ()
        for gpu in gpus:
            if gpu in taken:
                raise InputError(f"jobs: host{host}.{gpu} holds ranks of two jobs; each GPU holds one rank")
            taken.add(gpu)
