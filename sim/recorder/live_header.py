"""What a recording of a DistributedDataParallel says of it, once, in its first line."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError
from sim.nouns.ddp_switches import ARGUMENTS
from sim.nouns.devices import backend_of
from sim.recorder.surroundings import environment, surroundings
from sim.recorder.tap import ddp_log, tap_of
from sim.recorder.training_step import bytes_by_dtype, dtype_name

_SCHEMA_VERSION = 1
_SETTINGS = ("bucket_bytes_cap", *(name for name, one in ARGUMENTS.items() if one.metadata["recorded"]))


def trained_parameters(ddp: DistributedDataParallel) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters in the Reducer's order: those that require grad and that DDP does not ignore.

    Raises:
        InputError: DDP was made with other parameters than require grad now.
    """
    named = [
        (name.replace("_orig_mod.", ""), parameter)
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    ]
    made_with = ddp_log(ddp).get("num_parameter_tensors")
    if made_with != len(named):
        raise InputError(
            f"ddp_model: {len(named)} parameters require grad, DDP was made with {made_with}; freeze or thaw "
            f"parameters before the model is wrapped in DistributedDataParallel"
        )
    return named


def live_header(
    ddp: DistributedDataParallel,
    named: list[tuple[str, nn.Parameter]],
    *,
    level: str,
    every: int,
    clock: str,
) -> dict[str, Any]:
    """The header of a rank's file, as JSON."""
    log, tap = ddp_log(ddp), tap_of(ddp)  # the hook of an earlier recording stays, whatever the level is
    hook = tap.name if tap is not None else log.get("comm_hook")
    sparse = {
        id(module.weight)
        for module in ddp.module.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return {
        "kind": "recording",
        "schema_version": _SCHEMA_VERSION,
        "rank": dist.get_rank(ddp.process_group),
        "world_size": ddp.process_group.size(),
        "level": level,
        "every": every,
        "torch": torch.__version__,
        "backend": backend_of(dist.get_backend_config(ddp.process_group), str(ddp.device)),
        "device": str(ddp.device),
        "clock": clock,
        "environment": environment(ddp.device),
        "module": type(getattr(ddp.module, "_orig_mod", ddp.module)).__name__,  # not torch.compile's wrapper
        "comm_hook": hook,
        "ddp": {
            **{name: getattr(ddp, name, None) for name in _SETTINGS},
            "rebuilt_buckets": log_buckets(ddp),
            "gloo_num_threads": log.get("gloo_num_threads"),
            "torch_distributed_debug": os.environ.get("TORCH_DISTRIBUTED_DEBUG"),
        },
        "parameters": [
            {
                "name": name,
                "shape": list(parameter.shape),
                "dtype": dtype_name(parameter),
                "num_bytes": parameter.numel() * parameter.element_size(),
                "device": str(parameter.device),
                "sparse": id(parameter) in sparse,
            }
            for name, parameter in named
        ],
        "buffers": _buffers(ddp),
        "provenance": {"source": "sim.record", **surroundings(ddp.device)},
    }


def log_buckets(ddp: DistributedDataParallel) -> list[list[int]] | None:
    """The rebuilt buckets in DDP's log (A4.4), None before it has any."""
    text = ddp_log(ddp).get("rebuilt_per_bucket_param_indices")
    if not text:
        return None
    return [[int(index) for index in bucket.split()] for bucket in str(text).split(",")]


def _buffers(ddp: DistributedDataParallel) -> list[dict[str, Any]]:
    """Bytes of the buffers that DDP broadcasts before each forward, by dtype (A3.16)."""
    if not getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True)):
        return []
    totals = bytes_by_dtype(ddp.modules_buffers)
    return [{"dtype": dtype, "num_bytes": size} for dtype, size in totals.items()]
