"""Stand-ins for real tensors: shape, dtype and autograd without memory (torch's ``FakeTensorMode``).

They call themselves CPU tensors, so that torch chooses the operators that it chooses for real ones
(fused attention, autocast), where plain ``meta`` tensors take other routes. Code for GPUs runs on them,
with a GPU's autocast.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sim.nouns.checks import one_of
from sim.recorder.factory import Pair
from sim.recorder.training_step import tensors_in

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
READ_AS = 1.0  # what reading a floating-point value of a stand-in gives

# Autocast for CPUs casts matrix products down as the one for GPUs does, but leaves some operators in low
# precision that GPUs run in float32 (torch's documentation, "CUDA Ops that can autocast to float32"). The
# modules' ones are cast here; that adds the casts' bytes and their nodes in the graph.
_FLOAT32_ON_GPUS: set[Callable[..., Any]] = {
    getattr(place, name)
    for name in (
        *("layer_norm", "group_norm", "softmax", "log_softmax", "softplus", "kl_div", "cross_entropy"),
        *("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"),
        *("exp", "log", "pow", "rsqrt", "sum", "cumsum", "norm"),
    )
    for place in (functional, torch, Tensor)
    if hasattr(place, name)
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
    one_of("autocast", dtype, AUTOCAST_DTYPES)
    with torch.autocast("cpu", dtype=AUTOCAST_DTYPES[dtype]), _Float32OnGpus():
        yield


@contextmanager
def stand_ins() -> Iterator[FakeTensorMode]:
    """Tensors that are made inside have no data, take no memory and are on the CPU, GPUs asked for or not."""
    original, truncating = nn.Module._apply, nn.init._no_grad_trunc_normal_
    nn.Module._apply = _apply  # type: ignore[method-assign]
    nn.init._no_grad_trunc_normal_ = _truncated  # torch's draws until all is in range, and looks
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, as_on_gpus():
            yield mode
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]
        nn.init._no_grad_trunc_normal_ = truncating


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Code inside that is written for GPUs runs on the CPU, with a GPU's autocast."""
    with _OnCpu(), autocast_for_gpus_works():
        yield


def _truncated(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Nothing to fill, as torch has it for ``meta`` tensors."""
    return tensor


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """``Module._apply`` (behind ``.to()``, ``.half()``): torch's own cannot swap stand-ins (2.13)."""
    for part in module.children() if recurse else ():
        part._apply(fn)  # type: ignore[no-untyped-call]
    for parameter in module._parameters.values():
        if parameter is not None:
            with torch.no_grad():
                parameter.data = fn(parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


class _OnCpu(TorchFunctionMode):
    """Keeps what is meant for a GPU on the CPU: a stand-in there would need the GPU's own torch.

    Dropout inside fused attention is left out, since the CPU's fused kernel has none and torch would
    write the attention out; GPUs' kernels have it, and it moves no memory there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.cuda:
            return args[0]
        given = {key: _cpu(value) if key == "device" else value for key, value in (kwargs or {}).items()}
        if func is functional.scaled_dot_product_attention:
            args = (*args[:4], *(0.0 for _ in args[4:5]), *args[5:])
            given = {key: 0.0 if key == "dropout_p" else value for key, value in given.items()}
        if func is Tensor.to:
            args = (args[0], *(_cpu(value) for value in args[1:]))
        return func(*args, **given)


def _cpu(device: Any) -> Any:
    """The CPU instead of a GPU, which may go by its number; anything else as it is."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cpu")
    if isinstance(device, (str, torch.device)) and str(device).startswith("cuda"):
        return torch.device("cpu")
    return device


class ScalarReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a step read single floating-point values of stand-ins, for logging or clipping.

    They read as 1.0, and ``count`` says how often. Integers and booleans are not answered: they
    choose what runs, and torch's own error says so. A real value, such as a model's own constant, is read.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer reads of one value; run everything else."""
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            if args[0].is_floating_point():
                self.count += 1
                return READ_AS
        elif func is torch.ops.aten._local_scalar_dense.default:
            with unset_fake_temporarily():
                return func(*args)
        return func(*args, **(kwargs or {}))


def stand_in_pair(pair: Pair) -> Pair:
    """The same model and batch with stand-ins in place of all tensors, tied parameters still tied.

    The pair itself is left alone. Call it inside ``stand_ins``; real, meta and stand-in tensors are
    taken, each a stand-in on the CPU afterwards.
    """
    model, batch = pair
    made: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers(), *tensors_in(batch)):
        made.setdefault(id(tensor), _stand_in(tensor))
    with unset_fake_temporarily():  # what is neither parameter, buffer nor batch keeps its data
        twin: Pair = copy.deepcopy((model, batch), made)
    return twin


def _stand_in(tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor) and tensor.device.type == "cpu":
        return tensor
    with torch.no_grad():
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty.requires_grad_(tensor.requires_grad)
