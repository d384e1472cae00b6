"""Which assignments are replayed, and what the ranks are told about each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.systems.registry import assign
from sim.units import MIB, format_number

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
        return assignment is not None and assignment.policy in DDP_POLICIES and not assignment.by_keywords

    @property
    def is_traced(self) -> bool:
        """Whether the candidate has a second lane, in which a communication hook notes each bucket's times.

        A candidate with a hook of its own has no such lane, as DDP takes one hook; nor has one that leaves
        unused buckets out (A3.14), for which no hook is called.
        """
        assignment = self.assignment
        return assignment is None or not (
            assignment.settings.get("comm_hook") is not None
            or assignment.ddp_kwargs.get("skip_all_reduce_unused_params")
        )

    def order_to_ranks(self) -> dict[str, Any]:
        """What the ranks are told about this candidate."""
        assignment = self.assignment or Assignment(policy="ddp", bucket_indices=((0,),))
        injected = self.is_injected
        kwargs = assignment.ddp_kwargs
        return {
            "name": self.name,
            "policy": assignment.policy,
            "ddp_kwargs": {k: v for k, v in kwargs.items() if not (injected and k in CAP_KWARGS)},
            "settings": assignment.settings,
            "environment": assignment.requires.get("environment", {}),
            "bucket_indices": [list(bucket) for bucket in assignment.bucket_indices] if injected else None,
            "traced": self.is_traced,
        }


def lane_count(candidates: Sequence[Candidate]) -> int:
    """How many lanes a round has: plain, noop, one for each candidate, and a second one if it is traced."""
    return 2 + sum(1 + candidate.is_traced for candidate in candidates)


def standing_candidates(
    workload: Workload, caps: Sequence[float], recommended: Assignment
) -> list[Candidate]:
    """The assignments that every record holds, each named for what it is.

    They are DDP's default, explicit ``caps`` in MiB, one bucket, the recommended one, caps that double from
    1 MiB (small buckets while there is still backward to hide behind), and the recommended buckets with
    the small gradients taken out and sent last: a partition that is not contiguous in ready order, which
    no keyword of DDP reaches. The last is left out if it would not differ.
    """
    doubling = [float(2**power) for power in range(max(1, (workload.total_bytes // MIB).bit_length()))]
    found = {
        "DDP default": assign(workload),
        **{f"bucket_cap_mb={format_number(cap, 6)}": assign(workload, bucket_cap_mb=cap) for cap in caps},
        "single": assign(workload, "single"),
        "recommended": recommended,
        "caps doubling from 1": assign(workload, bucket_cap_mb_list=doubling),
    }
    rearranged = _small_last(workload, recommended)
    if rearranged is not None:
        found["small gradients last"] = as_the_job(workload, rearranged)
    return [Candidate(name=name, assignment=assignment) for name, assignment in found.items()]


def _small_last(workload: Workload, recommended: Assignment) -> Assignment | None:
    """The buckets of ``recommended`` without gradients below 64 KiB; these follow, by dtype and device.

    None if that changes nothing, or if all gradients are as small.
    """
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
