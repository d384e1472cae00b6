"""What every partition of one workload on one machine has in common, as arrays for the kernels."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Ints
from sim.clock.program import FULL_SPEED, MOST_NS, check_length, machine_of
from sim.costs.service_time import rise_beyond
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp import copied_bytes
from sim.tuner.search.partitions import Buckets, gather, run_keys
from sim.units import transfer_ns

MOST_BYTES = 1 << 52


class Tables(NamedTuple):
    """A ``Problem``'s arrays, by the same names, as kernels take them."""

    run: Ints
    wire: Ints
    work: Ints
    copy_in: Ints
    copy_back: Ints
    tail: int
    curve_bytes: Ints
    curve_ns: Ints


def _ints(what: str, values: Sequence[int], most: int) -> Ints:
    if max(values, default=0) > most:
        raise InputError(f"{what}: {max(values)} is more than the tuner can count with; give at most {most}")
    return np.array(values, dtype=np.int64)


@lru_cache(maxsize=16)  # machines that are drawn copy alike
def _transfers_ns(sizes: tuple[int, ...], bytes_per_s: float | None) -> tuple[int, ...]:
    return tuple(transfer_ns(size, bytes_per_s) for size in sizes)


def _curve_of(hardware: Hardware) -> Curve:
    return hardware.all_reduce if hardware.world_size > 1 else (CurvePoint(num_bytes=0, duration_ns=0),)


class Problem:
    """One workload on one machine, one array entry for each place in the ready order.

    ``order``, ``indices``: index of the gradient; ``run``: number of its run (``run_keys``); ``wire``,
    ``dense``: its bytes on the wire, by DDP's caps; ``work``, ``copy_in``: ns of the compute lane for it,
    with its hook; ``copy_back``: ns of copying it out of its bucket; ``ready``: ns at which it is copied in
    if nothing stretches or blocks the lane; ``tail``: ns of backward after the last; ``lane_end``: ns, the
    end of that lane; ``machine``: what the machine does; ``asked``: the workload with its job's
    switches that DDP cuts, where ``workload`` stands for it. ``curve``, and as arrays ``curve_bytes``,
    ``curve_ns``: the all-reduce curve, zero for world size 1.

    Raises:
        InputError: sizes beyond 2**52 bytes, or a step that is too long to be played.
    """

    def __init__(self, workload: Workload, hardware: Hardware, asked: Workload | None = None) -> None:
        self.workload, self.hardware = workload, hardware
        self.asked = workload if asked is None else asked
        self.order = workload.order()
        self.indices = np.array(self.order, dtype=np.int64)
        self._place = np.full(len(workload.gradients), len(self))  # an unused gradient has none
        self._place[self.indices] = np.arange(len(self))
        gradients = [workload.gradients[index] for index in self.order]
        ready = [gradient.ready_ns or 0 for gradient in gradients]
        self.run = np.array(run_keys(gradients), dtype=np.int64)
        dense = [gradient.num_bytes for gradient in gradients]
        wire = [gradient.on_wire for gradient in gradients]
        _ints("num_bytes of all gradients", [max(sum(dense), sum(wire))], MOST_BYTES)
        self.dense, self.wire = _ints("num_bytes", dense, MOST_BYTES), _ints("wire_bytes", wire, MOST_BYTES)
        self.work = np.diff(_ints("ready_ns", ready, MOST_NS), prepend=0)
        self.copy_in, self.copy_back = self.copies(hardware, workload.backward_ns)
        self.ready = np.cumsum(self.work + self.copy_in)
        self.tail = workload.backward_ns - (ready[-1] if ready else 0)
        self.lane_end = int(self.ready[-1]) + self.tail if ready else self.tail
        self.curve = _curve_of(hardware)
        sizes, times = ([p.num_bytes for p in self.curve], [p.duration_ns for p in self.curve])
        self.curve_bytes = _ints("all_reduce.num_bytes", sizes, MOST_BYTES)
        self.curve_ns = _ints("all_reduce.duration_ns", times, MOST_NS)
        self.machine = machine_of(workload, hardware)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def tables(self) -> Tables:
        """The arrays, for a kernel."""
        return Tables(
            run=self.run,
            wire=self.wire,
            work=self.work,
            copy_in=self.copy_in,
            copy_back=self.copy_back,
            tail=self.tail,
            curve_bytes=self.curve_bytes,
            curve_ns=self.curve_ns,
        )

    @property
    def together(self) -> int:
        """The rate at which all channels pass work together, at most; ``FULL_SPEED`` is that of one alone."""
        return max(FULL_SPEED, self.machine.channels * self.machine.idle.shared)

    @property
    def has_one_run(self) -> bool:
        """Whether all gradients have one dtype and device, and none is sparse unless it is the only one."""
        return not self.run.any()

    @property
    def copies_out(self) -> bool:
        """Whether copies back take time."""
        return bool(self.copy_back.any())

    def stops(self, buckets: Buckets) -> tuple[Ints, Ints, Ints]:
        """Per bucket in launch order: the last place it waits for, its bytes on the wire, ns to copy it back.

        A bucket waits for those before it too (A3.5).
        """
        places, firsts = self._members(buckets)
        stops = np.maximum.accumulate(np.maximum.reduceat(places, firsts))
        return stops, np.add.reduceat(self.wire[places], firsts), self.copies_back(buckets, self.copy_back)

    def copies_back(self, buckets: Buckets, copy_back: Ints) -> Ints:
        """Ns to copy each bucket back, if those of each place take ``copy_back``."""
        places, firsts = self._members(buckets)
        made: Ints = np.add.reduceat(copy_back[places], firsts)
        return made

    def small(self, wires: Ints) -> Ints:
        """Of buckets of ``wires`` bytes, whether each is a small message, 1 or 0."""
        return (wires < self.machine.small_bytes).astype(np.int64)

    def copies(self, hardware: Hardware, backward_ns: int) -> tuple[Ints, Ints]:
        """Ns of each gradient's hook and copy into its bucket, and of its copy out of it, on ``hardware``.

        Raises:
            InputError: a step with such a backward could be longer than can be played.
        """
        copied = tuple(copied_bytes(self.workload.gradients[index]) for index in self.order)
        included = "copy_in" in self.workload.ready_includes
        into, hook_ns = (None, 0) if included else (hardware.copy_in_bytes_per_s, hardware.hook_cost_ns)
        copies_in = [hook_ns + took for took in _transfers_ns(copied, into)]
        copies_back = _transfers_ns(copied, hardware.copy_out_bytes_per_s)
        # No message takes longer than by the line that lies on the curve, as steep as it goes on.
        curve = _curve_of(hardware)
        rise, run = rise_beyond(curve)
        first = max(0, *(point.duration_ns - rise * point.num_bytes // run for point in curve))
        sent = len(self) * (first + 1) + rise * int(self.wire.sum()) // run
        lane = backward_ns + sum(copies_in) + len(self) * hardware.launch_cost_ns
        check_length(hardware.name, lane + sent + sum(copies_back))
        return np.array(copies_in, np.int64), np.array(copies_back, np.int64)

    def closes(self, buckets: Buckets) -> NDArray[np.bool_] | None:
        """At which places a bucket ends; None unless this alone makes ``buckets``, in this order."""
        closes = np.zeros(len(self.order), dtype=np.bool_)
        closes[np.maximum.reduceat(*self._members(buckets))] = True
        made = self.buckets(closes)
        return closes if made == buckets or list(map(set, made)) == list(map(set, buckets)) else None

    def _members(self, buckets: Buckets) -> tuple[Ints, Ints]:
        """The place of each gradient, bucket after bucket, and where in this row each bucket begins."""
        places = self._place[np.fromiter(chain.from_iterable(buckets), np.int64)]
        return places, np.cumsum([0, *map(len, buckets[:-1])])

    def buckets(self, closes: NDArray[Any]) -> Buckets:
        """The buckets that end at ``closes``, in launch order: by when their last gradient is ready."""
        if self.has_one_run:
            return gather(self.indices, np.cumsum(closes) - closes)
        made: list[tuple[int, ...]] = []
        open_buckets: dict[int, list[int]] = {}
        for index, run, ends in zip(self.order, self.run.tolist(), closes.tolist(), strict=True):
            open_buckets.setdefault(run, []).append(index)
            if ends:
                made.append(tuple(open_buckets.pop(run)))
        assert not open_buckets, "a run's last gradient ends a bucket"
        return tuple(made)

    def singles(self) -> Buckets:
        """One bucket a gradient."""
        return tuple(zip(self.order))

    def run_ends(self) -> NDArray[np.bool_]:
        """The last place of each run: there a bucket ends in every partition."""
        ends = np.zeros(len(self.order), dtype=np.bool_)
        ends[[int(np.flatnonzero(self.run == run)[-1]) for run in np.unique(self.run)]] = True
        return ends
