"""``estimate``: a Workload for those who cannot profile, from the model's code and one known time.

Torch runs one forward and one backward on stand-ins for tensors, which have shapes and no data, so
that a model of any size fits. Its engine gives the order of gradients. The work of each operator, by
a roofline (FLOPs over peak, bytes over bandwidth, the longer), gives the share of backward that lies
before each gradient; the shares are scaled to the backward that is known.
"""

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from sim.errors import InputError, NotModelledError
from sim.nouns.gpus import GpuSheet, custom_device, find_gpu, typical_device
from sim.nouns.recording import RecordedStep
from sim.nouns.workload import Workload
from sim.recorder.factory import Pair, Step, describe, import_module_of, load_factory
from sim.recorder.profile import Survey, measure, survey, workload_of_steps
from sim.recorder.roofline import PS_PER_S, CountingMode, OperatorWork, WorkClock
from sim.recorder.stand_ins import ScalarReads, as_on_gpus, gpu_autocast, stand_in_pair, stand_ins
from sim.recorder.training_step import ModelStep, build_step, surroundings
from sim.units import divide_half_even

_log = logging.getLogger(__name__)

# Recorded ready times over estimated ones, of what is ready after the first tenth of backward: 5th and 95th
# percentile of eight recordings each, which weigh the same, outwards to a tenth. Without convolutions:
# transformers and DLRM on a CPU. With them: ResNets, VGG-13 and GoogLeNet on a CPU, ResNet-50 on V100 and
# H100, VGG-13 on H100.
READY_BAND = (0.9, 1.2)
READY_BAND_OF_CONVOLUTIONS = (0.7, 2.1)

# Tensors of a parameter's size that a fused optimizer reads and writes: Adam parameter, gradient and two
# moments, and all but the gradient back; SGD with momentum parameter, gradient and buffer.
OPTIMIZER_PASSES = {"SGD": 5}
ADAM_PASSES = 7

_STAND_INS = "stand-ins without data"
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)  # sim/recorder: its own calls are not the code that needs data

PARTS = ("forward_ns", "backward_ns", "optimizer_ns")
PS_PER_NS = 1e3

# Share of a roofline's speed that steps reach: what is assumed, and from where to where. Seen: VGG-13 on H100
# 0.34, nanoGPT on RTX PRO 6000 0.41, ResNet-50 on H100 0.48 and V100 0.75, GPT on A40 0.69; 0.9 where float32
# runs without tensor cores.
EFFICIENCY, EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.5, 0.3, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a step beforehand: some of its times, and the device or None."""

    device: GpuSheet | None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    step_ns: int | None = None

    def __post_init__(self) -> None:
        for what in ("forward_ns", "backward_ns", "optimizer_ns", "step_ns"):
            value = getattr(self, what)
            least = 0 if what == "optimizer_ns" else 1
            if value is not None and value < least:
                raise InputError(f"{what}: {value} is not legal; give {least} or more")
        if (self.backward_ns, self.step_ns, self.forward_ns, self.device) == (None, None, None, None):
            raise InputError(
                "backward_ns: nothing tells how long backward takes; give it, or step_ns, or a gpu (or "
                "device_flops and device_bytes_per_s) to estimate it from"
            )

    @property
    def roofline(self) -> GpuSheet:
        """The device whose rates weigh operators: the one named, else a typical one."""
        return typical_device() if self.device is None else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The parts of a step in ns, by ``PARTS``, how they were found, and factors on their scale."""

    parts: dict[str, int]
    how: dict[str, str]
    scale: tuple[float, float] = (1.0, 1.0)


def find_device(gpu: str | None, flops: float | None, bytes_per_s: float | None) -> GpuSheet | None:
    """The device that was named, by its GPU or by its rates; None: none was.

    Raises:
        InputError: an unknown GPU, one rate without the other, or both ways at once.
    """
    if (flops is None) != (bytes_per_s is None):
        raise InputError("device_flops, device_bytes_per_s: give both or neither")
    if flops is None or bytes_per_s is None:
        return None if gpu is None else find_gpu(gpu)
    if gpu is not None:
        raise InputError(f"gpu: {gpu!r} and device_flops are both given; give one of them")
    return custom_device(flops=flops, bytes_per_s=bytes_per_s)


def split_step(known: Known, work_ps: dict[str, int]) -> Times:
    """Times of all parts: what is known as it is, the rest in proportion to its work.

    The proportion is what is left of the step where that is known, else backward's, else forward's,
    else half the device's roofline.

    Args:
        known: the times known beforehand.
        work_ps: picoseconds of the roofline, by part.

    Raises:
        InputError: the known parts leave nothing of the step.
    """
    parts: dict[str, int | None] = {part: getattr(known, part, None) for part in PARTS}
    unknown = [part for part, value in parts.items() if value is None]
    scale = (1.0, 1.0)
    if known.step_ns is not None:
        left = known.step_ns - sum(value for value in parts.values() if value is not None)
        whole = sum(work_ps[part] for part in unknown)
        if left <= 0 or not whole:
            raise InputError(
                f"step_ns: {known.step_ns} is not legal; the parts given leave {left} ns of it for the others"
            )
        ns_per_ps, how = left / whole, "its share of the work in what is left of the step"
    elif known.backward_ns is not None or known.forward_ns is not None:
        base = "backward_ns" if known.backward_ns is not None else "forward_ns"
        given = parts[base]
        if given is None or not work_ps[base]:
            raise InputError(f"{base}: it holds no operator that works; the model must compute something")
        ns_per_ps, how = given / work_ps[base], f"its work, in proportion to {base}"
    else:
        ns_per_ps = 1 / (PS_PER_NS * EFFICIENCY)
        how = f"the roofline of {known.roofline.name} at {EFFICIENCY:.0%} of its speed"
        scale = (EFFICIENCY / EFFICIENCY_HIGH, EFFICIENCY / EFFICIENCY_LOW)
    return Times(
        parts={
            part: round(ns_per_ps * work_ps[part]) if value is None else value
            for part, value in parts.items()
        },
        how={part: how if value is None else "as given" for part, value in parts.items()},
        scale=scale,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWalk:
    """What one step did: what it trains, its times in picoseconds of the roofline, its work.

    ``scalar_reads`` counts values of stand-ins that the step read, and that read as 1.0.
    """

    seen: Survey
    times: RecordedStep
    work: OperatorWork
    from_pair: bool
    scalar_reads: int


class _Walked:
    """A step without its optimizer: zero_grad, forward under autocast, backward."""

    def __init__(self, inner: ModelStep, autocast: str | None) -> None:
        self._inner = inner
        self._autocast = autocast

    def __call__(self) -> None:
        self._inner.model.zero_grad(set_to_none=True)
        with gpu_autocast(self._autocast):
            loss = self._inner.loss()
        loss.backward()  # type: ignore[no-untyped-call]


def walk(given: Step | Pair, *, device: GpuSheet, dtype: str | None, autocast: str | None) -> ModelWalk:
    """Run a step, once to see what it trains and once on the clock of work.

    Raises:
        InputError: what ``record`` raises for a step that cannot be recorded.
        NotModelledError: a compiled module.
    """
    step, root = build_step(given, device=torch.device("cpu"), dtype=dtype)
    reads = ScalarReads()
    counting = CountingMode(device)
    ordered: Step = _Walked(step, autocast) if isinstance(step, ModelStep) else _cast_step(step, autocast)
    with reads:
        seen = survey(ordered, root)
        _check(seen)
        with counting:
            times = measure(ordered, seen, WorkClock(counting), hooked=None)
    return ModelWalk(
        seen=seen, times=times, work=counting.work, from_pair=root is not None, scalar_reads=reads.count
    )


def _cast_step(step: Step, autocast: str | None) -> Step:
    def run() -> None:
        with gpu_autocast(autocast):
            step()

    return run


def _check(seen: Survey) -> None:
    if any(hasattr(module, "_orig_mod") for module in seen.root.modules()):
        raise NotModelledError(
            "step: torch.compile joins operators, and gradients become ready by graph; estimate the module "
            "before it is compiled, or record it"
        )
    for gradient, tensor in zip(seen.gradients, seen.tensors, strict=True):
        if gradient.sparse and isinstance(tensor, FakeTensor):
            what = f"how much of {gradient.name}'s sparse gradient there is depends on the lookups"
            raise InputError(f"step: {what}") from NotImplementedError(what)


def estimate(
    given: Step | Pair | str,
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

    What ``MODULE:FACTORY`` makes is made without memory; where making it needs data, it is made for real
    and its step is walked without data; where the step needs data, it is run on the CPU. A pair
    ``(model, batch)`` is left alone, whatever device it is on (``meta`` included): its double without data
    is walked (where that needs data, the pair itself, as ``record`` runs it). A callable is run twice, on
    its own tensors.

    Args:
        given: ``MODULE:FACTORY``, or what ``load_factory`` returns.
        name: of the Workload; None: the class of the module.
        arguments: of the factory.
        backward_ns: a plain backward, as measured; None: from ``step_ns``, or from the device's peak.
        forward_ns: None: by its work, in proportion to backward's.
        optimizer_ns: None: the bytes of a fused AdamW, in the same proportion.
        step_ns: a whole step without communication; what is not known of it is split by work.
        gpu: a name of ``sim.nouns.gpus.GPUS``.
        device_flops: matrix FLOP/s of another device, in every precision; with ``device_bytes_per_s``.
        device_bytes_per_s: its memory bandwidth. Without any device, the table's mean ratio is used.
        dtype: for the module and its floating inputs, as for ``record``. Not for a callable.
        autocast: ``bfloat16`` or ``float16``: the forward runs under autocast.
        tell: is told before anything is built or run for real, and why; None: a warning is logged.

    Returns:
        A Workload with ``estimated`` true and a ``band``: factors on the ready times.

    Raises:
        InputError: an illegal argument, no time and no device to take one from, or a step that
            cannot be walked.
        NotModelledError: a compiled module.
    """
    known = Known(
        device=find_device(gpu, device_flops, device_bytes_per_s),
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        optimizer_ns=optimizer_ns,
        step_ns=step_ns,
    )
    walked, tensors = walk_given(
        given,
        arguments=arguments,
        device=known.roofline,
        dtype=dtype,
        autocast=autocast,
        tell=tell or _log.warning,
    )
    facts = {
        "dtype": dtype or "as built",
        "autocast": autocast or "none",
        "factory": given if isinstance(given, str) else None,
        "arguments": dict(arguments or {}),
        "walked_on": tensors,
    }
    return _build(walked, known, name=name, facts=facts)


def _build(walked: ModelWalk, known: Known, *, name: str | None, facts: Mapping[str, Any]) -> Workload:
    counted = workload_of_steps(walked.seen, [walked.times], [walked.times], name=name, provenance={})
    work_ps = {
        "forward_ns": counted.forward_ns,
        "backward_ns": counted.backward_ns,
        "optimizer_ns": round(_optimizer_bytes(walked) / known.roofline.bytes_per_s * PS_PER_S),
    }
    times = split_step(known, work_ps)
    backward_ns = times.parts["backward_ns"]
    mixed = len({gradient.sparse for gradient in counted.gradients}) > 1
    low, high = READY_BAND_OF_CONVOLUTIONS if walked.work.is_convolutional else READY_BAND
    return replace(
        counted,
        gradients=tuple(
            replace(
                gradient,
                ready_ns=_scaled(gradient.ready_ns, backward_ns, counted.backward_ns),
                device=None,
                # AdamW has the dense ones, SparseAdam the others, as when a pair is recorded
                group=int(mixed and gradient.sparse) if walked.from_pair else gradient.group,
            )
            for gradient in counted.gradients
        ),
        forward_ns=times.parts["forward_ns"],
        backward_ns=backward_ns,
        optimizer_ns=times.parts["optimizer_ns"],
        samples=(),
        estimated=True,
        band=(low * times.scale[0], high * times.scale[1]),
        band_on="length" if known.backward_ns is None and known.step_ns is None else "ready",
        provenance=_provenance(walked, known, times, counted, facts),
    )


def _scaled(ready: int | None, backward_ns: int, work_ps: int) -> int | None:
    return None if ready is None else divide_half_even(ready * backward_ns, work_ps)


def _optimizer_bytes(walked: ModelWalk) -> int:
    names = walked.seen.optimizers or (("AdamW",) if walked.from_pair else ())
    if not names:
        return 0
    passes = max(OPTIMIZER_PASSES.get(name, ADAM_PASSES) for name in names)
    return passes * sum(gradient.num_bytes for gradient in walked.seen.gradients)


def _provenance(
    walked: ModelWalk, known: Known, times: Times, counted: Workload, facts: Mapping[str, Any]
) -> dict[str, Any]:
    device = known.roofline
    here = surroundings(torch.device("cpu"))
    work = walked.work
    return {
        "source": "bucketsim estimate",
        **{key: here[key] for key in ("tool_version", "date", "torch", "python")},
        **facts,
        "module": type(walked.seen.root).__name__,
        "parameters": sum(tensor.numel() for tensor in walked.seen.tensors),
        "tensors": len(walked.seen.tensors),
        "optimizer": ", ".join(walked.seen.optimizers) or ("AdamW" if walked.from_pair else "none ran"),
        "ready_order": "order of firing in torch's engine, one backward",
        "roofline": {
            "device": device.name,
            "flops_per_byte": {
                name: round(rate / device.bytes_per_s, 1) for name, rate in device.flops.items()
            },
        },
        "work": {
            "flops": work.flops,
            "bytes": work.num_bytes,
            "operators": work.operators,
            "flop_bound_share": round(work.flop_bound_seconds / work.seconds, 3),
        },
        "times": times.how,
        "values_read_as_1": walked.scalar_reads,
        "band": "factors on ready_ns; in 16 recordings nine of ten ready times past the first tenth of "
        "backward lay between them (not of steps that wait for their host)",
    }


def walk_given(
    given: Step | Pair | str,
    *,
    arguments: Mapping[str, Any] | None,
    device: GpuSheet,
    dtype: str | None,
    autocast: str | None,
    tell: Callable[[str], None],
) -> tuple[ModelWalk, str]:
    """Walk a step, a pair, or what ``MODULE:FACTORY`` makes; and a word on the tensors it was walked on.

    A factory is called on stand-ins. Where that needs data that they do not have (sizes or branches that
    depend on values, numpy), it is called for real, and what it made is walked on stand-ins, so that no
    activation is ever held. Only where the step itself needs data is it run for real, on the CPU. A pair's
    tensors are replaced by stand-ins; a callable that is given has tensors of its own, whose owner goes on
    with them, and runs for real.

    Args:
        tell: is told, before anything is built or run for real, that it is, and what needs it.

    Raises:
        InputError: the step cannot be walked; or only on real tensors, and they do not fit.
    """

    def walked(step: Step | Pair) -> ModelWalk:
        return walk(step, device=device, dtype=dtype, autocast=autocast)

    def loaded(spec: str) -> Step | Pair:
        return load_factory(spec, arguments=arguments)

    sizes: list[int] = []
    why, on = "a callable brings its own tensors", _STAND_INS
    made: Step | Pair
    if isinstance(given, str):
        import_module_of(given)  # what a module makes when it is imported stays real
        with _wanting_data() as wants, stand_ins():
            made = loaded(given)
            if isinstance(made, tuple):
                sizes.append(_parameter_bytes(made))
            return walked(made), on
        why = wants[0]
        _check_fits(sizes, given, why, copies=1)
        tell(f"the model is built for real, its step is still walked without data: {why}")
        with as_on_gpus():
            made = loaded(given)
        sizes = [_parameter_bytes(made)] if isinstance(made, tuple) else []
        on = f"stand-ins of a model that was built for real ({why})"
    else:
        made = tuple(given) if isinstance(given, list) else given
    if isinstance(given, str) or isinstance(made, tuple):
        with _wanting_data() as wants, stand_ins():
            return walked(_doubled(made) if isinstance(made, tuple) else made), on
        why = wants[0]
    _check_fits(sizes, made, why, copies=2)
    tell(f"the step runs for real on the CPU, twice, which may take long: {why}")
    with as_on_gpus():
        if isinstance(given, str) and not isinstance(made, tuple):
            made = loaded(given)  # a step that was walked keeps stand-ins, such as its optimizer's
        return walked(made), f"real tensors on the CPU ({why})"


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
    try:
        return stand_in_pair(pair)
    except Exception as error:
        raise InputError(f"model: its double could not be made: {describe(error)}") from error


def _parameter_bytes(pair: Pair) -> int:
    return sum(p.numel() * p.element_size() for p in pair[0].parameters())


def _check_fits(sizes: list[int], given: Step | Pair | str, why: str, *, copies: int) -> None:
    """So many copies of the parameters must fit half the memory; meta tensors cannot be run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if isinstance(given, tuple) and any(tensor.is_meta for tensor in given[0].parameters()):
        raise InputError(
            f"model: its step needs data ({why}), and it is on the meta device; make it on the CPU"
        )
    if sizes and 2 * copies * sizes[-1] > memory:
        raise InputError(
            f"model: it needs data ({why}), and {sizes[-1] / 1e9:.1f} GB of parameters"
            f"{' with their gradients' if copies > 1 else ''} are too many for this machine; take out what "
            f"depends on values, or make it smaller"
        )
