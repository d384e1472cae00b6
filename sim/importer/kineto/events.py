"""A Kineto trace in columns: what the device ran and who launched it, a few kinds of operators, and names."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError
from sim.importer.imported import Progress, no_progress
from sim.importer.readers import read_bytes
from sim.nouns.workload import DTYPE_BYTES

ARRAY = "traceEvents"
_CHUNK_BYTES, _LONGEST_EVENT = 1 << 20, 8 << 20
_MOST_RANKS = 1 << 24
_LARGEST_NS = 1 << 62  # two of them add up to 63 bits

# Times in ns. ``lane``: the number of a CPU thread or a stream; ``name``: its place in ``TraceEvents.names``;
# ``launched``, ``by``: of a span of the device when and by which thread (-1: the trace does not show it);
# ``facts``: its place in ``TraceEvents.facts``.
_NS, _INDEX = np.int64, np.int32
SPAN = np.dtype(
    [
        *(("start", _NS), ("end", _NS), ("launched", _NS)),
        *(("lane", _INDEX), ("name", _INDEX), ("by", _INDEX), ("facts", _INDEX)),
    ]
)
Spans = NDArray[np.void]
Times = NDArray[np.int64]

# Categories in lower case; a vendor's own are the same with its name before ("gpu_memcpy", "hip_runtime").
# Those beside do not say how long work ran: the profiler's own, Python's stack, synchronisation, arrows.
_CATEGORIES = re.compile(
    r"(?P<operator>cpu_op|operator)|(?P<annotation>user_annotation)|(?P<gpu>kernel|(\w+_)?mem(cpy|set))|"
    r"(?P<launch>(\w+_)?(runtime|driver))|"
    r"(?P<beside>trace|overhead|python\w*|external_correlation|"
    r"\w+_(user_annotation|sync|instant_event|profiler_range)|"
    r"\w+_counters?|cuda_event|collective_comm|async\w*|ac2g|fwdbwd)"
)
_MOST_CATEGORIES = 50
_LONG_CALL_NS = 50_000  # a launch takes some 10 us

NODE = "autograd::engine::evaluate_function: "
# Some compilers write a type's name as "struct torch::autograd::AccumulateGrad".
_ACCUMULATE = r"((struct|class) )?(torch::autograd::)?AccumulateGrad$"
# Operators that are kept: an engine's call around an AccumulateGrad is a hook, of another function a node.
_KINDS = re.compile(
    rf"(?P<accumulate>{_ACCUMULATE})|(?P<hook>{NODE}{_ACCUMULATE})|(?P<node>{NODE}|\w+Backward\d*$)|"
    r"(?P<step>ProfilerStep#[0-9]{1,18}$)|(?P<optimizer>Optimizer\.step)|"
    r"(?P<forward>DistributedDataParallel\.forward|FSDP::root_pre_forward)|"
    r"(?P<copy_out>torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$)|"
    r"(?P<copy_in>torch::distributed::reducer::|torch\.distributed\.ddp\.reducer::copy_)|"
    r"(?P<call>record_param_comms|c10d::|nccl:|rccl:|gloo:)|"
    r"(?P<other>Optimizer\.|[a-z]ccl:|cncl:|torch::distributed::|torch\.distributed\.|ProfilerStep#|"
    r"FullyShardedDataParallel|FSDP::|fsdp|DeepSpeed)"
)


class _Arguments(msgspec.Struct, gc=False):
    """Arguments that are used; names differ in case between versions."""

    correlation: Any = None
    stream: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    dtype: Any = None
    group_size: Any = msgspec.field(name="Group size", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: _Arguments | None = None


class _Document(msgspec.Struct):
    traceEvents: msgspec.Raw = msgspec.Raw()
    distributedInfo: msgspec.Raw = msgspec.Raw()
    deviceProperties: msgspec.Raw = msgspec.Raw()
    host_name: msgspec.Raw = msgspec.Raw()
    baseTimeNanoseconds: msgspec.Raw = msgspec.Raw()


_FACTS = ("collective", "elements", "dtype", "group_size", "group", "group_ranks")
_NONE = np.zeros(0, SPAN)


@dataclass(slots=True)
class TraceEvents:
    """One rank's trace. ``operators`` and ``gpu`` are ``SPAN``, by start.

    ``device`` is the accelerator that the trace lists first, whether or not anything ran on it; others are
    taken to be alike. ``base_ns``: the instant from which all times count.

    ``began_ns`` is when the first of all its CPU operators began, those that are not kept too; None: none.
    ``launched`` counts all launches, those of what the trace does not show too; ``unread`` the events of each
    category that is not known. ``long_calls``: start, end and name of calls of the runtime in which the host
    sat much longer than in a launch.
    """

    source: str
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    nccl_version: str | None = None
    device: str | None = None
    host: str | None = None
    base_ns: int = 0
    began_ns: int | None = None
    gpu: Spans = field(default_factory=_NONE.copy)
    operators: Spans = field(default_factory=_NONE.copy)
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    dropped: Counter[str] = field(default_factory=Counter)
    launched: int = 0
    long_calls: list[tuple[int, int, str]] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: str) -> Spans:
        """The operators of some kinds (``_KINDS``), by start."""
        found: Spans = self.operators[np.isin(self.kinds, kinds)[self.operators["name"]]]
        return found

    def running(self, belongs: Callable[[str], bool]) -> Spans:
        """What the device ran by names that ``belongs`` accepts, by start."""
        found: Spans = self.gpu[self.ran(self.gpu, belongs)]
        return found

    def ran(self, gpu: Spans, belongs: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Whether ``belongs`` accepts the names of spans of the device; each name is asked for once."""
        numbers, each = np.unique(gpu["name"], return_inverse=True)
        return np.array([belongs(self.names[number]) for number in numbers], bool)[each]

    @property
    def operator_names(self) -> list[str]:
        """The names of the operators that are kept, each once."""
        return [name for name, kind in zip(self.names, self.kinds, strict=True) if kind]

    def facts_of(self, span: np.void) -> dict[str, Any]:
        """The arguments of a span that are used."""
        return self.facts[int(span["facts"])]


def between(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Those of spans in order that begin in a span of time."""
    first, last = np.searchsorted(spans["start"], (start_ns, end_ns))
    return spans[first:last]


def busiest(spans: Spans) -> int:
    """The lane that is busy longest, of several the first; -1: there is none."""
    lanes, first, each = np.unique(spans["lane"], return_index=True, return_inverse=True)
    busy = np.bincount(each, weights=spans["end"] - spans["start"], minlength=len(lanes))
    return int(lanes[np.lexsort((first, -busy))[0]]) if len(lanes) else -1


def read_events(path: str | os.PathLike[str], progress: Progress = no_progress) -> TraceEvents:
    """Read a trace, in the memory of the file and of what is kept.

    Raises:
        InputError: not a Kineto trace, or an event whose times or identifiers are not legal, by its number.
    """
    source = os.fspath(path)
    try:
        document = _document(read_bytes(path), source)
        reading = _Reading(_of_header(document, source))
        content = memoryview(document.traceEvents)
        for events, done in _events(content, source):
            reading.take(events)
            progress(done, len(content), "reading")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(
            f"{source}: not JSON: {why}; give a whole trace that torch.profiler exported"
        ) from None
    if not reading.count:
        raise InputError(f"{source}: {ARRAY}: no events; give a trace that torch.profiler exported")
    return reading.ended()


_EVENTS = msgspec.json.Decoder(list[_Event])
_SPACES = bytes(max(byte, 32) for byte in range(256))  # for control characters
_CONSTANT = re.compile(rb"(?<=[\s:,\[])(NaN|-?Infinity)(?=[\s,\]}])")
_BORDER, _BORDER_WITHIN = re.compile(rb"\}\s*,\s*\{"), 1 << 16
_COMMA = re.compile(rb"\s*,")


def _document(content: bytearray, source: str) -> _Document:
    """The members of a trace that are used, as they are written; a bare list is one of events."""
    if content.startswith(b"\xef\xbb\xbf"):
        del content[:3]
    for again in (False, True):
        if again:  # profilers write NaN, and names with line ends in them
            content[:] = content.translate(_SPACES)
            content = bytearray(_CONSTANT.sub(b"null", content))
        try:
            if re.match(rb"\s*\[", content):
                return _Document(traceEvents=msgspec.json.decode(content, type=msgspec.Raw))
            return msgspec.json.decode(content, type=_Document)
        except msgspec.DecodeError:
            if again:
                raise
    raise AssertionError("the second time tells")


def _of_header(document: _Document, source: str) -> "TraceEvents":
    """A trace without events; members that are not what they should be are as if they were not there."""
    told, devices = _small(document.distributedInfo), _small(document.deviceProperties)
    facts: dict[str, Any] = told if isinstance(told, dict) else {}
    first = devices[0] if isinstance(devices, list) and devices else None
    base = _small(document.baseTimeNanoseconds)

    def count(key: str, least: int) -> int | None:
        value = facts.get(key)
        return value if type(value) is int and least <= value < _MOST_RANKS else None

    def text(value: Any) -> str | None:
        return value if isinstance(value, str) and value and value.isprintable() else None

    return TraceEvents(
        source=source,
        rank=count("rank", 0),
        world_size=count("world_size", 1),
        backend=text(facts.get("backend")),
        nccl_version=text(facts.get("nccl_version")),
        device=text(first.get("name")) if isinstance(first, dict) else None,
        host=text(_small(document.host_name)),
        base_ns=base if type(base) is int else 0,
    )


def _small(raw: msgspec.Raw) -> Any:
    """A member of the header; None where it is not there, or too large for what it is."""
    return msgspec.json.decode(raw) if 0 < len(memoryview(raw)) < 1 << 20 else None


def _events(content: memoryview, source: str) -> Iterator[tuple[list[_Event], int]]:
    """The events of a list, those of some MiB at a time, and how far they reach."""
    if len(content) and content[0] != ord("["):
        raise InputError(f"{source}: {ARRAY} must be a list")
    at, end, before = 1, len(content) - 1, 0
    while at < end:
        for piece in _beginnings(content, at, end):
            try:
                events = _EVENTS.decode(b"[" + piece + b"]")
            except msgspec.ValidationError:
                raise _first_fault(piece, before, source) from None
            except msgspec.DecodeError:
                if at + len(piece) == end:
                    raise
                continue
            break
        else:
            limit = f"{_LONGEST_EVENT >> 20} MiB"
            raise InputError(f"{source}: {ARRAY}.{before}, or one behind it: longer than {limit}, or no JSON")
        at, before = at + len(piece), before + len(events)
        yield events, at
        if (comma := _COMMA.match(content, at)) is not None:
            at = comma.end()


def _beginnings(content: memoryview, at: int, end: int) -> Iterator[bytes]:
    """What may be whole events from a place on, the most first: up to where one object follows another.

    If that is within an event, it is no JSON.
    """
    for size in (_CHUNK_BYTES, _LONGEST_EVENT):
        text = bytes(content[at : min(end, at + size)])
        if at + len(text) == end:
            yield text
        for since in (len(text) - _BORDER_WITHIN, 0):
            for border in reversed(list(_BORDER.finditer(text, max(0, since)))[-100:]):
                yield text[: border.start() + 1]


def _first_fault(piece: bytes, before: int, source: str) -> InputError:
    """What is wrong with the first of some events that is none."""
    for place, raw in enumerate(msgspec.json.decode(b"[" + piece + b"]", type=list[msgspec.Raw]), before):
        try:
            msgspec.json.decode(raw, type=_Event)
        except msgspec.ValidationError as error:
            where = f"{source}: {ARRAY}.{place}"
            return InputError(f"{where}: {error}; give a trace that torch.profiler exported")
    raise AssertionError("each of them is an event")


# Place among the events, the event, its correlation, and the numbers of its lane, its name and its facts.
_Row = tuple[int, _Event, int, int, int, int]


class _Categories(dict[str, str]):
    """By category as it is written, what its events are here."""

    def __missing__(self, category: str) -> str:
        found = _CATEGORIES.fullmatch(category[:200].lower())
        kind = _group(found) or "unread"
        if len(self) < _MOST_CATEGORIES:
            self[category] = kind
        return kind


class _Kinds(dict[str, tuple[str, str]]):
    """By name of an operator as it is written, its kind (empty: not kept) and how it is called here."""

    def __missing__(self, name: str) -> tuple[str, str]:
        plain = re.sub(rf"^({NODE})?{_ACCUMULATE}", r"\1torch::autograd::AccumulateGrad", name)
        self[name] = found = (_group(_KINDS.match(plain)), plain)
        return found


def _group(found: re.Match[str] | None) -> str:
    return "" if found is None else next(key for key, text in found.groupdict().items() if text)


class _Reading:
    """Gathers the rows of a trace."""

    def __init__(self, trace: TraceEvents) -> None:
        self.trace, self.count = trace, 0
        self._categories, self._kinds = _Categories(), _Kinds()
        self._names = defaultdict[tuple[str, str], int](count().__next__)
        self._lanes = defaultdict[str | int, int](count().__next__)
        self._gpu: list[Spans] = []
        self._operators: list[Spans] = []
        self._launches: list[Spans] = []

    def take(self, events: list[_Event]) -> None:
        """Add what is needed of some events."""
        trace, categories, kinds, lanes = self.trace, self._categories, self._kinds, self._lanes
        began: list[tuple[msgspec.Raw, int]] = []
        gpu: list[_Row] = []
        operators: list[_Row] = []
        launches: list[_Row] = []
        for place, event in enumerate(events, self.count):
            if event.ph != "X":
                continue
            name, category = event.name, event.cat
            category = category if type(category) is str else "no category"
            what = categories[category]
            if what == "operator" or what == "annotation":
                if what == "operator":
                    began.append((event.ts, place))
                kind, plain = kinds[name] if type(name) is str else ("", "")
                if kind or (what == "annotation" and plain):
                    has_facts = kind in ("accumulate", "call")
                    facts = self._facts(event.args, with_shapes=True) if has_facts else 0
                    number = self._names[plain, kind or "other"]
                    operators.append((place, event, 0, lanes[str(event.tid)], number, facts))
            elif what == "gpu":
                if type(name) is not str:
                    raise self._fault(place, "name", name, "text")
                given = event.args or _NO_ARGUMENTS
                stream = given.stream if type(given.stream) is int else event.tid
                lane = lanes[stream if type(stream) is int else -1]
                facts = self._facts(given)
                gpu.append((place, event, _whole(given.correlation), lane, self._names[name, ""], facts))
            elif what == "launch":
                trace.launched += 1
                correlation = _whole((event.args or _NO_ARGUMENTS).correlation)
                launches.append((place, event, correlation, lanes[str(event.tid)], 0, 0))
            elif what == "unread":
                shown = category[:200].lower()
                is_known = shown in trace.unread or len(trace.unread) < _MOST_CATEGORIES
                trace.unread[shown if is_known else "others"] += 1
        self.count += len(events)
        if began:
            raws, places = zip(*began, strict=True)
            first = int(self._ns(raws, places, "ts").min())
            trace.began_ns = first if trace.began_ns is None else min(first, trace.began_ns)
        self._gpu.append(self._spans(gpu))
        self._operators.append(self._spans(operators))
        calls = self._spans(launches)
        self._launches.append(calls[calls["launched"] != 0])
        for row in np.flatnonzero(calls["end"] - calls["start"] >= _LONG_CALL_NS):
            if type(name := launches[row][1].name) is str:
                trace.long_calls.append((int(calls["start"][row]), int(calls["end"][row]), name))

    def ended(self) -> TraceEvents:
        """The trace, its spans in order and with their launches."""
        trace = self.trace
        trace.names, trace.kinds = ([key[place] for key in self._names] for place in (0, 1))
        gpu, operators = self._ordered(self._gpu), self._ordered(self._operators)
        launches = np.concatenate(self._launches)
        launches = launches[np.argsort(launches["launched"], kind="stable")]
        last = np.searchsorted(launches["launched"], gpu["launched"], "right") - 1
        shown = (last >= 0) & (gpu["launched"] != 0)
        shown[shown] = launches["launched"][last[shown]] == gpu["launched"][shown]
        gpu["launched"], gpu["by"] = gpu["start"], -1
        gpu["launched"][shown] = launches["start"][last[shown]]
        gpu["by"][shown] = launches["lane"][last[shown]]
        trace.gpu, trace.operators = gpu, operators
        return trace

    def _ordered(self, parts: list[Spans]) -> Spans:
        """All spans that do not end before they start, by start."""
        spans = np.concatenate(parts)
        backward = spans["end"] < spans["start"]
        if backward.any():
            self.trace.dropped["events that end before they start"] += int(backward.sum())
        spans = spans[~backward]
        return spans[np.argsort(spans["start"], kind="stable")]

    def _spans(self, rows: list[_Row]) -> Spans:
        """Rows as spans, whose ``launched`` is their correlation."""
        if not rows:
            return _NONE
        spans = np.zeros(len(rows), SPAN)
        places, events, *columns = zip(*rows, strict=True)
        for name, column in zip(("launched", "lane", "name", "facts"), columns, strict=True):
            spans[name] = column
        spans["start"] = self._ns([one.ts for one in events], places, "ts")
        spans["end"] = spans["start"] + self._ns([one.dur for one in events], places, "dur")
        return spans

    def _ns(self, raws: Sequence[msgspec.Raw], places: Sequence[int], key: str) -> Times:
        """Microseconds as the file has them, in ns; floats do not hold them."""
        texts = list(map(bytes, raws))
        together = np.frombuffer(b",".join(texts) + b",", np.uint8)
        dots, ends = (np.flatnonzero(together == ord(mark)) for mark in ".,")
        is_plain = ((together >= ord("0")) & (together <= ord("9"))).sum() == len(together) - 2 * len(texts)
        if is_plain and len(dots) == len(ends) == len(texts) and max(map(len, texts)) < 20:
            decimals = ends - dots - 1
            if ((decimals > 0) & (decimals < 4)).all():  # so each text has one dot
                together = np.where(together == ord("."), ord(","), together).astype(np.uint8)
                whole, rest = np.fromstring(together.tobytes(), np.int64, sep=",").reshape(-1, 2).T
                return whole * 1000 + rest * 10 ** (3 - decimals)
        return np.array([self._time(*one, key) for one in zip(texts, places, strict=True)], np.int64)

    def _time(self, text: bytes, place: int, key: str) -> int:
        whole, _, rest = text.partition(b".")
        if len(rest) <= 3 and whole.isdigit() and len(whole) < 20:
            time = int(whole + rest.ljust(3, b"0"))
        else:
            try:
                time = round(Decimal(text.decode().strip('"')) * 1000) if len(text) < 40 else _LARGEST_NS
            except (ArithmeticError, ValueError):
                time = _LARGEST_NS
        if abs(time) >= _LARGEST_NS:
            raise self._fault(place, key, msgspec.json.decode(text or b"null"), "a time in microseconds")
        return time

    def _facts(self, given: _Arguments | None, *, with_shapes: bool = False) -> int:
        if given is None:
            return 0
        facts = {key: value for key in _FACTS if (value := getattr(given, key)) is not None}
        if with_shapes:
            for key, raws in (("dims", (given.dims, given.old_dims)), ("types", (given.types,))):
                for value in map(_small, raws):
                    facts |= {key: value} if isinstance(value, list) else {}
        if not facts:
            return 0
        self.trace.facts.append(facts)
        return len(self.trace.facts) - 1

    def _fault(self, place: int, key: str, value: Any, legal: str) -> InputError:
        shown = f"{ARRAY}.{place}: {key}: {value!r:.60}"
        return InputError(f"{self.trace.source}: {shown} is not legal; give {legal}")


_NO_ARGUMENTS = _Arguments()


def _whole(value: Any) -> int:
    """An identifier; 0 where there is none."""
    return value if type(value) is int and abs(value) < 1 << 62 else 0


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
