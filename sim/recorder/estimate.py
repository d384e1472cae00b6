"""``estimate``: a Workload for those who cannot profile, from the model's code and one known time.

Torch runs one forward and one backward on stand-ins for tensors, which have shapes and no data, so that a
model of any size fits. Its engine gives the order of gradients. The work of each operator, by a roofline
(FLOPs over peak, bytes over bandwidth, the longer), gives the share of backward that lies before each
gradient; the shares are scaled to the backward that is known.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sim.errors import InputError, NotModelledError
from sim.nouns.checks import Legal
from sim.nouns.gpus import GpuSheet, find_gpu, typical_device
from sim.nouns.workload import Workload
from sim.recorder.clocks import Clock
from sim.recorder.models import Pair, describe, import_module_of, load_factory
from sim.recorder.training_step import build_step, measure, surroundings, workload_of_steps
from sim.units import divide_half_even

# Recorded ready times over estimated ones, of what is ready after the first tenth of backward: 5th and 95th
# percentile of eight recordings each, which weigh the same, outwards to a tenth. Without convolutions:
# transformers and DLRM on a CPU. With them: ResNets, VGG-13 and GoogLeNet on a CPU, ResNet-50 on V100 and
# H100, VGG-13 on H100.
READY_BAND = (0.9, 1.2)
READY_BAND_OF_CONVOLUTIONS = (0.7, 2.1)

# Tensors of a parameter's size that a fused AdamW reads and writes: parameter, gradient and two moments, and
# all but the gradient back.
ADAMW_PASSES = 7

# Share of a roofline's speed that steps reach: what is assumed, and from where to where. Seen: VGG-13 on H100
# 0.34, nanoGPT on RTX PRO 6000 0.41, ResNet-50 on H100 0.48 and V100 0.75, GPT on A40 0.69; 0.9 where float32
# runs without tensor cores.
EFFICIENCY, EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.5, 0.3, 0.9

PS_PER_NS, PS_PER_S = 1e3, 1e12
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)  # sim/recorder: its own calls are not the code that needs data


def estimate(
    factory: str | Callable[..., Pair],
    *,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    backward_ns: int | None = None,
    step_ns: int | None = None,
    forward_ns: int | None = None,
    optimizer_ns: int | None = None,
    gpu: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
) -> Workload:
    """Estimate the Workload of a training step that nobody has profiled, with a ``band`` on its ready times.

    Args:
        factory: ``MODULE:FACTORY``, or a function, that makes ``(model, batch)``, here without memory.
        name: of the Workload; None: the class of the module.
        arguments: of the factory.
        backward_ns: a plain backward, as measured; None: from ``step_ns``, or half of the device's peak.
        step_ns: a whole step without communication; what is not known of it is split by work.
        forward_ns: None: by its work, in proportion to backward's.
        optimizer_ns: None: the bytes of a fused AdamW, in the same proportion.
        gpu: a name of ``sim.nouns.gpus.GPUS``. None: operators are weighed by the table's mean ratio.
        dtype: for the module and its floating inputs, as for ``record``.
        autocast: ``bfloat16`` or ``float16``: the forward runs under autocast.

    Raises:
        InputError: an illegal argument, nothing that tells a time, or a step that cannot be walked.
        NotModelledError: a compiled module.
    """
    known = {"forward_ns": forward_ns, "backward_ns": backward_ns, "optimizer_ns": optimizer_ns}
    given = known | {"step_ns": step_ns}
    for what, value in given.items():
        if value is not None:
            Legal(least=0 if what == "optimizer_ns" else 1).take(what, value)
    if autocast is not None:
        Legal(words=tuple(AUTOCAST_DTYPES)).take("autocast", autocast)
    if (backward_ns, step_ns, gpu) == (None, None, None):
        raise InputError("backward_ns: nothing tells how long backward takes; give it, or step_ns, or a gpu")
    device = typical_device() if gpu is None else find_gpu(gpu)
    make: Callable[[], Any] = partial(load_factory, str(factory), arguments=arguments)
    if isinstance(factory, str):
        import_module_of(factory)  # what a module makes when it is imported stays real
    else:
        make = partial(factory, **(arguments or {}))
    counted, work = _walk(make, device, dtype, autocast, name)
    work_ps = {
        "forward_ns": counted.forward_ns,
        "backward_ns": counted.backward_ns,
        "optimizer_ns": round(ADAMW_PASSES * counted.total_bytes / device.bytes_per_s * PS_PER_S),
    }
    ns_per_ps, how = _pace(given, work_ps, device)
    low, high = READY_BAND_OF_CONVOLUTIONS if 2 * work.convolution_flops > work.flops else READY_BAND
    if not (is_known := (backward_ns, step_ns) != (None, None)):
        low, high = low * EFFICIENCY / EFFICIENCY_HIGH, high * EFFICIENCY / EFFICIENCY_LOW
    times: Any = {part: round(ns_per_ps * work_ps[part]) if ns is None else ns for part, ns in known.items()}
    here = surroundings(torch.device("cpu"))

    def scaled(ready_ps: int | None) -> int | None:
        return ready_ps and divide_half_even(ready_ps * times["backward_ns"], counted.backward_ns)

    return replace(
        counted,
        gradients=tuple(replace(g, ready_ns=scaled(g.ready_ns), device=None) for g in counted.gradients),
        **times,
        samples=(),
        estimated=True,
        band=(low, high),
        band_on="ready" if is_known else "length",
        provenance={
            "source": "bucketsim estimate",
            **{key: here[key] for key in ("tool_version", "date", "torch", "python")},
            "dtype": dtype or "as built",
            "autocast": autocast or "none",
            "factory": factory if isinstance(factory, str) else None,
            "arguments": dict(arguments or {}),
            **{key: counted.provenance[key] for key in ("module", "parameters", "tensors")},
            "optimizer": "AdamW",
            "roofline": {"device": device.name},
            "work": {"flops": work.flops, "bytes": work.num_bytes},
            "times": {part: how if ns is None else "as given" for part, ns in known.items()},
            "band": "factors on ready_ns; in 16 recordings nine of ten ready times past the first tenth of "
            "backward lay between them (not of steps that wait for their host)",
        },
    )


def _pace(given: Mapping[str, int | None], work_ps: Mapping[str, int], device: GpuSheet) -> tuple[float, str]:
    """How many ns a ps of work takes, and what tells it: the step, its backward, or the device."""
    if (step_ns := given["step_ns"]) is not None:
        left = step_ns - sum(given[part] or 0 for part in work_ps)
        whole = sum(work for part, work in work_ps.items() if given[part] is None)
        if left <= 0 or not whole:
            raise InputError(f"step_ns: {step_ns} is not legal; the parts given leave {left} ns of it")
        return left / whole, "its share of the work in what is left of the step"
    if (backward_ns := given["backward_ns"]) is not None:
        return backward_ns / work_ps["backward_ns"], "its work, in proportion to backward_ns"
    return 1 / (PS_PER_NS * EFFICIENCY), f"the roofline of {device.name} at {EFFICIENCY:.0%} of its speed"


# ---- one step, walked without data


def _walk(
    make: Callable[[], Any], device: GpuSheet, dtype: str | None, autocast: str | None, name: str | None
) -> tuple[Workload, "CountingMode"]:
    """Make a model and run its forward and backward, without an optimizer, all of it without data: its
    Workload, with work in place of time, in ps; and that work."""
    counting = CountingMode(device)
    try:
        with stand_ins():
            step = build_step(make(), device=torch.device("cpu"), dtype=dtype)

            def run() -> None:
                with torch.autocast("cpu", AUTOCAST_DTYPES.get(autocast or ""), enabled=autocast is not None):
                    loss = step.loss()
                loss.backward()  # type: ignore[no-untyped-call]

            with counting:
                walked, fired = measure(run, step.model, counting)
            counted = workload_of_steps(step.model, [walked], [walked], fired, name=name, provenance={})
    except InputError as error:
        if error.__cause__ is None:
            raise
        raise InputError(f"step: {_told(error.__cause__)}; record it") from error
    if sparse := [gradient.name for gradient in counted.gradients if gradient.sparse]:
        raise InputError(f"step: {sparse[0]}'s sparse gradient is as large as lookups are; record it")
    if any(hasattr(module, "_orig_mod") for module in step.model.modules()):
        raise NotModelledError(
            "step: torch.compile joins operators, and gradients become ready by graph; estimate the module "
            "before it is compiled, or record it"
        )
    return counted, counting


def _told(error: BaseException) -> str:
    """What failed, where torch names the operator for want of data, and the line of the user's code."""
    operator = getattr(error, "func", None)
    raised = f"on tensors without data it raised {describe(error)}"
    what = f"it needs data, which an estimate has none of: {operator}" if operator else raised
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", _TORCH, _OURS)):
            return f"{what}, in {frame.name} ({Path(frame.filename).name}:{frame.lineno}: {frame.line})"
    return what


# ---- stand-ins: shape, dtype and autograd without memory (torch's ``FakeTensorMode``)

# They call themselves CPU tensors, so that torch chooses the operators that it chooses for real ones (fused
# attention, autocast), where plain ``meta`` tensors take other routes. Code for GPUs runs on them.

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _named(names: str, *places: Any) -> set[Any]:
    return {getattr(place, name) for name in names.split() for place in places if hasattr(place, name)}


# What autocast for GPUs runs in float32 (torch's documentation, "CUDA Ops that can autocast to float32") and
# that for CPUs leaves in low precision: of the operators of modules and activations.
_FLOAT32_ON_GPUS = _named(
    "layer_norm group_norm softmax log_softmax softplus kl_div cross_entropy nll_loss mse_loss l1_loss "
    "smooth_l1_loss binary_cross_entropy_with_logits exp log pow rsqrt sum cumsum norm",
    *(functional, torch, Tensor),
)


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in AUTOCAST_DTYPES.values() else tensor


@contextmanager
def stand_ins() -> Iterator[FakeTensorMode]:
    """Tensors made inside are on the CPU and have no data and no memory; those of ``torch.linspace`` do."""
    autocast = torch.autocast.__init__

    def on_cpu(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    with (
        mock.patch.object(torch.autocast, "__init__", on_cpu),
        # by which ``Module.to`` swaps parameters with what becomes of them: torch cannot swap stand-ins
        mock.patch.object(torch.utils, "swap_tensors", lambda one, other: setattr(one, "data", other.data)),
        mock.patch("torch._subclasses.fake_tensor.log.disabled", True),  # what it cannot do is raised, too
        # torch's draws until all is in range, and looks; nothing to fill, as torch has it for meta tensors
        mock.patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        _OnCpu(),
    ):
        yield mode


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
        if func in _FLOAT32_ON_GPUS and torch.is_autocast_enabled("cpu"):
            args, given = tree_map_only(Tensor, _raised, (args, given))
        small = [not isinstance(one, FakeTensor) and one.numel() < 1000 for one in _tensors((args, given))]
        is_schedule = all(small) and (small or func is torch.linspace)  # of rates, which constructors read
        with unset_fake_temporarily() if is_schedule else nullcontext():
            return func(*args, **given)


def _cpu(device: Any) -> Any:
    """The CPU instead of a GPU, which may go by its number; anything else as it is."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    is_gpu = isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
    return torch.device("cpu") if is_number or is_gpu else device


# ---- what each operator costs: FLOPs of its matrix products, bytes that it reads and writes, time by both

aten = torch.ops.aten

# neither views by their schema nor work
_FREE = _named(
    "_unsafe_view _local_scalar_dense lift_fresh is_same_size _has_same_storage_numel empty empty_like "
    "empty_strided empty_permuted new_empty new_empty_strided",
    aten,
)
# a tensor tells them how large, and is not read
_SHAPE_ONLY = _named("zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full", aten)
_WRITE_ONLY = _named("copy_ fill_ zero_ normal_ uniform_ bernoulli_", aten)
_GATHERS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten.select_backward}
_CONVOLUTIONS = {aten.convolution, aten._convolution, aten.convolution_backward}
# how fused attention on the CPU, which torch does not count, is counted by the shapes of so many tensors
_ATTENTION: dict[Any, tuple[Callable[..., Any], int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}
# statistics over the whole batch come first, so that a second reading is needed (layer norms keep a row)
_READ_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit}


class CountingMode(TorchDispatchMode, Clock):  # type: ignore[no-untyped-call]
    """Adds up what every operator that runs inside it costs, autograd's included.

    An operator takes ``seconds``: the longer of FLOPs over peak and bytes over bandwidth of ``device``.
    Single floating-point values of stand-ins, which a step reads for a log or to clip, read as 1.0. Integers
    and booleans are not answered: they choose what runs, and torch's own error says so.

    As a clock it stands still but for work. ``between_ns`` counts ps: small operators would vanish in ns.
    """

    name = "work"

    def __init__(self, device: GpuSheet) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.seconds = self.flops = self.num_bytes = self.convolution_flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator and count it, or answer for a value that it reads."""
        given = dict(kwargs or {})
        is_read = func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor)
        if is_read and args[0].is_floating_point():
            return 1.0
        out = func(*args, **given)
        if func.namespace == "prim" or func.is_view or func.overloadpacket in _FREE:
            return out
        flops, moved = _count_flops(func, args, given, out), _count_bytes(func, args, given, out)
        peaks = self._device.flops
        flop_seconds = flops / peaks.get(_precision(func, args), peaks["float32"]) if flops else 0.0
        self.seconds += max(flop_seconds, moved / self._device.bytes_per_s)
        self.flops += flops
        self.num_bytes += moved
        self.convolution_flops += flops if func.overloadpacket in _CONVOLUTIONS else 0
        return out

    def stamp(self) -> float:
        """Work so far, in seconds of the roofline."""
        return self.seconds

    def between_ns(self, start: float, end: float) -> int:
        """Work from one stamp to a later one, in ps."""
        return round((end - start) * PS_PER_S)


def _count_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one operator call, a multiply-add as two; 0 for what is not a matrix product.

    Causal attention counts half: kernels skip the blocks above the diagonal.
    """
    if (counted := _ATTENTION.get(func.overloadpacket)) is None:
        formula: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
    count, tensors = counted
    place = [argument.name for argument in func._schema.arguments].index("is_causal")
    is_causal = args[place] if place < len(args) else kwargs.get("is_causal", False)
    return int(count(*(tensor.shape for tensor in args[:tensors]))) // (2 if is_causal else 1)


def _count_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Bytes that one operator call reads and writes, each tensor once a direction.

    What is changed in place is read and written, unless the operator only writes. Lookups read the
    rows that they return. An expanded tensor counts the elements that it has in memory.
    """
    packet, read = func.overloadpacket, dict[int, Tensor]()
    written = {id(tensor): tensor for tensor in _tensors(out)}
    for place, argument in enumerate(func._schema.arguments):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(args[place] if place < len(args) else kwargs.get(argument.name)):
            if writes:
                written[id(tensor)] = tensor
            if not (writes and (argument.is_out or packet in _WRITE_ONLY)):
                read[id(tensor)] = tensor
    output_bytes = sum(map(_num_bytes, written.values()))
    if packet in _SHAPE_ONLY:
        return output_bytes
    sizes = [_num_bytes(tensor) * (2 if packet in _READ_TWICE else 1) for tensor in read.values()]
    return output_bytes + sum(min(size, output_bytes) if packet in _GATHERS else size for size in sizes)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _num_bytes(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return 0  # a sparse gradient, which is refused
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in sizes if stride or not size) * tensor.element_size()


def _precision(func: Any, args: Sequence[Any]) -> str:
    """Of a matrix product's operands; float32 becomes tf32 where torch's settings let it."""
    dtype = next((tensor.dtype for tensor in _tensors(args) if tensor.is_floating_point()), torch.float32)
    if dtype is not torch.float32:
        return str(dtype).removeprefix("torch.")
    is_tf32 = torch.get_float32_matmul_precision() != "highest"
    if func.overloadpacket in _CONVOLUTIONS:
        is_tf32 = torch.backends.cudnn.allow_tf32
    return "tf32" if is_tf32 else "float32"
