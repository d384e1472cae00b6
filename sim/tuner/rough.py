"""``sync_end_ns`` of a partition where work stretches, in floating point: for searches over thousands.

Between two instants at which a collective begins or ends, the compute lane and the collectives advance
at rates that depend only on whether the lane copies or computes. Three running sums along the lane
therefore stand for all its pieces, and only launches, ends and copies back are stepped through. Times
are not rounded on the way, so that an answer may be off the engines' by a few ns; what a search finds is
played by an engine before it is reported.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from sim.costs.collectives import all_reduce_ns
from sim.engine.ddp import copied_bytes
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import transfer_ns

_NOTHING = 1e-6  # ns: work that floating point may leave over


class _Lane:
    """The compute lane as running sums at the border of each piece, in ns.

    ``alone``: time without any collective, which is the lane's coordinate; ``beside``: time with one;
    ``passed``: what one collective gets done meanwhile.
    """

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        included = workload.ready_includes
        compute = 1.0 if "interference" in included else hardware.compute_slowdown
        rate = None if "copy_in" in included else hardware.copy_in_bytes_per_s
        self.compute, self.comm = compute, hardware.comm_slowdown
        self.alone, self.beside, self.passed = [0.0], [0.0], [0.0]
        self.stop: list[float] = []  # per gradient in ready order: the coordinate at which it is copied in
        before = 0
        for index in workload.order():
            ready = workload.gradients[index].ready_ns or 0
            self._piece(ready - before, compute, hardware.comm_slowdown)
            self._piece(
                transfer_ns(copied_bytes(workload, index), rate),
                compute * hardware.copy_in_slowdown,
                hardware.comm_slowdown,
            )
            self.stop.append(self.alone[-1])
            before = ready
        self._piece(workload.backward_ns - before, compute, hardware.comm_slowdown)

    def _piece(self, duration: int, stretch: float, hold: float) -> None:
        if duration:
            self.alone.append(self.alone[-1] + duration)
            self.beside.append(self.beside[-1] + duration * stretch)
            self.passed.append(self.passed[-1] + duration * stretch / hold)

    def read(self, sums: list[float], at: float) -> float:
        """A running sum at coordinate ``at``."""
        k = min(max(bisect_right(self.alone, at), 1), len(self.alone) - 1)
        if len(self.alone) == 1:
            return 0.0
        start, stop = self.alone[k - 1], self.alone[k]
        return sums[k - 1] + (sums[k] - sums[k - 1]) * (at - start) / (stop - start)

    def find(self, sums: list[float], value: float) -> float:
        """The coordinate at which a running sum reaches ``value``."""
        k = min(max(bisect_left(sums, value), 1), len(sums) - 1)
        if len(sums) == 1:
            return 0.0
        low, high = sums[k - 1], sums[k]
        if high == low:
            return self.alone[k]
        return self.alone[k - 1] + (self.alone[k] - self.alone[k - 1]) * (value - low) / (high - low)


class Rough:
    """Scores the partitions of one workload on one machine, roughly."""

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        self._workload = workload
        self._hardware = hardware
        self._lane = _Lane(workload, hardware)
        self._place = {index: at for at, index in enumerate(workload.order())}
        self._copied = [copied_bytes(workload, index) for index in range(len(workload.gradients))]
        self._blocks = hardware.launch_blocks_compute and "launch" not in workload.ready_includes

    def sync_end_ns(self, buckets: Sequence[Sequence[int]]) -> float:
        """When all gradients are available, ns from the start of backward, to within a few ns."""
        gradients = self._workload.gradients
        rate = self._hardware.copy_out_bytes_per_s
        stops, services, copies = [], [], []
        last = 0
        for bucket in buckets:
            last = max(last, *(self._place[index] for index in bucket))
            stops.append(self._lane.stop[last])
            services.append(all_reduce_ns(self._hardware, sum(gradients[i].on_wire for i in bucket)))
            copies.append(transfer_ns(sum(self._copied[i] for i in bucket), rate))
        return self._play(stops, services, copies)

    def _play(self, stops: list[float], services: list[int], copies: list[int]) -> float:
        lane, hardware, count = self._lane, self._hardware, len(stops)
        channels, cost = hardware.comm_channels, float(hardware.launch_cost_ns)
        end_of_lane = lane.alone[-1]
        now = at = 0.0
        turn = 0  # the bucket that is launched next
        launching = 0.0  # what remains of a launch that blocks the lane
        launched: list[float] = []  # instants of launches, by bucket
        serving: dict[int, float] = {}
        begun = 0
        back, copying = 0, -1.0
        while back < count:
            # What takes no time.
            while turn < count and at >= stops[turn] - _NOTHING and launching == 0:
                if self._blocks and cost:
                    launching = cost
                    break
                before = launched[-1] if launched else 0.0
                launched.append(max(now, before) + (0.0 if self._blocks else cost))
                turn += 1
            while begun < len(launched) and launched[begun] <= now + _NOTHING and len(serving) < channels:
                if services[begun]:
                    serving[begun] = float(services[begun])
                begun += 1
            over = at >= end_of_lane - _NOTHING and turn == count
            if over and copying < 0 and back < begun and back not in serving:
                copying = float(copies[back])
            if copying == 0:
                copying, back = -1.0, back + 1
                continue
            # How long until something changes, and what is done by then.
            waits = []
            if begun < len(launched) and len(serving) < channels:
                waits.append(launched[begun] - now)
            share = hardware.channel_slowdown if len(serving) > 1 else 1.0
            stretch = lane.compute if serving else 1.0
            target = stops[turn] if turn < count else end_of_lane
            coordinate = lane.beside if serving else lane.alone
            here = lane.read(coordinate, at)
            if launching:
                waits.append(launching * stretch)
            elif at < target - _NOTHING:
                waits.append(lane.read(coordinate, target) - here)
            if copying > 0:
                waits.append(copying * (hardware.copy_out_slowdown if serving else 1.0))
            on_lane = not launching and not over and at < target - _NOTHING
            if serving:
                least = min(serving.values()) * share
                if on_lane:
                    waits.append(
                        lane.read(lane.beside, lane.find(lane.passed, self._passed(at) + least)) - here
                    )
                    if self._passed(target) - self._passed(at) < least:
                        waits.pop()
                else:
                    waits.append(least * self._hold(launching > 0, copying > 0))
            step = max(min(waits), 0.0)
            now += step
            if serving:
                if on_lane:
                    there = lane.find(lane.beside, here + step)
                    done = (self._passed(there) - self._passed(at)) / share
                else:
                    done = step / (share * self._hold(launching > 0, copying > 0))
                serving = {k: left - done for k, left in serving.items() if left - done > _NOTHING}
            if launching:
                launching -= step / stretch
                if launching <= _NOTHING:
                    launching = 0.0
                    launched.append(now)
                    turn += 1
            elif on_lane:
                at = lane.find(coordinate, here + step) if coordinate is lane.beside else at + step
                if target - at <= _NOTHING:
                    at = target
            if copying > 0:
                copying -= step / (hardware.copy_out_slowdown if coordinate is lane.beside else 1.0)
                if copying <= _NOTHING:
                    copying, back = -1.0, back + 1
        return now

    def _passed(self, at: float) -> float:
        return self._lane.read(self._lane.passed, at)

    def _hold(self, launches: bool, copies: bool) -> float:
        hold = self._hardware.comm_slowdown if launches else 1.0
        return hold * self._hardware.comm_copy_out_slowdown if copies else hold
