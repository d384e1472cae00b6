"""Megatron-LM's command-line flags for an assignment of Megatron-Core's DistributedDataParallel."""

from sim.errors import NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload

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
    """Flags to add to Megatron-LM's training script; what follows from other flags is told in a comment.

    Raises:
        AssignmentError: the assignment does not fit ``workload``.
        NotModelledError: an assignment of another system than Megatron-Core's.
    """
    if assignment.policy != "megatron":
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of Megatron-Core, whose flags these are; they are "
            f"written for megatron"
        )
    assignment.check_fits(workload)
    settings = assignment.settings
    lines = [
        f"# Follows from other flags, and part of this assignment: {name}={value!r}"
        for name, value in settings.items()
        if name not in _FLAGS
    ]
    for name, flag in _FLAGS.items():
        value = settings.get(name)
        if value is True:
            lines.append(flag)
        elif value is not None and value is not False:
            lines.append(f"{flag} {int(value)}")
    if not any(line.startswith("--") for line in lines):
        lines.append("# No flags: Megatron-LM's own defaults.")
    return "\n".join(lines) + "\n"
