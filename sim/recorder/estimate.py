"""``estimate``: a Workload for those who cannot profile, from the model's code and one known time.

Torch runs one forward and one backward on stand-ins for tensors, which have shapes and no data, so
that a model of any size fits. Its engine gives the order of gradients. The work of each operator, by
a roofline (FLOPs over peak, bytes over bandwidth, the longer), gives the share of backward that lies
before each gradient; the shares are scaled to the backward that is known.
"""

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from sim.errors import InputError, NotModelledError
from sim.nouns.checks import at_least
from sim.nouns.gpus import GpuSheet, custom_device, find_gpu, typical_device
from sim.nouns.workload import Workload
from sim.recorder.factory import Pair, Step, describe, import_module_of, load_factory
from sim.recorder.profile import Survey, measure, survey, workload_of_steps
from sim.recorder.roofline import PS_PER_S, CountingMode, WorkClock
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

PS_PER_NS = 1e3

# Share of a roofline's speed that steps reach: what is assumed, and from where to where. Seen: VGG-13 on H100
# 0.34, nanoGPT on RTX PRO 6000 0.41, ResNet-50 on H100 0.48 and V100 0.75, GPT on A40 0.69; 0.9 where float32
# runs without tensor cores.
EFFICIENCY, EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.5, 0.3, 0.9


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
    known = {"forward_ns": forward_ns, "backward_ns": backward_ns, "optimizer_ns": optimizer_ns}
    for what, value in (known | {"step_ns": step_ns}).items():
        at_least(what, value, 0 if what == "optimizer_ns" else 1)
    named = _device(gpu, device_flops, device_bytes_per_s)
    if (backward_ns, step_ns, forward_ns, named) == (None, None, None, None):
        raise InputError(
            "backward_ns: nothing tells how long backward takes; give it, or step_ns, or a gpu (or "
            "device_flops and device_bytes_per_s) to estimate it from"
        )
    device = typical_device() if named is None else named
    walk = _Walk(device, dtype, autocast)
    walked_on = _walk_given(walk, given, arguments or {}, tell or _log.warning)

    counted, work, optimizers = walk.workload(name), walk.counting.work, walk.seen.optimizers
    if walk.from_pair:
        optimizers = optimizers or ("AdamW",)
    work_ps = {
        "forward_ns": counted.forward_ns,
        "backward_ns": counted.backward_ns,
        "optimizer_ns": round(_passes(optimizers) * counted.total_bytes / device.bytes_per_s * PS_PER_S),
    }
    times, how, (least_scale, most_scale) = _split_step(known, step_ns, work_ps, device)
    mixed = len({gradient.sparse for gradient in counted.gradients}) > 1
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
                # AdamW has the dense ones, SparseAdam the others, as when a pair is recorded
                group=int(mixed and one.sparse) if walk.from_pair else one.group,
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
            "module": type(walk.seen.root).__name__,
            "parameters": sum(tensor.numel() for tensor in walk.seen.tensors),
            "tensors": len(counted.gradients),
            "optimizer": ", ".join(optimizers) or "none ran",
            "ready_order": "order of firing in torch's engine, one backward",
            "roofline": {
                "device": device.name,
                "flops_per_byte": {
                    precision: round(rate / device.bytes_per_s, 1) for precision, rate in device.flops.items()
                },
            },
            "work": {
                "flops": work.flops,
                "bytes": work.num_bytes,
                "operators": work.operators,
                "flop_bound_share": round(work.flop_bound_seconds / work.seconds, 3),
            },
            "times": how,
            "values_read_as_1": walk.reads.count,
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
    """Times of all parts: what is known as it is, the rest in proportion to its work.

    The proportion is what is left of the step where that is known, else backward's, else forward's,
    else half the device's roofline.

    Args:
        known: times by part, ns; None where they are not known.
        step_ns: the whole step, where it is known.
        work_ps: picoseconds of the roofline, by part.
        device: whose roofline it is.

    Returns:
        Times by part, ns; how they were found; factors on their scale.

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


def _passes(optimizers: Sequence[str]) -> int:
    """Tensors of a parameter's size that the slowest of these optimizers moves."""
    return max((OPTIMIZER_PASSES.get(name, ADAM_PASSES) for name in optimizers), default=0)


class _Walk:
    """A step run once to see what it trains, and once on the clock of work.

    Values of stand-ins that the step reads, for a log or a norm, read as 1.0; ``reads`` counts them.
    """

    seen: Survey

    def __init__(self, device: GpuSheet, dtype: str | None, autocast: str | None) -> None:
        self._device, self._dtype, self._autocast = device, dtype, autocast

    def __call__(self, given: Step | Pair) -> None:
        """Walk it, without the optimizer of a pair.

        Raises:
            InputError: what ``record`` raises for a step that cannot be recorded.
            NotModelledError: a compiled module.
        """
        step, root = build_step(given, device=torch.device("cpu"), dtype=self._dtype)
        self.from_pair = root is not None
        self.reads, self.counting = ScalarReads(), CountingMode(self._device)

        def run() -> None:
            with gpu_autocast(self._autocast):
                if not isinstance(step, ModelStep):
                    step()
                    return
                step.model.zero_grad(set_to_none=True)
                loss = step.loss()
            loss.backward()  # type: ignore[no-untyped-call]

        with self.reads:
            self.seen = survey(run, root)
            self._check()
            with self.counting:
                self._times = measure(run, self.seen, WorkClock(self.counting), hooked=None)

    def workload(self, name: str | None) -> Workload:
        """What it found, with times in picoseconds of the roofline."""
        return workload_of_steps(self.seen, [self._times], [self._times], name=name, provenance={})

    def _check(self) -> None:
        if any(hasattr(module, "_orig_mod") for module in self.seen.root.modules()):
            raise NotModelledError(
                "step: torch.compile joins operators, and gradients become ready by graph; estimate the "
                "module before it is compiled, or record it"
            )
        for gradient, tensor in zip(self.seen.gradients, self.seen.tensors, strict=True):
            if gradient.sparse and isinstance(tensor, FakeTensor):
                what = f"how much of {gradient.name}'s sparse gradient there is depends on the lookups"
                raise InputError(f"step: {what}") from NotImplementedError(what)


def _walk_given(
    walk: _Walk, given: Step | Pair | str, arguments: Mapping[str, Any], tell: Callable[[str], None]
) -> str:
    """Walk a step, a pair, or what ``MODULE:FACTORY`` makes; a word on the tensors it was walked on.

    A factory is called on stand-ins. Where that needs data that they do not have (sizes or branches that
    depend on values, numpy), it is called for real, and what it made is walked on stand-ins, so that no
    activation is ever held. Only where the step itself needs data is it run for real, on the CPU. A pair's
    tensors are replaced by stand-ins; a callable that is given has tensors of its own, whose owner goes on
    with them, and runs for real. ``tell`` is told, before anything is built or run for real, what needs it.

    Raises:
        InputError: the step cannot be walked; or only on real tensors, and they do not fit.
    """
    num_bytes = 0
    why, on = "a callable brings its own tensors", _STAND_INS
    made: Any = tuple(given) if isinstance(given, list) else given  # a step or a pair, once it is made
    if isinstance(given, str):
        import_module_of(given)  # what a module makes when it is imported stays real
        with _wanting_data() as wants, stand_ins():
            made = load_factory(given, arguments=arguments)
            num_bytes = _parameter_bytes(made)
            walk(made)
            return on
        why = wants[0]
        _check_fits(num_bytes, given, why, copies=1)
        tell(f"the model is built for real, its step is still walked without data: {why}")
        with as_on_gpus():
            made = load_factory(given, arguments=arguments)
        num_bytes = _parameter_bytes(made)
        on = f"stand-ins of a model that was built for real ({why})"
    if isinstance(given, str) or isinstance(made, tuple):
        with _wanting_data() as wants, stand_ins():
            walk(_doubled(made) if isinstance(made, tuple) else made)
            return on
        why = wants[0]
    _check_fits(num_bytes, made, why, copies=2)
    tell(f"the step runs for real on the CPU, twice, which may take long: {why}")
    with as_on_gpus():
        if isinstance(given, str) and not isinstance(made, tuple):
            made = load_factory(given, arguments=arguments)  # one that was walked keeps stand-ins
        walk(made)
    return f"real tensors on the CPU ({why})"


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


def _parameter_bytes(made: Step | Pair) -> int:
    """Of a pair; 0 where only the step itself knows."""
    return sum(p.numel() * p.element_size() for p in made[0].parameters()) if isinstance(made, tuple) else 0


def _check_fits(num_bytes: int, given: Step | Pair | str, why: str, *, copies: int) -> None:
    """So many copies of the parameters must fit half the memory; meta tensors cannot be run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if isinstance(given, tuple) and any(tensor.is_meta for tensor in given[0].parameters()):
        raise InputError(
            f"model: its step needs data ({why}), and it is on the meta device; make it on the CPU"
        )
    if 2 * copies * num_bytes > memory:
        raise InputError(
            f"model: it needs data ({why}), and {num_bytes / 1e9:.1f} GB of parameters"
            f"{' with their gradients' if copies > 1 else ''} are too many for this machine; take out what "
            f"depends on values, or make it smaller"
        )
