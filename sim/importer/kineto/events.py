"""What is needed of a Kineto trace: GPU spans, their launches, a few kinds of operators; what names say."""

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from sys import intern
from typing import Any

from sim.errors import InputError
from sim.importer.imported import Progress, no_progress
from sim.importer.streaming import stream_members
from sim.nouns.workload import DTYPE_BYTES

ARRAY = "traceEvents"
_LARGEST_NS = 1 << 62
# Categories in lower case; a vendor's own are the same with its name before ("gpu_memcpy", "hip_runtime").
_OPERATORS = ("cpu_op", "operator", "user_annotation")
_GPU = re.compile(r"kernel|(\w+_)?mem(cpy|set)")
_LAUNCHES = re.compile(r"(\w+_)?(runtime|driver)")
# Events that do not say how long work ran: the profiler's own, Python's stack, synchronisation, arrows.
_BESIDE = re.compile(
    r"trace|overhead|python\w*|external_correlation|\w+_(user_annotation|sync|instant_event|profiler_range)|"
    r"\w+_counters?|cuda_event|collective_comm|async\w*|ac2g|fwdbwd"
)
_MOST_CATEGORIES = 50
_LONG_CALL_NS = 50_000  # a launch takes some 10 us

ACCUMULATE = "torch::autograd::AccumulateGrad"
NODE = "autograd::engine::evaluate_function: "
# Some compilers write a type's name as "struct torch::autograd::AccumulateGrad".
_ACCUMULATE = re.compile(r"((struct|class) )?(torch::autograd::)?AccumulateGrad$")
_KEPT = re.compile(
    r"autograd::engine::evaluate_function: |ProfilerStep#|Optimizer\.|"
    r"DistributedDataParallel\.forward|record_param_comms|c10d::|[a-z]ccl:|cncl:|gloo:|torch::distributed::|"
    r"torch\.distributed\.|FullyShardedDataParallel|FSDP::|fsdp|\w+Backward\d*$|DeepSpeed"
)
_WITH_SHAPES = ("nccl:", "gloo:", "rccl:", "record_param_comms", "c10d::", "fsdp::chunk_cat")
# Arguments that are kept of operators; names differ in case and spelling between versions.
_DIMS, _TYPES = ("Input Dims", "Input dims"), ("Input type",)
_COMM_ARGUMENTS = (
    "Collective name",
    "In msg nelems",
    "dtype",
    "Group size",
    "Process Group Name",
    "Process Group Ranks",
)


@dataclass(slots=True)
class GpuSpan:
    """A kernel, copy or memset: when the device ran it, and the correlation to what launched it."""

    start_ns: int
    end_ns: int
    stream: int
    name: str
    correlation: int | None
    arguments: dict[str, Any] | None


@dataclass(slots=True)
class Operator:
    """An operator or annotation on a CPU thread."""

    start_ns: int
    end_ns: int
    thread: str
    name: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class TraceEvents:
    """One rank's trace. ``launches``: by correlation, when and on which thread the CPU launched it.

    ``began_ns`` is when the first of all its CPU operators began, those that are not kept too; None: none.
    ``launched`` counts all launches, those of what the trace does not show too; ``unread`` the events of each
    category that is not known. ``long_calls``: start, end and name of calls of the runtime in which the host
    sat much longer than in a launch.
    """

    source: str
    began_ns: int | None = None
    gpu: list[GpuSpan] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    launches: dict[int, tuple[int, str]] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    launched: int = 0
    long_calls: list[tuple[int, int, str]] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)


def read_events(path: str | os.PathLike[str], progress: Progress = no_progress) -> TraceEvents:
    """Read a trace in bounded memory.

    Raises:
        InputError: not a Kineto trace, or an event whose times or identifiers are not legal, by its number.
    """
    source = os.fspath(path)
    trace = TraceEvents(source=source)
    count = 0
    for key, value in stream_members(path, ARRAY, progress):
        if key != ARRAY:
            trace.header[key] = value
            continue
        count += 1
        if not isinstance(value, dict):
            raise InputError(f"{source}: {ARRAY}.{count - 1}: {value!r:.60} is not legal; give an object")
        if value.get("ph") == "X":
            _take(value, trace, f"{source}: {ARRAY}.{count - 1}")
    if not count:
        raise InputError(f"{source}: {ARRAY}: no events; give a trace that torch.profiler exported")
    # A launch is needed only where the device ran something of it.
    wanted = {span.correlation for span in trace.gpu}
    trace.launches = {number: launch for number, launch in trace.launches.items() if number in wanted}
    return trace


def time_ns(value: Any, source: str) -> int:
    """Microseconds as in the file (int, or decimal text) in ns. Raises ``InputError``."""
    time: int | None = None
    if type(value) is int:
        time = value * 1000
    else:
        try:
            time = round(Decimal(value) * 1000) if isinstance(value, str) and len(value) < 40 else None
        except (ArithmeticError, ValueError):
            time = None
    if time is None or abs(time) > _LARGEST_NS:
        raise InputError(f"{source}: {value!r:.60} is not legal; give a time in microseconds")
    return time


def _take(event: dict[str, Any], trace: TraceEvents, place: str) -> None:
    given = event.get("cat")
    category, kind = _kind_of(given if isinstance(given, str) else "no category")
    name = event.get("name")
    if kind == "operator":
        if category != "user_annotation":
            start = time_ns(event.get("ts"), f"{place}: ts")
            trace.began_ns = start if trace.began_ns is None else min(start, trace.began_ns)
        if isinstance(name, str):
            plain = _plain_name(name)
            if category == "user_annotation" or plain == ACCUMULATE or _KEPT.match(plain):
                _take_operator(event, plain, trace, place)
    elif kind == "gpu":
        if not isinstance(name, str):
            raise InputError(f"{place}: name: {name!r:.60} is not legal; give text")
        _take_gpu(event, name, trace, place)
    elif kind == "launch":
        trace.launched += 1
        correlation = _arguments(event, place).get("correlation")
        if type(correlation) is int and correlation:
            start = time_ns(event.get("ts"), f"{place}: ts")
            trace.launches[correlation] = (start, intern(str(event.get("tid"))))
        if isinstance(name, str) and time_ns(event.get("dur", 0), f"{place}: dur") >= _LONG_CALL_NS:
            start = time_ns(event.get("ts"), f"{place}: ts")
            trace.long_calls.append((start, start + time_ns(event["dur"], f"{place}: dur"), intern(name)))
    elif kind == "unread":
        known = category in trace.unread or len(trace.unread) < _MOST_CATEGORIES
        trace.unread[category if known else "others"] += 1


@lru_cache(maxsize=256)
def _kind_of(category: str) -> tuple[str, str]:
    """A category in lower case, and what its events are here."""
    category = category[:200].lower()
    if category in _OPERATORS:
        return category, "operator"
    for kind, pattern in (("gpu", _GPU), ("launch", _LAUNCHES), ("beside", _BESIDE)):
        if pattern.fullmatch(category):
            return category, kind
    return category, "unread"


def _plain_name(name: str) -> str:
    """``name``, with all spellings of AccumulateGrad, and of the engine's call of one, made the same."""
    if not name.endswith("AccumulateGrad"):
        return name
    call = NODE if name.startswith(NODE) else ""
    return call + ACCUMULATE if _ACCUMULATE.match(name, len(call)) else name


def _take_operator(event: dict[str, Any], name: str, trace: TraceEvents, place: str) -> None:
    times = _times(event, trace, place)
    if times is None:
        return
    given = _arguments(event, place)
    kept: dict[str, Any] = {}
    if name == ACCUMULATE or name.startswith(_WITH_SHAPES):
        for names, key in ((_DIMS, "dims"), (_TYPES, "types")):
            for word in names:
                if isinstance(given.get(word), list):
                    kept[key] = given[word]
        kept.update({word: given[word] for word in _COMM_ARGUMENTS if word in given})
    trace.operators.append(Operator(*times, intern(str(event.get("tid"))), intern(name), kept))


def _take_gpu(event: dict[str, Any], name: str, trace: TraceEvents, place: str) -> None:
    times = _times(event, trace, place)
    if times is None:
        return
    given = _arguments(event, place)
    stream, correlation = given.get("stream"), given.get("correlation")
    if type(stream) is not int:
        stream = event["tid"] if type(event.get("tid")) is int else -1
    kept = {word: given[word] for word in _COMM_ARGUMENTS if word in given}
    trace.gpu.append(
        GpuSpan(*times, stream, intern(name), correlation if type(correlation) is int else None, kept or None)
    )


def _times(event: dict[str, Any], trace: TraceEvents, place: str) -> tuple[int, int] | None:
    start = time_ns(event.get("ts"), f"{place}: ts")
    duration = time_ns(event.get("dur", 0), f"{place}: dur")
    if duration < 0:
        trace.dropped["events that end before they start"] += 1
        return None
    return start, start + duration


def _arguments(event: dict[str, Any], place: str) -> dict[str, Any]:
    given = event.get("args", {})
    if not isinstance(given, dict):
        raise InputError(f"{place}: args: {given!r:.60} is not legal; give an object")
    return given


# ---- names of kernels and collectives

# NCCL's and RCCL's kernels by one rule, HolisticTraceAnalysis's: ncclKernel_AllReduce_RING_LL_Sum_float(...),
# ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...), ncclSymkDevKernel_..., ncclKernel(...). RCCL sends small
# sizes by MSCCL's: mscclKernel_Sum_float_LL_false(...), or MSCCL++'s, which have it in their arguments.
_COMMUNICATION = re.compile(r"(void )?nccl.*Kernel|.*msccl")
_NEITHER = re.compile(r".*(Memcpy|Memset|Sync)")

# A part of a kernel's name, or of a collective's name in c10d, its annotations and NCCL's own arguments.
_COLLECTIVES = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("coalesced", "coalesced"),
    ("send", "send"),
    ("recv", "recv"),
)


def is_communication(name: str) -> bool:
    """Whether a kernel of this name is NCCL's or RCCL's, or one of MSCCL's in it."""
    return _COMMUNICATION.match(name) is not None


def is_computation(name: str) -> bool:
    """Whether a kernel of this name computes: neither communication, memory nor synchronisation."""
    return not is_communication(name) and _NEITHER.match(name) is None


def collective_of(*names: Any) -> str | None:
    """The collective that the first telling name names, in torch's spelling; None: none tells.

    ``ncclDevKernel_Generic`` names none: give its "Collective name", or the operator that launched it, too.
    """
    for name in names:
        if not isinstance(name, str):
            continue
        plain = re.sub(r"\(.*", "", name).replace("_", "").lower()
        for part, collective in _COLLECTIVES:
            if part in plain:
                return collective
    return None


# ---- names of dtypes

# C++ types, as Kineto writes them.
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long": "int64",
    "long int": "int64",
    "int64_t": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
}


def torch_dtype(name: Any) -> str | None:
    """``"float32"`` of ``"Float"``, ``"float"``, ``"torch.float32"``; None where it is not known."""
    plain = "" if not isinstance(name, str) else name.strip().lower().removeprefix("torch.")
    plain = _DTYPES.get(plain, plain)
    return plain if plain in DTYPE_BYTES else None
