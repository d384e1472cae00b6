"""Whether candidates can be replayed: what is refused, and why."""

from collections.abc import Sequence
from math import prod

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import Mode
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.ddp_assignment import check_reaches, check_used
from sim.systems.registry import assign, write
from sim.systems.textbook import STYLES
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier

TEXTBOOK = tuple(STYLES)  # ranks run these, beside DDP
_FREE = (CurvePoint(num_bytes=0, duration_ns=0),)
_ANY_HARDWARE = Hardware(name="any", world_size=2, all_reduce=_FREE)


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
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"candidates: {name!r} is given twice; every name may occur once")
        if name in ("plain", "noop"):
            raise InputError(f"candidates: {name!r} is not legal; it names the run without communication")
    if mode == "paced":
        _check_paced(workload)
    for candidate in candidates:
        _check_candidate(workload, candidate, mode, carrier)


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


def _check_candidate(workload: Workload, candidate: Candidate, mode: Mode, carrier: Carrier) -> None:
    assignment = candidate.assignment or assign(workload)
    assignment.check_fits(workload)
    if assignment.policy in DDP_POLICIES:
        switches = read_switches(assignment)
        check_used(workload, switches)
        if candidate.assignment is not None and not candidate.is_injected:
            check_reaches(workload, assignment)
    elif assignment.policy not in TEXTBOOK:
        raise NotModelledError(
            f"candidate {candidate.name!r}: {assignment.policy} is not replayed, only predicted; ranks run "
            f"DDP, and {', '.join(TEXTBOOK)}"
        )
    else:
        switches = Switches()
        program = write(workload, _ANY_HARDWARE, assignment)[-1]
        if program.early_launches:
            raise NotModelledError(
                f"candidate {candidate.name!r}: {program.notes[0]}; replay takes what averages rightly"
            )
    for what, why in _refused(assignment, switches, mode, carrier).items():
        raise NotModelledError(f"candidate {candidate.name!r}: {what} is not replayed: {why}")


def _refused(assignment: Assignment, switches: Switches, mode: Mode, carrier: Carrier) -> dict[str, str]:
    """What of a candidate cannot be run, and why."""
    found, device = {}, carrier.device
    hook = switches.hook
    if switches.reduce_dtype is not None:
        found["mixed_precision"] = "DDP needs GPUs for it, and its casts are in no recorded schedule"
    if switches.optimize_ddp is not None:
        found["optimize_ddp"] = (
            "a replay compiles nothing; replay what sim.torch_compiled makes of the workload, without it"
        )
    if switches.syncs_each:
        found["no_sync=false"] = "a replay accumulates under no_sync"
    if hook is not None and hook.needs_nccl and device == "cpu":
        found[f"comm_hook {hook.name}"] = "torch refuses it without NCCL"
    if hook is not None and carrier.emulated is not None:
        found["comm_hook"] = "an emulated link is a communication hook itself, and DDP takes one"
    adds = switches.accumulation_steps > 1 or not switches.set_to_none or assignment.policy == "flat-views"
    if mode == "paced" and device == "cuda" and adds:
        found["adding to gradients"] = "on a GPU it takes kernels, which are in no recorded schedule"
    return found
