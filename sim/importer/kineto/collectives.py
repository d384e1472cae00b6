"""The collectives in a trace: kernels joined with the operators that launched them, where sizes stand."""

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from sim.importer.kineto.events import (
    GpuSpan,
    Operator,
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
_ANNOTATIONS = ("gloo:", *_NCCL)
_OPERATORS = (*_ANNOTATIONS, "record_param_comms", "c10d::")
_MOST_ELEMENTS = 1 << 60
# Calls that take an output, then the input, which is all that gloo's thread shows; what gloo runs for each.
_OF_INPUT = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "all_reduce"}


def find_collectives(trace: TraceEvents) -> list[tuple[SeenCollective, str]]:
    """Every collective with the thread that launched it, by launch.

    ``role`` is still ``other``, or ``before`` of one that was launched before the trace began. There is one a
    communication kernel; where the whole trace has none (world size 1, gloo), one an annotation.
    """
    operators = _by_thread(trace)
    kernels = [span for span in trace.gpu if is_communication(span.name)]
    if kernels:
        since = _launched_since(trace, kernels)
        found = [_of_kernel(span, trace, operators, since) for span in kernels]
        before = sum(one.role == "before" for one, _ in found)
        if before:
            trace.dropped["collectives that were launched before the trace began: no step's own"] = before
    else:
        annotations = [one for one in trace.operators if one.name.startswith(_ANNOTATIONS)]
        calls = _calls(annotations, operators)
        found = [_of_annotation(one, calls.get(place), operators) for place, one in enumerate(annotations)]
    return sorted(found, key=lambda one: (one[0].launched_ns, one[0].start_ns))


def unseen_calls(trace: TraceEvents) -> int:
    """How many calls of collectives on a GPU of several ranks launched no communication kernel that is known.

    Their kernels are not in the trace, or have a name that is not known as communication's. Nested operators
    are one call. Those of a group of one rank, and the ends of coalesced ones, need no kernel of their own.
    """
    info = trace.header.get("distributedInfo")
    world_size = info.get("world_size") if isinstance(info, dict) else None
    kernels = [span for span in trace.gpu if is_communication(span.name)]
    if not trace.gpu or world_size == 1 or (world_size is None and not kernels):
        return 0
    launched: dict[str, list[int]] = defaultdict(list)
    unknown = 0
    for span in kernels:
        launch = trace.launches.get(span.correlation) if span.correlation is not None else None
        if launch is None:
            unknown += 1
        else:
            launched[launch[1]].append(launch[0])
    names_it = any(one.name.startswith(_NCCL) for one in trace.operators)
    calls = _NCCL if names_it else ("record_param_comms",)
    unseen = 0
    for thread, operators in _by_thread(trace).items():
        times = sorted(launched[thread])
        spans = [(one.start_ns, one.end_ns) for one in operators if one.name.startswith(calls) and _runs(one)]
        for start, end in union(spans):
            place = bisect.bisect_left(times, start)
            unseen += place == len(times) or times[place] > end
    return max(0, unseen - unknown)


def _runs(operator: Operator) -> bool:
    """Whether a call needs a kernel."""
    name = operator.arguments.get("Collective name", operator.name.split(":", 1)[-1])
    one_rank = operator.arguments.get("Group size") == 1
    return not one_rank and collective_of(name) not in (None, "coalesced", "barrier", "send", "recv")


def _calls(annotations: Sequence[Operator], operators: dict[str, list[Operator]]) -> dict[int, Operator]:
    """By place: the call of c10d behind each of gloo's annotations, which are on gloo's own threads.

    A queue feeds these threads, so the earliest call of this collective and these shapes is taken.
    """
    waiting: dict[str, list[Operator]] = defaultdict(list)
    for one in sorted((one for of in operators.values() for one in of), key=lambda one: one.start_ns):
        if one.name.startswith("c10d::"):
            waiting[_alike(one)].append(one)
    found: dict[int, Operator] = {}
    for place, one in sorted(enumerate(annotations), key=lambda pair: pair[1].start_ns):
        queue = waiting[_alike(one)] if one.name.startswith("gloo:") else []
        if queue and queue[0].start_ns <= one.start_ns:
            found[place] = queue.pop(0)
    return found


def _alike(operator: Operator) -> str:
    dims, types = operator.arguments.get("dims"), operator.arguments.get("types")
    if operator.name in _OF_INPUT:
        return f"{_OF_INPUT[operator.name]} {_from_dims(dims[1:2] if dims else None, None)[0]}"
    return f"{collective_of(operator.name.split(':')[-1])} {_from_dims(dims, types)[0]}"


def _of_annotation(
    annotation: Operator, call: Operator | None, operators: dict[str, list[Operator]]
) -> tuple[SeenCollective, str]:
    """A collective without a kernel. Gloo's lasts from when a thread of gloo's takes it to its end."""
    if call is None or call.thread == annotation.thread:
        around = _around(annotation.start_ns, operators[annotation.thread])
        return _made(annotation, annotation.start_ns, around, timed=False), annotation.thread
    made = _made(annotation, call.start_ns, [call], timed=True)
    kind = collective_of(call.name.split(":")[-1]) if call.name in _OF_INPUT else None
    return (made if kind is None else replace(made, kind=kind)), call.thread


def _by_thread(trace: TraceEvents) -> dict[str, list[Operator]]:
    threads: dict[str, list[Operator]] = defaultdict(list)
    for operator in trace.operators:
        if operator.name.startswith(_OPERATORS):
            threads[operator.thread].append(operator)
    for operators in threads.values():
        operators.sort(key=lambda operator: operator.start_ns)
    return threads


def _around(time_ns: int, operators: Sequence[Operator]) -> list[Operator]:
    """Operators that contain an instant, outermost first. They nest at most a few deep."""
    place = bisect.bisect_right(operators, time_ns, key=lambda operator: operator.start_ns)
    return [one for one in operators[max(0, place - 8) : place] if one.end_ns >= time_ns]


def _launched_since(trace: TraceEvents, kernels: Sequence[GpuSpan]) -> dict[int, int]:
    """By stream, the start of the first collective whose launch the trace shows.

    A stream runs in the order of launches, so what ran on it earlier was launched before the trace began. A
    stream without such a collective has the first start on any stream. Where no launch is known at all, it is
    the trace's first operator.
    """
    shown = [span for span in kernels if span.correlation in trace.launches]
    began = trace.began_ns if trace.began_ns is not None else -1
    first = min((span.start_ns for span in shown), default=began)
    since = {span.stream: first for span in kernels}
    since.update((span.stream, span.start_ns) for span in sorted(shown, key=lambda span: -span.start_ns))
    return since


def _of_kernel(
    span: GpuSpan, trace: TraceEvents, operators: dict[str, list[Operator]], since: Mapping[int, int]
) -> tuple[SeenCollective, str]:
    launch = trace.launches.get(span.correlation) if span.correlation is not None else None
    if launch is None:
        made = _made(span, span.start_ns, [], timed=True)
        return (replace(made, role="before") if span.start_ns < since[span.stream] else made), ""
    around = _around(launch[0], operators.get(launch[1], []))
    return _made(span, launch[0], around, timed=True), launch[1]


def _made(
    seen: GpuSpan | Operator, launched_ns: int, around: Sequence[Operator], *, timed: bool
) -> SeenCollective:
    """A collective from its span and the operators around its launch; the innermost is the surest."""
    facts: dict[str, Any] = {}
    for operator in around:
        facts.update(operator.arguments)
    facts.update(seen.arguments or {})
    named = [facts.get("Collective name"), *(one.name.split(":", 1)[-1] for one in reversed(around))]
    kind = collective_of(*((*named, seen.name) if "Generic" in seen.name else (seen.name, *named)))
    if kind in (None, "send_recv"):
        # A SendRecv kernel is an all-to-all, or a send, or a receive: the operator knows.
        kind = next((told for name in named if (told := collective_of(name)) is not None), kind)
    elements = facts.get("In msg nelems")
    dtype = torch_dtype(facts.get("dtype"))
    if type(elements) is not int or not 0 <= elements < _MOST_ELEMENTS:
        elements, dtype = _from_dims(facts.get("dims"), facts.get("types"))
    size = facts.get("Group size")
    group = facts.get("Process Group Name", facts.get("Process Group Ranks"))
    return SeenCollective(
        kind=kind or "other",
        role="other",
        launched_ns=launched_ns,
        ready_ns=None,
        start_ns=seen.start_ns,
        end_ns=seen.end_ns,
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
