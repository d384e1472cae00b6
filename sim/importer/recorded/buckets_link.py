"""A machine from the collectives of a running job, where nobody calibrated one."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from sim.costs.sampled_curve import SHORTEST_OVER_RANKS, median_curve, scatter_by_size
from sim.errors import InputError
from sim.importer.recorded.kept_steps import loud_steps
from sim.nouns.devices import link_source
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.recording import RecordedBackward, Recording
from sim.units import NS_PER_S, median_ns

OWN_NAME = "the job's own collectives"
_APART = 2  # the largest bucket over the smallest, at least, for a line through them to be more than noise


def hardware_of(recording: Recording) -> Hardware:
    """The all-reduce curve within the training step, and what copies back take.

    Buckets are taken to be reduced one after another: a bucket takes from its launch, or from the end of all
    buckets before it, to its own end. A rank that launches early waits for the last one. So the collective
    itself takes the shortest of these times over ranks, provided that every rank was recorded; the median of
    that over steps is the curve's point for the bucket's size. Gloo's two threads may reduce two buckets at
    once: the curve contains that, and holds for one channel.

    Between the stamps of a bucket's being ready and its launch lie the launch and the pass of the recorder's
    hook over the bucket, which grows with it. ``launch_cost_ns`` is what is left for no bytes, by a line
    through buckets of several sizes; buckets of much the same size do not tell the two apart, and it is 0.

    Finalize waits for each bucket and copies it back (A3.10), so that ``sync_end = max over k of end_k +
    (bytes from k on) / rate``, which gives the rate of copies back. A broadcast of buffers takes the median
    of what came before the module's forward.

    Raises:
        InputError: recorded without buckets (``level="light"``).
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    gaps: dict[int, list[int]] = defaultdict(list)
    rates, before = [], []
    for backwards in _steps(recording):
        for place in range(len(backwards[0].buckets)):
            by_size[backwards[0].buckets[place].num_bytes].append(
                min(_duration_ns(backward, place) for backward in backwards)
            )
        rates += [rate for backward in backwards if (rate := _ns_a_byte(backward)) is not None]
        before += [backward.forward_start_ns - backward.started_ns for backward in backwards]
        for bucket in (bucket for backward in backwards for bucket in backward.buckets):
            gaps[bucket.num_bytes].append(bucket.launch_ns - bucket.ready_ns)
    if not by_size:
        raise InputError(
            f"{recording.name}: no buckets were recorded (level='light'), so nothing says what an all-reduce "
            f"takes; give a hardware, such as {link_source(recording.backend)}"
        )
    header = recording.ranks[0].header
    ns_a_byte = sorted(rates)[len(rates) // 2] if rates else 0.0
    is_view = bool(header.ddp.get("gradient_as_bucket_view"))
    each = max(0, median_ns(before)) // max(1, len(header.buffers))
    return Hardware(
        name=OWN_NAME,
        world_size=recording.world_size,
        all_reduce=median_curve(by_size),
        launch_cost_ns=_launch_cost_ns({size: median_ns(times) for size, times in gaps.items() if size}),
        copy_out_bytes_per_s=None if is_view or ns_a_byte <= 0 else NS_PER_S / ns_a_byte,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=each),) if header.buffers else None,
        spread={"all_reduce": scatter_by_size(by_size, SHORTEST_OVER_RANKS)},
        provenance={
            "source": "sim.record",
            "recording": recording.name,
            "device_type": header.device_type,
            "backend": header.backend,
            "curve": "within the training step, by the last rank to come"
            if not recording.missing_ranks
            else "ranks are missing: an upper bound",
        },
    )


def _steps(recording: Recording) -> list[list[RecordedBackward]]:
    """Of each step that is not loud the last synchronised backward of all ranks, where buckets are alike."""
    loud, _ = loud_steps(recording)
    by_step: dict[int, list[RecordedBackward]] = defaultdict(list)
    for rank in recording.ranks:
        for step in rank.steps:
            if step.step not in loud and (backward := step.backwards[-1]).buckets:
                by_step[step.step].append(backward)
    return [
        backwards
        for _, backwards in sorted(by_step.items())
        if len(backwards) == len(recording.ranks)
        and len({tuple(bucket.num_bytes for bucket in one.buckets) for one in backwards}) == 1
    ]


def _launch_cost_ns(gap_ns: dict[int, int]) -> int:
    """ns at 0 bytes of a line through the gaps by bytes, in which smaller buckets weigh more."""
    if not gap_ns or max(gap_ns) < _APART * min(gap_ns):
        return 0
    sizes = np.array([*gap_ns], float)
    _, cost = np.polyfit(sizes, np.array([*gap_ns.values()], float), 1, w=1 / sizes)
    return min(max(0, round(float(cost))), *gap_ns.values())


def _duration_ns(backward: RecordedBackward, place: int) -> int:
    """How long a bucket took, from its launch or the end of all before it."""
    bucket = backward.buckets[place]
    free = max((one.end_ns for one in backward.buckets[:place]), default=0)
    return max(0, bucket.end_ns - max(bucket.launch_ns, free))


def _ns_a_byte(backward: RecordedBackward) -> float | None:
    """What copying one byte back takes; None where buckets hold nothing."""
    sizes = [bucket.num_bytes for bucket in backward.buckets]
    left: Sequence[int] = list(accumulate(reversed(sizes)))[::-1]
    if not left or not left[-1]:
        return None
    ends = [max(backward.backward_ns, bucket.end_ns) for bucket in backward.buckets]
    return max(0.0, min((backward.sync_end_ns - end) / size for end, size in zip(ends, left, strict=True)))
