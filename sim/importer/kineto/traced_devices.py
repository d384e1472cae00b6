"""Whether a trace shows the device that computed. One that lacks its kernels is not read as a CPU's trace."""

import re
from collections import Counter
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.events import TraceEvents
from sim.importer.kineto.kernel_names import is_computation
from sim.importer.wording import plain

# Annotations of NCCL, RCCL and other device libraries ("nccl:all_reduce"). gloo, MPI and oneCCL ("ccl") run
# on CPUs and are not among them.
_COLLECTIVE = re.compile(r"([a-z]ccl|cncl):")
_OF_DEVICES = re.compile(r"[a-z]ccl|cncl")
_DEVICES = re.compile(r"(hpu|xpu|npu|mtia|gcu|musa|tpu|xla|neuron|mlu|privateuse\w*?)_", re.IGNORECASE)
# Events of unknown categories, or launches, that suffice to suspect a device: a step has as many kernels.
_MANY = 100
_MOST_NAMED = 3


def decline_unread_device(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace whose computation ran on a device whose kernels are not in it, or cannot be read.

    In such a job the CPU only launches kernels. Read as training on a CPU, every time would be wrong.

    Raises:
        NotModelledError: no kernel of a GPU, and events of another device, or many of an unknown category.
        InputError: no kernel of a GPU, and collectives or launches of one.
    """
    if any(map(is_computation, {span.name for span in trace.gpu})):
        return
    names = sorted({found[1].lower() for what in trace.unread if (found := _DEVICES.match(what))})
    if names or trace.unread.total() >= _MANY:
        of = f"of a device that is not read ({', '.join(names)})" if names else "perhaps of another device"
        raise NotModelledError(
            f"{trace.source}: no kernel of a GPU, and {unread_words(trace.unread)}, {of}: the CPU's times of "
            f"such a job are those of launches; traces of NVIDIA's and AMD's GPUs and of CPUs are read"
        )
    collectives = Counter(found[1] for one in trace.operators if (found := _COLLECTIVE.match(one.name)))
    why = ""
    if collectives:
        why = ", ".join(f"{count} collectives of {name}" for name, count in collectives.most_common(2))
    elif backend is not None and _OF_DEVICES.fullmatch(backend):
        why = f"the job's backend is {backend}"
    elif trace.launched >= _MANY:
        why = f"{trace.launched} launches of work for a device"
    if why:
        raise InputError(
            f"{trace.source}: {why}, and no kernel of a GPU: the trace does not show what the device did, "
            f"and the CPU's times are those of launches; profile with ProfilerActivity.CUDA as well"
        )


def unread_words(unread: Counter[str]) -> str:
    """How many events are of categories that are not read, and which most."""
    shown = ", ".join(f"{plain(what, 40)} {count}" for what, count in unread.most_common(_MOST_NAMED))
    more = ", ..." if len(unread) > _MOST_NAMED else ""
    return f"{unread.total()} events of categories that are not read ({shown}{more})"


def device_of(trace: TraceEvents) -> str | None:
    """The accelerator that the trace lists first, whether or not anything ran on it; others are taken to be
    alike.
    """
    devices: Any = trace.header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return text_of(first.get("name")) if isinstance(first, dict) else None


def text_of(value: Any) -> str | None:
    """``value`` if it is a printable string and not empty, else None."""
    return value if isinstance(value, str) and value and value.isprintable() else None


def doubts(trace: TraceEvents) -> tuple[str, ...]:
    """Signs that a device did work which is not in the figures, a sentence each."""
    said = []
    if trace.unread:
        said.append(f"{unread_words(trace.unread)}: if a device's, what it did is in no figure here")
    if not trace.gpu and (name := device_of(trace)) is not None:
        said.append(
            f"the trace lists {name!r} and nothing that ran on it: taken for training on the CPU; if it was "
            f"not, profile with ProfilerActivity.CUDA as well"
        )
    return tuple(said)
