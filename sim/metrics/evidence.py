"""Figures of a timeline by which the cause that holds a step up is told."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import get_args

from sim.costs.service_time import service_ns
from sim.metrics.critical_path import critical_path
from sim.metrics.intervals import intersection_length
from sim.nouns.collective import Collective, CollectiveKind
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.timeline import PathSpan, Timeline
from sim.units import format_ms

_SENT = get_args(CollectiveKind)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A timeline and figures read off it, each computed once and only if it is asked for.

    Micro-batches follow each other, so the critical path of the step is that of each, one after the other.
    ``step_ns`` is the whole step, ``known_path`` the path of the last micro-batch where it was found before.
    """

    timeline: Timeline
    step_ns: int
    known_path: Sequence[PathSpan] | None = None

    @property
    def exposed_words(self) -> str:
        """What is exposed in the step, and in how many micro-batches if in several."""
        count = len(self.timeline.reducing)
        return format_ms(self.timeline.exposed_ns) + (f" in {count} micro-batches" if count > 1 else "")

    @cached_property
    def paths(self) -> list[Sequence[PathSpan]]:
        """The critical path of each micro-batch that reduces: one after the other, that of the step."""
        walked = {} if self.known_path is None else {id(self.timeline): self.known_path}
        for batch in self.timeline.reducing:
            if id(batch) not in walked:
                walked[id(batch)] = critical_path(batch)
        return [walked[id(batch)] for batch in self.timeline.reducing]

    @cached_property
    def path(self) -> list[PathSpan]:
        """The spans of all ``paths``."""
        return list(chain.from_iterable(self.paths))

    @cached_property
    def sent_in(self) -> list[list[PathSpan]]:
        """The collectives on each of ``paths``."""
        return [[span for span in path if span.kind in _SENT] for path in self.paths]

    @cached_property
    def carried_in(self) -> list[list[Collective]]:
        """What the collectives on each of ``paths`` carry."""
        return [
            [batch.collectives[span.collective].collective for span in sent if span.collective is not None]
            for batch, sent in zip(self.timeline.reducing, self.sent_in, strict=True)
        ]

    @property
    def sent(self) -> list[PathSpan]:
        """The collectives on the critical path."""
        return list(chain.from_iterable(self.sent_in))

    @property
    def carried(self) -> list[Collective]:
        """What the collectives on the critical path carry."""
        return list(chain.from_iterable(self.carried_in))

    @property
    def wire_ns(self) -> int:
        """How long the collectives on the critical path take together."""
        return sum(span.end_ns - span.start_ns for span in self.sent)

    @property
    def wire_bytes(self) -> int:
        """Bytes that the collectives on the critical path carry together."""
        return sum(collective.num_bytes for collective in self.carried)

    def latency_ns(self, sent: Sequence[Collective]) -> int:
        """The part of what ``sent`` take alone that is latency: of each, the smallest time on its curve."""
        return sum(map(self._latency_ns, sent))

    def moving_ns(self, sent: Sequence[Collective]) -> int:
        """What ``sent`` take beyond their latency, each alone on its channel."""
        return services_ns(sent) - self.latency_ns(sent)

    def halving_saves_ns(self, sent: Sequence[Collective]) -> int:
        """How much twice the bandwidth takes from ``sent``, one after the other; each is rounded."""
        return sum(-(-(one.service_ns - self._latency_ns(one)) // 2) for one in sent)

    def merging_saves_ns(self, sent: Sequence[Collective]) -> int:
        """How much one collective would save in place of ``sent``; of several kinds there is none."""
        kinds = {one.kind for one in sent}
        if len(kinds) != 1 or "broadcast" in kinds:
            return 0
        curve = self.timeline.hardware.curve(sent[0].kind)
        together = 0 if curve is None else service_ns(curve, sum(one.num_bytes for one in sent))
        return max(0, services_ns(sent) - together)

    def _latency_ns(self, one: Collective) -> int:
        curve = self.timeline.hardware.curve(one.kind)
        whole = service_ns(curve, one.num_bytes) if curve else 0
        least = min((point.duration_ns for point in curve or ()), default=0)
        return least * one.service_ns // whole if whole else 0  # one that is queued takes a share of both

    def taken_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """By how much the step is shorter at most where ``taken`` tells what collectives one after the other
        lose: those on the critical path, and those outside of backward."""
        return sum(self._of_paths(taken)) + self.outside_ns(taken)

    def saved_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """``taken_ns``, but of no backward more than it exposes."""
        exposed = (batch.own_exposed_ns for batch in self.timeline.reducing)
        return sum(map(min, self._of_paths(taken), exposed)) + self.outside_ns(taken)

    def _of_paths(self, taken: Callable[[Sequence[Collective]], int]) -> list[int]:
        """Where callbacks launch as collectives end, other times are another order: all may be saved."""
        return [
            batch.own_exposed_ns if _reorders(batch) else taken(sent)
            for batch, sent in zip(self.timeline.reducing, self.carried_in, strict=True)
        ]

    def outside_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """``taken_ns`` outside of backward; what is hidden behind forward is lost to nobody."""
        total = 0
        for batch in self.timeline.micro_batches:
            before = min(taken(batch.before), batch.pre_forward_ns)
            if batch.hardware.queued_gather_factor != 1 and any(map(_is_of_parameters, batch.before)):
                before = batch.pre_forward_ns  # gathers that are faster may also be queued
            total += before + min(taken(batch.after), batch.post_sync_ns)
        return total

    @property
    def other_work_ns(self) -> int:
        """What copies and hooks outside of micro-batches that reduce may take."""
        total = 0
        for batch in self.timeline.micro_batches:
            told = services_ns([one for one in batch.before if not _is_of_parameters(one)])
            total += max(0, batch.pre_forward_ns - told)
            total += max(0, batch.post_sync_ns - services_ns(batch.after))
            if not any(batch is one for one in self.timeline.reducing):
                total += batch.own_exposed_ns
        return total

    def on_path_ns(self, *kinds: str) -> int:
        """How long spans of these ``kinds`` are on the critical path."""
        return sum(map(length_of, (span for span in self.path if span.kind in kinds)))

    def waits_in(self) -> list[int]:
        """How long each micro-batch that reduces waits for the slowest rank on its critical path."""
        return [sum(length_of(span) for span in path if span.kind == "straggler") for path in self.paths]

    @cached_property
    def stretch_ns(self) -> int:
        """By how much backward's own work on the critical path is longer than it would be alone."""
        workload, before = self.timeline.workload, 0
        alone: dict[int | None, int] = {}
        for index in workload.order():
            ready = workload.gradients[index].ready_ns or 0
            alone[index], before = ready - before, ready
        alone[None] = workload.backward_ns - before
        return sum(length_of(span) - alone[span.gradient] for span in self.path if span.kind == "backward")

    @cached_property
    def standing_ns(self) -> int:
        """How long the compute lane stands still before the ends of backwards."""
        total = 0
        for batch in self.timeline.reducing:
            spans = [(span.start_ns, span.end_ns) for span in batch.compute]
            spans += [(bucket.copy_out_start_ns, bucket.available_ns) for bucket in batch.buckets]
            total += batch.backward_end_ns - intersection_length(spans, [(0, batch.backward_end_ns)])
        return total

    @cached_property
    def hidden_ns(self) -> int:
        """How long collectives and the compute lane are at work side by side."""
        return sum(
            intersection_length(
                [(span.start_ns, span.end_ns) for span in batch.compute],
                [(played.start_ns, played.end_ns) for played in batch.collectives],
            )
            for batch in self.timeline.reducing
        )

    @property
    def threshold_ns(self) -> float:
        """What a part of the critical path must reach to be the cause: half of what is exposed.

        Without a collective on the path, the largest of the other parts is the cause.
        """
        if self.sent:
            return self.timeline.exposed_ns / 2
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
        return self.timeline.hardware.comm_channels == 1 and self.is_calm

    @property
    def is_calm(self) -> bool:
        """Whether nothing slows anything else down."""
        return all(getattr(self.timeline.hardware, name) == 1 for name in SLOWDOWNS)

    @property
    def is_alone(self) -> bool:
        """``is_additive``, and no other rank's step changes with this one's."""
        return self.is_additive and self.timeline.slowest is None


def services_ns(sent: Iterable[Collective]) -> int:
    """How long ``sent`` take one after the other, each alone on its channel."""
    return sum(one.service_ns for one in sent)


def length_of(span: PathSpan) -> int:
    """How long a span lasts, in ns."""
    return span.end_ns - span.start_ns


def _reorders(batch: Timeline) -> bool:
    """Whether what is launched next may depend on how long collectives take."""
    sent = (played.collective for played in batch.collectives)
    return any(one.after is not None and not one.holds_channel for one in sent)


def _is_of_parameters(one: Collective) -> bool:
    return one.purpose == "parameters" and one.service_ns > 0
