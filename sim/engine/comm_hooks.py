"""What DDP's communication hooks send and compute instead of its all-reduce (A3.17)."""

import math
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import DTYPE_BYTES, Gradient

_COMPRESSED = {"fp16_compress": "float16", "bf16_compress": "bfloat16"}
_PLAIN = ("allreduce", *_COMPRESSED, "noop")
_POWER_SGD = {
    "matrix_approximation_rank": 1,
    "start_powerSGD_iter": 1000,
    "min_compression_rate": 2.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommHook:
    """A hook by torch's name without ``_hook``; the numbers are those of ``PowerSGDState``."""

    name: str
    matrix_approximation_rank: int = 1
    start_powerSGD_iter: int = 1000
    min_compression_rate: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One all-reduce of a hook: what travels, and the memory traffic of what is computed around it.

    ``before_bytes`` are read and written before it is launched, ``after_bytes`` until its result can be used.
    """

    num_bytes: int
    elements: int
    dtype: str
    before_bytes: int = 0
    after_bytes: int = 0


def read_comm_hook(value: Any) -> CommHook:
    """A hook from its name, or from an object with ``name`` and PowerSGD's numbers. Raises ``InputError``."""
    fields: dict[str, Any] = {"name": value} if isinstance(value, str) else {}
    if isinstance(value, dict):
        fields = dict(value)
    name = fields.pop("name", None)
    if name == "batched_powerSGD":
        raise NotModelledError("ddp: comm_hook='batched_powerSGD' stops in torch itself; give powerSGD")
    if name not in (*_PLAIN, "powerSGD"):
        raise InputError(
            f"ddp: comm_hook={value!r} is not legal; give {', '.join(_PLAIN)} or powerSGD, or an object with "
            f"name powerSGD and {', '.join(_POWER_SGD)}"
        )
    legal = _POWER_SGD if name == "powerSGD" else {}
    for field, number in fields.items():
        if field not in legal or isinstance(number, bool) or not isinstance(number, int | float):
            raise InputError(
                f"ddp: comm_hook.{field}={number!r} is not legal for {name}; give "
                f"{', '.join(legal) or 'its name alone'}"
            )
        least = 0 if field == "start_powerSGD_iter" else 1
        if isinstance(legal[field], int) and (not isinstance(number, int) or number < least):
            raise InputError(f"ddp: comm_hook.{field}={number!r} is not legal; give an integer >= {least}")
        if not 0 <= number < math.inf:
            raise InputError(f"ddp: comm_hook.{field}={number!r} is not legal; give a finite number >= 0")
    return CommHook(name=name, **fields)


def messages(
    hook: CommHook | None, bucket: list[Gradient], num_bytes: int, dtype: str, compresses: bool
) -> list[Message]:
    """The all-reduces of one bucket, each launched when the one before is done.

    Args:
        hook: None is DDP's own all-reduce, which divides while it copies in.
        bucket: its gradients; PowerSGD looks at their shapes.
        num_bytes: size of the bucket's buffer.
        dtype: of the bucket's buffer.
        compresses: whether PowerSGD is past ``start_powerSGD_iter``.
    """
    width = DTYPE_BYTES[dtype]
    elements = num_bytes // width
    if hook is None:
        return [Message(num_bytes=num_bytes, elements=elements, dtype=dtype)]
    if hook.name == "noop":
        return []
    if hook.name in _COMPRESSED:
        narrow = num_bytes * DTYPE_BYTES[_COMPRESSED[hook.name]] // width
        return [
            Message(
                num_bytes=narrow,
                elements=elements,
                dtype=_COMPRESSED[hook.name],
                before_bytes=num_bytes + 3 * narrow,  # cast, then division in place
                after_bytes=narrow + num_bytes,  # cast back
            )
        ]
    if hook.name == "powerSGD" and compresses:
        return _power_sgd(hook, bucket, dtype)
    in_place = 2 * num_bytes  # the division
    return [Message(num_bytes=num_bytes, elements=elements, dtype=dtype, before_bytes=in_place)]


def _power_sgd(hook: CommHook, bucket: list[Gradient], dtype: str) -> list[Message]:
    """Three all-reduces: what is not compressed (perhaps nothing), all Ps, all Qs.

    The memory traffic is that of error feedback and of reading the matrices; the arithmetic is not counted.
    """
    left = rows = columns = matrices = 0
    for gradient in bucket:
        n = gradient.shape[0] if gradient.shape else 1
        m = math.prod(gradient.shape[1:])
        rank = min(n, m, hook.matrix_approximation_rank)
        if (n + m) * rank * hook.min_compression_rate < n * m:
            rows, columns, matrices = rows + n * rank, columns + m * rank, matrices + n * m
        else:
            left += n * m
    width = DTYPE_BYTES[dtype]
    total = left + matrices
    return [
        Message(
            num_bytes=width * left,
            elements=left,
            dtype=dtype,
            before_bytes=width * (5 * total + 2 * left + matrices + rows),
            after_bytes=width * 4 * left,
        ),
        Message(
            num_bytes=width * rows,
            elements=rows,
            dtype=dtype,
            after_bytes=width * (matrices + 2 * rows + columns),
        ),
        Message(
            num_bytes=width * columns,
            elements=columns,
            dtype=dtype,
            after_bytes=width * (2 * columns + rows + matrices + 3 * total),
        ),
    ]
