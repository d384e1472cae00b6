"""``sync_end_ns`` of many partitions of one workload, fast."""

from collections.abc import Sequence
from fractions import Fraction

from sim.costs.collectives import all_reduce_ns
from sim.engine import recurrence
from sim.engine.systems import write
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS, Hardware
from sim.nouns.workload import Workload
from sim.tuner.prefixes import Prefixes
from sim.tuner.rough import Rough
from sim.units import transfer_ns

# Slow-downs that a walk over buckets copes with: sharing, and what Prefixes knows of.
_WALKED = ("channel_slowdown", "compute_slowdown")


class Scorer:
    """Scores partitions, remembering each.

    Where compute and communication do not stretch each other and buckets are contiguous in ready order,
    the compute lane is a prefix sum and only buckets are walked; otherwise the analytic engine decides.
    Both give ``sync_end_ns`` to the nanosecond.
    """

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        self._workload = workload
        self._hardware = hardware
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}
        self._service: dict[int, int] = {}
        self._prefixes = Prefixes(workload, hardware)
        self._place = {index: at for at, index in enumerate(self._prefixes.order)}
        self._sharing = Fraction(hardware.channel_slowdown) if hardware.comm_channels > 1 else Fraction(1)
        beside = [getattr(hardware, name) for name in SLOWDOWNS if name not in _WALKED]
        self._walks = all(factor == 1 for factor in beside) and not self._prefixes.is_slowed
        self._rough = None if self._walks else Rough(workload, hardware)
        self._roughly: dict[tuple[tuple[int, ...], ...], float] = {}
        self.evaluations = 0

    def sync_end_ns(self, buckets: Sequence[Sequence[int]]) -> int:
        """When all gradients are available under these buckets, ns from the start of backward."""
        key = tuple(map(tuple, buckets))
        if key not in self._known:
            self.evaluations += 1
            stops = self._stops(key) if self._walks else None
            self._known[key] = self._engine(key) if stops is None else self._walk(stops)
        return self._known[key]

    def rough_ns(self, buckets: Sequence[Sequence[int]]) -> float:
        """``sync_end_ns`` for a search: to the ns where buckets are walked, else within a few ns of it."""
        if self._rough is None:
            return self.sync_end_ns(buckets)
        key = tuple(map(tuple, buckets))
        if key not in self._roughly:
            self.evaluations += 1
            self._roughly[key] = self._rough.sync_end_ns(key)
        return self._roughly[key]

    def _stops(self, buckets: tuple[tuple[int, ...], ...]) -> list[int] | None:
        """Where each bucket ends in ready order; None unless they are contiguous and in that order."""
        stops, at = [], 0
        for bucket in buckets:
            places = [self._place[index] for index in bucket]
            at += len(bucket)
            if min(places) != at - len(bucket) or max(places) != at - 1:
                return None
            stops.append(at)
        return stops

    def _walk(self, stops: list[int]) -> int:
        lane = self._prefixes
        cost, rate = self._hardware.launch_cost_ns, self._hardware.copy_out_bytes_per_s
        launches, services = [], []
        launch = delay = start = 0
        for stop in stops:
            if lane.launches_block:
                delay += cost
                launch = lane.ready[stop - 1] + delay
            else:
                launch = max(launch, lane.ready[stop - 1]) + cost
            wire = lane.wire[stop] - lane.wire[start]
            service = self._service.get(wire)
            if service is None:
                service = self._service[wire] = all_reduce_ns(self._hardware, wire)
            launches.append(launch)
            services.append(service)
            start = stop
        ends = self._serve(launches, services)
        time, start = lane.compute_end + delay, 0
        for stop, end in zip(stops, ends, strict=True):
            time = max(time, end) + transfer_ns(lane.copied[stop] - lane.copied[start], rate)
            start = stop
        return time

    def _serve(self, launches: list[int], services: list[int]) -> list[int]:
        """When each collective ends: first come first served; channels in use share if they must."""
        channels = self._hardware.comm_channels
        ends: list[int] = []
        if self._sharing == 1:
            free = [0] * channels
            for launch, service in zip(launches, services, strict=True):
                ends.append(max(launch, free[0]) + service)
                free[0] = ends[-1]
                free.sort()
            return ends
        ends = [0] * len(launches)
        left: dict[int, Fraction] = {}
        waiting = now = 0
        while waiting < len(launches) or left:
            while waiting < len(launches) and launches[waiting] <= now and len(left) < channels:
                ends[waiting] = now
                if services[waiting]:
                    left[waiting] = Fraction(services[waiting])
                waiting += 1
            factor = self._sharing if len(left) > 1 else Fraction(1)
            # ``ends`` holds the start until the end is known; the whole duration is rounded, once.
            finish = {
                bucket: ends[bucket] + round(now - ends[bucket] + work * factor)
                for bucket, work in left.items()
            }
            instants = list(finish.values())
            if waiting < len(launches) and len(left) < channels:
                instants.append(launches[waiting])
            if not instants:
                break
            then = min(instants)
            for bucket, end in finish.items():
                if end == then:
                    ends[bucket] = end
                    del left[bucket]
                else:
                    left[bucket] -= (then - now) / factor
            now = then
        return ends

    def _engine(self, buckets: tuple[tuple[int, ...], ...]) -> int:
        assignment = Assignment(bucket_indices=buckets)
        return recurrence.solve(write(self._workload, self._hardware, assignment)[-1]).sync_end_ns
