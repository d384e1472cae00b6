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
_POWER_SGD_FLAGS = {"use_error_feedback": True, "warm_start": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommHook:
    """A hook by torch's name without ``_hook``; the numbers are those of ``PowerSGDState``."""

    name: str
    matrix_approximation_rank: int = 1
    start_powerSGD_iter: int = 1000
    min_compression_rate: float = 2.0
    use_error_feedback: bool = True
    warm_start: bool = True


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
    legal = {**_POWER_SGD, **_POWER_SGD_FLAGS} if name == "powerSGD" else {}
    for field, given in fields.items():
        if field not in legal:
            raise InputError(
                f"ddp: comm_hook.{field}={given!r} is not legal for {name}; give "
                f"{', '.join(legal) or 'its name alone'}"
            )
        if problem := _problem(given, legal[field], 0 if field == "start_powerSGD_iter" else 1):
            raise InputError(f"ddp: comm_hook.{field}={given!r} is not legal; give {problem}")
    hook = CommHook(name=name, **fields)
    if hook.start_powerSGD_iter <= 1 and (hook.use_error_feedback or hook.warm_start):
        raise InputError(
            f"ddp: comm_hook.start_powerSGD_iter={hook.start_powerSGD_iter} is not legal; torch expects "
            f"more than 1 if use_error_feedback or warm_start is enabled"
        )
    return hook


def _problem(given: Any, default: object, least: int) -> str:
    """What would be legal in place of ``given``; empty if it is."""
    if isinstance(default, bool):
        return "" if isinstance(given, bool) else "true or false"
    if isinstance(given, bool) or not isinstance(given, int | float):
        return "a number"
    if isinstance(default, int):
        return "" if isinstance(given, int) and given >= least else f"an integer >= {least}"
    return "" if 0 <= given < math.inf else "a finite number >= 0"


def narrows(hook: CommHook | None) -> bool:
    """Whether a hook sends another dtype than the bucket's."""
    return hook is not None and hook.name in _COMPRESSED


def messages(
    hook: CommHook | None, bucket: list[Gradient], num_bytes: int, dtype: str, compresses: bool
) -> list[Message]:
    """The all-reduces of one bucket, each launched when the one before is done.

    Args:
        hook: None is DDP's own all-reduce, which divides while it copies in.
        bucket: its gradients; PowerSGD looks at their shapes.
        num_bytes: what the bucket's buffer has on the wire; of a sparse gradient indices and values (A3.18).
        dtype: of the bucket's buffer.
        compresses: whether PowerSGD is past ``start_powerSGD_iter``.
    """
    width = DTYPE_BYTES[dtype]
    elements = sum(gradient.num_bytes // DTYPE_BYTES[gradient.dtype] for gradient in bucket)
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
    remembered = (left + matrices) * hook.use_error_feedback
    return [
        Message(
            num_bytes=width * left,
            elements=left,
            dtype=dtype,
            before_bytes=width * (5 * remembered + 2 * left + matrices + rows),
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
            after_bytes=width * (2 * columns + rows + matrices + 3 * remembered),
        ),
    ]
