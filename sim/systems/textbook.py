"""The textbook systems (A6, A7): a message for each parameter or bucket, after backward or from a hook.

Buckets are cut once, from the last parameter to the first, and stay the same in every iteration.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sim.clock.program import COPY_IN, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment, assigned, bucket_bytes
from sim.nouns.collective import EarlyLaunch, LateGradient, Phase
from sim.nouns.ddp_switches import DEFAULT_BUCKET_CAP_BYTES
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.ddp_assignment import compute_bucket_assignment_by_size
from sim.systems.step_writer import Plan, StepWriter, completed_by
from sim.units import cap_bytes, format_ms, transfer_ns


@dataclass(frozen=True, slots=True)
class Style:
    """How a system works; ``words``: what pages call it.

    ``by_size``: buckets by size, else one a parameter. ``copies``: gradients are copied into the bucket one
    by one as they come (``arrival``), all at once before it is sent (``launch``), or not at all.
    ``overlaps``: sent from a hook during backward and waited for at its end; else one after the other
    after backward, each waited for before the next. ``by_last``: that hook is the one of the bucket's last
    parameter, as published, and dtypes are not told apart (A6); else of whichever is ready last.
    """

    words: str
    by_size: bool
    copies: Literal["arrival", "launch"] | None
    overlaps: bool
    by_last: bool = False


STYLES: Mapping[str, Style] = {
    "per-parameter-sync": Style("per parameter, after backward", by_size=False, copies=None, overlaps=False),
    "per-parameter-async": Style("per parameter, from hooks", by_size=False, copies=None, overlaps=True),
    "after-backward": Style("buckets after backward", by_size=True, copies="launch", overlaps=False),
    "arrival-counted": Style("arrival-counted buckets", by_size=True, copies="arrival", overlaps=True),
    "flat-views": Style("gradients as views of flat storage", by_size=True, copies=None, overlaps=True),
    "last-hook": Style("last-parameter hooks", by_size=True, copies="launch", overlaps=True, by_last=True),
    "last-hook-safe": Style("last-parameter hooks, put right", by_size=True, copies="launch", overlaps=True),
}
BY_SIZE = tuple(policy for policy, style in STYLES.items() if style.by_size)


def assign(
    workload: Workload, policy: str, caps: Mapping[str, Any], options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """The buckets of a textbook system, numbered as it cuts them; the same in every iteration.

    By size it walks from the last parameter to the first; a bucket closes once it has ``bucket_cap_mb``
    (A6.1). Every dtype and device has an open bucket of its own, except under ``last-hook`` (A7.5). Closed
    buckets come first, as they closed, then open ones as they were opened.

    Args:
        policy: a name of ``STYLES``.
        caps: ``bucket_cap_mb`` alone, where the system has buckets by size; None is 25.
        options: none is legal.
    """
    for name, value in options.items():
        raise InputError(f"policy: {policy!r} has no switch {name}={value!r}; it takes none")
    if not set(caps) <= {"bucket_cap_mb"}:
        raise InputError(f"policy: {policy!r} takes one bucket cap; give bucket_cap_mb alone")
    _check_dense(workload, policy)
    style, cap_mb = STYLES[policy], caps.get("bucket_cap_mb")
    if not style.by_size:
        return assigned(workload, policy, tuple((one.index,) for one in workload.gradients), {})
    cap = DEFAULT_BUCKET_CAP_BYTES if cap_mb is None else cap_bytes(cap_mb)
    walked = workload.gradients[::-1]
    sizes, order = [one.num_bytes for one in walked], [one.index for one in walked]
    keys = [None if style.by_last else one.key for one in walked]
    cut = [*map(tuple, compute_bucket_assignment_by_size(sizes, keys, [cap], order=order))]
    closed = [bucket for bucket, size in zip(cut, bucket_bytes(workload, cut), strict=True) if size >= cap]
    buckets = (*closed, *sorted({*cut}.difference(closed), reverse=True))
    for number, bucket in enumerate(buckets):
        mixed = {workload.gradients[index].key for index in bucket}
        if len(mixed) > 1:
            raise NotModelledError(
                f"policy: {policy!r} puts {len(mixed)} dtypes or devices into bucket {number}, and fails or "
                f"casts there (A7.5); give 'last-hook-safe'"
            )
    return assigned(workload, policy, buckets, caps)


def _check_dense(workload: Workload, policy: str) -> None:
    """Raise ``NotModelledError`` for a gradient that is sparse or ready twice in a backward (A8.5)."""
    for gradient in workload.gradients:
        if gradient.sparse or gradient.uses > 1:
            what = "is sparse" if gradient.sparse else f"is ready {gradient.uses} times in one backward"
            raise NotModelledError(f"{workload.label(gradient)} {what}; {policy} cannot average that")


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "TextbookPlan":
    """What a textbook system does with any buckets, in the one micro-batch of a step.

    Raises:
        NotModelledError: a gradient on which the system itself would stop: sparse or ready twice (A8.5), or
            never ready. If a bucket's hook is that of its last parameter, and this is never ready, it is
            never sent instead (A6.4).
    """
    policy = assignment.policy
    by_last = STYLES[policy].by_last
    hooked = {bucket[-1] for bucket in assignment.bucket_indices} if by_last else ()
    _check_dense(workload, policy)
    for gradient in workload.gradients:
        if gradient.ready_ns is None and gradient.index not in hooked:
            raise NotModelledError(
                f"{workload.label(gradient)} is never ready; {policy} has no average for it and stops (A6.4)"
            )
    return TextbookPlan(
        system=policy,
        workload=workload,
        buckets=assignment.bucket_indices,
        early=early_launches(workload, assignment) if by_last else (),
    )


@dataclass(frozen=True, kw_only=True)
class TextbookPlan(Plan):
    """``early``: the buckets whose hooked parameter is not the last to be ready (A6.2)."""

    early: tuple[EarlyLaunch, ...]

    def bucket_bytes(self, bucket: int) -> int:
        """What travels of a bucket."""
        return sum(self.workload.gradients[index].on_wire for index in self.buckets[bucket])

    def buffer_bytes(self) -> int:
        """Storage that gradients are copied into as they come, or what is flattened until it is copied back.

        Nothing where gradients are sent in place or are views of their bucket (A7.1, A7.4), and nothing for a
        bucket of one gradient that is flattened: torch gives back a view of it.
        """
        style, flat = STYLES[self.system], [*map(self.bucket_bytes, range(len(self.buckets)))]
        if style.copies != "launch":
            return sum(flat) if style.copies else 0
        copied = [size for size, bucket in zip(flat, self.buckets, strict=True) if len(bucket) > 1]
        return sum(copied) if style.overlaps else max(copied, default=0)


class _Step(StepWriter[TextbookPlan]):
    """The step of a textbook system, as it is written."""

    def write(self) -> Program:
        """The whole of it."""
        style, buckets, order = STYLES[self.plan.system], self.plan.buckets, self.workload.order()
        triggers = completed_by(buckets, order)  # by gradient, the bucket that its hook sends (A6.1, A7.3)
        if style.by_last:
            triggers = {bucket[-1]: number for number, bucket in enumerate(buckets)}
        self.forward()
        for index in self.backward():
            if style.copies == "arrival":
                size = self.workload.gradients[index].on_wire
                self.compute(COPY_IN, self.hook_ns + transfer_ns(size, self.copy_in_rate), gradient=index)
            if style.overlaps and index in triggers:
                self._send_bucket(triggers[index], "backward", index)
        sent = [one.bucket for one in self.collectives if one.bucket is not None]
        for bucket in (*sent, *sorted({*range(len(buckets))}.difference(sent))):
            if not style.overlaps:  # each one is waited for before the next
                self._send_bucket(bucket, "end of backward", None)
            if self.carriers[bucket]:  # the sum is divided: in place, or on the way back
                self.collect(bucket, transfer_ns(self.plan.bucket_bytes(bucket), self.copy_out_rate))
            else:
                self.ready(bucket)
                self.copy_back(bucket)
        if style.by_last:
            self.notes += _early_in_words(self.plan)
        if self.plan.system == "flat-views":
            self.notes.append(
                "flat-views adds every gradient to its view of the flat storage, zeroed in each step; that "
                "work is part of the recorded backward only if it was recorded with set_to_none=False"
            )
        self.synchronised(self.workload.optimizer_ns)
        return self.program(early_launches=self.plan.early)

    def _send_bucket(self, bucket: int, phase: Phase, gradient: int | None) -> None:
        """Flatten the bucket, where the style does, and send it."""
        size = self.plan.bucket_bytes(bucket)
        if STYLES[self.plan.system].copies == "launch":
            self.compute(COPY_IN, transfer_ns(size, self.copy_in_rate), bucket=bucket)
        self.ready(bucket)
        dtype = self.workload.gradients[self.plan.buckets[bucket][0]].dtype
        more: dict[str, Any] = {"num_bytes": size, "gradient": gradient, "bucket": bucket}
        self.send(self.collective("all_reduce", size // DTYPE_BYTES[dtype], dtype, phase, **more))


TextbookPlan.writer = _Step


def early_launches(workload: Workload, assignment: Assignment) -> tuple[EarlyLaunch, ...]:
    """The buckets whose last parameter is not the last to be ready, and by how much the others are late.

    Ready times are those of the workload; among gradients ready in the same ns its ready order decides.
    """
    place = {index: number for number, index in enumerate(workload.order())}
    found = []
    for number, bucket in enumerate(assignment.bucket_indices):
        hooked = workload.gradients[bucket[-1]]
        behind, is_sent = place.get(hooked.index, len(place)), hooked.ready_ns is not None
        late = []
        for one in (workload.gradients[index] for index in bucket if place.get(index, -1) > behind):
            late_ns = (one.ready_ns or 0) - (hooked.ready_ns or 0)
            late.append(LateGradient(index=one.index, name=one.name, late_ns=late_ns))
        if late or not is_sent:
            whose, name = hooked.index, hooked.name
            early = EarlyLaunch(
                bucket=number, hooked=whose, hooked_name=name, late=tuple(late), is_sent=is_sent
            )
            found.append(early)
    return tuple(found)


def _early_in_words(plan: TextbookPlan) -> Iterator[str]:
    """Both failures in words, each with its first example."""
    early = [launch for launch in plan.early if launch.is_sent]
    unsent = [launch for launch in plan.early if not launch.is_sent]
    if early:
        first, worst = early[0], max(early[0].late, key=lambda late: late.late_ns)
        yield (
            f"wrong gradients: {len(early)} of {len(plan.buckets)} buckets are sent before all of their "
            f"gradients are there; bucket {first.bucket} when {first.hooked_name} is ready, without "
            f"{worst.name}, which comes {format_ms(worst.late_ns)} later (A6.2)"
        )
    if unsent:
        yield (
            f"wrong gradients: {len(unsent)} of {len(plan.buckets)} buckets are never sent; "
            f"{unsent[0].hooked_name}, which bucket {unsent[0].bucket} waits for, is not used (A6.4)"
        )
