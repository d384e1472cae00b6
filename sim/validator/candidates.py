"""Which assignments are replayed, and which cannot be."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sim.engine.bucketing import check_reaches
from sim.engine.systems import assign
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, Assignment, bucket_bytes, made_for
from sim.nouns.measurement import Mode
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.units import MIB

_DDP_POLICIES = ("ddp", "per-parameter", "single", "explicit")
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment to replay, under a name.

    ``assignment`` None is stock DDP without any switch; its buckets are then read back, not checked.
    """

    name: str
    assignment: Assignment | None

    @property
    def is_injected(self) -> bool:
        """Whether no keyword of stock DDP reaches the buckets, so that the Reducer is given them."""
        assignment = self.assignment
        return assignment is not None and (not assignment.by_keywords or "environment" in assignment.requires)

    def order_to_ranks(self) -> dict[str, Any]:
        """What the ranks are told about this candidate."""
        assignment = self.assignment
        if assignment is None:
            return {"name": self.name, "ddp_kwargs": {}, "bucket_indices": None}
        if not self.is_injected:
            return {"name": self.name, "ddp_kwargs": assignment.ddp_kwargs, "bucket_indices": None}
        kwargs = {key: value for key, value in assignment.ddp_kwargs.items() if key not in CAP_KWARGS}
        return {
            "name": self.name,
            "ddp_kwargs": kwargs,
            "bucket_indices": [list(bucket) for bucket in assignment.bucket_indices],
        }


def standing_candidates(
    workload: Workload, caps: Sequence[float], recommended: Assignment
) -> list[Candidate]:
    """The assignments that every record holds, each named for what it is.

    DDP's default, explicit ``caps`` in MiB, one bucket, the recommended one, caps that double from
    1 MiB (small buckets while there is still backward to hide behind), and the recommended buckets with
    the small gradients taken out and sent last: a partition that is not contiguous in ready order, which
    no keyword of DDP reaches. The last is left out where it would not differ.
    """
    doubling = [float(2**power) for power in range(max(1, (workload.total_bytes // MIB).bit_length()))]
    found = {
        "DDP default": assign(workload),
        **{f"bucket_cap_mb={cap:g}": assign(workload, bucket_cap_mb=cap) for cap in caps},
        "single": assign(workload, "single"),
        "recommended": recommended,
        "caps doubling from 1": assign(workload, bucket_cap_mb_list=doubling),
    }
    rearranged = _small_last(workload, recommended)
    if rearranged is not None:
        found["small gradients last"] = rearranged
    return [Candidate(name=name, assignment=assignment) for name, assignment in found.items()]


def _small_last(workload: Workload, recommended: Assignment) -> Assignment | None:
    """The buckets of ``recommended`` without gradients below 64 KiB, which follow in one bucket per key."""
    small: dict[object, list[int]] = {}
    for index in workload.order():
        gradient = workload.gradients[index]
        if gradient.num_bytes < _SMALL_BYTES and not gradient.sparse:
            small.setdefault(gradient.key, []).append(index)
    taken = {index for bucket in small.values() for index in bucket}
    large = [tuple(i for i in bucket if i not in taken) for bucket in recommended.bucket_indices]
    buckets = (*(bucket for bucket in large if bucket), *map(tuple, small.values()))
    if not taken or buckets == recommended.bucket_indices or len(taken) == len(workload.gradients):
        return None
    return Assignment(
        bucket_indices=buckets,
        bucket_bytes=bucket_bytes(workload, buckets),
        made_for=made_for(workload),
        provenance={"source": "small gradients last", "workload": workload.name},
    )


def check_replayable(workload: Workload, candidates: Sequence[Candidate], mode: Mode = "paced") -> None:
    """Raise unless every candidate can be run on this workload, by stock DDP or by injection (B(ii)).

    Raises:
        InputError: no candidates, or a name twice.
        AssignmentError: an assignment that does not fit, or keywords that reach other buckets.
        NotModelledError: a workload or policy that cannot be run.
    """
    if not candidates:
        raise InputError("candidates: none given; give at least one")
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"candidates: {name!r} is given twice; every name may occur once")
        if name in ("plain", "noop"):
            raise InputError(f"candidates: {name!r} is not legal; it names the run without communication")
    for gradient in workload.gradients:
        if gradient.ready_ns is None:
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name}) is never ready; "
                f"DDP raises an error on it (A3.21)"
            )
    if mode == "paced":
        _check_paced(workload)
    for candidate in candidates:
        _check_candidate(workload, candidate)


def _check_paced(workload: Workload) -> None:
    """Raise unless tensors of the recorded shapes and a slept schedule can stand for this workload."""
    for gradient in workload.gradients:
        what = f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name})"
        if gradient.sparse:
            raise NotModelledError(f"{what} is sparse; paced replay takes dense gradients (--mode model)")
        num_bytes = prod(gradient.shape) * DTYPE_BYTES[gradient.dtype]
        if num_bytes != gradient.num_bytes or gradient.on_wire != gradient.num_bytes:
            raise NotModelledError(
                f"{what}: shape {list(gradient.shape)} of {gradient.dtype} must hold num_bytes, "
                f"{gradient.num_bytes}, and wire_bytes, {gradient.on_wire}, must not differ from it; paced "
                f"replay sends real tensors"
            )
    if workload.ready_includes:
        raise NotModelledError(
            f"workload {workload.name!r}: ready_includes {list(workload.ready_includes)} is not replayed; "
            f"the real DDP would pay for these effects a second time"
        )


def _check_candidate(workload: Workload, candidate: Candidate) -> None:
    assignment = candidate.assignment
    if assignment is None:
        return
    assignment.check_fits(workload)
    if assignment.policy not in _DDP_POLICIES:
        raise NotModelledError(
            f"candidate {candidate.name!r}: policy {assignment.policy!r} is not DistributedDataParallel's; "
            f"replay takes {', '.join(_DDP_POLICIES)}"
        )
    if not candidate.is_injected:
        check_reaches(workload, assignment)
