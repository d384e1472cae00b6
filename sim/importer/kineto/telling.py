"""The sentences and figures of an import: what was found, assumed and missed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sim.costs.service_time import service_ns
from sim.importer.kineto.collectives import SeenCollective
from sim.importer.kineto.layout import Layout, size_of
from sim.importer.kineto.rank import Interference, SeenRank
from sim.importer.kineto.several_ranks import FEWEST, AlignedRanks, CommSlowdown
from sim.importer.kineto.steps import SeenStep
from sim.importer.wording import count_of
from sim.metrics.intervals import intersection_length
from sim.nouns.hardware import GLOO_CHANNELS, Curve, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_ms, format_percent, format_size, median_ns


def behind_others_ns(step: SeenStep) -> list[int]:
    """By reduction: how long it was ready and launched while collectives that are not modelled ran."""
    others = [(one.start_ns, one.end_ns) for one in step.collectives if not one.is_ddps]
    return [
        intersection_length(others, [(max(one.ready_ns or 0, one.launched_ns), one.start_ns)])
        for one in step.reductions
    ]


@dataclass(frozen=True, slots=True)
class Told:
    """The sentences and figures of an import, whose workload is that of ``rank`` over its ``steps``."""

    aligned: AlignedRanks
    rank: SeenRank
    steps: Sequence[SeenStep]
    layout: Layout | None
    world_size: int | None
    workload: Workload | None
    hardware: Hardware | None
    measurement: Measurement | None
    slowed: CommSlowdown | None

    @property
    def reductions(self) -> tuple[SeenCollective, ...]:
        """The reductions of the first step; all steps have the same."""
        return self.steps[0].reductions

    def found(self) -> tuple[str, ...]:
        """What the traces say."""
        steps = self.steps
        ranks = len(self.aligned.ranks)
        of = f" of {self.world_size}" if self.world_size else ""
        whose = f"rank {self.rank.rank}: " if ranks > 1 else ""
        lines = [
            f"{count_of(ranks, 'rank')}{of}, {self.rank.backend or 'backend unknown'}, on "
            f"{self.rank.device}; {count_of(len(steps), 'step')} of {_middle(steps, 'start_ns', 'end_ns')}",
            f"{whose}backward {_middle(steps, 'backward_start_ns', 'backward_end_ns')}"
            + (
                f", gradients synchronised after {_middle(steps, 'backward_start_ns', 'sync_end_ns')}"
                if self.reductions
                else ""
            ),
        ]
        job = self.rank.world_size
        if self.world_size and job and job != self.world_size:
            lines.append(f"gradients are reduced over {self.world_size} of the job's {job} ranks")
        if self.workload is not None:
            lines.append(
                f"{len(self.workload.gradients)} gradients, {format_size(self.workload.total_bytes)}"
            )
        if self.reductions:
            sizes = [size_of(one) for one in self.reductions]
            shown = ", ".join("?" if size is None else format_size(size) for size in sizes[:8])
            lines.append(
                f"{len(sizes)} all-reduces of gradients a step: {shown}{', ...' if len(sizes) > 8 else ''}"
            )
        every, reduces = self.rank.overlap, self.rank.all_reduce_overlap
        if every is not None:
            lines.append(
                f"{whose}computation overlaps {format_percent(every)} of all communication kernels"
                + ("" if reduces is None else f", {format_percent(reduces)} of the all-reduces")
            )
        interference = self.rank.interference
        if interference is not None:
            low, _, high = interference.quartiles
            lines.append(
                f"computation takes {interference.slowdown:.2f} times as long beside a collective "
                f"({interference.kernels} kernels that ran alone in another step; quartiles {low:.2f} and "
                f"{high:.2f})"
            )
        if self.slowed is not None:
            low, _, high = self.slowed.quartiles
            lines.append(
                f"all-reduces take {self.slowed.slowdown:.2f} times as long beside backward as after it "
                f"({self.slowed.beside} beside it, {self.slowed.after} after it of "
                f"{count_of(self.slowed.sizes, 'size')}; quartiles {low:.2f} and {high:.2f}): the curve is "
                f"that of nothing beside"
            )
        if waited := self._waited_ns():
            lines.append(
                f"{whose}all-reduces lasted {format_ms(waited)} a step longer than their transfers"
                + (
                    ", waiting for ranks that came later"
                    if self.aligned.complete
                    else " as they are taken: they waited for ranks that are missing, or transfers vary"
                )
                + "; a prediction of these steps misses that"
            )
        behind = median_ns([sum(behind_others_ns(step)) for step in steps])
        if behind:
            lines.append(
                f"all-reduces waited {format_ms(behind)} a step behind other collectives: a prediction of "
                f"these steps misses that"
            )
        others = [[one for one in step.collectives if one.role == "other"] for step in steps]
        if any(others):
            kinds = sorted({one.kind for each in others for one in each})
            lines.append(
                f"{_counts(others)} other collectives a step ({', '.join(kinds)}), "
                f"{_over_steps([sum(one.duration_ns for one in each) for each in others])}: part of the "
                f"times, not modelled"
            )
        batches, reduced = steps[0].micro_batches, {step.synchronised_batches for step in steps}
        if batches > 1:
            shown = str(min(reduced)) if len(reduced) == 1 else f"{min(reduced)} to {max(reduced)}"
            which = "each of them reduced" if reduced == {batches} else f"{shown} of them reduced"
            lines.append(
                f"{batches} micro-batches a step, {which}; all before the last one's backward, with its "
                f"all-reduces, is in forward_ns"
            )
        if self.rank.unseen_calls:
            lines.append(
                f"{count_of(self.rank.unseen_calls, 'call')} of collectives without a known communication "
                f"kernel: the trace's communication is incomplete"
            )
        return tuple(lines)

    def assumed(self) -> tuple[str, ...]:
        """What the traces leave open, and what is assumed instead."""
        rank, aligned, hardware = self.rank, self.aligned, self.hardware
        lines = [] if self.layout is None else [self.layout.told_by]
        lines += contradictions(
            rank.steps,
            self.steps,
            rank.interference,
            self.slowed,
            hardware.all_reduce if hardware is not None and aligned.complete else (),
        )
        lines += dict.fromkeys(f"WARNING: {doubt}" for one in aligned.ranks for doubt in one.doubts)
        if rank.calls_alone:
            lines.append(
                f"{count_of(rank.calls_alone, 'AccumulateGrad')} shown by the engine's call alone (a "
                f"sampled trace leaves out what is inside): its hooks are taken to begin with the call"
            )
        if any(one.dtype is None for one in self.reductions):
            lines.append("the trace names no dtype for all-reduces; float32 is assumed")
        if self.workload is not None and self.workload.ready_includes:
            lines.append(
                f"the times contain {', '.join(self.workload.ready_includes)} as they were with these "
                f"buckets; a prediction for others keeps them"
            )
        if len(aligned.ranks) > 1:
            lines.append(f"the workload is rank {rank.rank}'s, whose backward is the longest")
        if hardware is not None and not aligned.complete:
            there = f"{len(aligned.ranks)} of {self.world_size} ranks"
            lines.append(
                f"WARNING: {there}: a kernel lasts from its own rank's arrival, not the last one's; the "
                f"least over steps is taken (the median of those that were ready longer than they then "
                f"took), an upper bound of the transfer, also below the smallest size; give the traces of "
                f"all ranks"
            )
        if hardware is not None and rank.on_gpu and self.slowed is None:
            clear = "" if aligned.complete else ", without a wait for ranks that are missing"
            lines.append(
                f"what computation beside them costs all-reduces is not known (no size ran {FEWEST} times "
                f"beside backward and after it{clear}): they are taken to last as long as in these steps"
            )
        if hardware is not None and not rank.on_gpu:
            lines.append(
                "an all-reduce lasts from when a thread of gloo takes it to its end on that rank; gloo runs "
                f"{GLOO_CHANNELS} at once, and the curve is as they ran beside one another"
            )
        if hardware is not None and len(hardware.all_reduce) < 3:
            lines.append(
                f"the curve has {count_of(len(hardware.all_reduce), 'size')}; others are drawn from "
                f"them (give an nccl-tests log as well: bucketsim import auto)"
            )
        asked = None if self.measurement is None else self.measurement.asked
        if asked is not None and asked.policy != "explicit":
            lines.append("all-reduces were sent after the last gradient, one by one: no DDP")
        if hardware is not None and hardware.copy_out_bytes_per_s is None:
            lines.append("no copies out of buckets were seen: gradient_as_bucket_view=True, or no DDP")
        return tuple(lines)

    def missing(self) -> tuple[str, ...]:
        """What could not be read from the traces, and what to give for it."""
        lines = []
        if self.workload is None:
            lines.append(
                "sizes of gradients: the trace has neither Input Dims nor In msg nelems; give --model, or "
                "profile with record_shapes=True; without them there is no workload"
            )
        if self.hardware is None:
            lines.append(f"an all-reduce curve: {self._why_no_curve()}")
        if self.layout is not None and not self.layout.buckets:
            lines.append("buckets: no all-reduce of gradients in the trace")
        return tuple(lines)

    def _waited_ns(self) -> int:
        """ns a step by which the rank's all-reduces lasted longer than their transfers are taken to last."""
        hardware, place = self.hardware, self.aligned.ranks.index(self.rank)
        if hardware is None or not self.rank.on_gpu:
            return 0
        by_step: dict[int, int] = defaultdict(int)
        for one in self.aligned.transfers:
            if self.aligned.complete:
                by_step[one.step] += one.waits_ns[place]
            elif one.num_bytes:
                by_step[one.step] += one.duration_ns - service_ns(hardware.all_reduce, one.num_bytes)
        return max(0, median_ns(list(by_step.values()))) if by_step else 0

    def _why_no_curve(self) -> str:
        if self.world_size == 1:
            return "the job had one rank"
        if self.world_size is None:
            return "the world size is not in the trace; give --world-size"
        if self.reductions and not any(one.timed for one in self.reductions):
            return "the trace shows when all-reduces were sent, not when they ran"
        return "no all-reduce of gradients of known size"

    def details(self) -> dict[str, Any]:
        """Figures for the summary: steps, buckets and overlaps."""
        behind = [behind_others_ns(step) for step in self.steps]
        rows = []
        for place, one in enumerate(self.reductions):
            transfers = [move for move in self.aligned.transfers if move.place == place]
            rows.append(
                {
                    "index": place,
                    "num_elements": one.num_elements,
                    "dtype": one.dtype,
                    "num_bytes": size_of(one),
                    "behind_others_ns": median_ns([waits[place] for waits in behind]),
                    "transfer_ns": [move.duration_ns for move in transfers],
                    "waited_for_last_ns": [max(move.waits_ns) for move in transfers]
                    if len(self.aligned.ranks) > 1
                    else None,
                }
            )
        return {
            "steps": [
                {
                    "number": step.number,
                    "step_ns": step.end_ns - step.start_ns,
                    "forward_ns": step.backward_start_ns - step.start_ns,
                    "backward_ns": step.backward_end_ns - step.backward_start_ns,
                    "sync_end_ns": step.sync_end_ns - step.backward_start_ns,
                    "copy_in_ns": step.copy_in_ns,
                    "copy_out_ns": step.copy_out_ns,
                }
                for step in self.steps
            ],
            "buckets": rows,
            "overlap_ratio": {
                str(rank.rank or 0): {"communication": rank.overlap, "all_reduce": rank.all_reduce_overlap}
                for rank in self.aligned.ranks
            },
            "matched_collectives": self.aligned.matched,
        }


def _counts(each: Sequence[Sequence[Any]]) -> str:
    """How many there are a step: ``7``, or ``2 to 3`` where steps differ."""
    numbers = sorted(map(len, each))
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _over_steps(times_ns: Sequence[int]) -> str:
    """A time of each step as one: their median, and its range where that is a tenth of the median or more."""
    middle, low, high = median_ns(times_ns), min(times_ns), max(times_ns)
    if 10 * (high - low) < middle:
        return format_ms(middle)
    return (
        f"{format_ms(middle)} (median of {len(times_ns)} steps: {low / NS_PER_MS:.2f} to {format_ms(high)})"
    )


def _middle(steps: Sequence[SeenStep], since: str, until: str) -> str:
    return format_ms(median_ns([getattr(step, until) - getattr(step, since) for step in steps]))


# ---- what cannot be true together

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
