"""The collectives in a trace: kernels joined with the operators that launched them, where sizes stand."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from sim.importer.kineto.events import (
    Spans,
    TraceEvents,
    collective_of,
    is_communication,
    torch_dtype,
)
from sim.metrics.intervals import union

Role = Literal["gradients", "earlier", "map", "other", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCollective:
    """One collective: its kernel's span, and when the CPU launched it.

    ``timed``: ``start_ns`` and ``end_ns`` are those of the collective itself, of its kernel or of gloo's
    thread; otherwise (world size 1) they are those of the call.

    ``role`` says what it carried. ``gradients``: sent by the hooks of the step's last backward, or at its
    end, after the last gradient. ``earlier``: the same of the micro-batches before. ``map``: the map of
    ``find_unused_parameters``. ``before``: launched before the trace began; its end holds up what follows,
    and it belongs to no step. ``other``: all else, such as activations, embeddings and buffers.

    ``ready_ns``: of a collective of gradients, when the compute lane came to its launch.
    """

    kind: str
    role: Role
    launched_ns: int
    ready_ns: int | None
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
    def is_ddps(self) -> bool:
        """Whether DDP's reducer sent it in this step."""
        return self.role not in ("other", "before")


_NCCL = ("nccl:", "rccl:")
_MOST_ELEMENTS = 1 << 60
# Calls that take an output, then the input, which is all that gloo's thread shows; what gloo runs for each.
_OF_INPUT = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "all_reduce"}
_NOBODY = -1  # in place of a thread


def find_collectives(trace: TraceEvents) -> list[tuple[SeenCollective, int]]:
    """Every collective with the thread that launched it, by launch.

    ``role`` is still ``other``, or ``before`` of one that was launched before the trace began. There is one a
    communication kernel; where the whole trace has none (world size 1, gloo), one an annotation.
    """
    calls = trace.of("call")
    threads = {thread: calls[calls["lane"] == thread] for thread in np.unique(calls["lane"]).tolist()}
    kernels = trace.running(is_communication)
    if len(kernels):
        since = _launched_since(trace, kernels)
        found = [_of_kernel(kernel, trace, threads, since) for kernel in kernels]
        before = sum(one.role == "before" for one, _ in found)
        if before:
            trace.dropped["collectives that were launched before the trace began: no step's own"] = before
    else:
        found = _annotated(trace, calls, threads)
    return sorted(found, key=lambda one: (one[0].launched_ns, one[0].start_ns))


def unseen_calls(trace: TraceEvents) -> int:
    """How many calls of collectives on a GPU of several ranks launched no communication kernel that is known.

    Their kernels are not in the trace, or have a name that is not known as communication's. Nested operators
    are one call. Those of a group of one rank, and the ends of coalesced ones, need no kernel of their own.
    """
    kernels = trace.running(is_communication)
    if not len(trace.gpu) or trace.world_size == 1 or not (trace.world_size or len(kernels)):
        return 0
    calls = trace.of("call")
    of_nccl = calls[[trace.names[one].startswith(_NCCL) for one in calls["name"]]]
    if not len(of_nccl):
        of_nccl = calls[[trace.names[one].startswith("record_param_comms") for one in calls["name"]]]
    of_nccl = of_nccl[[_runs(one, trace) for one in of_nccl]]
    unseen = 0
    for thread in np.unique(of_nccl["lane"]):
        times = np.sort(kernels["launched"][kernels["by"] == thread])
        here = of_nccl[of_nccl["lane"] == thread]
        for start, end in union(zip(here["start"].tolist(), here["end"].tolist(), strict=True)):
            unseen += int(np.searchsorted(times, start) == np.searchsorted(times, end, "right"))
    return max(0, unseen - int((kernels["by"] == _NOBODY).sum()))


def _runs(call: np.void, trace: TraceEvents) -> bool:
    """Whether a call needs a kernel."""
    facts = trace.facts_of(call)
    name = facts.get("collective", trace.names[call["name"]].split(":", 1)[-1])
    one_rank = facts.get("group_size") == 1
    return not one_rank and collective_of(name) not in (None, "coalesced", "barrier", "send", "recv")


def _annotated(
    trace: TraceEvents, calls: Spans, threads: Mapping[int, Spans]
) -> list[tuple[SeenCollective, int]]:
    """The collectives of a trace without communication kernels: gloo's last from when a thread of gloo's
    takes them to their end; of others only the call is seen.

    A queue feeds gloo's own threads, so an annotation is that of the earliest call of c10d of this collective
    and these shapes.
    """
    waiting: dict[str, list[np.void]] = defaultdict(list)
    for one in calls[::-1]:
        if trace.names[one["name"]].startswith("c10d::"):
            waiting[_alike(one, trace)].append(one)
    found = []
    for one in calls:
        name = trace.names[one["name"]]
        if not name.startswith(("gloo:", *_NCCL)):
            continue
        queue = waiting[_alike(one, trace)] if name.startswith("gloo:") else []
        call = queue.pop() if queue and queue[-1]["start"] <= one["start"] else None
        if call is None or call["lane"] == one["lane"]:
            around = _around(one["start"], threads[int(one["lane"])])
            made = _made(one, int(one["start"]), around, trace, timed=False)
            found.append((made, int(one["lane"])))
            continue
        made = _made(one, int(call["start"]), [call], trace, timed=True)
        called = trace.names[call["name"]]
        if called in _OF_INPUT:
            made = replace(made, kind=collective_of(called.split(":")[-1]) or made.kind)
        found.append((made, int(call["lane"])))
    return found


def _alike(operator: np.void, trace: TraceEvents) -> str:
    name, facts = trace.names[operator["name"]], trace.facts_of(operator)
    dims, types = facts.get("dims"), facts.get("types")
    if name in _OF_INPUT:
        return f"{_OF_INPUT[name]} {_from_dims(dims[1:2] if dims else None, None)[0]}"
    return f"{collective_of(name.split(':')[-1])} {_from_dims(dims, types)[0]}"


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


def _of_kernel(
    kernel: np.void, trace: TraceEvents, threads: Mapping[int, Spans], since: Mapping[int, int]
) -> tuple[SeenCollective, int]:
    start, launched, by = int(kernel["start"]), int(kernel["launched"]), int(kernel["by"])
    if by == _NOBODY:
        made = _made(kernel, start, [], trace, timed=True)
        return (replace(made, role="before") if start < since[int(kernel["lane"])] else made), by
    around = _around(launched, threads.get(by, trace.operators[:0]))
    return _made(kernel, launched, around, trace, timed=True), by


def _made(
    seen: np.void, launched_ns: int, around: Spans | Sequence[np.void], trace: TraceEvents, *, timed: bool
) -> SeenCollective:
    """A collective from its span and the operators around its launch; the innermost is the surest."""
    facts: dict[str, Any] = {}
    for one in (*around, seen):
        facts.update(trace.facts_of(one))
    name = trace.names[seen["name"]]
    within = [trace.names[one["name"]].split(":", 1)[-1] for one in reversed(around)]
    named = [facts.get("collective"), *within]
    kind = collective_of(*((*named, name) if "Generic" in name else (name, *named)))
    if kind in (None, "send_recv"):
        # A SendRecv kernel is an all-to-all, or a send, or a receive: the operator knows.
        kind = next((told for name in named if (told := collective_of(name)) is not None), kind)
    elements, dtype = facts.get("elements"), torch_dtype(facts.get("dtype"))
    if type(elements) is not int or not 0 <= elements < _MOST_ELEMENTS:
        elements, dtype = _from_dims(facts.get("dims"), facts.get("types"))
    size, group = facts.get("group_size"), facts.get("group", facts.get("group_ranks"))
    return SeenCollective(
        kind=kind or "other",
        role="other",
        launched_ns=launched_ns,
        ready_ns=None,
        start_ns=int(seen["start"]),
        end_ns=int(seen["end"]),
        num_elements=elements,
        dtype=dtype,
        group=None if group is None else str(group),
        timed=timed,
        group_size=size if type(size) is int and 0 < size < _MOST_ELEMENTS else None,
    )


def _from_dims(dims: Any, types: Any) -> tuple[int | None, str | None]:
    """Elements and dtype from Input Dims; tensors of a coalesced collective are added up."""
    if not isinstance(dims, list):
        return None, None
    words = [torch_dtype(word) for word in types] if isinstance(types, list) else []
    total, known = 0, False
    for shape in _shapes(dims, words):
        total, known = total + prod(shape), True
    return (total if known else None), next((word for word in words if word is not None), None)


def _shapes(dims: list[Any], dtypes: Sequence[str | None]) -> list[tuple[int, ...]]:
    """The shapes in Input Dims, of tensors and of lists of tensors.

    A number's dims are empty, as a tensor's without dimensions are: the latter has a dtype, or is in a list.
    """
    found = []
    for place, item in enumerate(dims):
        if isinstance(item, list) and item and isinstance(item[0], list):
            given = [shape_of(shape) for shape in item]
        elif item or (place < len(dtypes) and dtypes[place] is not None):
            given = [shape_of(item)]
        else:
            continue
        found += [shape for shape in given if shape is not None]
    return found


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A shape as a trace has it; None where it is no list of sizes, or of 2**60 elements and more."""
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return None
    return tuple(value) if prod(value) < _MOST_ELEMENTS else None
