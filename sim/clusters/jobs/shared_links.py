"""Links that jobs share: how fast the collectives of each job go while those of others are under way."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import simpy

from sim.clock.program import Effects
from sim.clock.simpy_clock import Kind, Stretch, Task
from sim.clusters.jobs.neighbours import stretched_ns
from sim.clusters.topology.job_shares import ring_shares
from sim.clusters.topology.rings import rings_of
from sim.nouns.cluster import Cluster
from sim.nouns.collective import Collective
from sim.nouns.jobs import Job


class Links:
    """Which jobs have collectives under way, and what each gets of the links then."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._rings = [rings_of(cluster, job.ranks) for job in jobs]
        self._under_way = [0] * len(jobs)
        self._running: dict[Sharing, None] = {}
        self._bandwidths: dict[frozenset[int], Mapping[int, float]] = {}
        self._factors: dict[tuple[frozenset[int], int, str, int, int], Fraction] = {}

    def change(self, sharing: "Sharing", by: int) -> None:
        """Note that a job has one collective more under way (``by`` 1), or one less (``by`` -1)."""
        self._running[sharing] = None
        self._under_way[sharing.job] += by
        for each in tuple(self._running):
            each.settle_again()
            if not each.is_active:
                del self._running[each]

    def factor(self, job: int, collective: Collective) -> Fraction:
        """How much longer a collective of ``job`` takes beside those of the jobs that have one under way."""
        active = frozenset(number for number, count in enumerate(self._under_way) if count)
        size, service = collective.num_bytes, collective.service_ns
        key = active, job, collective.kind, size, service
        if key not in self._factors:
            alone = self._bytes_per_s(frozenset([job]))[job]
            shared = self._bytes_per_s(active)[job]
            world_size = self._jobs[job].hardware.world_size
            beside = stretched_ns(service, collective.kind, size, world_size, alone, shared)
            self._factors[key] = Fraction(beside, service)
        return self._factors[key]

    def _bytes_per_s(self, active: frozenset[int]) -> Mapping[int, float]:
        if active not in self._bandwidths:
            numbers = sorted(active)
            shares = ring_shares(*(self._rings[number] for number in numbers))
            self._bandwidths[active] = {
                number: share.bytes_per_s for number, share in zip(numbers, shares, strict=True)
            }
        return self._bandwidths[active]


class Sharing(Stretch):
    """Stretches a job's work as ``Stretch`` does, and its collectives also by those of other jobs."""

    def __init__(self, env: simpy.Environment, effects: Effects, links: Links, job: int) -> None:
        super().__init__(env, effects)
        self._stretches = True
        self._links = links
        self.job = job

    @property
    def is_active(self) -> bool:
        """Whether anything is under way."""
        return bool(self._active)

    def settle_again(self) -> None:
        """At the end of this instant, stretch work by the factors that hold then."""
        self._request_settle()

    def work(self, duration_ns: int, kind: Kind, collective: Collective | None = None) -> simpy.Event:
        """As for a job alone; until a collective is done it takes its share of the links from other jobs."""
        done = super().work(duration_ns, kind, collective)
        if kind == "collective" and duration_ns:
            self._links.change(self, 1)
            assert done.callbacks is not None
            done.callbacks.append(lambda _: self._links.change(self, -1))
        return done

    def _beside(self, task: Task) -> Fraction:
        return Fraction(1) if task.collective is None else self._links.factor(self.job, task.collective)
