"""Why the cap that was best on one machine is not on the next: the cause, checked by steps without it.

Between two machines an all-reduce changes by what one bucket more costs, by what a byte costs, and by how
NCCL does it. Each is put back to what it was, all else left as it is now, and the old cap played against the
new one: it is the cause only where the old cap is then no worse by more than 0.1 % of the step. Where a
bucket's cost cannot be told from that of bytes, the all-reduces as they were are played as a whole.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sim.clusters.scaling.change import BestCapChange, Side
from sim.clusters.scaling.switched import by_old_methods, switched_methods
from sim.clusters.scaling.wire import tail_ns
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A cause by code, and the sentence with its figures."""

    code: str
    sentence: str


def find_reason(workload: Workload, before: Side, after: Side) -> Reason | None:
    """Why the best cap of ``before`` is not as good on ``after``; None where it is, within 0.1 %.

    The first of ``CAUSES`` that holds is told; the last of them names two changes at once.
    """
    change = BestCapChange(workload, before, after)
    if not change.matters(change.lost_ns(after.curve)):
        return None
    code, why = next(found for cause in CAUSES if (found := cause(change)) is not None)
    if before.all_are_alike and before.carried.hardware.world_size > 1:
        why += f"; at {before.gpus} every cap was within 0.1 % of the best"
    return Reason(code=code, sentence=f"{change.opening}; {why}")


# A code, and what is said of it; None where it is not the cause.
Found = tuple[str, str] | None


def _copies_and_launches(change: BestCapChange) -> Found:
    """Machines that were measured each for itself may differ in more than their all-reduces."""
    if not change.matters(change.lost_before_ns):
        return None
    return "copies-and-launches", (
        f"with all-reduces as at {change.before.gpus} it would still "
        f"{_lose(change.lost_before_ns)}: copies, launches or slow-downs differ as well"
    )


def _communication_begins(change: BestCapChange) -> Found:
    """One GPU sends nothing: any cap did there, or what its copies and launches cost told caps apart."""
    if change.before.carried.hardware.world_size > 1:
        return None
    told = "1 GPU sends nothing, so that any cap did"
    if not change.before.all_are_alike:
        told = (
            "1 GPU sends nothing, so that copies and launches alone chose; were all-reduces free, as there, "
            f"it would {_lose(change.lost_before_ns)}"
        )
    return "communication-begins", told


def _method(change: BestCapChange) -> Found:
    """NCCL chooses otherwise at a size of these buckets, and with its old choices the cap would do."""
    before, after = change.before.carried, change.after.carried
    switched = switched_methods(before, after, sorted({*change.old_sizes, *change.new_sizes}))
    if not switched:
        return None
    lost = change.lost_ns(by_old_methods(before, after))
    if change.matters(lost):
        return None
    size, was, now = switched[-1]
    return "method", (
        f"NCCL sends {format_size(size)} by {now} where it took {was}; with the "
        f"old choices it would {_lose(lost)}"
    )


def _all_reduces(change: BestCapChange) -> Found:
    """The curve bends between the buckets, so that no one figure is what a bucket costs."""
    if change.bucket_ns is not None:
        return None
    return "all-reduces", (
        f"{change.all_buckets}; with all-reduces as at {change.before.gpus} it "
        f"would {_lose(change.lost_before_ns)}"
    )


def _cost_of_a_bucket(change: BestCapChange) -> Found:
    """The changed cost of one bucket more is cause enough, and without that change the old cap would do."""
    if change.bucket_ns is None or change.halves is None:
        return None
    alone, without = change.halves
    if not change.matters(alone) or change.matters(without):
        return None
    was, now = change.bucket_ns
    return "cost-of-a-bucket", (
        f"one bucket more costs {_us(now)} on the wire, {_us(was)} at "
        f"{change.before.gpus}; at {_us(was)} it would {_lose(without)}"
    )


def _no_longer_hidden(change: BestCapChange) -> Found:
    """Bytes got slower, so that all-reduces no longer fit behind backward; or the other way round.

    They fit where they take no longer than backward and all but the last are done when that is launched.
    """
    without = _without_bytes(change)
    if without is None:
        return None
    backward = change.workload.backward_ns
    fits = [took <= backward for took in change.old_wire_ns]
    sides = change.before, change.after
    ends_in_time = [tail_ns(change.timeline(side, change.old)) is not None for side in sides]
    if fits != ends_in_time or fits[0] == fits[1]:
        return None
    was = fits[0]
    return "no-longer-hidden" if was else "hidden", (
        f"{change.old_buckets}, which {'no longer' if was else 'now'} fits behind "
        f"the {format_ms(backward)} of backward; {without}"
    )


def _tail(change: BestCapChange) -> Found:
    """The cost of a byte changed, which is the cause alone, and only the last bucket is not hidden."""
    without = _without_bytes(change)
    if without is None:
        return None
    tails = [tail_ns(change.timeline(change.after, made)) for made in (change.old, change.new)]
    if tails[0] is None or tails[1] is None:
        return None
    return "tail", (
        f"only the last bucket is not hidden, and takes {format_ms(tails[0])} "
        f"instead of {format_ms(tails[1])}; {without}"
    )


def _bandwidth(change: BestCapChange) -> Found:
    """The cost of a byte changed, which is the cause alone."""
    without = _without_bytes(change)
    if without is None:
        return None
    return "bandwidth", f"{change.old_buckets}; {without}"


def _both(change: BestCapChange) -> Found:
    """The costs of a bucket and of a byte changed, and each is the cause alone, or only both together."""
    if change.bucket_ns is None or change.halves is None:
        return None
    alone, without = change.halves
    was, now = change.bucket_ns
    either = change.matters(alone)
    return "either" if either else "together", (
        f"one bucket more costs {_us(now)} on the wire ({_us(was)} at "
        f"{change.before.gpus}), and {change.old_buckets}: {'each' if either else 'neither'} does it alone; "
        f"with the first it would {_lose(alone)}, with the second {_lose(without)}"
    )


CAUSES: tuple[Callable[[BestCapChange], Found], ...] = (
    _copies_and_launches,
    _communication_begins,
    _method,
    _all_reduces,
    _cost_of_a_bucket,
    _no_longer_hidden,
    _tail,
    _bandwidth,
    _both,
)


def _without_bytes(change: BestCapChange) -> str | None:
    """Words for a changed cost of a byte; None unless it alone is why the old cap is no longer as good."""
    if change.halves is None:
        return None
    alone, without = change.halves
    if change.matters(alone) or not change.matters(without):
        return None
    return f"were bytes as fast as at {change.before.gpus}, it would {_lose(alone)}"


def _lose(lost_ns: int) -> str:
    if format_ms(abs(lost_ns)) == format_ms(0):
        return "lose nothing"
    return f"lose {format_ms(lost_ns)}" if lost_ns > 0 else f"save {format_ms(-lost_ns)}"


def _us(ns: int) -> str:
    return f"{ns / 1000:.0f} us" if abs(ns) < 1_000_000 else format_ms(ns)
