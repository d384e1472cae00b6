"""A Kineto trace in columns: what the device ran and who launched it, a few kinds of operators, and names."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import count, zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError
from sim.importer.readers import read_bytes
from sim.nouns.workload import DTYPE_BYTES

ARRAY = "traceEvents"
_CHUNK_BYTES = 1 << 20
_MOST_RANKS, _MOST_ELEMENTS = 1 << 24, 1 << 40  # of a tensor: 4 TiB
_LARGEST_NS = 1 << 62  # two of them add up to 63 bits

# Times in ns. ``lane``: the number of a CPU thread or a stream; ``name``: its place in ``TraceEvents.names``;
# ``launched``, ``by``: of a span of the device when and by which thread (-1: the trace does not show it);
# ``facts``: its place in ``TraceEvents.facts``.
_INDICES = [(key, np.int32) for key in ("lane", "name", "by", "facts")]
SPAN = np.dtype([*((key, np.int64) for key in ("start", "end", "launched")), *_INDICES])
Spans = NDArray[np.void]
Times = NDArray[np.int64]

# ---- what events are, by category and name

# Categories in lower case; a vendor's own are the same with its name before ("gpu_memcpy", "hip_runtime").
# Those beside do not say how long work ran: the profiler's own, Python's stack, synchronisation, arrows.
_CATEGORIES = re.compile(
    r"(?P<operator>cpu_op|operator|user_annotation)|(?P<gpu>kernel|(\w+_)?mem(cpy|set))|"
    r"(?P<launch>(\w+_)?(runtime|driver))|"
    r"(?P<beside>trace|overhead|python\w*|external_correlation|"
    r"\w+_(user_annotation|sync|instant_event|profiler_range)|"
    r"\w+_counters?|cuda_event|collective_comm|async\w*|ac2g|fwdbwd)"
)

NODE = "autograd::engine::evaluate_function: "
# Some compilers write a type's name as "struct torch::autograd::AccumulateGrad".
_ACCUMULATE = r"((struct|class) )?(torch::autograd::)?AccumulateGrad$"
# Operators that are kept: an engine's call around an AccumulateGrad is a hook, of another function a node.
_OPERATORS = re.compile(
    rf"(?P<accumulate>{_ACCUMULATE})|(?P<hook>{NODE}{_ACCUMULATE})|(?P<node>{NODE}|\w+Backward\d*$)|"
    r"(?P<step>ProfilerStep#[0-9]{1,18}$)|(?P<optimizer>Optimizer\.step)|"
    r"(?P<forward>DistributedDataParallel\.forward|FSDP::root_pre_forward)|"
    r"(?P<copy_out>torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$)|"
    r"(?P<copy_in>torch::distributed::reducer::|torch\.distributed\.ddp\.reducer::copy_)|"
    r"(?P<call>record_param_comms|c10d::|[a-z]ccl:|gloo:)|"
    r"(?P<sharded>FullyShardedDataParallel|FSDP::|(?i:fsdp))"
)
# NCCL's and RCCL's kernels by one rule, HolisticTraceAnalysis's: ncclKernel_AllReduce_RING_LL_Sum_float(...),
# ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...), ncclSymkDevKernel_..., ncclKernel(...). RCCL sends small
# sizes by MSCCL's: mscclKernel_Sum_float_LL_false(...), or MSCCL++'s, which have it in their arguments.
_KERNELS = re.compile(
    r"(?P<communication>(void )?nccl.*Kernel|.*msccl)|(?P<memory>.*(Memcpy|Memset|Sync))|(?P<computation>)"
)
_ON_DEVICE = set(_KERNELS.groupindex)
_BY_NAME = {"operator": _OPERATORS, "gpu": _KERNELS, "launch": re.compile("(?P<launch>)")}


def kind_of(category: str, name: str) -> tuple[str, str]:
    """The column of a span by its category, and its kind by its name: that of an operator (``_OPERATORS``),
    none if it is not kept; what the device ran: communication, memory (synchronisation too), computation.
    """
    found = _CATEGORIES.fullmatch(category[:200].lower())
    column = found.lastgroup or "" if found else "unread"
    told = _BY_NAME[column].match(name) if column in _BY_NAME else None
    return column, (told and told.lastgroup) or ""


# In torch's spelling; a longer name before those that are parts of it.
_COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv", "gather"),
    *("scatter", "barrier", "reduce", "coalesced", "send", "recv"),
)
# C++ types of gradients and of DDP's maps, as Kineto writes them, and torch's names of them.
_DTYPES = {
    **{"double": "float64", "float": "float32", "half": "float16", "long": "int64", "longint": "int64"},
    **{"int": "int32", "complex<float>": "complex64", "complex<double>": "complex128"},
    **{"complexfloat": "complex64", "complexdouble": "complex128"},
}


def collective_of(*names: Any) -> str | None:
    """The collective that the first telling name names, in torch's spelling; None: none tells.

    A name is a kernel's, or one in c10d, its annotations and NCCL's own arguments. ``ncclDevKernel_Generic``
    names none: give its "Collective name", or the operator that launched it, too.
    """
    for name in names:
        plain = re.sub(r"\(.*", "", name).replace("_", "").lower() if isinstance(name, str) else ""
        if found := next((one for one in _COLLECTIVES if one.replace("_", "") in plain), None):
            return found
    return None


def torch_dtype(name: Any) -> str | None:
    """``"float32"`` of ``"Float"``, ``"float"``, ``"torch.float32"``; None where it is not known."""
    plain = name.replace(" ", "").lower() if isinstance(name, str) else ""
    plain = plain.removeprefix("torch.").removeprefix("c10::")
    plain = _DTYPES.get(plain, plain)
    return plain if plain in DTYPE_BYTES else None


# ---- the columns


class _Arguments(msgspec.Struct, gc=False):
    """Arguments that are used; names differ in case between versions, and anything may be in their place."""

    correlation: Any = None
    stream: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    dtype: Any = None
    group_size: Any = msgspec.field(name="Group size", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = "no category"
    name: str = ""
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw(b"0.000")
    args: _Arguments | None = None


class _Document(msgspec.Struct):
    traceEvents: msgspec.Raw = msgspec.Raw()
    distributedInfo: msgspec.Raw = msgspec.Raw()
    deviceProperties: msgspec.Raw = msgspec.Raw()
    host_name: msgspec.Raw = msgspec.Raw()
    baseTimeNanoseconds: msgspec.Raw = msgspec.Raw()


class Facts(NamedTuple):
    """What arguments say of a collective, or of what was given to an operator: its elements, of one dtype,
    and the shape where it is one tensor.
    """

    collective: Any = None
    elements: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    shape: tuple[int, ...] | None = None


def _facts(given: _Arguments) -> Facts:
    dims, types = (_member(raw, list) or [] for raw in (given.old_dims or given.dims, given.types))
    size = given.group_size if _is_count(given.group_size) and given.group_size else None
    shape = _shape(dims[0]) if len(dims) == 1 else None
    if _is_count(given.elements):
        return Facts(given.collective, given.elements, torch_dtype(given.dtype), size, shape)
    # Tensors and lists of them are added up. A number's dims are empty, as a tensor's without dimensions are:
    # the latter has a dtype, or is in a list.
    dtypes = [torch_dtype(word) for word in types]
    shapes: list[tuple[int, ...] | None] = []
    for item, dtype in zip_longest(dims, dtypes[: len(dims)]):
        is_list = isinstance(item, list) and item and isinstance(item[0], list)
        shapes += map(_shape, item if is_list else [item] if item or dtype else [])
    sizes = [prod(one) for one in shapes if one is not None]
    dtype = next(filter(None, dtypes), None)
    return Facts(given.collective, sum(sizes) if sizes else None, dtype, size, shape)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_ELEMENTS


def _shape(value: Any) -> tuple[int, ...] | None:
    """A shape as a trace has it; None where it is no list of sizes, or of too many elements."""
    is_shape = isinstance(value, list) and all(map(_is_count, value)) and _is_count(prod(value))
    return tuple(value) if is_shape else None


@dataclass(slots=True)
class TraceEvents:
    """One rank's trace. ``operators`` and ``gpu`` are ``SPAN``, by start; ``kinds`` are those of ``names``.

    ``device`` is the accelerator that the trace lists first, whether or not anything ran on it; others are
    taken to be alike. ``base_ns``: the instant from which all times count.

    ``began_ns`` is when the first of all its CPU operators began, those that are not kept too; None: none.
    ``launched`` counts all launches, those of what the trace does not show too, and the events of categories
    that are not known.
    """

    source: str
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    device: str | None = None
    host: str | None = None
    base_ns: int = 0
    began_ns: int | None = None
    gpu: Spans = field(default_factory=lambda: np.zeros(0, SPAN))
    operators: Spans = field(default_factory=lambda: np.zeros(0, SPAN))
    names: Sequence[str] = ()
    kinds: Sequence[str] = ()
    facts: list[Facts] = field(default_factory=lambda: [Facts()])
    dropped: Counter[str] = field(default_factory=Counter)
    launched: int = 0

    def are(self, spans: Spans, kind: str) -> NDArray[np.bool_]:
        """Whether spans are of a kind."""
        found: NDArray[np.bool_] = np.array([one == kind for one in self.kinds], bool)[spans["name"]]
        return found

    def of(self, kind: str) -> Spans:
        """The spans of a kind, on the CPU or of the device (``kind_of``)."""
        spans = self.gpu if kind in _ON_DEVICE else self.operators
        found: Spans = spans[self.are(spans, kind)]
        return found


def between(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Those of spans in order that begin in a span of time."""
    first, last = np.searchsorted(spans["start"], (start_ns, end_ns))
    return spans[first:last]


def busiest(spans: Spans) -> int:
    """The lane that is busy longest, of several the first; -1: there is none."""
    lanes, first, each = np.unique(spans["lane"], return_index=True, return_inverse=True)
    busy = np.bincount(each, weights=spans["end"] - spans["start"], minlength=len(lanes))
    return int(lanes[np.lexsort((first, -busy))[0]]) if len(lanes) else -1


# ---- reading

_ADVICE = "give a whole trace that torch.profiler exported"


def read_events(path: str | os.PathLike[str]) -> TraceEvents:
    """Read a trace, in the memory of the file and of what is kept.

    Raises:
        InputError: not a Kineto trace, or an event whose times or identifiers are not legal, by its number.
    """
    source = os.fspath(path)
    try:
        document = _document(read_bytes(path))
        reading = _Reading(_of_header(document, source))
        content = memoryview(document.traceEvents)
        if len(content) and content[0] != ord("["):
            raise InputError(f"{source}: {ARRAY} must be a list")
        for piece in _pieces(content):
            reading.take(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{source}: not JSON: {why}; {_ADVICE}") from None
    if not reading.count:
        raise InputError(f"{source}: {ARRAY}: no events; {_ADVICE}")
    return reading.ended()


_SPACES = bytes(max(byte, 32) for byte in range(256))  # for control characters
_ODD = re.compile(rb"[\x00-\x1f]|NaN|Infinity")
_CONSTANT = re.compile(rb"(?<=[\s:,\[])(NaN|-?Infinity)(?=[\s,\]}])")
_BORDER = re.compile(rb'(?<=\})\s*,(?=\s*\{\s*"(?:ph|ts)"\s*:)')  # no argument of an event is called so


def _document(content: bytearray) -> _Document:
    """The members of a trace that are used, as they are written; a bare list is one of events."""
    if content.startswith(b"\xef\xbb\xbf"):
        del content[:3]
    try:
        return _members(content)
    except msgspec.DecodeError:
        if not _ODD.search(content):
            raise
    # Profilers write NaN, and names with line ends in them.
    content[:] = content.translate(_SPACES)
    return _members(bytearray(_CONSTANT.sub(b"null", content)))


def _members(content: bytearray) -> _Document:
    if re.match(rb"\s*\[", content):
        return _Document(traceEvents=msgspec.json.decode(content, type=msgspec.Raw))
    return msgspec.json.decode(content, type=_Document)


def _member(raw: msgspec.Raw, kind: type) -> Any:
    """A part of a document; None where it is not there, of another kind, or too large for what it is."""
    value = msgspec.json.decode(raw) if 0 < len(memoryview(raw)) < 1 << 20 else None
    return value if type(value) is kind else None


def _of_header(document: _Document, source: str) -> TraceEvents:
    """A trace without events; members that are not what they should be are as if they were not there."""

    def text(value: Any) -> str | None:
        return value if isinstance(value, str) and value and value.isprintable() else None

    def number(value: Any, least: int) -> int | None:
        return value if type(value) is int and least <= value < _MOST_RANKS else None

    told = _member(document.distributedInfo, dict) or {}
    first = next(iter(_member(document.deviceProperties, list) or ()), None)
    return TraceEvents(
        source=source,
        rank=number(told.get("rank"), 0),
        world_size=number(told.get("world_size"), 1),
        backend=text(told.get("backend")),
        device=text(first.get("name")) if isinstance(first, dict) else None,
        host=text(_member(document.host_name, str)),
        base_ns=_member(document.baseTimeNanoseconds, int) or 0,
    )


def _pieces(content: memoryview) -> Iterator[bytes]:
    """Lists of whole events of a list, of some MiB each."""
    at, end = 1, len(content) - 1
    while at < end:
        border = _BORDER.search(content, at + _CHUNK_BYTES, end)
        stop, following = border.span() if border else (end, end)
        yield b"[" + bytes(content[at:stop]) + b"]"
        at = following


# Times as Kineto writes them, today and before, and what makes ns of them without their dots.
# One way to match each: otherwise a time of another kind among many would cost for ever.
_DIGITS = rb"(?:[1-3]\d{15}|\d{1,15})"
_WRITTEN = (
    (re.compile(rb"(?:%b\.\d{3},)+" % _DIGITS), 1),
    (re.compile(rb"(?:%b,)+" % _DIGITS), 1000),
)
_EVENTS = msgspec.json.Decoder(list[_Event])
_NOTHING = _Arguments()


class _Reading:
    """Gathers the spans of a trace."""

    def __init__(self, trace: TraceEvents) -> None:
        self.trace, self.count = trace, 0
        self._kind_of = lru_cache(1 << 14)(kind_of)
        self._names = defaultdict[tuple[str, str], int](count().__next__)
        self._lanes = defaultdict[str, int](count().__next__)
        self._spans: dict[str, list[Spans]] = {one: [] for one in ("operator", "gpu", "launch")}

    def take(self, content: bytes) -> None:
        """Add what is needed of a list of events."""
        trace, began = self.trace, list[msgspec.Raw]()
        try:
            events = _EVENTS.decode(content)
        except msgspec.ValidationError as error:
            raise InputError(
                f"{trace.source}: {ARRAY} from number {self.count} on: {error}; {_ADVICE}"
            ) from None
        # An event, its correlation, and the numbers of its lane, its name and its facts.
        rows: dict[str, list[tuple[_Event, int, int, int, int]]] = {column: [] for column in self._spans}
        for event in events:
            column, kind = self._kind_of(event.cat, event.name) if event.ph == "X" else ("", "")
            if column == "operator":
                began.append(event.ts)
            elif column == "unread":
                trace.launched += 1
            if kind:
                given, facts = event.args or _NOTHING, 0
                if kind in ("accumulate", "call", "communication"):
                    facts = len(trace.facts)
                    trace.facts.append(_facts(given))
                of_stream = column == "gpu" and type(given.stream) is int
                lane = self._lanes[str(given.stream if of_stream else event.tid)]
                correlation = given.correlation if _is_count(given.correlation) else 0
                rows[column].append((event, correlation, lane, self._names[event.name, kind], facts))
        self.count += len(events)
        if began:
            first = int(self._ns(began, "ts").min())
            trace.began_ns = first if trace.began_ns is None else min(first, trace.began_ns)
        for column, some in rows.items():
            if some:
                spans = np.zeros(len(some), SPAN)
                of_rows, *columns = zip(*some, strict=True)
                for key, values in zip(("launched", "lane", "name", "facts"), columns, strict=True):
                    spans[key] = values
                spans["start"] = self._ns([one.ts for one in of_rows], "ts")
                spans["end"] = spans["start"] + self._ns([one.dur for one in of_rows], "dur")
                self._spans[column].append(spans)

    def ended(self) -> TraceEvents:
        """The trace, its spans in order and with their launches."""
        trace = self.trace
        trace.names, trace.kinds = zip(*self._names, strict=True) if self._names else ((), ())
        trace.operators, gpu, launches = (
            self._ordered(column, by)
            for column, by in (("operator", "start"), ("gpu", "start"), ("launch", "launched"))
        )
        trace.launched += len(launches)
        # Until here ``launched`` is a correlation.
        last = np.searchsorted(launches["launched"], gpu["launched"], "right") - 1
        shown = (last >= 0) & (gpu["launched"] != 0)
        shown[shown] = launches["launched"][last[shown]] == gpu["launched"][shown]
        gpu["launched"], gpu["by"] = gpu["start"], -1
        gpu["launched"][shown] = launches["start"][last[shown]]
        gpu["by"][shown] = launches["lane"][last[shown]]
        trace.gpu = gpu
        return trace

    def _ordered(self, column: str, by: str) -> Spans:
        """All spans of a column that do not end before they start, in order."""
        spans = np.concatenate([self.trace.gpu, *self._spans[column]])
        spans = spans[spans["end"] >= spans["start"]]
        return spans[np.argsort(spans[by], kind="stable")]

    def _ns(self, raws: Sequence[msgspec.Raw], key: str) -> Times:
        """Microseconds as the file has them, in ns; floats do not hold them."""
        texts = list(map(bytes, raws))
        together = b",".join([*texts, b""])
        for pattern, factor in _WRITTEN:
            if pattern.fullmatch(together):
                return np.fromstring(together[:-1].replace(b".", b""), np.int64, sep=",") * factor
        return np.array([self._time(text, key) for text in texts], np.int64)

    def _time(self, text: bytes, key: str) -> int:
        try:
            time = round(Decimal(text.decode().strip('"')) * 1000) if len(text) < 40 else _LARGEST_NS
        except (ArithmeticError, ValueError):
            time = _LARGEST_NS
        if abs(time) >= _LARGEST_NS:
            shown = f"{ARRAY} up to number {self.count}: {key}: {msgspec.json.decode(text or b'null')!r:.60}"
            raise InputError(f"{self.trace.source}: {shown} is not legal; give a time in microseconds")
        return time
