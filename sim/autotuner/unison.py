"""What ranks tell each other at a step boundary, so that all do the same, and what they measure together.

They talk over gloo, beside the job's group: with NCCL such a collective would hold the job's GPUs and their
memory, and objects would travel by way of the current device, which a script that never calls
``torch.cuda.set_device`` leaves at GPU 0 on every rank. Over the group that carries the gradients go only the
all-reduces by which the job's link is measured.
"""

import json
import pickle
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from sim.nouns.hardware import GLOO_CHANNELS, CurvePoint
from sim.units import NS_PER_S
from sim.validator.ranks.probes import Bench

_CONNECTING = timedelta(seconds=60)  # all ranks are there by then, so that what takes longer does not come
_FINE, _OBSTACLE, _FAILURE = range(3)

_made: Counter[str] = Counter()
Found = TypeVar("Found")


class FailedSomewhereError(Exception):
    """A rank failed, and all ranks raise this with its reason."""


class Unison:
    """The ranks of ``ddp``'s process group, which all call the same methods in the same order.

    The first call connects them. A rank that has failed calls ``fail`` in place of whatever comes next, and
    the call that the others are in raises ``FailedSomewhereError``. So each step needs a call of all ranks:
    before the next forward, where the others would wait for the gradients of the one that failed.

    Attributes:
        is_broken: a collective failed here, so that no rank can be told anything more.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._group, self._device = ddp.process_group, ddp.device
        self._control: Any = None
        self.rank = dist.get_rank(self._group)
        self.is_first = self.rank == 0  # which predicts and judges
        self.world_size = self._group.size()
        self.is_broken = False

    def agree(self) -> None:
        """Return once all ranks are here and none has failed."""
        self._say(_FINE, None)

    def fail(self, why: str) -> str:
        """Tell all ranks that this one failed; returns what they are told."""
        try:
            self._say(_FAILURE, why)
        except FailedSomewhereError as failed:
            return str(failed)
        raise AssertionError  # it always raises

    def first_reason(self, why: str | None) -> str | None:
        """The reason of the first rank that has one; None where none has."""
        return self._say(_FINE if why is None else _OBSTACLE, why)

    def from_first(self, act: Callable[[], Found]) -> Found:
        """Run ``act`` on the first rank and return its value on all ranks."""
        value = act() if self.is_first else None
        self.agree()
        return self._spread(value)  # type: ignore[no-any-return]

    def gather(self, value: Any) -> list[Any]:
        """On the first rank the values of all ranks, by rank; on the others an empty list."""
        self.agree()
        return self._collect(value)

    def over_ranks(self, times_ns: Sequence[int], *, longest: bool) -> list[int]:
        """For each of the times its longest over all ranks, or its shortest."""
        self.agree()
        return self._reduced(times_ns, dist.ReduceOp.MAX if longest else dist.ReduceOp.MIN)

    def close(self) -> None:
        """Part from the other ranks, which do the same."""
        self._control = None

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around collectives: where one fails, no other may follow."""
        try:
            yield
        except Exception:
            self.is_broken = True
            raise

    def _say(self, code: int, why: str | None) -> str | None:
        """All ranks meet; the first reason of those with the highest code, and of which rank it is unless all
        have it; None where none has any."""
        (highest,) = self._reduced([code], dist.ReduceOp.MAX)
        if highest == _FINE:
            return None
        reasons = self._collect(why if code == highest else None)
        said = ""
        if self.is_first:
            rank, said = next((rank, one) for rank, one in enumerate(reasons) if one is not None)
            said = said if all(one == said for one in reasons) else f"rank {rank}: {said}"
        said = str(self._spread(said))
        if highest == _FAILURE:
            raise FailedSomewhereError(said)
        return said

    def _reduced(self, numbers: Sequence[int], operation: Any) -> list[int]:
        tensor = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        with self.collective():
            self._connected().allreduce([tensor], operation).wait()
        return [int(number) for number in tensor.tolist()]

    def _spread(self, value: Any) -> Any:
        """``value`` of the first rank."""
        with self.collective():
            return self._passed(self._connected().broadcast, self.is_first, value)

    def _collect(self, value: Any) -> list[Any]:
        """On the first rank all values; each comes by itself, so that no other rank holds any but its own."""
        with self.collective():
            control = self._connected()
            if not self.is_first:
                self._passed(partial(control.send, dstRank=0, tag=0), True, value)
                return []
            ranks = range(1, self.world_size)
            return [value, *(self._passed(partial(control.recv, srcRank=r, tag=0), False) for r in ranks)]

    @staticmethod
    def _passed(carry: Callable[[list[torch.Tensor]], Any], is_mine: bool, value: Any = None) -> Any:
        """``value`` from where it ``is_mine`` to where it is not: its size, and then itself."""
        held = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        size = torch.tensor([held.numel()], device="cpu")
        carry([size]).wait()
        held = held if is_mine else torch.empty(int(size), dtype=torch.uint8, device="cpu")
        carry([held]).wait()
        return value if is_mine else pickle.loads(held.numpy().tobytes())

    def _connected(self) -> Any:
        """Gloo between these ranks, as patient as the job's own group.

        Ranks meet in the job's store, and tell there who could not be reached.
        """
        if self._control is not None:
            return self._control
        options = getattr(self._group._get_backend(self._device), "options", None)
        patience = getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)
        name = str(getattr(self._group, "group_name", ""))
        default: Any = dist.distributed_c10d._get_default_store()
        store = PrefixStore(f"bucketsim/{name}/{_made[name]}", default)
        _made[name] += 1
        store.set(f"here/{self.rank}", "")
        store.wait([f"here/{rank}" for rank in range(self.world_size)], patience)
        gloo: Any = dist.ProcessGroupGloo
        why, begun = "", time.monotonic()
        try:
            made = gloo(PrefixStore("gloo", store), self.rank, self.world_size, _CONNECTING)
            made._set_default_timeout(patience)
        except RuntimeError as error:
            why = str(error)
        store.set(f"why/{self.rank}", json.dumps([time.monotonic() - begun, self.rank, why]))
        said = [json.loads(store.get(f"why/{rank}")) for rank in range(self.world_size)]
        if failed := [one for one in said if one[2]]:
            _, rank, reason = min(failed)  # the first to fail: the others have waited for it in vain
            raise FailedSomewhereError(
                f"rank {rank}: no connection over gloo beside the job's own group: {reason}; "
                f"GLOO_SOCKET_IFNAME names the network interface (eth0) by which hosts reach each other"
            )
        self._control = made
        return made


# ---- The job's link, measured between two steps.

BUDGET_S = 2.0
_SMALLEST, _GROWTH, _MOST_ROUNDS, _PAIRS = 16 << 10, 4, 7, 3
_LEAST_PAIRED, _MOST_PAIRED = 1 << 20, 16 << 20  # timed two at once; an idle wire passes small ones too fast

Link = Mapping[str, Any]  # fields of a Hardware


class LinkProbe:
    """All-reduces of zeros in the job's group; it holds as much memory as all gradients together.

    Nothing else of ours is sent over that group. All ranks begin each of them together, and it lasts as long
    as on the rank that came last. On a GPU its stream times it, as that of a training has it: what the host
    takes to launch it and to hear of its end is no part of it.

    Raises:
        RuntimeError: the device has not so much memory.
    """

    def __init__(self, ddp: DistributedDataParallel, ranks: Unison) -> None:
        self._group, self._ranks, self._bench = ddp.process_group, ranks, Bench(ddp.device)
        # A group may be made without a backend's name, or with one for each type of device.
        self.is_gloo = ddp.process_group._get_backend(ddp.device).name() == "gloo"
        self.total_bytes = gradient_bytes(ddp)
        self.processor_share: dict[str, float] = {}  # of an all-reduce's duration, by size from 1 MiB on
        self._memory = self._bench.zeros(max(self.total_bytes, 2 * _LEAST_PAIRED) + 4)

    def time(self, size: int, count: int = 1) -> int:
        """``count`` all-reduces of ``size`` bytes at once, ns."""
        self._ranks.agree()
        spent = time.process_time()
        took = self._time(size, count)
        if count == 1 and size >= _LEAST_PAIRED:
            share = (time.process_time() - spent) * NS_PER_S / max(1, took)
            self.processor_share[str(size)] = round(share, 4)
        return self._ranks.over_ranks([took], longest=False)[0]

    def _time(self, size: int, count: int) -> int:
        tensors = self._memory[: count * max(1, size // 4)].chunk(count)

        def reduce() -> None:
            for work in [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in tensors]:
                work.wait()

        with self._ranks.collective():
            return self._bench.time(reduce)


def measure_link(probe: LinkProbe) -> Link:
    """Measure the link up to the size of all gradients together, or as far as ``BUDGET_S`` allows.

    All ranks call it at once, and decide by times that they share (the shortest over ranks, from the last
    arriver on). Found are ``all_reduce``, medians of some rounds, and what two at once cost each other; in
    ``spread``, from 1 MiB on, the processor time of all-reduces over their duration: most of what they take
    from a rank that computes.
    """
    left_ns = int(BUDGET_S * NS_PER_S)
    rounds: dict[int, list[int]] = defaultdict(list)
    probe.time(_SMALLEST)  # warms up
    for size in _sizes(probe.total_bytes):
        known = max(rounds, default=0)
        if known and 2 * rounds[known][0] * size // known > left_ns // 2:
            break
        probe.time(size)  # the first one of a size takes longer
        rounds[size].append(probe.time(size))
        left_ns -= 2 * rounds[size][0]
    pairs: list[float] = []
    largest = min(_MOST_PAIRED, probe.total_bytes // 2)
    paired = [size for size, times in rounds.items() if _LEAST_PAIRED <= size <= largest]
    paired = [size for size in paired if _PAIRS * 3 * rounds[size][0] <= left_ns // 2]
    for _ in range(_PAIRS if paired else 0):
        alone, both = probe.time(paired[-1]), probe.time(paired[-1], 2)
        pairs.append(both / max(1, alone))
        left_ns -= alone + both
    order = random.Random(0)
    for _ in range(_MOST_ROUNDS - 1):
        if sum(times[0] for times in rounds.values()) > left_ns:
            break
        for size in order.sample(sorted(rounds), len(rounds)):
            rounds[size].append(probe.time(size))
            left_ns -= rounds[size][-1]
    has_channels = bool(pairs) and probe.is_gloo
    return {
        "all_reduce": tuple(
            CurvePoint(num_bytes=size, duration_ns=round(median(times)))
            for size, times in sorted(rounds.items())
        ),
        "comm_channels": GLOO_CHANNELS if has_channels else 1,
        "channel_slowdown": max(1.0, median(pairs)) if has_channels else 1.0,
        "shared_connection": has_channels,
        "spread": {"processor_share": probe.processor_share},
    }


def gradient_bytes(ddp: DistributedDataParallel) -> int:
    """Bytes of all gradients together."""
    return sum(one.nbytes for one in ddp.parameters() if one.requires_grad)


def _sizes(total: int) -> list[int]:
    """Sizes in bytes up to ``total``, each ``_GROWTH`` times the one before."""
    sizes = [max(4, min(_SMALLEST, total))]
    while sizes[-1] < total:
        sizes.append(min(total, sizes[-1] * _GROWTH))
    return sizes
