"""Words: the switches of every system, by their own names; what each does, and how one is told."""

from collections.abc import Mapping
from typing import Any

# By torch's names: arguments of DistributedDataParallel, then what the training loop sets.
DDP_HELP: dict[str, str] = {
    "gradient_as_bucket_view": "Gradients live in their buckets: nothing is copied back afterwards.",
    "batched_grad_copy": "Gradients are copied into a bucket all at once, when it is ready (torch 2.12).",
    "broadcast_buffers": "Buffers, such as running means of BatchNorm, are broadcast before each forward.",
    "find_unused_parameters": "Every forward searches for unused parameters; buckets are then never rebuilt "
    "in ready order.",
    "static_graph": "The graph never changes: unused parameters are found once, and buckets are rebuilt "
    "before iteration 3.",
    "skip_all_reduce_unused_params": "A bucket of unused parameters alone is not sent (torch 2.8).",
    "set_last_bucket_cap": "DDP_SET_LAST_BUCKET_CAP=1 in the environment: the small first cap goes to the "
    "bucket that is ready last.",
    "comm_hook": "What is sent in place of DDP's all-reduce: 16-bit gradients, PowerSGD's low-rank factors, "
    "or nothing (noop).",
    "matrix_approximation_rank": "PowerSGD: the rank of the factors that are sent.",
    "start_powerSGD_iter": "PowerSGD: all-reduces as usual until this iteration.",
    "min_compression_rate": "PowerSGD: a tensor is compressed only if that shrinks it by this factor.",
    "use_error_feedback": "PowerSGD: what compression left out is added to the next step's gradients.",
    "warm_start": "PowerSGD: the factors of the last step are where the next ones start.",
    "accumulation_steps": "Micro-batches a step. The gain is against DDP's default with as many.",
    "no_sync": "Micro-batches before the last run under no_sync; off: each one is reduced.",
    "set_to_none": "zero_grad(set_to_none=…); off: gradients stay in memory, and in their buckets.",
    "param_dtype": "DDP's own mixed precision: the dtype of parameters, and of gradients unless reduce_dtype "
    "says otherwise.",
    "reduce_dtype": "DDP's own mixed precision: the dtype in which gradients are sent.",
    "buffer_dtype": "DDP's own mixed precision: the dtype of buffers.",
    "join_inputs": "Under Join: how many inputs each rank has, such as 2, 4. Empty: all have as many.",
}

# By DeepSpeed's names.
ZERO_HELP: dict[str, str] = {
    "reduce_bucket_size": "Elements (not bytes) after which a bucket is sent.",
    "overlap_comm": "Reduces on a stream of its own, during backward.",
    "contiguous_gradients": "Copies gradients into one buffer as they arrive.",
    "reduce_scatter": "Divides first, and keeps what this rank owns; off: one plain all-reduce a bucket.",
    "use_multi_rank_bucket_allreduce": "One all-reduce a bucket; off: one reduce for each owner.",
    "round_robin_gradients": "Deals parameters out to the ranks in turn.",
    "parameter_alignment": "Pads every parameter to 16 bytes.",
    "allgather_bucket_size": "Elements; without effect since torch 1.13.",
    "allgather_partitions": "Without effect.",
    "compute_grad_norm": "The norm of all gradients in step(); needed by gradient_clipping.",
    "ignore_unused_parameters": "Off: an unused parameter is an error under cpu_offload.",
    "cpu_offload": "Gradients go to the host, and the optimizer runs there.",
    "gradient_accumulation_steps": "Micro-batches a step. The gain is against DDP's default with as many.",
    "gradient_clipping": "The largest norm; 0 switches clipping off.",
    "gradient_predivide_factor": "Divides before reducing; not with reduce_scatter in stage 2.",
    "prescale_gradients": "Divides before reducing; not with reduce_scatter in stage 2.",
    "communication_data_type": "The dtype in which gradients travel.",
    "grad_accum_dtype": "The dtype in which gradients are added up.",
    "check_grad_overflow": "With bf16 parameters: whether step() looks for overflow.",
    "expert_groups": "Optimizer groups that are experts and their ep_size, such as 1: 2. Empty: none.",
    "accelerator": "On cpu every collective blocks the host.",
    "offload_gb_per_s": "Between device and host, in GB/s (10^9 bytes a second), for cpu_offload on cuda.",
}

# Of systems that cut buckets by size and have no other switch.
CAP_HELP = "The bucket size of this system, in MiB. Empty: 25."

HELP: Mapping[str, str] = {**DDP_HELP, **ZERO_HELP, "bucket_cap_mb": CAP_HELP}

NONE_TO_SET = "This system has no switches."
TUNED_WITHOUT = (
    "The search knows no switches: these are its buckets, played with the switches set here. Where they keep "
    "keywords from reaching the buckets, sim.apply gives DDP the buckets."
)


def option_words(option: tuple[str, Any]) -> str:
    """A switch in few words: its name where it is on, else its name and value."""
    name, value = option
    if name == "set_last_bucket_cap":
        return "DDP_SET_LAST_BUCKET_CAP=1"
    if value is True:
        return name
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={one}" for key, one in value.items() if key != "name")
        return f"{name}={value['name']}({inside})" if "name" in value else f"{name}({inside})"
    if isinstance(value, list | tuple):
        return f"{name}=[{', '.join(map(str, value))}]"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
