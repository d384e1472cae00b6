"""Figures of a timeline by which the cause that holds a step up is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from sim.costs.service_time import service_ns
from sim.metrics.critical_path import critical_path
from sim.metrics.intervals import intersection_length
from sim.nouns.collective import CollectiveKind, CollectiveTimes
from sim.nouns.hardware import SLOWDOWNS, Curve
from sim.nouns.path import PathSpan
from sim.nouns.timeline import Timeline
from sim.units import format_ms

_SENT = get_args(CollectiveKind)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A timeline and figures read off it, each computed once and only if it is asked for.

    ``step_ns`` is the whole step, ``known_path`` the critical path where it was found before.
    """

    timeline: Timeline
    step_ns: int
    known_path: Sequence[PathSpan] | None = None

    @property
    def exposed_ns(self) -> int:
        """All that synchronising adds to a plain backward, in the last micro-batch, whose path is known."""
        return self.timeline.last_exposed_ns

    @property
    def earlier_exposed_ns(self) -> int:
        """All that it adds to the micro-batches before: no cause that is taken away saves more of them."""
        return sum(self.timeline.earlier_exposed_ns)

    @property
    def exposed_words(self) -> str:
        """What is exposed in the step; where several micro-batches reduce, how much of it in the last."""
        told = format_ms(self.timeline.exposed_ns)
        count = len(self.timeline.earlier_exposed_ns)
        if not count:
            return told
        return f"{told} in {count + 1} micro-batches, {format_ms(self.exposed_ns)} in the last,"

    def saved_ns(self, path_ns: int, of_all_ns: int) -> int:
        """What a change saves at most: ``path_ns`` of the last micro-batch, whose path is known, and of each
        earlier one ``of_all_ns``, what it takes from all collectives; never more than is exposed."""
        earlier = sum(min(of_all_ns, exposed) for exposed in self.timeline.earlier_exposed_ns)
        return min(path_ns, self.exposed_ns) + earlier

    @cached_property
    def path(self) -> Sequence[PathSpan]:
        """The critical path."""
        return critical_path(self.timeline) if self.known_path is None else self.known_path

    @cached_property
    def sent(self) -> list[PathSpan]:
        """The collectives on the critical path."""
        return [span for span in self.path if span.kind in _SENT]

    @cached_property
    def played(self) -> list[CollectiveTimes]:
        """The times of the collectives on the critical path."""
        numbers = [span.collective for span in self.sent if span.collective is not None]
        return [self.timeline.collectives[number] for number in numbers]

    @cached_property
    def curves(self) -> list[Curve]:
        """The curve of each collective on the critical path; each there has one."""
        return [getattr(self.timeline.hardware, span.kind) for span in self.sent]

    @property
    def wire_ns(self) -> int:
        """How long the collectives on the critical path take together."""
        return sum(span.end_ns - span.start_ns for span in self.sent)

    @property
    def wire_bytes(self) -> int:
        """Bytes that the collectives on the critical path carry together."""
        return sum(played.collective.num_bytes for played in self.played)

    @property
    def latency_ns(self) -> int:
        """The part of ``wire_ns`` that is latency: of each collective, the smallest time on its curve."""
        return sum(min(point.duration_ns for point in curve) for curve in self.curves)

    @property
    def moving_ns(self) -> int:
        """What the collectives on the critical path take beyond ``latency_ns``, each alone on its channel."""
        return sum(played.collective.service_ns for played in self.played) - self.latency_ns

    @property
    def all_moving_ns(self) -> int:
        """``moving_ns`` of all collectives of a micro-batch."""
        return sum(
            played.collective.service_ns - self._least_ns(played.collective.kind)
            for played in self.timeline.collectives
        )

    def _least_ns(self, kind: CollectiveKind) -> int:
        curve = self.timeline.hardware.curve(kind)
        return min((point.duration_ns for point in curve or ()), default=0)

    @property
    def merging_saves_ns(self) -> int:
        """How much one collective would save in place of all those on the critical path."""
        if len({span.kind for span in self.sent}) > 1:
            return 0
        together = sum(played.collective.service_ns for played in self.played)
        return max(0, together - service_ns(self.curves[0], self.wire_bytes))

    def on_path_ns(self, *kinds: str) -> int:
        """How long spans of these ``kinds`` are on the critical path."""
        return sum(span.end_ns - span.start_ns for span in self.path if span.kind in kinds)

    @cached_property
    def stretch_ns(self) -> int:
        """By how much backward's own work on the critical path is longer than it would be alone."""
        workload, before = self.timeline.workload, 0
        alone: dict[int | None, int] = {}
        for index in workload.order():
            ready = workload.gradients[index].ready_ns or 0
            alone[index], before = ready - before, ready
        alone[None] = workload.backward_ns - before
        return sum(
            span.end_ns - span.start_ns - alone[span.gradient]
            for span in self.path
            if span.kind == "backward"
        )

    @cached_property
    def standing_ns(self) -> int:
        """How long the compute lane stands still before the end of backward."""
        timeline = self.timeline
        spans = [(span.start_ns, span.end_ns) for span in timeline.compute]
        spans += [(bucket.copy_out_start_ns, bucket.available_ns) for bucket in timeline.buckets]
        backward = [(0, timeline.backward_end_ns)]
        return timeline.backward_end_ns - intersection_length(spans, backward)

    @cached_property
    def hidden_ns(self) -> int:
        """How long collectives and the compute lane are at work side by side."""
        return intersection_length(
            [(span.start_ns, span.end_ns) for span in self.timeline.compute],
            [(played.start_ns, played.end_ns) for played in self.timeline.collectives],
        )

    @property
    def threshold_ns(self) -> float:
        """What a part of the critical path must reach to be the cause: half of what is exposed.

        Without a collective on the path, the largest of the other parts is the cause.
        """
        if self.sent:
            return self.exposed_ns / 2
        parts = (
            self.on_path_ns("hook", "settle"),
            self.on_path_ns("launch"),
            self.on_path_ns("copy_in", "copy_out"),
            self.stretch_ns,
        )
        return max(parts)

    @property
    def is_additive(self) -> bool:
        """Whether a step gets shorter by no more than what is taken from its critical path.

        That holds with one channel where nothing slows anything else down.
        """
        hardware = self.timeline.hardware
        return hardware.comm_channels == 1 and all(getattr(hardware, name) == 1 for name in SLOWDOWNS)

    @property
    def is_alone(self) -> bool:
        """``is_additive``, and no other rank's step changes with this one's."""
        return self.is_additive and self.timeline.slowest is None
