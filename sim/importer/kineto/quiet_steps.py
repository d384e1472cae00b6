"""Steps that take a multiple of the others: which are quiet, and what the host sat in during the rest."""

from collections.abc import Collection, Mapping, Sequence

from sim.importer.kineto.seen import SeenRank
from sim.importer.wording import count_of, few
from sim.metrics.intervals import intersection_length, union
from sim.units import NS_PER_MS, format_ms, median_ns

_FACTOR = 2
# Steps differ by so much without a reason: a late launch; on a CPU the scheduler takes the cores away.
_HICCUP_NS = {True: 2 * NS_PER_MS, False: 50 * NS_PER_MS}
_TELLING = 0.1  # of what a step takes longer


def quiet_numbers(lengths_ns: Mapping[int, int], *, on_gpu: bool) -> set[int]:
    """The numbers of the shortest steps that bear each other out, be they the minority.

    They are at least two within a factor of the shortest of them; a step alone is taken as it is. Empty where
    every step differs manifold from every other.

    Args:
        lengths_ns: by step number.
        on_gpu: whether the device that computed is one.
    """
    if len(lengths_ns) < 2:
        return set(lengths_ns)
    for least in sorted(lengths_ns.values()):
        most = max(_FACTOR * least, least + _HICCUP_NS[on_gpu])
        alike = {number for number, time in lengths_ns.items() if least <= time <= most}
        if len(alike) > 1:
            return alike
    return set()


def doubts_of_steps(
    ranks: Sequence[SeenRank], lengths_ns: Mapping[int, int], quiet: Collection[int]
) -> tuple[str, ...]:
    """A sentence on steps that are not quiet, with what fills them; none if all are.

    Args:
        ranks: all that were traced.
        lengths_ns: by step number, that of the rank that took longest.
        quiet: the numbers of ``quiet_numbers``.
    """
    loud = [number for number in lengths_ns if number not in quiet]
    if not loud:
        return ()
    shown = few([f"step {number}: {format_ms(lengths_ns[number])}" for number in loud])
    used = few([f"{number} ({format_ms(lengths_ns[number])})" for number in sorted(quiet)])
    made = f"made of the quiet steps alone: {used}" if quiet else "made of none: no two steps are alike"
    return (
        f"steps differ manifold; {count_of(len(loud), 'step')} of {len(lengths_ns)} left out ({shown}), with "
        f"{_filling(ranks, lengths_ns, quiet, loud)} in them; the import is {made}",
    )


def _filling(
    ranks: Sequence[SeenRank], lengths_ns: Mapping[int, int], quiet: Collection[int], loud: Sequence[int]
) -> str:
    """The call of the runtime that takes most of what loud steps take longer than quiet ones."""
    base = median_ns([lengths_ns[number] for number in quiet]) if quiet else min(lengths_ns.values())
    usual = quiet or [min(lengths_ns, key=lengths_ns.__getitem__)]
    longer = sum(max(0, lengths_ns[number] - base) for number in loud)
    best, name = 0.0, ""
    for rank in ranks:
        spans = {step.number: [(step.start_ns, step.end_ns)] for step in rank.steps}
        for call in sorted({one for _, _, one in rank.long_calls}):
            busy = union((start, end) for start, end, one in rank.long_calls if one == call)
            inside = {number: intersection_length(busy, spans[number]) for number in lengths_ns}
            plain = median_ns([inside[number] for number in usual])
            share = sum(max(0, inside[number] - plain) for number in loud) / longer if longer else 0.0
            if share > best:
                best, name = share, call
    if best < _TELLING:
        return "nothing that the trace names"
    return f"the host in {name} for {min(best, 1):.0%} of what they take longer"
