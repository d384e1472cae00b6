"""Megatron-LM's command-line flags for an assignment of Megatron-Core's DistributedDataParallel."""

from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.systems.megatron import check_cut
from sim.systems.megatron_settings import is_all_bf16

# By setting, in the order in which they are told. A flag that is off is left out.
_FLAGS = {
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "bucket_size": "--ddp-bucket-size",
    "num_buckets": "--ddp-num-buckets",
    "grad_reduce_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "use_distributed_optimizer": "--use-distributed-optimizer",
    "overlap_param_gather": "--overlap-param-gather",
    "pad_buckets_for_high_nccl_busbw": "--ddp-pad-buckets-for-high-nccl-busbw",
    "average_in_collective": "--ddp-average-in-collective",
}


def megatron_flags(assignment: Assignment, workload: Workload) -> str:
    """Flags to add to Megatron-LM's training script; what is set elsewhere is told in a comment.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its buckets are not these settings'.
        InputError: a setting that is not legal.
        NotModelledError: an assignment of another system than Megatron-Core's, or a setting not modelled.
    """
    if assignment.policy != "megatron":
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of Megatron-Core, whose flags these are; they are "
            f"written for megatron"
        )
    assignment.check_fits(workload)
    settings = assignment.settings
    made_for = assignment.made_for
    check_cut(workload, assignment, None if made_for is None else made_for.world_size)
    lines = [
        f"# Set elsewhere, and part of this assignment: {name}={value!r}"
        for name, value in settings.items()
        if name not in _FLAGS
    ]
    for name, flag in _FLAGS.items():
        value = settings.get(name)
        if value is True:
            lines.append(flag)
        elif value is not None and value is not False:
            lines.append(f"{flag} {int(value)}")
    if is_all_bf16(workload) and not settings.get("grad_reduce_in_fp32"):
        lines.append("--grad-reduce-in-bf16")  # Megatron-LM reduces in fp32 under --bf16 unless told
    if not any(line.startswith("--") for line in lines):
        lines.append("# No flags: Megatron-LM's own defaults.")
    return "\n".join(lines) + "\n"
