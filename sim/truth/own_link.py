"""The link of a recorded job, read off its own buckets: for where nobody measured it beside the training."""

from collections import defaultdict
from itertools import accumulate

import numpy as np

from sim.errors import InputError
from sim.importer.recorded import keep, of_all_ranks
from sim.importer.samples import SHORTEST_OVER_RANKS, median_curve, scatter_by_size
from sim.nouns.devices import link_source
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.recording import RecordedBackward, Recording
from sim.units import NS_PER_S, median_ns

OWN_NAME = "the job's own collectives"
_APART = 2  # the largest bucket over the smallest, at least, for a line through them to be more than noise


def hardware_of(recording: Recording) -> Hardware:
    """The all-reduce curve within the training step, and what copies back take; of steps that are not loud
    and whose last backward reduced the same buckets on every rank.

    Buckets are reduced one after another: each takes from its launch, or the end of all before it, to its own
    end, and the curve has the median over steps of the shortest over ranks. Gloo's two threads may reduce two
    at once: the curve contains that, and holds for one channel. Between a bucket's being ready and its launch
    lie the launch and the pass of the recorder's hook over it: ``launch_cost_ns`` is that of no bytes.
    Finalize waits for each bucket and copies it back (A3.10): ``sync_end = max over k of end_k + (bytes from
    k on) / rate``. A broadcast of buffers takes the median of what came before the module's forward.

    Raises:
        InputError: recorded without buckets (``level="light"``).
    """
    by_size, gaps = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    rates, before, loud = list[float](), list[int](), keep(recording)[0].loud
    for row in of_all_ranks([rank.steps for rank in recording.ranks]):
        backwards = [step.backwards[-1] for step in row]
        sizes = {tuple(bucket.num_bytes for bucket in one.buckets) for one in backwards}
        if row[0].step in loud or len(sizes) > 1 or () in sizes:
            continue
        for size, lasted in zip(*sizes, zip(*map(_durations_ns, backwards), strict=True), strict=True):
            by_size[size].append(min(lasted))
        rates += map(_ns_a_byte, backwards)
        before += [backward.forward_start_ns - backward.started_ns for backward in backwards]
        for bucket in (bucket for backward in backwards for bucket in backward.buckets):
            gaps[bucket.num_bytes].append(bucket.launch_ns - bucket.ready_ns)
    if not by_size:
        raise InputError(
            f"{recording.name}: no buckets were recorded (level='light'), so nothing says what an all-reduce "
            f"takes; give a hardware, such as {link_source(recording.backend)}"
        )
    header = recording.ranks[0].header
    ns_a_byte = 0.0 if header.ddp.get("gradient_as_bucket_view") else sorted(rates)[len(rates) // 2]
    each = max(0, median_ns(before)) // max(1, len(header.buffers))
    return Hardware(
        name=OWN_NAME,
        world_size=recording.world_size,
        all_reduce=median_curve(by_size),
        launch_cost_ns=_launch_cost_ns({size: median_ns(times) for size, times in gaps.items() if size}),
        copy_out_bytes_per_s=NS_PER_S / ns_a_byte if ns_a_byte > 0 else None,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=each),) if header.buffers else None,
        spread={"all_reduce": scatter_by_size(by_size, SHORTEST_OVER_RANKS)},
        provenance={
            "source": "sim.record",
            "recording": recording.name,
            "device_type": header.device_type,
            "backend": header.backend,
            "curve": "ranks are missing: an upper bound"
            if recording.missing_ranks
            else "within the training step, by the last rank to come",
        },
    )


def _launch_cost_ns(gap_ns: dict[int, int]) -> int:
    """ns at 0 bytes of a line through the gaps by bytes, in which smaller buckets weigh more."""
    if not gap_ns or max(gap_ns) < _APART * min(gap_ns):
        return 0
    sizes = np.array([*gap_ns], float)
    _, cost = np.polyfit(sizes, np.array([*gap_ns.values()], float), 1, w=1 / sizes)
    return min(max(0, round(float(cost))), *gap_ns.values())


def _durations_ns(backward: RecordedBackward) -> list[int]:
    """How long each bucket took, from its launch or the end of all before it."""
    free = [0, *accumulate((one.end_ns for one in backward.buckets), max)]
    return [
        max(0, one.end_ns - max(one.launch_ns, at)) for one, at in zip(backward.buckets, free, strict=False)
    ]


def _ns_a_byte(backward: RecordedBackward) -> float:
    """What copying one byte back takes; 0 where buckets hold nothing."""
    left = [*accumulate(bucket.num_bytes for bucket in reversed(backward.buckets))][::-1]
    ends = (max(backward.backward_ns, bucket.end_ns) for bucket in backward.buckets)
    each = [(backward.sync_end_ns - end) / size for end, size in zip(ends, left, strict=True) if size]
    return max(0.0, min(each, default=0.0))
