"""DDP's communication hooks, one row each: what a hook sends in place of DDP's all-reduce (A3.17).

From a row in ``HOOKS`` follow the simulated step, its memory, the lines to paste, the words of the dashboard,
what an import takes from a recording, and how real ranks register the hook. A hook must be torch's own, since
the lines to paste import it. Ranks that are measured import this table, so it imports no third-party package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import DTYPE_BYTES, Gradient

# Hooks of torch's whose all-reduces are launched by callbacks, with products of matrices in between.
_LOW_RANK = ("powerSGD", "batched_powerSGD")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommHook:
    """One hook of torch's.

    Args:
        name: torch's name without ``_hook``.
        module: where it is, in ``torch.distributed.algorithms.ddp_comm_hooks``.
        words: the page's words for what it sends.
        dtype: what it sends whatever the bucket's dtype; None: the bucket's own.
        sends: whether it sends anything.
        recorded: whether its name in DDP's log says all that the prediction of a recorded job needs.
        needs_nccl: whether torch refuses it on the CPU.
    """

    name: str
    module: str = "default_hooks"
    words: str = ""
    dtype: str | None = None
    sends: bool = True
    recorded: bool = True
    needs_nccl: bool = False


HOOKS: Mapping[str, CommHook] = {
    one.name: one
    for one in (
        CommHook(name="allreduce"),
        CommHook(name="fp16_compress", words="16-bit gradients", dtype="float16"),
        CommHook(name="bf16_compress", words="16-bit gradients", dtype="bfloat16", needs_nccl=True),
        CommHook(name="noop", module="debugging_hooks", words="nothing (noop)", sends=False, recorded=False),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The all-reduce of a bucket: what travels, and what is computed around it.

    ``before_bytes`` is memory traffic before the launch, bytes read plus bytes written: a copy of N bytes
    counts 2 N. ``after_bytes`` is the traffic from the end of the all-reduce until its result can be used.
    """

    num_bytes: int
    elements: int
    dtype: str
    before_bytes: int = 0
    after_bytes: int = 0


def read_comm_hook(value: Any) -> CommHook:
    """A hook from its name. Raises ``InputError``, and ``NotModelledError`` for torch's low-rank hooks."""
    name = value.get("name") if isinstance(value, dict) else value
    if name in _LOW_RANK:
        raise NotModelledError(f"ddp: comm_hook={name!r} is not modelled; give {', '.join(HOOKS)}")
    if not isinstance(value, str) or value not in HOOKS:
        raise InputError(f"ddp: comm_hook={value!r} is not legal; give {', '.join(HOOKS)}")
    return HOOKS[value]


def message(
    hook: CommHook | None, gradients: Sequence[Gradient], num_bytes: int, dtype: str
) -> Message | None:
    """What is sent of a bucket with ``gradients``, whose buffer has ``num_bytes`` of ``dtype`` on the wire.

    A sparse gradient sends indices and values (A3.18). None: nothing is sent. Without a hook DDP divides
    while it copies in. A hook divides the bucket in place before, and one with a dtype of its own casts it
    before, and back after.
    """
    elements = sum(one.num_bytes // DTYPE_BYTES[one.dtype] for one in gradients)
    if hook is None:
        return Message(num_bytes=num_bytes, elements=elements, dtype=dtype)
    if not hook.sends:
        return None
    if hook.dtype is None:
        return Message(num_bytes=num_bytes, elements=elements, dtype=dtype, before_bytes=2 * num_bytes)
    narrow = num_bytes * DTYPE_BYTES[hook.dtype] // DTYPE_BYTES[dtype]
    return Message(
        num_bytes=narrow,
        elements=elements,
        dtype=hook.dtype,
        before_bytes=num_bytes + 3 * narrow,
        after_bytes=narrow + num_bytes,
    )
