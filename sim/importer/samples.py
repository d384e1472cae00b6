"""What several steps show: which of them are quiet, the curve of their all-reduces, the job's own step."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from sim.importer.imported import few
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import Curve, CurvePoint
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, count_of, format_ms, median_ns

# Steps differ by so much without a reason: a late launch; on a CPU the scheduler takes the cores away.
_HICCUP_NS = {True: 2 * NS_PER_MS, False: 50 * NS_PER_MS}
_GROUP = 0.2  # of all steps, and of the shortest of them: so many make a group, so far from the others


def quiet_steps(lengths_ns: Mapping[int, int], *, on_gpu: bool) -> tuple[set[int], str]:
    """The numbers of the shortest steps that bear each other out, and a sentence on the others, if any.

    They are at least two within a factor of the shortest of them; where these fall into groups, as in turns,
    the shortest group. A step alone is taken as it is; none where each differs manifold from every other.
    ``lengths_ns``: by number, of the rank that took longest.
    """
    times, hiccup_ns = sorted(lengths_ns.values()), _HICCUP_NS[on_gpu]

    def alike(least: int) -> list[int]:
        return times[bisect_left(times, least) : bisect_right(times, max(2 * least, least + hiccup_ns))]

    quiet = next((some for some in map(alike, times) if len(some) > 1), times[: len(times) < 2])
    fewest = max(2, ceil(_GROUP * len(times)))
    for count in range(fewest, len(quiet)):
        least, last, group = quiet[0], quiet[count - 1], alike(quiet[count])
        if len(group) >= fewest and group[0] - last > max(hiccup_ns, last - least, _GROUP * least):
            quiet = quiet[:count]
            break
    kept = {number for number, time in lengths_ns.items() if quiet and quiet[0] <= time <= quiet[-1]}
    loud = lengths_ns.keys() - kept
    if not (kept and loud):
        return kept, ""
    both = [{number: lengths_ns[number] for number in sorted(some)} for some in (kept, loud)]
    told = [f"{len(some)} of about {format_ms(median_ns([*some.values()]))}" for some in both]
    each = [few([f"step {number}: {format_ms(time)}" for number, time in some.items()]) for some in both]
    how = "fall into groups" if len(loud) >= fewest else "differ"
    return kept, (
        f"steps {how}, {' and '.join(told)}; {count_of(len(loud), 'step')} of {len(times)} left "
        f"out: the import is made of the quiet steps alone ({'; '.join(each)})"
    )


SHORTEST_OVER_RANKS = "median over steps of the shortest over ranks"


def median_curve(by_size: Mapping[int, Sequence[int]]) -> Curve:
    """The median of the times (ns) of each size (bytes)."""
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=median_ns(times)) for size, times in sorted(by_size.items())
    )


def scatter_by_size(by_size: Mapping[int, Sequence[int]], quantile: str) -> dict[str, dict[str, int | str]]:
    """How the times (ns) of each size scatter, as in ``Hardware.spread``; ``quantile``: words for a time."""
    return {
        str(size): {
            "count": len(times),
            "min_ns": min(times),
            "median_ns": median_ns(times),
            "max_ns": max(times),
            "quantile": quantile,
        }
        for size, times in sorted(by_size.items())
    }


def own_step(
    workload: Workload, asked: Assignment, iterations: Iterable[MeasuredIteration], **fields: Any
) -> Measurement:
    """The job's own steps, as a candidate of a record; ``fields``: the other ones of the Measurement."""
    steps, size = tuple(iterations), fields["world_size"]
    asked = replace(
        asked, bucket_bytes=bucket_bytes(workload, asked.bucket_indices), made_for=made_for(workload, size)
    )
    return Measurement(
        name="as run",
        role="candidate",
        mode="trace",
        asked=asked,
        observed=asked.bucket_indices,
        iterations=steps,
        traced=tuple(one for one in steps if one.buckets),
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        provenance=asked.provenance,
        **fields,
    )
