"""``estimate``: a Workload for those who cannot profile, from the model's code and one known time.

Torch runs one forward and one backward on stand-ins for tensors, which have shapes and no data, so
that a model of any size fits. Its engine gives the order of gradients. The work of each operator, by
a roofline (FLOPs over peak, bytes over bandwidth, the longer), gives the share of backward that lies
before each gradient; the shares are scaled to the backward that is known.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from sim.nouns.workload import Workload
from sim.recorder.estimating.attempts import walk_given
from sim.recorder.estimating.costs import PS_PER_S
from sim.recorder.estimating.times import PARTS, Known, Times, find_device, split_step
from sim.recorder.estimating.walk import ModelWalk
from sim.recorder.factory import Pair, Step
from sim.recorder.profile import build_workload
from sim.recorder.surroundings import surroundings
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
    work_ps = {part: getattr(walked.times, part) for part in PARTS}
    work_ps["optimizer_ns"] = round(_optimizer_bytes(walked) / known.roofline.bytes_per_s * PS_PER_S)
    times = split_step(known, work_ps)
    counted = build_workload(
        walked.seen, plain=[walked.times], hooked=[walked.times], name=name, provenance={}
    )
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
        loss_ns=times.parts["loss_ns"],
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
    return passes * sum(p.tensor.numel() * p.tensor.element_size() for p in walked.seen.parameters)


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
        "parameters": sum(parameter.tensor.numel() for parameter in walked.seen.parameters),
        "tensors": len(walked.seen.parameters),
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
