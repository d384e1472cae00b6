"""The textbook systems (A7): a message for each parameter or bucket, after backward or from a hook.

Buckets are cut once, from the last parameter to the first, and stay the same in every iteration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sim.clock.program import COPY_IN, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment, assigned
from sim.nouns.collective import Phase
from sim.nouns.hardware import Hardware
from sim.nouns.memory import Holding
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.bucketing import DEFAULT_BUCKET_CAP_BYTES, Caps
from sim.systems.step_writer import StepWriter
from sim.units import cap_bytes, transfer_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a system works.

    ``by_size``: buckets by size, else one a parameter. ``copies``: gradients are copied into the bucket one
    by one as they come (``arrival``), all at once before it is sent (``launch``), or not at all.
    ``overlaps``: sent from a hook during backward and waited for at its end; else one after the other
    after backward, each waited for before the next.
    """

    by_size: bool
    copies: Literal["arrival", "launch"] | None
    overlaps: bool


STYLES: Mapping[str, Style] = {
    "per-parameter-sync": Style(by_size=False, copies=None, overlaps=False),
    "per-parameter-async": Style(by_size=False, copies=None, overlaps=True),
    "after-backward": Style(by_size=True, copies="launch", overlaps=False),
    "arrival-counted": Style(by_size=True, copies="arrival", overlaps=True),
    "flat-views": Style(by_size=True, copies=None, overlaps=True),
}
_ADDS_INTO_VIEWS = (
    "flat-views adds every gradient to its view of the flat storage, zeroed in each step; that work is part "
    "of the recorded backward only if it was recorded with set_to_none=False"
)


def assign(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """The buckets of a textbook system, numbered as it cuts them; the same in every iteration.

    Args:
        policy: a name of ``STYLES``.
        caps: ``bucket_cap_mb`` alone, where the system has buckets by size; None is 25.
        options: none is legal.
    """
    if STYLES[policy].by_size:
        return assign_by_size(workload, policy, caps, options, keyed=True)
    refuse_options(policy, options)
    count = len(workload.gradients)
    return assigned(workload, policy, tuple((index,) for index in range(count)), {})


def assign_by_size(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], *, keyed: bool
) -> Assignment:
    """Walk from the last parameter to the first; a bucket closes once it has ``bucket_cap_mb`` (A6.1).

    With ``keyed`` every dtype and device has an open bucket of its own (A7.5). Closed buckets come first,
    as they closed, then open ones as they were opened.
    """
    refuse_options(policy, options)
    if caps != Caps(bucket_cap_mb=caps.bucket_cap_mb):
        raise InputError(f"policy: {policy!r} takes one bucket cap; give bucket_cap_mb alone")
    cap = DEFAULT_BUCKET_CAP_BYTES if caps.bucket_cap_mb is None else cap_bytes(caps.bucket_cap_mb)
    closed: list[tuple[int, ...]] = []
    opened: dict[object, list[int]] = {}
    sizes: dict[object, int] = {}
    for gradient in reversed(workload.gradients):
        key = gradient.key if keyed else None
        opened.setdefault(key, []).append(gradient.index)
        sizes[key] = sizes.get(key, 0) + gradient.num_bytes
        if sizes[key] >= cap:
            closed.append(tuple(opened.pop(key)))
            sizes[key] = 0
    settings = {} if caps.bucket_cap_mb is None else {"bucket_cap_mb": caps.bucket_cap_mb}
    return assigned(workload, policy, (*closed, *map(tuple, opened.values())), settings)


def refuse_options(policy: str, options: dict[str, Any]) -> None:
    """Raise ``InputError`` for any switch: these systems have none."""
    for name, value in options.items():
        raise InputError(f"policy: {policy!r} has no switch {name}={value!r}; it takes none")


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The one program of a step.

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3).
        NotModelledError: a gradient on which the system itself would stop.
    """
    check_dense(workload, assignment.policy)
    for gradient in workload.gradients:
        if gradient.ready_ns is None:
            raise NotModelledError(
                f"{workload.label(gradient)} is never ready; "
                f"{assignment.policy} has no average for it and stops"
            )
    assignment.check_fits(workload)
    style = STYLES[assignment.policy]
    triggers = completing(workload, assignment) if style.overlaps else {}
    notes = (_ADDS_INTO_VIEWS,) if assignment.policy == "flat-views" else ()
    return (write_program(workload, hardware, assignment, style, triggers, notes),)


def check_dense(workload: Workload, policy: str) -> None:
    """Raise ``NotModelledError`` for a gradient that is sparse or ready twice in a backward (A8.5)."""
    for gradient in workload.gradients:
        if gradient.sparse or gradient.uses > 1:
            what = "is sparse" if gradient.sparse else f"is ready {gradient.uses} times in one backward"
            raise NotModelledError(f"{workload.label(gradient)} {what}; {policy} cannot average that")


def completing(workload: Workload, assignment: Assignment) -> dict[int, int]:
    """By gradient, the bucket that it completes: of every bucket, the gradient that is ready last (A7.3)."""
    place = {index: number for number, index in enumerate(workload.order())}
    return {
        max(bucket, key=place.__getitem__): number for number, bucket in enumerate(assignment.bucket_indices)
    }


def write_program(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    style: Style,
    triggers: Mapping[int, int],
    notes: tuple[str, ...] = (),
) -> Program:
    """The program of a system that works in ``style``.

    Args:
        triggers: by gradient, the bucket that its hook sends; unused where nothing overlaps.
        notes: what the reader of a report should know.
    """
    step = _Step(workload, hardware, assignment, style)
    for index in step.backward():
        if style.copies == "arrival":
            step.compute(COPY_IN, step.hook_ns + step.copy_in_ns(index), gradient=index)
        if style.overlaps and index in triggers:
            step.reduce(triggers[index], "backward", index)
    if style.overlaps:
        sent = [one.bucket for one in step.collectives if one.bucket is not None]
        for number in sent:
            step.collect(number)
        for number in range(len(assignment.bucket_indices)):
            if number not in sent:
                step.ready(number)
                step.copy_back(number)
    else:
        for number in range(len(assignment.bucket_indices)):
            step.reduce(number, "end of backward", None)
            step.collect(number)
    return step.program(optimizer_ns=workload.optimizer_ns, notes=notes)


class _Step(StepWriter):
    """The lane of a step, as it is written."""

    def __init__(self, workload: Workload, hardware: Hardware, assignment: Assignment, style: Style) -> None:
        super().__init__(workload, hardware, assignment.policy, len(assignment.bucket_indices))
        self._buckets = assignment.bucket_indices
        self._style = style

    def copy_in_ns(self, *indices: int) -> int:
        """How long these gradients take to be copied at once."""
        return transfer_ns(self._size(indices), self.copy_in_rate)

    def reduce(self, bucket: int, phase: Phase, gradient: int | None) -> None:
        """Flatten the bucket, where the style does, and send it."""
        members = self._buckets[bucket]
        if self._style.copies == "launch":
            self.compute(COPY_IN, self.copy_in_ns(*members), bucket=bucket)
        size, dtype = self._size(members), self.workload.gradients[members[0]].dtype
        self.ready(bucket)
        elements = size // DTYPE_BYTES[dtype]
        self.send(
            self.collective(
                "all_reduce", elements, dtype, phase, num_bytes=size, gradient=gradient, bucket=bucket
            )
        )

    def collect(self, bucket: int) -> None:
        """Wait for the bucket's sum and divide it: in place, or on the way back into its gradients."""
        size = self._size(self._buckets[bucket])
        self.wait(self.carriers[bucket][0])
        self.copy_back(bucket, transfer_ns(size, self.hardware.copy_out_bytes_per_s))

    def _size(self, indices: tuple[int, ...]) -> int:
        return sum(self.workload.gradients[index].on_wire for index in indices)


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """Storage that gradients are copied into as they come, or what is flattened until it is copied back.

    Nothing where gradients are sent in place or are views of their bucket (A7.1, A7.4), and nothing for a
    bucket of one gradient that is flattened: torch gives back a view of it.
    """
    gradients, buckets = timeline.workload.gradients, timeline.assignment.bucket_indices
    style = STYLES.get(timeline.assignment.policy)
    if style is not None and style.copies is None:
        return ()
    if style is not None and style.copies == "arrival":
        total = sum(gradient.on_wire for gradient in gradients)
        return (Holding(what="flat storage", num_bytes=total),)
    sent = {played.collective.bucket: played for played in timeline.collectives}
    flattened = {
        span.bucket: span.start_ns
        for span in timeline.compute
        if span.kind == "copy_in" and span.bucket is not None
    }
    return tuple(
        Holding(
            what="flattened buckets",
            num_bytes=sent[number].collective.num_bytes,
            start_ns=flattened.get(number, timeline.buckets[number].ready_ns),
            end_ns=timeline.buckets[number].available_ns,
        )
        for number, bucket in enumerate(buckets)
        if number in sent and len(bucket) > 1
    )
