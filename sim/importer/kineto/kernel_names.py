"""What a GPU kernel does, by its name: communication, memory or computation, and which collective."""

import re
from typing import Any

# NCCL's and RCCL's kernels by one rule, HolisticTraceAnalysis's: ncclKernel_AllReduce_RING_LL_Sum_float(...),
# ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...), ncclSymkDevKernel_..., ncclKernel(...). RCCL sends small
# sizes by MSCCL's: mscclKernel_Sum_float_LL_false(...), or MSCCL++'s, which have it in their arguments.
_COMMUNICATION = re.compile(r"(void )?nccl.*Kernel|.*msccl")
_NEITHER = re.compile(r".*(Memcpy|Memset|Sync)")

# A part of a kernel's name, or of a collective's name in c10d, its annotations and NCCL's own arguments.
_COLLECTIVES = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("coalesced", "coalesced"),
    ("send", "send"),
    ("recv", "recv"),
)


def is_communication(name: str) -> bool:
    """Whether a kernel of this name is NCCL's or RCCL's, or one of MSCCL's in it."""
    return _COMMUNICATION.match(name) is not None


def is_computation(name: str) -> bool:
    """Whether a kernel of this name computes: neither communication, memory nor synchronisation."""
    return not is_communication(name) and _NEITHER.match(name) is None


def collective_of(*names: Any) -> str | None:
    """The collective that the first telling name names, in torch's spelling; None: none tells.

    ``ncclDevKernel_Generic`` names none: give its "Collective name", or the operator that launched it, too.
    """
    for name in names:
        if not isinstance(name, str):
            continue
        plain = re.sub(r"\(.*", "", name).replace("_", "").lower()
        for part, collective in _COLLECTIVES:
            if part in plain:
                return collective
    return None
