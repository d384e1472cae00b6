"""What every partition of one workload on one machine has in common, as arrays for the kernels."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Floats, Ints
from sim.clock.program import Effects, effects_of
from sim.clock.sheet import Factors
from sim.clock.variants import factors_of, grains_of
from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp import copied_bytes
from sim.tuner.search.partitions import Buckets, gather, run_keys
from sim.units import NS_PER_S, format_number, transfer_ns

MOST = 1 << 52  # ns or bytes: sums of two stay exact in a float64
LONGEST_STEP = 1 << 61  # ns: sums stay within an int64


class Machine(NamedTuple):
    """What a step meets: the machine's effects as the clock reads them, copies out in ns a byte.

    Messages of fewer than ``small_bytes`` are small.
    """

    factors: Factors
    small_bytes: int
    copy_out_ns_per_byte: float


class Tables(NamedTuple):
    """A ``Problem``'s arrays, by the same names, as kernels take them."""

    run: Ints
    wire: Ints
    copied: Ints
    dense: Ints
    work: Ints
    copy_in: Ints
    tail: int
    grains: Floats
    curve_bytes: Ints
    curve_ns: Ints


def machine_of(effects: Effects, copy_out_bytes_per_s: float | None) -> Machine:
    """The machine with these ``effects``."""
    factors = factors_of(effects)
    return Machine(
        factors=factors._replace(blocks=factors.blocks and factors.launch_cost_ns > 0),
        small_bytes=effects.small_bytes,
        copy_out_ns_per_byte=0.0 if copy_out_bytes_per_s is None else NS_PER_S / copy_out_bytes_per_s,
    )


def _ints(what: str, values: Sequence[int]) -> Ints:
    if max(values, default=0) > MOST:
        raise InputError(f"{what}: {max(values)} is more than the tuner can count with; give at most {MOST}")
    return np.array(values, dtype=np.int64)


def _transfers_ns(sizes: Sequence[int], bytes_per_s: float | None) -> list[int]:
    """``transfer_ns`` of each."""
    return [0] * len(sizes) if bytes_per_s is None else [transfer_ns(size, bytes_per_s) for size in sizes]


class Problem:
    """One workload on one machine, one array entry for each place in the ready order.

    ``order``, ``indices``: index of the gradient; ``run``: number of its run (``run_keys``); ``wire``,
    ``copied``, ``dense``: its bytes on the wire, in copies, by DDP's caps; ``work``, ``copy_in``: ns of the
    compute lane for it, with its hook; ``ready``: ns at which it is copied in if nothing stretches or
    blocks the lane; ``tail``: ns of backward after the last; ``lane_end``: ns,
    the end of that lane; ``effects``: what the
    machine does; ``asked``: the workload with its job's switches that DDP cuts, where ``workload`` stands for
    it; ``grains``: see ``grains_of``. ``curve``, and as arrays ``curve_bytes``, ``curve_ns``: the
    all-reduce curve, zero for world size 1.

    Raises:
        InputError: times or sizes beyond 2**52, or a step that could take more than 2**61 ns.
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
        _ints("backward_ns", [workload.backward_ns])
        self.run = np.array(run_keys(gradients), dtype=np.int64)
        dense = [gradient.num_bytes for gradient in gradients]
        wire = [gradient.on_wire for gradient in gradients]
        copied = [copied_bytes(gradient) for gradient in gradients]
        self.dense, self.wire = _ints("num_bytes", dense), _ints("wire_bytes", wire)
        self.copied = _ints("wire_bytes", copied)
        # Of floats: exact up to what is legal, and without overflow beyond.
        _ints("num_bytes of all gradients", [int(np.maximum(self.wire, self.dense).sum(dtype=np.float64))])
        self.work = np.diff(_ints("ready_ns", ready), prepend=0)
        self.copy_in = self.copies_in(hardware)
        self.ready = np.cumsum(self.work + self.copy_in)
        self.tail = workload.backward_ns - (ready[-1] if ready else 0)
        self.lane_end = int(self.ready[-1]) + self.tail if ready else self.tail
        nothing = (CurvePoint(num_bytes=0, duration_ns=0),)
        self.curve = hardware.all_reduce if hardware.world_size > 1 else nothing
        self.curve_bytes = _ints("all_reduce.num_bytes", [point.num_bytes for point in self.curve])
        self.curve_ns = _ints("all_reduce.duration_ns", [point.duration_ns for point in self.curve])
        self.effects = effects_of(workload, hardware)
        self.machine = machine_of(self.effects, hardware.copy_out_bytes_per_s)
        self.grains = grains_of(self.effects)
        self._check_longest_step()

    def _check_longest_step(self) -> None:
        factors, hardware = self.machine.factors, self.hardware
        # Beyond the last point each byte is paid for once, however many buckets there are.
        sent: float = len(self) * max(point.duration_ns for point in self.curve)
        sent += service_ns(self.curve, int(self.wire.sum()))
        lane: float = self.workload.backward_ns + sum(self.copy_in.tolist())
        lane += len(self) * factors.launch_cost_ns
        lane *= factors.compute * factors.copy_in
        sent *= max(factors.comm, factors.comm_copy_out) * max(factors.channel, factors.small)
        back = transfer_ns(int(self.copied.sum()), hardware.copy_out_bytes_per_s) * factors.copy_out
        if lane + sent + back > LONGEST_STEP:
            raise InputError(
                f"{hardware.name}: with this workload a step could take {format_number(lane + sent + back)} "
                f"ns, more "
                f"than the tuner can count with ({format_number(LONGEST_STEP)}); look at all_reduce, "
                f"launch_cost_ns, "
                "the copies' bandwidths and the slow-downs"
            )

    def __len__(self) -> int:
        return len(self.order)

    @property
    def tables(self) -> Tables:
        """The arrays, for a kernel."""
        return Tables(
            run=self.run,
            wire=self.wire,
            copied=self.copied,
            dense=self.dense,
            work=self.work,
            copy_in=self.copy_in,
            tail=self.tail,
            grains=self.grains,
            curve_bytes=self.curve_bytes,
            curve_ns=self.curve_ns,
        )

    @property
    def together(self) -> float:
        """How many times as fast as one channel all of them are together, at most."""
        return max(1.0, self.machine.factors.channels / self.machine.factors.channel)

    @property
    def has_one_run(self) -> bool:
        """Whether all gradients have one dtype and device, and none is sparse unless it is the only one."""
        return not self.run.any()

    @property
    def copies_out(self) -> bool:
        """Whether copies back take time."""
        return self.machine.copy_out_ns_per_byte > 0

    def stops(self, buckets: Buckets) -> tuple[Ints, Ints, Ints]:
        """Per bucket in launch order: the last place it waits for, its bytes on the wire, its copied bytes.

        A bucket waits for those before it too (A3.5).
        """
        places, firsts = self._members(buckets)
        stops = np.maximum.accumulate(np.maximum.reduceat(places, firsts))
        return stops, np.add.reduceat(self.wire[places], firsts), np.add.reduceat(self.copied[places], firsts)

    def small(self, wires: Ints) -> Ints:
        """Of buckets of ``wires`` bytes, whether each is a small message, 1 or 0."""
        return (wires < self.machine.small_bytes).astype(np.int64)

    def copies_in(self, hardware: Hardware) -> Ints:
        """Ns of each gradient's hook on ``hardware``, and of copying it into its bucket."""
        included = "copy_in" in self.workload.ready_includes
        into, hook_ns = (None, 0) if included else (hardware.copy_in_bytes_per_s, hardware.hook_cost_ns)
        copies = _transfers_ns(self.copied.tolist(), into)
        return _ints("copy_in", [hook_ns + copy for copy in copies])

    def copies_back(self, copied: Ints, hardware: Hardware | None = None) -> Ints:
        """Ns to copy each bucket back, from ``copied`` bytes, here or on another ``hardware``."""
        rate = (hardware or self.hardware).copy_out_bytes_per_s
        return np.array(_transfers_ns(copied.tolist(), rate), dtype=np.int64)

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
