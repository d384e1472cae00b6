"""Words: the switches of every system, by their own names; what each does, and how one is told."""

from collections.abc import Mapping
from typing import Any

from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import SWITCHES
from sim.systems.comm_hooks import HOOKS
from sim.units import format_number

_HOOK_WORDS = [*dict.fromkeys(hook.words for hook in HOOKS.values() if hook.words)]
# By torch's names: switches, members of their values, and numbers of communication hooks.
DDP_HELP: dict[str, str] = {
    **{one.name: one.help for one in SWITCHES.values() if one.help},
    **{part: words for one in SWITCHES.values() for part, words in one.parts.items()},
    "comm_hook": f"{SWITCHES['comm_hook'].help}: {', '.join(_HOOK_WORDS[:-1])}, or {_HOOK_WORDS[-1]}.",
}

# By DeepSpeed's names.
ZERO_HELP: dict[str, str] = {
    "reduce_bucket_size": "Elements (not bytes) after which a bucket is sent.",
    "overlap_comm": "Reduces on a stream of its own, during backward.",
    "contiguous_gradients": "Copies gradients into one buffer as they arrive.",
    "reduce_scatter": "Divides first, and keeps what this rank owns; off: one plain all-reduce a bucket.",
    "compute_grad_norm": "The norm of all gradients in step(); needed by gradient_clipping.",
    "cpu_offload": "Gradients go to the host, and the optimizer runs there.",
    "gradient_accumulation_steps": "Micro-batches a step. The gain is against DDP's default with as many.",
    "gradient_clipping": "The largest norm; 0 switches clipping off.",
    "gradient_predivide_factor": "Divides before reducing; not with reduce_scatter in stage 2.",
    "prescale_gradients": "Divides before reducing; not with reduce_scatter in stage 2.",
    "communication_data_type": "The dtype in which gradients travel.",
    "check_grad_overflow": "With bf16 parameters: whether step() looks for overflow.",
    "accelerator": "On cpu every collective blocks the host.",
    "offload_gb_per_s": "Between device and host, in GB/s (10^9 bytes a second), for cpu_offload on cuda.",
}

# By Megatron-Core's names.
MEGATRON_HELP: dict[str, str] = {
    "overlap_grad_reduce": "Sends buckets during backward; off: all gradients of a dtype at once, after it.",
    "bucket_size": "Elements (not bytes) at which a bucket is closed. Empty: Megatron's default.",
    "grad_reduce_in_fp32": "Gradients are kept and sent as float32, whatever the parameters are.",
    "use_distributed_optimizer": "Reduce-scatter, each rank optimises its share, then all-gather.",
    "overlap_param_gather": "Gathers parameters during forward; needs both switches above.",
    "num_microbatches": "Micro-batches a step. The gain is against DDP's default with as many.",
    "pad_buckets_for_high_nccl_busbw": "Ends buckets at multiples of 2^16 elements.",
    "average_in_collective": "Averages while reducing, without a pass over each bucket before.",
}

# By torch's names, of fully_shard.
FSDP2_HELP: dict[str, str] = {
    "units": "Modules to wrap beside the root, with commas between: h.* is each of them, h.0+h.1 both "
    "together. blocks: what is numbered in a list. Empty: the root alone.",
    "reshard_after_forward": "Frees parameters after forward; backward gathers them again.",
    "backward_prefetch": "How many units each one prefetches in backward; 0: implicitly the next.",
    "forward_prefetch": "How many units each one prefetches in forward; 0: implicitly the next.",
    "replicas": "HSDP: how many groups of ranks hold all parameters each. 1: all ranks share them.",
}

# Of systems that cut buckets by size and have no other switch.
CAP_HELP = "The bucket size of this system, in MiB. Empty: 25."

HELP: Mapping[str, str] = {**DDP_HELP, **ZERO_HELP, **MEGATRON_HELP, **FSDP2_HELP, "bucket_cap_mb": CAP_HELP}

NONE_TO_SET = "This system has no switches."
TUNED_WITHOUT = (
    "The search knows no switches: these are its buckets, played with the switches set here. Where they keep "
    "keywords from reaching the buckets, sim.apply gives DDP the buckets."
)


def switches_beyond(assignment: Assignment, default: Assignment) -> list[str]:
    """The switches of DDP that ``assignment`` has and ``default`` has not."""
    if assignment.policy not in DDP_POLICIES:
        return []
    own, base = ({**one.ddp_kwargs, **one.settings} for one in (assignment, default))
    return [option_words(one) for one in own.items() if one[0] not in {*CAP_KWARGS, *base}]


def as_it_ran(switches: Mapping[str, Any]) -> str:
    """That a recorded job is asked about with its own switches."""
    told = ", ".join(map(option_words, switches.items()))
    return f"As the job ran: {told}. A switch that is set beside goes before its own."


def option_words(option: tuple[str, Any]) -> str:
    """A switch in few words: its name where it is on, else its name and value."""
    name, value = option
    if name == "set_last_bucket_cap":
        return "DDP_SET_LAST_BUCKET_CAP=1"
    if value is True:
        return name
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{key}={one}' for key, one in value.items())})"
    if isinstance(value, list | tuple):
        return f"{name}=[{', '.join(map(str, value))}]"
    return f"{name}={format_number(value, 6)}" if isinstance(value, float) else f"{name}={value}"
