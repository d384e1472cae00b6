"""What a training loop did and which collectives that brought, told from one clock.

The flight recorder writes down every collective with the time at which it was launched; the loop writes down
where it is. Put together by time they give events: ``kind``, ``elements``, ``dtype``, ``phase``,
``gradient``, ``root``, and ``iteration`` (from 1; 0 before the first) and ``micro_batch`` (from 1).
"""

import bisect
import json
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._distributed_c10d import _dump_fr_trace_json

Event = dict[str, Any]
_DTYPES = {
    **{"Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64"},
    **{"Int": "int32", "Long": "int64", "Byte": "uint8"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where the loop is from ``time_ns`` on."""

    time_ns: int
    phase: str
    iteration: int
    micro_batch: int
    gradient: int | None = None
    root: int | None = None


@dataclass(slots=True)
class Diary:
    """Where the loop was when."""

    marks: list[Mark] = field(default_factory=list)
    _first: int = 0

    def start(self) -> None:
        """Forget all marks, and every collective up to now."""
        self.marks.clear()
        self._first = 1 + max((entry["record_id"] for entry in _recorded()), default=-1)

    def enter(self, phase: str, iteration: int, micro_batch: int) -> None:
        """From now on the loop is in another iteration or micro-batch."""
        self._write(phase, iteration, micro_batch)

    def at(self, phase: str, *, gradient: int | None = None, root: int | None = None) -> None:
        """From now on the loop is in ``phase``, in the hook of ``gradient``, broadcasting from ``root``."""
        last = self.marks[-1]
        self._write(phase, last.iteration, last.micro_batch, gradient=gradient, root=root)

    def _write(self, phase: str, iteration: int, micro_batch: int, **more: int | None) -> None:
        self.marks.append(
            Mark(time_ns=time.time_ns(), phase=phase, iteration=iteration, micro_batch=micro_batch, **more)
        )

    def events(self) -> list[Event]:
        """Every collective since ``start``, in the order of launches."""
        entries = [entry for entry in _recorded() if entry["record_id"] >= self._first]
        numbers = [entry["record_id"] for entry in entries]
        assert numbers == list(range(self._first, self._first + len(entries))), (
            "the flight recorder forgot collectives: TORCH_FR_BUFFER_SIZE is too small"
        )
        times = [mark.time_ns for mark in self.marks]
        return [
            _event(entry, self.marks[bisect.bisect_right(times, entry["time_created_ns"]) - 1])
            for entry in entries
        ]


def _recorded() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(_dump_fr_trace_json()).get("entries", [])
    return sorted(entries, key=lambda entry: entry["record_id"])


def _event(entry: dict[str, Any], mark: Mark) -> Event:
    kind = entry["profiling_name"].removeprefix("gloo:").removeprefix("sparse_")
    return {
        "kind": kind,
        "elements": sum(torch.Size(size).numel() for size in entry["input_sizes"]),
        "dtype": _DTYPES[entry["input_dtypes"][0]],
        "phase": mark.phase,
        "gradient": mark.gradient,
        "root": mark.root or 0 if kind == "broadcast" else None,
        "iteration": mark.iteration,
        "micro_batch": mark.micro_batch,
    }
