"""Which assignments are replayed, which cannot be, and why."""

from collections.abc import Iterator, Sequence
from math import prod

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.checks import no_duplicates
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.measurement import Mode
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.ddp_assignment import as_the_job, check_reaches, check_used
from sim.systems.registry import assign
from sim.units import MIB, format_number
from sim.validator.jobs import GLOO_ON_HOST, Candidate, Carrier

_SMALL_BYTES = 64 << 10


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
    small: dict[object, list[int]] = {}  # by dtype and device
    for index in workload.order():
        gradient = workload.gradients[index]
        if gradient.num_bytes < _SMALL_BYTES and not gradient.sparse:
            small.setdefault(gradient.key, []).append(index)
    taken = {index for bucket in small.values() for index in bucket}
    large = [tuple(i for i in bucket if i not in taken) for bucket in recommended.bucket_indices]
    buckets = (*filter(None, large), *map(tuple, small.values()))
    if any(large) and buckets != recommended.bucket_indices:
        rearranged = Assignment(
            bucket_indices=buckets,
            bucket_bytes=bucket_bytes(workload, buckets),
            made_for=made_for(workload),
            provenance={"source": "small gradients last", "workload": workload.name},
        )
        found["small gradients last"] = as_the_job(workload, rearranged)
    return [Candidate(name=name, assignment=assignment) for name, assignment in found.items()]


def check_replayable(
    workload: Workload,
    candidates: Sequence[Candidate],
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
) -> None:
    """Raise unless every candidate can be run on this workload, for real, over ``carrier``.

    Raises:
        InputError: no candidates, or a name twice.
        AssignmentError: an assignment that does not fit, or keywords that reach other buckets.
        NotModelledError: a workload, a policy or a switch that cannot be run.
    """
    if not candidates:
        raise InputError("candidates: none given; give at least one")
    no_duplicates("candidates", [candidate.name for candidate in candidates])
    if reserved := {"plain", "noop"} & {candidate.name for candidate in candidates}:
        raise InputError(f"candidates: {reserved.pop()!r} is not legal; it is a run without communication")
    if mode == "paced":
        _check_paced(workload)
    for candidate in candidates:
        for why in _obstacles(workload, candidate, mode, carrier):
            raise NotModelledError(f"candidate {candidate.name!r}: {why}")


def _check_paced(workload: Workload) -> None:
    """Raise unless tensors of the recorded shapes and a slept schedule can stand for this workload."""
    for gradient in workload.gradients:
        what = f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name})"
        if gradient.sparse:
            raise NotModelledError(f"{what} is sparse; paced replay takes dense gradients (--model)")
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


def _obstacles(workload: Workload, candidate: Candidate, mode: Mode, carrier: Carrier) -> Iterator[str]:
    """What of a candidate cannot be run, and why. Raises ``AssignmentError`` where it does not fit."""
    assignment, on_gpus = candidate.assignment or assign(workload), carrier.device == "cuda"
    assignment.check_fits(workload)
    switches = Switches()
    if assignment.policy in DDP_POLICIES:
        switches = read_switches(assignment)
        check_used(workload, switches)
        if candidate.assignment is not None and not candidate.is_injected:
            check_reaches(workload, assignment)
    else:
        yield f"{assignment.policy} is not replayed, only predicted: ranks run DDP"
    hook = switches.hook
    if switches.optimize_ddp is not None:
        yield "optimize_ddp is not replayed: replay what sim.torch_compiled makes of the workload, without it"
    if switches.syncs_each:
        yield "no_sync=false is not replayed: a replay accumulates under no_sync"
    if hook is not None and hook.needs_nccl and not carrier.uses_nccl:
        yield f"comm_hook {hook.name} is not replayed: torch refuses it without NCCL"
    if hook is not None and carrier.emulated is not None:
        yield "comm_hook is not replayed: an emulated link is one itself, and DDP takes one"
    if mode == "paced" and on_gpus and candidate.adds:
        yield "adding to gradients is not replayed on a GPU: its kernels are in no recorded schedule"
