"""``estimate``: a Workload for those who cannot profile, from the model's code and one known time.

Torch runs one forward and one backward on stand-ins for tensors, which have shapes and no data, so
that a model of any size fits. Its engine gives the order of gradients. The work of each operator, by
a roofline (FLOPs over peak, bytes over bandwidth, the longer), gives the share of backward that lies
before each gradient; the shares are scaled to the backward that is known.
"""

import copy
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sim.errors import InputError, NotModelledError
from sim.nouns.checks import at_least, one_of
from sim.nouns.gpus import GpuSheet, custom_device, find_gpu, typical_device
from sim.nouns.recording import RecordedStep
from sim.nouns.workload import Workload
from sim.recorder.clocks import Clock
from sim.recorder.factory import Pair, Step, describe, import_module_of, load_factory
from sim.recorder.profile import Survey, measure, survey, workload_of_steps
from sim.recorder.training_step import ModelStep, build_step, surroundings, tensors_in
from sim.units import divide_half_even

_log = logging.getLogger(__name__)

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
    given: Pair | str,
    *,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    backward_ns: int | None = None,
    forward_ns: int | None = None,
    optimizer_ns: int | None = None,
    step_ns: int | None = None,
    gpu: str | None = None,
    device_flops: float | None = None,
    device_bytes_per_s: float | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Workload:
    """Estimate the Workload of a training step that nobody has profiled.

    What ``MODULE:FACTORY`` makes, ``(model, batch)``, is made without memory; where making it needs data, it
    is made for real and walked without data. A pair is left alone, whatever device it is on (``meta``
    included): its double without data is walked.

    Args:
        given: ``MODULE:FACTORY``, or a pair.
        name: of the Workload; None: the class of the module.
        arguments: of the factory.
        backward_ns: a plain backward, as measured; None: from ``step_ns``, or from the device's peak.
        forward_ns: None: by its work, in proportion to backward's.
        optimizer_ns: None: the bytes of a fused AdamW, in the same proportion.
        step_ns: a whole step without communication; what is not known of it is split by work.
        gpu: a name of ``sim.nouns.gpus.GPUS``.
        device_flops: matrix FLOP/s of another device, in every precision; with ``device_bytes_per_s``.
        device_bytes_per_s: its memory bandwidth. Without any device, the table's mean ratio is used.
        dtype: for the module and its floating inputs, as for ``record``.
        autocast: ``bfloat16`` or ``float16``: the forward runs under autocast.
        tell: is told before anything is built for real, and why; None: a warning is logged.

    Returns:
        A Workload with ``estimated`` true and a ``band``: factors on the ready times.

    Raises:
        InputError: an illegal argument, no time and no device to take one from, or a step that
            cannot be walked, such as one that needs data.
        NotModelledError: a compiled module.
    """
    known = {"forward_ns": forward_ns, "backward_ns": backward_ns, "optimizer_ns": optimizer_ns}
    for what, value in (known | {"step_ns": step_ns}).items():
        at_least(what, value, 0 if what == "optimizer_ns" else 1)
    if autocast is not None:
        one_of("autocast", autocast, AUTOCAST_DTYPES)
    named = _device(gpu, device_flops, device_bytes_per_s)
    if (backward_ns, step_ns, forward_ns, named) == (None, None, None, None):
        raise InputError(
            "backward_ns: nothing tells how long backward takes; give it, or step_ns, or a gpu (or "
            "device_flops and device_bytes_per_s) to estimate it from"
        )
    device = typical_device() if named is None else named
    walk = partial(_walk, device=device, dtype=dtype, autocast=autocast)
    walked, walked_on = _walk_given(walk, given, arguments or {}, tell or _log.warning)
    seen, work, times_ps = walked.seen, walked.counting.work, [walked.times]
    counted = workload_of_steps(seen, times_ps, times_ps, name=name, provenance={})
    work_ps = {
        "forward_ns": counted.forward_ns,
        "backward_ns": counted.backward_ns,
        "optimizer_ns": round(ADAMW_PASSES * counted.total_bytes / device.bytes_per_s * PS_PER_S),
    }
    times, how, (least_scale, most_scale) = _split_step(known, step_ns, work_ps, device)
    low, high = READY_BAND_OF_CONVOLUTIONS if work.is_convolutional else READY_BAND
    here = surroundings(torch.device("cpu"))
    return replace(
        counted,
        gradients=tuple(
            replace(
                one,
                ready_ns=None
                if one.ready_ns is None
                else divide_half_even(one.ready_ns * times["backward_ns"], counted.backward_ns),
                device=None,
            )
            for one in counted.gradients
        ),
        **times,
        samples=(),
        estimated=True,
        band=(low * least_scale, high * most_scale),
        band_on="length" if backward_ns is None and step_ns is None else "ready",
        provenance={
            "source": "bucketsim estimate",
            **{key: here[key] for key in ("tool_version", "date", "torch", "python")},
            "dtype": dtype or "as built",
            "autocast": autocast or "none",
            "factory": given if isinstance(given, str) else None,
            "arguments": dict(arguments or {}),
            "walked_on": walked_on,
            "module": type(seen.root).__name__,
            "parameters": sum(tensor.numel() for tensor in seen.tensors),
            "tensors": len(counted.gradients),
            "optimizer": "AdamW",
            "roofline": {"device": device.name},
            "work": {"flops": work.flops, "bytes": work.num_bytes},
            "times": how,
            "values_read_as_1": walked.counting.reads,
            "band": "factors on ready_ns; in 16 recordings nine of ten ready times past the first tenth of "
            "backward lay between them (not of steps that wait for their host)",
        },
    )


def _device(gpu: str | None, flops: float | None, bytes_per_s: float | None) -> GpuSheet | None:
    """The device that was named, by its GPU or by its rates; None: none was."""
    if (flops is None) != (bytes_per_s is None):
        raise InputError("device_flops, device_bytes_per_s: give both or neither")
    if flops is None or bytes_per_s is None:
        return None if gpu is None else find_gpu(gpu)
    if gpu is not None:
        raise InputError(f"gpu: {gpu!r} and device_flops are both given; give one of them")
    return custom_device(flops=flops, bytes_per_s=bytes_per_s)


def _split_step(
    known: Mapping[str, int | None], step_ns: int | None, work_ps: Mapping[str, int], device: GpuSheet
) -> tuple[dict[str, Any], dict[str, str], tuple[float, float]]:
    """Times of all parts (ns): what is ``known`` as it is, the rest in proportion to its work.

    The proportion is what is left of the step where that is known, else backward's, else forward's,
    else half the device's roofline. With them how they were found, and factors on their scale.

    Raises:
        InputError: the known parts leave nothing of the step.
    """
    scale = (1.0, 1.0)
    base = next((part for part in ("backward_ns", "forward_ns") if known[part] is not None), None)
    if step_ns is not None:
        left = step_ns - sum(value for value in known.values() if value is not None)
        whole = sum(work_ps[part] for part, value in known.items() if value is None)
        if left <= 0 or not whole:
            raise InputError(
                f"step_ns: {step_ns} is not legal; the parts given leave {left} ns of it for the others"
            )
        ns_per_ps, told = left / whole, "its share of the work in what is left of the step"
    elif base is not None:
        ns_per_ps, told = (known[base] or 0) / work_ps[base], f"its work, in proportion to {base}"
    else:
        ns_per_ps = 1 / (PS_PER_NS * EFFICIENCY)
        told = f"the roofline of {device.name} at {EFFICIENCY:.0%} of its speed"
        scale = (EFFICIENCY / EFFICIENCY_HIGH, EFFICIENCY / EFFICIENCY_LOW)
    return (
        {part: round(ns_per_ps * work_ps[part]) if ns is None else ns for part, ns in known.items()},
        {part: told if ns is None else "as given" for part, ns in known.items()},
        scale,
    )


# ---- one step, walked without data


@dataclass(frozen=True, slots=True)
class _Walked:
    """What a step trains, seen in one run, and its times and work in another, on the clock of work."""

    seen: Survey
    times: RecordedStep
    counting: "CountingMode"


def _walk(given: Step | Pair, device: GpuSheet, dtype: str | None, autocast: str | None) -> _Walked:
    """Run a step's forward and backward twice, without an optimizer.

    Raises:
        InputError: what ``record`` raises for a step that cannot be recorded; a callable, sparse gradients.
        NotModelledError: a compiled module.
    """
    step, _ = build_step(given, device=torch.device("cpu"), dtype=dtype)
    if not isinstance(step, ModelStep):
        raise InputError("given: a callable cannot be estimated; give (model, batch)")
    counting = CountingMode(device)

    def run() -> None:
        step.model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", AUTOCAST_DTYPES.get(autocast or ""), enabled=autocast is not None):
            loss = step.loss()
        loss.backward()  # type: ignore[no-untyped-call]

    with counting:
        seen = survey(run, step.model)
        if sparse := [gradient.name for gradient in seen.gradients if gradient.sparse]:
            raise InputError(f"step: {sparse[0]}'s sparse gradient is as large as lookups are; record it")
        if any(hasattr(module, "_orig_mod") for module in seen.root.modules()):
            raise NotModelledError(
                "step: torch.compile joins operators, and gradients become ready by graph; estimate the "
                "module before it is compiled, or record it"
            )
        counting.work = OperatorWork()
        return _Walked(seen, measure(run, seen, WorkClock(counting), hooked=None), counting)


def _walk_given(
    walk: Callable[[Any], _Walked],
    given: Pair | str,
    arguments: Mapping[str, Any],
    tell: Callable[[str], None],
) -> tuple[_Walked, str]:
    """Walk a pair, or what ``MODULE:FACTORY`` makes, on stand-ins; and a word on what these are of.

    A factory is called on stand-ins. Where that needs data that they do not have (sizes or branches that
    depend on values, numpy), it is called for real, which ``tell`` is told before, and what it made is walked
    on stand-ins, so that no activation is ever held.

    Raises:
        InputError: the step cannot be walked, or needs data; or the model has to be made and does not fit.
    """
    made: Any = tuple(given) if isinstance(given, list) else given
    on = "stand-ins without data"
    if isinstance(given, str):
        import_module_of(given)  # what a module makes when it is imported stays real
        num_bytes = 0
        with _wanting_data() as wants, stand_ins():
            made = load_factory(given, arguments=arguments)
            num_bytes = sum(p.nbytes for p in made[0].parameters()) if isinstance(made, tuple) else 0
            return walk(made), on
        if 2 * num_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise InputError(
                f"model: it needs data ({wants[0]}), and {num_bytes / 1e9:.1f} GB of parameters are too many "
                f"for this machine; take out what depends on values, or make it smaller"
            )
        tell(f"the model is built for real, its step is still walked without data: {wants[0]}")
        on = f"stand-ins of a model that was built for real ({wants[0]})"
        with as_on_gpus():
            made = load_factory(given, arguments=arguments)
    with _wanting_data() as wants, stand_ins():
        return walk(_doubled(made) if isinstance(made, tuple) else made), on
    raise InputError(f"step: it needs data, which an estimate has none of ({wants[0]}); record it instead")


@contextmanager
def _wanting_data() -> Iterator[list[str]]:
    """Go on after the block where code in it raised, and yield the list that then says what and where."""
    wants: list[str] = []
    try:
        yield wants
    except InputError as error:
        if error.__cause__ is None:
            raise
        wants.append(_told(error.__cause__))


def _told(error: BaseException) -> str:
    """What needs data: the operator where torch names it, and the line of the user's code."""
    operator = getattr(error, "func", None)
    what = describe(error) if operator is None else f"{operator} needs data"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[:1] != "<"]
    theirs = [frame for frame in frames if not frame.filename.startswith((_TORCH, _OURS))]
    if not theirs:
        return what
    last = theirs[-1]
    return f"{what}, in {last.name} ({Path(last.filename).name}:{last.lineno}: {last.line})"


def _doubled(pair: Pair) -> Pair:
    """The same model and batch with stand-ins in place of all tensors, tied parameters still tied.

    The pair itself is left alone. Real, meta and stand-in tensors are taken, each a stand-in on the CPU.
    """
    model, batch = pair
    made: dict[int, Any] = {}
    try:
        for tensor in (*model.parameters(), *model.buffers(), *tensors_in(batch)):
            made.setdefault(id(tensor), _stand_in(tensor))
        with unset_fake_temporarily():  # what is neither parameter, buffer nor batch keeps its data
            twin: Pair = copy.deepcopy((model, batch), made)
    except Exception as error:
        raise InputError(f"model: its double could not be made: {describe(error)}") from error
    return twin


def _stand_in(tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor) and tensor.device.type == "cpu":
        return tensor
    with torch.no_grad():
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty.requires_grad_(tensor.requires_grad)


# ---- stand-ins: shape, dtype and autograd without memory (torch's ``FakeTensorMode``)

# They call themselves CPU tensors, so that torch chooses the operators that it chooses for real ones (fused
# attention, autocast), where plain ``meta`` tensors take other routes. Code for GPUs runs on them.

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


@contextmanager
def stand_ins() -> Iterator[FakeTensorMode]:
    """Tensors that are made inside have no data, take no memory and are on the CPU, GPUs asked for or not."""
    with (
        mock.patch.object(nn.Module, "_apply", _apply),
        # torch's draws until all is in range, and looks; nothing to fill, as torch has it for meta tensors
        mock.patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        as_on_gpus(),
    ):
        yield mode


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Code inside that is written for GPUs runs on the CPU, with a GPU's autocast."""
    original = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *args, **kwargs)

    with mock.patch.object(torch.autocast, "__init__", init), _OnCpu():
        yield


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
        if func in _FLOAT32_ON_GPUS and torch.is_autocast_enabled("cpu"):
            args = tuple(_raised(value) for value in args)
            given = {key: _raised(value) for key, value in given.items()}
        return func(*args, **given)


def _raised(value: Any) -> Any:
    is_low = isinstance(value, Tensor) and value.dtype in AUTOCAST_DTYPES.values()
    return value.float() if is_low else value


def _cpu(device: Any) -> Any:
    """The CPU instead of a GPU, which may go by its number; anything else as it is."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    is_gpu = isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
    return torch.device("cpu") if is_number or is_gpu else device


# ---- what each operator costs: FLOPs of its matrix products, bytes that it reads and writes, time by both

aten = torch.ops.aten


def _named(names: str) -> set[Any]:
    return {getattr(aten, name) for name in names.split()}


# neither views by their schema nor work
_FREE = _named(
    "_unsafe_view _local_scalar_dense lift_fresh is_same_size _has_same_storage_numel empty empty_like "
    "empty_strided empty_permuted new_empty new_empty_strided _sparse_coo_tensor_with_dims_and_tensors"
)
# a tensor tells them how large, and is not read
_SHAPE_ONLY = _named("zeros_like ones_like full_like rand_like randn_like new_zeros new_ones new_full")
_WRITE_ONLY = _named("copy_ fill_ zero_ normal_ uniform_ bernoulli_")
_GATHERS = {aten.embedding, aten.index, aten.index_select, aten.gather, aten.select_backward}
_CONVOLUTIONS = {aten.convolution, aten._convolution, aten.convolution_backward}
_ATTENTION: dict[
    Any, tuple[Callable[..., Any], int]
] = {  # how it is counted, by the shapes of so many tensors
    aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}
# statistics over the whole batch come first, so that a second reading is needed (layer norms keep a row)
_READ_TWICE = {aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit}


@dataclass(slots=True)
class OperatorWork:
    """Work ordered so far: seconds by the roofline, and what they are made of."""

    seconds: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0
    convolution_flops: float = 0.0

    @property
    def is_convolutional(self) -> bool:
        """Whether more than half of the FLOPs are convolutions'."""
        return 2 * self.convolution_flops > self.flops


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the cost of every operator that runs inside it, autograd's included, to ``work``.

    An operator takes the longer of FLOPs over peak and bytes over bandwidth of ``device``. Single
    floating-point values of stand-ins, which a step reads for a log or to clip, read as 1.0; ``reads`` counts
    them. Integers and booleans are not answered: they choose what runs, and torch's own error says so.
    """

    def __init__(self, device: GpuSheet) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work, self.reads = OperatorWork(), 0
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator and count it, or answer for a value that it reads."""
        given = dict(kwargs or {})
        if func is aten._local_scalar_dense.default:
            if not isinstance(args[0], FakeTensor):  # a real value, such as a model's own constant
                with unset_fake_temporarily():
                    return func(*args)
            if args[0].is_floating_point():
                self.reads += 1
                return READ_AS
        out = func(*args, **given)
        if func.namespace == "prim" or func.is_view or func.overloadpacket in _FREE:
            return out
        flops, moved = _count_flops(func, args, given, out), _count_bytes(func, args, given, out)
        flop_seconds = flops / self._device.peak(_precision(func, args)) if flops else 0.0
        work = self.work
        work.seconds += max(flop_seconds, moved / self._device.bytes_per_s)
        work.flops += flops
        work.num_bytes += moved
        work.convolution_flops += flops if func.overloadpacket in _CONVOLUTIONS else 0
        return out


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


def _count_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one operator call, a multiply-add as two; 0 for what is not a matrix product.

    Those of torch's own registry, but that fused attention on the CPU, which is not in it, counts half where
    it is causal: kernels skip the blocks above the diagonal.
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
