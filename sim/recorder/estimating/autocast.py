"""What a GPU's autocast does to a forward, on tensors that are not on a GPU.

Autocast for CPUs casts matrix products down as the one for GPUs does, but leaves some operators in
low precision that GPUs run in float32 (torch's documentation, "CUDA Ops that can autocast to
float32"). The modules' ones are cast here; that adds the casts' bytes and their nodes in the graph.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sim.errors import InputError

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

_FLOAT32_ON_GPUS: set[Callable[..., Any]] = {
    functional.layer_norm,
    torch.layer_norm,
    functional.group_norm,
    torch.group_norm,
    functional.softmax,
    torch.softmax,
    Tensor.softmax,
    functional.log_softmax,
    torch.log_softmax,
    Tensor.log_softmax,
    functional.cross_entropy,
    functional.nll_loss,
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.binary_cross_entropy_with_logits,
    functional.kl_div,
    functional.softplus,
    torch.exp,
    Tensor.exp,
    torch.log,
    Tensor.log,
    torch.pow,
    Tensor.pow,
    torch.rsqrt,
    Tensor.rsqrt,
    torch.sum,
    Tensor.sum,
    torch.cumsum,
    Tensor.cumsum,
    torch.norm,
    Tensor.norm,
}


class _Float32OnGpus(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _FLOAT32_ON_GPUS and torch.is_autocast_enabled("cpu"):
            args = tuple(_raised(value) for value in args)
            given = {key: _raised(value) for key, value in given.items()}
        return func(*args, **given)


def _raised(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in AUTOCAST_DTYPES.values():
        return value.float()
    return value


@contextmanager
def autocast_for_gpus_works() -> Iterator[None]:
    """Code inside that enters ``torch.autocast("cuda")`` gets what a GPU does, without one."""
    original = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    try:
        with _Float32OnGpus():
            yield
    finally:
        torch.autocast.__init__ = original  # type: ignore[method-assign]


@contextmanager
def gpu_autocast(dtype: str | None) -> Iterator[None]:
    """Autocast to ``dtype`` inside, with the operators that GPUs keep in float32; None: no autocast.

    Raises:
        InputError: neither None nor one of ``AUTOCAST_DTYPES``.
    """
    if dtype is None:
        yield
        return
    if dtype not in AUTOCAST_DTYPES:
        raise InputError(f"autocast: {dtype!r} is not legal; give one of {', '.join(AUTOCAST_DTYPES)}")
    with torch.autocast("cpu", dtype=AUTOCAST_DTYPES[dtype]), _Float32OnGpus():
        yield
