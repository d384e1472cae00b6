"""Buckets sent by the hook of their last parameter, as published, and the same pattern put right (A6)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.clock.program import Program
from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.early_launch import EarlyLaunch, LateGradient
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.systems.bucketing import Caps
from sim.systems.textbook import Style, assign_by_size, check_dense, completing, write_program
from sim.units import format_ms

_STYLE = Style(by_size=True, copies="launch", overlaps=True)


def assign(
    workload: Workload, policy: str, caps: Caps, options: dict[str, Any], iteration: Iteration
) -> Assignment:
    """Buckets by size from the last parameter to the first; the last of each is the one that is hooked.

    ``last-hook-safe`` keeps dtypes and devices apart. Published code does not: ``last-hook`` raises
    ``NotModelledError`` where a bucket would mix them (A7.5).
    """
    made = assign_by_size(workload, policy, caps, options, keyed=policy == "last-hook-safe")
    for number, bucket in enumerate(made.bucket_indices):
        keys = {workload.gradients[index].key for index in bucket}
        if len(keys) > 1:
            raise NotModelledError(
                f"policy: {policy!r} puts {len(keys)} dtypes or devices into bucket {number}, and fails or "
                f"casts there (A7.5); give 'last-hook-safe'"
            )
    return made


def write(
    workload: Workload, hardware: Hardware, assignment: Assignment, iteration: Iteration
) -> tuple[Program, ...]:
    """The one program of a step.

    A bucket is flattened and sent in the hook of its last parameter, or, under ``last-hook-safe``, of
    whichever is ready last. ``Program.early_launches`` says which hooked ones were not the last (A6.2).

    Raises:
        AssignmentError: the assignment does not fit the workload (A8.3).
        NotModelledError: a gradient on which the system itself would stop.
    """
    check_dense(workload, assignment.policy)
    assignment.check_fits(workload)
    is_safe = assignment.policy == "last-hook-safe"
    _check_used(workload, assignment, is_safe)
    if is_safe:
        triggers: Mapping[int, int] = completing(workload, assignment)
        return (write_program(workload, hardware, assignment, _STYLE, triggers),)
    triggers = {bucket[-1]: number for number, bucket in enumerate(assignment.bucket_indices)}
    found = early_launches(workload, assignment)
    program = write_program(workload, hardware, assignment, _STYLE, triggers, _notes(assignment, found))
    return (replace(program, early_launches=found),)


def _check_used(workload: Workload, assignment: Assignment, is_safe: bool) -> None:
    """Raise for unused parameters, unless their hook sends a bucket, which then is never sent (A6.4)."""
    hooked = () if is_safe else {bucket[-1] for bucket in assignment.bucket_indices}
    for gradient in workload.gradients:
        if gradient.ready_ns is None and gradient.index not in hooked:
            raise NotModelledError(
                f"{workload.label(gradient)} is never ready; "
                f"{assignment.policy} cannot flatten its bucket and stops (A6.4)"
            )


def early_launches(workload: Workload, assignment: Assignment) -> tuple[EarlyLaunch, ...]:
    """The buckets whose last parameter is not the last to be ready, and by how much the others are late.

    Ready times are those of the workload; among gradients ready in the same ns its ready order decides.
    """
    gradients = workload.gradients
    place = {index: number for number, index in enumerate(workload.order())}
    found = []
    for number, bucket in enumerate(assignment.bucket_indices):
        hooked = gradients[bucket[-1]]
        late = tuple(
            LateGradient(
                index=index,
                name=gradients[index].name,
                late_ns=(gradients[index].ready_ns or 0) - (hooked.ready_ns or 0),
            )
            for index in bucket
            if hooked.index in place and place[index] > place[hooked.index]
        )
        if late or hooked.ready_ns is None:
            found.append(
                EarlyLaunch(
                    bucket=number,
                    hooked=hooked.index,
                    hooked_name=hooked.name,
                    late=late,
                    is_sent=hooked.ready_ns is not None,
                )
            )
    return tuple(found)


def _notes(assignment: Assignment, found: tuple[EarlyLaunch, ...]) -> tuple[str, ...]:
    """Both failures in words, each with its first example."""
    count = len(assignment.bucket_indices)
    early = [launch for launch in found if launch.is_sent]
    unsent = [launch for launch in found if not launch.is_sent]
    notes = []
    if early:
        first, worst = early[0], max(early[0].late, key=lambda late: late.late_ns)
        notes.append(
            f"wrong gradients: {len(early)} of {count} buckets are sent before all of their gradients are "
            f"there; bucket {first.bucket} when {first.hooked_name} is ready, without {worst.name}, which "
            f"comes {format_ms(worst.late_ns)} later (A6.2)"
        )
    if unsent:
        notes.append(
            f"wrong gradients: {len(unsent)} of {count} buckets are never sent; {unsent[0].hooked_name}, "
            f"which bucket {unsent[0].bucket} waits for, is not used (A6.4)"
        )
    return tuple(notes)
