"""Reads what DDP's logger says from what it was written to: JSON, a Python dict, a line of a job's output."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError
from sim.importer.bounded_json import parse_bounded
from sim.nouns.ddp_switches import ARGUMENTS

# Keys that only DDP's logger writes (A4): one of them makes an object a log.
MARKS = (
    "bucket_sizes",
    "rebuilt_bucket_sizes",
    "avg_backward_comm_time",
    "prev_iteration_grad_ready_order_indices",
)
_ANY_MARK = re.compile("|".join(MARKS))
MOST = 2**62
MAX_LINE = 1 << 19  # characters of a log in one line; reading a Python dict takes 400 times its text
_DIGITS = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpLog:
    """A rank's ``ddp._get_ddp_logging_data()`` (A4): times in ns, sizes in parameter bytes, or None."""

    rank: int | None
    world_size: int | None
    backend: str | None
    dtypes: tuple[str, ...]
    bucket_cap_bytes: int | None
    bucket_sizes: tuple[int, ...] | None
    rebuilt_bucket_sizes: tuple[int, ...] | None
    rebuilt_indices: tuple[tuple[int, ...], ...] | None
    num_parameters: int | None
    total_bytes: int | None
    forward_ns: int | None
    backward_ns: int | None
    comm_ns: int | None
    overlap_ns: int | None
    iteration: int | None
    comm_hook: str | None
    switches: dict[str, bool]

    @property
    def buckets(self) -> tuple[int, ...]:
        """Bytes of the buckets that ran last, in launch order: rebuilt ones where there are any (A2.6)."""
        return self.rebuilt_bucket_sizes or self.bucket_sizes or ()

    @property
    def first_launch_ns(self) -> int | None:
        """ns from the end of forward to the launch of bucket 0: (E-S) - (E-C) (A4)."""
        if not self.backward_ns or not self.overlap_ns or self.overlap_ns > self.backward_ns:
            return None
        return self.backward_ns - self.overlap_ns

    @property
    def after_backward_ns(self) -> int | None:
        """ns of communication after the end of backward: (D-C) - (E-C) (A4)."""
        if not self.comm_ns or not self.overlap_ns or self.overlap_ns > self.comm_ns:
            return None
        return self.comm_ns - self.overlap_ns


def read_logs(text: str, source: str) -> tuple[list[DdpLog], int]:
    """All logs in a text, and the number of lines that looked like one and were not.

    The text is a log, a list of logs, an object with a list ``records`` or ``logs``, or lines, each with a
    log behind whatever a launcher put before it. A log is JSON, or in a line what Python prints of a dict.

    Raises:
        InputError: there is none, or a value in one is not legal.
    """
    fault: InputError | None = None
    found: list[Mapping[str, Any]] = []
    broken = 0
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = list(_logs_in(parse_bounded(text, source)))
        except InputError as error:
            fault = error
    if not found:
        found, broken = _in_lines(text)
    if not found:
        marks = ", ".join(MARKS[:3])
        raise fault or InputError(
            f"{source}: no log of DistributedDataParallel (none of {marks}); give what "
            f"_get_ddp_logging_data() returns, as JSON"
        )
    return [_log(log, f"{source}: log {number}") for number, log in enumerate(found)], broken


def _logs_in(document: Any) -> list[Mapping[str, Any]]:
    if isinstance(document, dict):
        if any(mark in document for mark in MARKS):
            return [document]
        document = document.get("records", document.get("logs", []))
    if not isinstance(document, list):
        return []
    return [log for log in document if isinstance(log, dict) and any(mark in log for mark in MARKS)]


def _in_lines(text: str) -> tuple[list[Mapping[str, Any]], int]:
    found: list[Mapping[str, Any]] = []
    broken = 0
    for line in _lines(text):
        log = _in_line(line)
        if log is None:
            broken += 1
        else:
            found.extend(_logs_in(log))
    return found, broken


def _lines(text: str) -> Iterator[str]:
    """The lines with a mark; a job's output may have millions of other lines."""
    end = 0
    while (mark := _ANY_MARK.search(text, end)) is not None:
        start = text.rfind("\n", end, mark.start()) + 1 or end
        end = text.find("\n", mark.end())
        end = len(text) if end < 0 else end
        yield text[start:end]


def _in_line(line: str) -> Any:
    """The object in a line, from its first brace on; None where there is no whole one."""
    start, end = line.find("{"), line.rfind("}")
    if start < 0 or len(line) > MAX_LINE:
        return None
    words = line[start : end + 1]
    try:
        return json.JSONDecoder().raw_decode(words)[0]
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(words)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _log(log: Mapping[str, Any], source: str) -> DdpLog:
    def number(*keys: str) -> int | None:
        return next((value for key in keys if (value := _integer(log, key, source)) is not None), None)

    def time(name: str) -> int | None:
        return _integer(log, f"avg_{name}", source) or _integer(log, name, source)

    return DdpLog(
        rank=number("rank"),
        world_size=number("world_size") or None,
        backend=_word(log, "backend_name"),
        dtypes=tuple(part.strip() for part in (_word(log, "dtypes") or "").split(",") if part.strip()),
        bucket_cap_bytes=number("bucket_cap_bytes"),
        bucket_sizes=_integers(log, "bucket_sizes", source),
        rebuilt_bucket_sizes=_integers(log, "rebuilt_bucket_sizes", source),
        rebuilt_indices=_index_lists(log, "rebuilt_per_bucket_param_indices", source),
        num_parameters=number("num_parameter_tensors"),
        total_bytes=number("total_parameter_size_bytes"),
        forward_ns=time("forward_compute_time"),
        backward_ns=time("backward_compute_time"),
        comm_ns=time("backward_comm_time"),
        overlap_ns=time("backward_compute_comm_overlap_time"),
        iteration=number("iteration"),
        comm_hook=_word(log, "comm_hook"),
        switches={
            key: bool(value)
            for key in (one.name for one in ARGUMENTS if one.logged)
            if (value := _integer(log, key, source)) is not None
        },
    )


def _word(log: Mapping[str, Any], key: str) -> str | None:
    value = log.get(key)
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _integer(log: Mapping[str, Any], key: str, source: str) -> int | None:
    value = log.get(key)
    if value is None or value in ("", "N/A"):
        return None
    return _to_int(value, key, source)


def _to_int(value: Any, key: str, source: str) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -1 <= value <= MOST:
        raise InputError(f"{source}: {key}: {value!r:.40} is not legal; give an integer 0 to 2**62")
    return value


def _integers(log: Mapping[str, Any], key: str, source: str) -> tuple[int, ...] | None:
    """``"81792, 82816"`` or a list of numbers; None where absent or empty."""
    value = log.get(key)
    if isinstance(value, str):
        value = [part for part in value.replace(",", " ").split() if part != "N/A"]
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError(f"{source}: {key}: {str(value)[:40]!r} is not legal; give numbers with commas")
    numbers = tuple(_to_int(part, key, source) for part in value)
    if any(part < 0 for part in numbers):
        raise InputError(f"{source}: {key}: {min(numbers)} is not legal; give numbers of 0 and more")
    return numbers or None


def _index_lists(log: Mapping[str, Any], key: str, source: str) -> tuple[tuple[int, ...], ...] | None:
    """``"9 8 7, 6 5"`` or a list of lists."""
    value = log.get(key)
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if not value:
        return None
    if not isinstance(value, list):
        raise InputError(f"{source}: {key}: {str(value)[:40]!r} is not legal; give '9 8 7, 6 5'")
    return tuple(_integers({key: part}, key, source) or () for part in value)
