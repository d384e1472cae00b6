"""What each operator costs: FLOPs of its matrix products, bytes that it reads and writes, time by both.

A roofline: an operator takes the longer of FLOPs over peak and bytes over bandwidth. FLOPs come from
torch's own registry (``torch.utils.flop_counter``). ``WorkClock`` shows the sum as a clock, so that a
step can be measured by the work that it orders instead of by the time that passes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sim.nouns.gpus import GpuSheet
from sim.recorder.clocks import Clock
from sim.recorder.training_step import tensors_in

aten = torch.ops.aten

PS_PER_S = 1e12

_FREE = {  # neither views by their schema nor work
    aten._unsafe_view,
    aten._local_scalar_dense,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.empty_permuted,
    aten.new_empty,
    aten.new_empty_strided,
    aten.lift_fresh,
    aten.is_same_size,
    aten._has_same_storage_numel,
    aten._sparse_coo_tensor_with_dims_and_tensors,
}
_SHAPE_ONLY = {  # a tensor tells them how large, and is not read
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.rand_like,
    aten.randn_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
}
_WRITE_ONLY = {aten.copy_, aten.fill_, aten.zero_, aten.normal_, aten.uniform_, aten.bernoulli_}
_GATHERS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten.select_backward}
_CONVOLUTIONS = {aten.convolution, aten._convolution, aten.convolution_backward}
# statistics over the whole batch come first, so that a second reading is needed (layer norms keep a row)
_READ_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit}


@dataclass(slots=True)
class OperatorWork:
    """Work ordered so far: seconds by the roofline, and what they are made of."""

    seconds: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0
    flop_bound_seconds: float = 0.0
    convolution_flops: float = 0.0
    operators: int = 0

    @property
    def is_convolutional(self) -> bool:
        """Whether more than half of the FLOPs are convolutions'."""
        return 2 * self.convolution_flops > self.flops


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the cost of every operator that runs inside it, autograd's included, to ``work``."""

    def __init__(self, device: GpuSheet) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = OperatorWork()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator and count it."""
        given = dict(kwargs or {})
        out = func(*args, **given)
        if func.namespace != "prim" and not func.is_view and func.overloadpacket not in _FREE:
            self._count(func, args, given, out)
        return out

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        flops = count_flops(func, args, kwargs, out)
        moved = count_bytes(func, args, kwargs, out)
        flop_seconds = flops / self._device.peak(_precision(func, args)) if flops else 0.0
        work = self.work
        seconds = max(flop_seconds, moved / self._device.bytes_per_s)
        work.seconds += seconds
        work.flops += flops
        work.num_bytes += moved
        work.flop_bound_seconds += seconds if seconds == flop_seconds else 0.0
        work.convolution_flops += flops if func.overloadpacket in _CONVOLUTIONS else 0
        work.operators += 1


class WorkClock(Clock):
    """A clock that stands still but for work: it reads picoseconds of ``counting``'s roofline.

    Its ``between_ns`` therefore counts picoseconds: small operators would vanish in nanoseconds.
    """

    name = "work"

    def __init__(self, counting: CountingMode) -> None:
        self._counting = counting

    def stamp(self) -> float:
        """Work so far, in seconds of the roofline."""
        return self._counting.work.seconds

    def between_ns(self, start: float, end: float) -> int:
        """Work from one stamp to a later one, in ps."""
        return round((end - start) * PS_PER_S)


def count_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one operator call, a multiply-add as two; 0 for what is not a matrix product.

    Fused attention counts half where it is causal, since its kernels skip the blocks above the
    diagonal (torch's registry counts them all).
    """
    packet = func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        whole = sdpa_flop_count(*(tensor.shape for tensor in args[:3]))  # type: ignore[no-untyped-call]
        return int(whole) // (2 if _causal(func, args, kwargs) else 1)
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        whole = sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))  # type: ignore[no-untyped-call]
        return int(whole) // (2 if _causal(func, args, kwargs) else 1)
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def _causal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    place = names.index("is_causal")
    return bool(args[place] if place < len(args) else kwargs.get("is_causal", False))


def count_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Bytes that one operator call reads and writes, each tensor once a direction.

    What is changed in place is read and written, unless the operator only writes. Lookups read the
    rows that they return. An expanded tensor counts the elements that it has in memory.
    """
    if func.is_view or func.overloadpacket in _FREE:
        return 0
    packet = func.overloadpacket
    produced = list(tensors_in(out))
    written: set[int] = set()
    read: dict[int, Tensor] = {}
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in tensors_in(value):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if writes:
                written.add(id(tensor))
            if not (writes and (argument.is_out or packet in _WRITE_ONLY)):
                read[id(tensor)] = tensor
            else:
                produced.append(tensor)
    stored = {id(tensor): tensor for tensor in produced}
    stored.update({key: tensor for key, tensor in read.items() if key in written})
    output_bytes = sum(map(_num_bytes, stored.values()))
    sizes = [_num_bytes(tensor) for tensor in read.values()]
    if packet in _SHAPE_ONLY:
        return output_bytes
    if packet in _GATHERS:
        sizes = [min(size, output_bytes) for size in sizes]
    if packet in _READ_TWICE:
        sizes = [2 * size for size in sizes]
    return output_bytes + sum(sizes)


def _num_bytes(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return int(tensor._nnz() * tensor.element_size()) if tensor.layout is torch.sparse_coo else 0
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            elements *= size
    return elements * tensor.element_size()


def _precision(func: Any, args: Sequence[Any]) -> str:
    """Of a matrix product's operands; float32 becomes tf32 where torch's settings let it."""
    dtype = next((tensor.dtype for tensor in tensors_in(args) if tensor.is_floating_point()), torch.float32)
    if dtype is not torch.float32:
        return str(dtype).removeprefix("torch.")
    if func.overloadpacket in _CONVOLUTIONS:
        allowed = torch.backends.cudnn.allow_tf32
    else:
        allowed = torch.get_float32_matmul_precision() != "highest"
    return "tf32" if allowed else "float32"
