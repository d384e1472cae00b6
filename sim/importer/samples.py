"""What several steps show: which of them are quiet, the curve of their all-reduces, the job's own step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim.importer.imported import few
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import Curve, CurvePoint
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, count_of, format_ms, median_ns

_FACTOR = 2
# Steps differ by so much without a reason: a late launch; on a CPU the scheduler takes the cores away.
_HICCUP_NS = {True: 2 * NS_PER_MS, False: 50 * NS_PER_MS}


def quiet_steps(lengths_ns: Mapping[int, int], *, on_gpu: bool) -> tuple[set[int], str]:
    """The numbers of the shortest steps that bear each other out, be they the minority, and a sentence on the
    others, empty if there are none.

    They are at least two within a factor of the shortest of them; a step alone is taken as it is. None where
    every step differs manifold from every other. ``lengths_ns``: by number, of the rank that took longest.
    """
    quiet = set(lengths_ns) if len(lengths_ns) < 2 else set[int]()
    for least in sorted(lengths_ns.values()):
        most = max(_FACTOR * least, least + _HICCUP_NS[on_gpu])
        alike = {number for number, time in lengths_ns.items() if least <= time <= most}
        if len(alike) > 1:
            quiet = alike
            break
    shown, used = (
        few([f"step {number}: {format_ms(lengths_ns[number])}" for number in sorted(some)])
        for some in (lengths_ns.keys() - quiet, quiet)
    )
    return quiet, shown and (
        f"steps differ manifold; {count_of(len(lengths_ns) - len(quiet), 'step')} of {len(lengths_ns)} left "
        f"out ({shown}); the import is made of the quiet steps alone ({used})"
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
