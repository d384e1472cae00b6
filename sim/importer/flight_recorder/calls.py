"""The entries of a flight recorder dump (torch's FlightRecorder, JSON format 2.x)."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.importer.dtypes import tensor_bytes, torch_dtype
from sim.importer.wording import stem_of

MOST = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective of one rank: times on this rank's clock, None where the recorder has none.

    ``sequence`` counts the collectives of ``group``; ``created_ns`` is its launch, ``completed_ns`` when the
    watchdog saw it done, which may be much later; ``duration_ns`` is the kernel's (TORCH_NCCL_ENABLE_TIMING).
    """

    group: str
    sequence: int
    op: int
    backend: str
    kind: str
    num_bytes: int
    num_elements: int
    dtype: str | None
    is_p2p: bool
    created_ns: int
    completed_ns: int | None
    duration_ns: int | None
    state: str
    is_done: bool

    def is_like(self, other: "Call") -> bool:
        """Whether both ranks recorded the same kind and size."""
        return (self.kind, self.num_bytes) == (other.kind, other.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's dump: its collectives in the order recorded."""

    source: str
    rank: int
    version: str
    library: str
    calls: tuple[Call, ...]
    group_ranks: dict[str, tuple[int, ...]]


def read_dump(document: Any, path: Path, number: int) -> Dump:
    """A dump from parsed JSON; its rank is the number its file name ends in, else ``number``.

    Raises:
        InputError: the document is no dump, it holds no collectives, or a value in it is not legal.
    """
    source = str(path)
    if not isinstance(document, dict) or not isinstance(document.get("version"), str):
        raise InputError(f"{source}: no flight recorder dump: 'version' and 'entries' are required")
    entries = document.get("entries", [])
    if not isinstance(entries, list) or not entries:
        raise InputError(
            f"{source}: entries: none; the recorder was off or empty (TORCH_FR_BUFFER_SIZE sets its length)"
        )
    calls = [_call(entry, f"{source}: entries.{place}") for place, entry in enumerate(entries)]
    ends = re.search(r"(\d{1,6})$", stem_of(path))
    return Dump(
        source=source,
        rank=int(ends[1]) if ends else number,
        version=document["version"],
        library=str(document.get("comm_lib_version") or document.get("nccl_version") or ""),
        calls=tuple(sorted(calls, key=lambda call: (call.created_ns, call.sequence, call.op))),
        group_ranks=_groups(document.get("pg_config"), source),
    )


def _call(entry: Any, source: str) -> Call:
    if not isinstance(entry, dict):
        raise InputError(f"{source}: not an object; give the recorder's entries as it writes them")
    group = entry.get("process_group", ["", ""])
    if isinstance(group, list) and group and isinstance(group[0], str):
        group = group[0]
    if not isinstance(group, str):
        raise InputError(f"{source}: process_group: {group!r:.60} is not legal; give [name, description]")
    name = entry.get("profiling_name")
    if not isinstance(name, str) or ":" not in name:
        raise InputError(f"{source}: profiling_name: {name!r:.60} is not legal; give 'nccl:all_reduce'")
    backend, kind = name.split(":", 1)
    num_bytes, elements, dtype = _sizes(entry, source)
    state = entry.get("state", "scheduled")
    if not isinstance(state, str):
        raise InputError(f"{source}: state: {state!r:.60} is not legal; give completed, started or scheduled")
    duration = entry.get("duration_ms")
    return Call(
        group=group,
        sequence=_integer(entry, "collective_seq_id", source, 0),
        op=_integer(entry, "op_id", source, 0),
        backend=backend,
        kind=kind.split(" ")[0],
        num_bytes=num_bytes,
        num_elements=elements,
        dtype=dtype,
        is_p2p=entry.get("is_p2p") is True,
        created_ns=_integer(entry, "time_created_ns", source, None),
        completed_ns=_integer(entry, "time_discovered_completed_ns", source, 0) or None,
        duration_ns=None if duration is None else _milliseconds(duration, source),
        state=state,
        # gloo has no events to ask: its entries stay "scheduled" and are retired when they are done.
        is_done=state == "completed" or entry.get("retired") is True,
    )


def _integer(entry: Mapping[str, Any], key: str, source: str, default: int | None) -> int:
    value = entry.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise InputError(f"{source}: {key}: {value!r:.60} is not legal; give an integer 0 to 2**62")
    return value


def _milliseconds(value: Any, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e12:
        raise InputError(f"{source}: duration_ms: {value!r:.60} is not legal; give a number >= 0")
    return round(value * 1e6)


def _sizes(entry: Mapping[str, Any], source: str) -> tuple[int, int, str | None]:
    """Bytes, elements and dtype of the inputs; sizes come as [[2, 3]], or as text of the same."""
    shapes, dtypes = _listed(entry, "input_sizes", source), _listed(entry, "input_dtypes", source)
    num_bytes = elements = 0
    known = None
    for shape, word in zip(shapes, dtypes, strict=False):
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise InputError(f"{source}: input_sizes: {shape!r:.60} is not legal; give a list of integers")
        known = torch_dtype(word) if isinstance(word, str) else None
        elements += math.prod(shape)
        num_bytes += tensor_bytes(shape, known) if known else 0
    if num_bytes > MOST or elements > MOST:
        raise InputError(f"{source}: input_sizes: {shapes!r:.60} is not legal; at most 2**62 bytes")
    return num_bytes, elements, known


def _listed(entry: Mapping[str, Any], key: str, source: str) -> list[Any]:
    value = entry.get(key, [])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list):
        raise InputError(f"{source}: {key}: {entry.get(key)!r:.60} is not legal; give a list")
    return value


def _groups(config: Any, source: str) -> dict[str, tuple[int, ...]]:
    """Ranks by name of the process group; ``ranks`` is a list or the text of one."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InputError(f"{source}: pg_config: {config!r:.60} is not legal; give an object")
    groups = {}
    for name, group in config.items():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            ranks = [int(word) for word in re.findall(r"\d{1,9}", ranks)]
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            groups[name] = tuple(ranks)
    return groups
