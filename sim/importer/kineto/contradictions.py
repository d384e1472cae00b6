"""Parts of an import that cannot be true together, a sentence each: named, and never used in silence."""

from collections.abc import Sequence
from itertools import pairwise

from sim.importer.kineto.interference import Interference
from sim.importer.kineto.seen import SeenStep
from sim.importer.kineto.slowed import CommSlowdown
from sim.importer.wording import count_of
from sim.nouns.hardware import Curve
from sim.units import format_ms, format_size, median_ns

# What ranks, clocks and single steps differ by in sound traces.
TOLERANCE = 0.05
_CLOCKS_NS = 10_000


def contradictions(
    every: Sequence[SeenStep],
    used: Sequence[SeenStep],
    interference: Interference | None,
    slowed: CommSlowdown | None,
    curve: Curve,
) -> list[str]:
    """Sentences on what cannot be true of one rank's import; none if all can be.

    Args:
        every: all its whole steps.
        used: those that the workload is made of.
        interference: what collectives do to kernels.
        slowed: what backward does to collectives.
        curve: the all-reduce of all ranks; empty where waits are in it.
    """
    said = [_of_plain(every, used)]
    if interference is not None and interference.ratio < 1 - TOLERANCE:
        said.append(
            f"computation took {interference.ratio:.2f} times as long beside a collective as the same "
            f"kernels alone in another step: the device's clock or its load changed between steps; "
            f"compute_slowdown is taken as 1"
        )
    if slowed is not None and slowed.ratio < 1 - TOLERANCE:
        said.append(
            f"all-reduces took {slowed.ratio:.2f} times as long beside backward as after it: what ran after "
            f"it was held up by something else; comm_slowdown is taken as 1"
        )
    drops = [(small.duration_ns - large.duration_ns, small, large) for small, large in pairwise(curve)]
    for drop, small, large in sorted(drops, key=lambda one: -one[0])[:1]:
        if drop > max(_CLOCKS_NS, TOLERANCE * small.duration_ns):
            said.append(
                f"{format_size(small.num_bytes)} took {format_ms(small.duration_ns)} and "
                f"{format_size(large.num_bytes)} {format_ms(large.duration_ns)}: one of them is no transfer "
                f"alone; give an nccl-tests log as well (bucketsim import auto)"
            )
    return [f"WARNING: cannot be: {sentence}" for sentence in said if sentence]


def _of_plain(every: Sequence[SeenStep], used: Sequence[SeenStep]) -> str:
    """A sentence, if backwards without communication took longer than those beside it; otherwise empty."""
    gradients = len(used[0].gradients)
    plain = [time for step in every for time in step.plain_busy_ns]
    plain += [
        step.busy_ns
        for step in every
        if not step.reductions and step.micro_batches == 1 and len(step.gradients) == gradients
    ]
    if not plain or not used[0].reductions:
        return ""
    beside = median_ns([step.busy_ns for step in used])
    if median_ns(plain) <= (1 + TOLERANCE) * beside:
        return ""
    return (
        f"backward computed for {format_ms(median_ns(plain))} where nothing was reduced "
        f"({count_of(len(plain), 'backward')}) and {format_ms(beside)} beside all-reduces "
        f"({count_of(len(used), 'backward')}): the former were slowed by something else"
    )
