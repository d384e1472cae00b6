"""The collectives in a trace: kernels joined with the operators that launched them, where sizes stand."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from sim.importer.kineto.events import Spans, TraceEvents, collective_of, torch_dtype
from sim.nouns.workload import DTYPE_BYTES

ASSUMED_DTYPE = "float32"  # where the trace names none
Role = Literal["gradients", "earlier", "map", "other", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCollective:
    """One collective: its kernel's span, and when the CPU launched it, by which thread (-1: not shown).

    ``timed``: ``start_ns`` and ``end_ns`` are those of the collective itself, of its kernel or of gloo's
    thread; otherwise (world size 1) they are those of the call.

    ``role`` says what it carried. ``gradients``: sent by the hooks of the step's last backward, or at its
    end, after the last gradient. ``earlier``: the same of the micro-batches before. ``map``: the map of
    ``find_unused_parameters``. ``before``: launched before the trace began; its end holds up what follows,
    and it belongs to no step. ``other``: all else, such as activations, embeddings and buffers.

    ``ready_ns``: of a collective of gradients, when the compute lane came to its launch.
    """

    kind: str
    role: Role = "other"
    thread: int
    launched_ns: int
    ready_ns: int | None = None
    start_ns: int
    end_ns: int
    num_elements: int | None
    dtype: str | None
    group: str | None
    timed: bool
    group_size: int | None = None

    @property
    def duration_ns(self) -> int:
        """How long the kernel was resident: its transfer, and its wait for the last rank."""
        return self.end_ns - self.start_ns

    @property
    def num_bytes(self) -> int | None:
        """Bytes of it; None where the trace does not say how many elements it had."""
        return (
            None
            if self.num_elements is None
            else self.num_elements * DTYPE_BYTES[self.dtype or ASSUMED_DTYPE]
        )

    @property
    def is_ddps(self) -> bool:
        """Whether DDP's reducer sent it in this step."""
        return self.role not in ("other", "before")


_MOST_ELEMENTS = 1 << 60
# Calls that take an output, then the input, which is all that gloo's thread shows; what gloo runs for each.
_OF_INPUT = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "all_reduce"}
_NOBODY = -1  # in place of a thread


def find_collectives(trace: TraceEvents) -> list[SeenCollective]:
    """Every collective by launch.

    ``role`` is still ``other``, or ``before`` of one that was launched before the trace began. There is one a
    communication kernel; where the whole trace has none (world size 1, gloo), one an annotation.
    """
    calls, kernels = trace.of("call"), trace.ran("communication")
    threads = {thread: calls[calls["lane"] == thread] for thread in np.unique(calls["lane"]).tolist()}
    if not len(kernels):
        found = _annotated(trace, calls, threads)
    else:
        since = _launched_since(trace, kernels)
        found = []
        for kernel in kernels:
            at, by = int(kernel["launched"]), int(kernel["by"])
            around = _around(at, threads[by]) if by in threads else ()
            made = _made(kernel, at, by, around, trace, timed=True)
            is_before = by == _NOBODY and made.start_ns < since[int(kernel["lane"])]
            found.append(replace(made, role="before") if is_before else made)
        if before := sum(one.role == "before" for one in found):
            trace.dropped["collectives that were launched before the trace began: no step's own"] = before
    return sorted(found, key=lambda one: (one.launched_ns, one.start_ns))


def _annotated(trace: TraceEvents, calls: Spans, threads: Mapping[int, Spans]) -> list[SeenCollective]:
    """The collectives of a trace without communication kernels: gloo's last from when a thread of gloo's
    takes them to their end; of others only the call is seen.

    A queue feeds gloo's own threads, so an annotation is that of the earliest call of c10d of this collective
    and these shapes.
    """
    waiting: dict[str, list[np.void]] = defaultdict(list)
    for one in calls[::-1]:
        if trace.name_of(one).startswith("c10d::"):
            waiting[_alike(one, trace)].append(one)
    found = []
    for one in calls:
        name, at, by = trace.name_of(one), int(one["start"]), int(one["lane"])
        if not name.startswith(("gloo:", "nccl:", "rccl:")):
            continue
        queue = waiting[_alike(one, trace)] if name.startswith("gloo:") else []
        call = queue.pop() if queue and queue[-1]["start"] <= at else None
        if call is None or call["lane"] == by:
            found.append(_made(one, at, by, _around(at, threads[by]), trace, timed=False))
            continue
        made = _made(one, int(call["start"]), int(call["lane"]), [call], trace, timed=True)
        called = trace.name_of(call)
        kind = collective_of(called.split(":")[-1]) if called in _OF_INPUT else None
        found.append(replace(made, kind=kind or made.kind))
    return found


def _alike(operator: np.void, trace: TraceEvents) -> str:
    name, facts = trace.name_of(operator), trace.facts_of(operator)
    if name in _OF_INPUT:
        return f"{_OF_INPUT[name]} {_from_dims((facts.dims or [])[1:2], None)[0]}"
    return f"{collective_of(name.split(':')[-1])} {_from_dims(facts.dims, facts.types)[0]}"


def _around(time_ns: int, operators: Spans) -> Spans:
    """Operators that contain an instant, outermost first. They nest at most a few deep."""
    place = np.searchsorted(operators["start"], time_ns, "right")
    near = operators[max(0, place - 8) : place]
    return near[near["end"] >= time_ns]


def _launched_since(trace: TraceEvents, kernels: Spans) -> dict[int, int]:
    """By stream, the start of the first collective whose launch the trace shows.

    A stream runs in the order of launches, so what ran on it earlier was launched before the trace began. A
    stream without such a collective has the first start on any stream. Where no launch is known at all, it is
    the trace's first operator.
    """
    shown = kernels[kernels["by"] != _NOBODY]
    began = trace.began_ns if trace.began_ns is not None else -1
    since = dict.fromkeys(kernels["lane"].tolist(), int(shown["start"][0]) if len(shown) else began)
    since.update(zip(shown["lane"][::-1].tolist(), shown["start"][::-1].tolist(), strict=True))
    return since


def _made(
    seen: np.void,
    launched_ns: int,
    thread: int,
    around: Spans | Sequence[np.void],
    trace: TraceEvents,
    *,
    timed: bool,
) -> SeenCollective:
    """A collective from its span and the operators around its launch; the innermost is the surest."""
    facts = [trace.facts_of(one) for one in (seen, *reversed(around))]

    def told(key: str) -> Any:
        return next((value for one in facts if (value := getattr(one, key)) is not None), None)

    name = trace.name_of(seen)
    named = [told("collective"), *(trace.name_of(one).split(":", 1)[-1] for one in reversed(around))]
    kind = collective_of(*((*named, name) if "Generic" in name else (name, *named)))
    if kind in (None, "send_recv"):
        # A SendRecv kernel is an all-to-all, or a send, or a receive: the operator knows.
        kind = collective_of(*named) or kind
    elements, dtype = told("elements"), torch_dtype(told("dtype"))
    if type(elements) is not int or not 0 <= elements < _MOST_ELEMENTS:
        elements, dtype = _from_dims(told("dims"), told("types"))
    size, group = told("group_size"), told("group")
    return SeenCollective(
        kind=kind or "other",
        thread=thread,
        launched_ns=launched_ns,
        start_ns=int(seen["start"]),
        end_ns=int(seen["end"]),
        num_elements=elements,
        dtype=dtype,
        group=None if group is None else str(group),
        timed=timed,
        group_size=size if type(size) is int and 0 < size < _MOST_ELEMENTS else None,
    )


def _from_dims(dims: Any, types: Any) -> tuple[int | None, str | None]:
    """Elements and dtype from Input Dims, of tensors and of lists of tensors, which are added up.

    A number's dims are empty, as a tensor's without dimensions are: the latter has a dtype, or is in a list.
    """
    dtypes = [torch_dtype(word) for word in types] if isinstance(types, list) else []
    sizes = []
    for place, item in enumerate(dims or ()):
        is_list = isinstance(item, list) and item and isinstance(item[0], list)
        if is_list or item or (place < len(dtypes) and dtypes[place] is not None):
            shapes = map(shape_of, item if is_list else [item])
            sizes += [prod(shape) for shape in shapes if shape is not None]
    return (sum(sizes) if sizes else None), next((word for word in dtypes if word is not None), None)


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A shape as a trace has it; None where it is no list of sizes, or of 2**60 elements and more."""
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return None
    return tuple(value) if prod(value) < _MOST_ELEMENTS else None
