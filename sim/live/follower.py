"""Recordings that are still being written: a follower reads only what is new of each rank's file.

Lines are checked as ``load_recording`` checks them; one that is damaged is left out and told, and what
follows it is read all the same. A last line that is not whole waits. All steps are kept in short, the first
ones whole, so that memory stays bounded however long the job runs.
"""

import os
import time
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.formats.recordings import check_one_run, rank_of, read_header, read_line
from sim.importer.recorded import warmup_steps
from sim.nouns.recording import (
    RecordedEnd,
    RecordedLayout,
    RecordedRank,
    RecordedStep,
    Recording,
    RecordingHeader,
)

WHOLE_STEPS = 128  # of each rank; fewer where there are many ranks
FEWEST_WHOLE_STEPS = 31  # 11 of warm-up on a GPU and 20 to predict from, however many ranks there are
MOST_WHOLE_STEPS = 4096  # over all ranks, unless they are the fewest; one of 161 parameters takes about 8 KiB
MOST_ROWS = 1_000_000  # over all ranks, 48 bytes each
MOST_ROWS_A_RANK = 200_000
MOST_FAULTS = 20  # told in words; the others are counted
MOST_NS = 1 << 59  # 18 years; sums of a few fit a column
LAST_NS = 1 << 62  # of the clock: the year 2116
_CHUNK_BYTES = 256 << 10
_MARK_BYTES = 64

# A step in short, times in ns. ``own`` is a rank's own work until its backward has ended, without waiting in
# DDP's finalize; ``backwards`` counts micro-batches, ``reduced`` those that were synchronised.
COLUMNS = ("step", "started_at", "step_ns", "own", "backwards", "reduced")
ROW = np.dtype([(name, np.int64) for name in COLUMNS])
Rows = Any  # a np.recarray of ROW: a column is an attribute

_runs = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRank:
    """One rank's file so far. ``written_at_s`` is when it last grew (Unix epoch, the file system's clock).

    ``end`` is there once the job has closed the recording.
    """

    header: RecordingHeader
    layouts: tuple[RecordedLayout, ...]
    steps: Rows
    written_at_s: float
    end: RecordedEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was read of a recording so far; ``run`` changes when another run takes its place.

    ``first`` holds the first steps of each rank whole (None before the first rank's header), so many that a
    window can have ``whole_steps`` after ``warmup_steps``. ``faults`` are lines or files that could not be
    used, the first few of ``fault_count``; ``forgotten`` counts the first steps of a rank that are no longer
    kept, the most of any. ``unread_bytes`` are still to be read, over all ranks.
    """

    run: str
    ranks: tuple[FollowedRank, ...] = ()
    first: Recording | None = None
    whole_steps: int = 0
    warmup_steps: int = 0
    unread_bytes: int = 0
    faults: tuple[str, ...] = ()
    fault_count: int = 0
    forgotten: int = 0


def find_recordings(directory: str | os.PathLike[str], most: int = 200) -> tuple[Path, ...]:
    """Directories with rank files: ``directory`` and two levels below it, the last written first."""
    newest: dict[Path, float] = {}
    for below in ("", "*/", "*/*/"):
        for path in Path(directory).glob(f"{below}rank-*.jsonl"):
            if rank_of(path) is not None:
                with suppress(OSError):  # it went away meanwhile
                    newest[path.parent] = max(newest.get(path.parent, 0.0), path.stat().st_mtime)
    return tuple(sorted(newest, key=lambda folder: (-newest[folder], folder))[:most])


def steps_to_keep(ranks: int) -> int:
    """How many steps of each rank are kept whole, from the first on."""
    return min(WHOLE_STEPS, max(FEWEST_WHOLE_STEPS, MOST_WHOLE_STEPS // max(1, ranks)))


class Follower:
    """What reads a recording while it is written: each ``refresh()`` reads what is new.

    It may be shared by threads. A directory that is not there yet, or is empty, has no ranks.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._lock = Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._files: dict[int, _RankFile] = {}
        self._run = f"{self.directory} {os.getpid()} {next(_runs)}"
        self._seen: Followed | None = None

    def refresh(self, limit_s: float = 1.0) -> Followed:
        """All that was read so far, with what is new since the last call.

        Reading stops after about ``limit_s`` seconds and goes on in the next call; ``unread_bytes`` says
        how much is left. A file that is shorter or another than before begins another run.
        """
        with self._lock:
            paths, deadline = self._paths(), time.monotonic() + limit_s
            if self._files.keys() - paths.keys():
                self._start_over()
            try:
                is_new = self._read(paths, deadline)
            except _ReplacedError:
                self._start_over()
                is_new = self._read(paths, deadline)
            if self._seen is None or is_new:
                self._seen = self._snapshot()
            return self._seen

    def _paths(self) -> dict[int, Path]:
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}
        paths = {rank: self.directory / name for name in names if (rank := rank_of(Path(name))) is not None}
        return {rank: paths[rank] for rank in sorted(paths) if paths[rank].is_file()}

    def _read(self, paths: dict[int, Path], deadline: float) -> bool:
        """Read in turns, a piece of each rank, so that none runs ahead; whether anything was new."""
        for rank in paths.keys() - self._files.keys():
            self._files[rank] = _RankFile(paths[rank])
        keep, rows = steps_to_keep(len(paths)), min(MOST_ROWS_A_RANK, MOST_ROWS // max(1, len(paths)))
        waiting = deque(sorted(self._files.values(), key=lambda file: file.offset))
        for file in waiting:
            file.look()
        is_new = False
        while waiting and not (is_new and time.monotonic() >= deadline):
            file = waiting.popleft()
            if file.read_on(keep, rows):
                is_new = True
                waiting.append(file)
        return is_new

    def _snapshot(self) -> Followed:
        faults, known = [], list[_RankFile]()
        for _, file in sorted(self._files.items()):
            if file.trouble:
                faults.append(file.trouble)
            if file.header is None:
                continue
            try:
                check_one_run([*(one.header for one in known[:1] if one.header), file.header], self.directory)
                known.append(file)
            except InputError as error:
                faults.append(str(error))
        counts = len(faults) + sum(file.fault_count for file in self._files.values())
        faults += [fault for file in self._files.values() for fault in file.faults]
        kept, name = tuple(file.recorded() for file in known), self.directory.name or str(self.directory)
        first = Recording(name=name, ranks=kept) if kept else None
        warmup = warmup_steps(first.ranks[0].header.clock) if first else 0
        return Followed(
            run=self._run,
            ranks=tuple(file.followed() for file in known),
            first=first,
            whole_steps=steps_to_keep(len(self._files)) - warmup if first else 0,
            warmup_steps=warmup,
            unread_bytes=sum(file.size - file.offset for file in self._files.values()),
            faults=tuple(faults[:MOST_FAULTS]),
            fault_count=counts,
            forgotten=max((file.forgotten for file in known), default=0),
        )


class _ReplacedError(Exception):
    """A file holds something else than was read of it."""


@dataclass(slots=True, eq=False)
class _RankFile:
    """How far one rank's file was read. ``offset`` counts the bytes taken from it, ``pending`` among them."""

    path: Path
    header: RecordingHeader | None = None
    layouts: list[RecordedLayout] = field(default_factory=list)
    first: list[RecordedStep] = field(default_factory=list)
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0
    trouble: str = ""  # why it cannot be read now
    end: RecordedEnd | None = None
    forgotten: int = 0
    written_at_s: float = 0.0
    size: int = 0
    offset: int = 0
    pending: bytes = b""
    _mark: bytes = b""  # the last bytes that were read, which are still there unless another file is
    _line: int = 0
    _step: int = 0

    def look(self) -> None:
        """How much there is to read."""
        with suppress(OSError):
            self.size = max(self.offset, self.path.stat().st_size)

    def read_on(self, keep: int, rows: int) -> bool:
        """Read another piece and take its whole lines; False where there was nothing new.

        Raises:
            _ReplacedError: what was read before is not there any more.
        """
        was, self.trouble = self.trouble, ""
        try:
            with self.path.open("rb") as stream:
                self.written_at_s = os.fstat(stream.fileno()).st_mtime
                stream.seek(self.offset - len(self._mark))
                piece = stream.read(len(self._mark) + _CHUNK_BYTES)
        except OSError as error:
            self.trouble = f"{self.path}: cannot be read: {error.strerror or error}"
            return self.trouble != was
        if not piece.startswith(self._mark):
            raise _ReplacedError
        new = piece[len(self._mark) :]
        self._mark = piece[-_MARK_BYTES:]
        self.offset += len(new)
        self.size = max(self.size, self.offset)
        *lines, self.pending = (self.pending + new).split(b"\n")
        for line in lines:
            self._line += 1
            if self.header is not None or self._line == 1:  # else nothing that follows can be read
                self._take(line, keep, rows)
        return bool(new) or self.trouble != was

    def _take(self, line: bytes, keep: int, rows: int) -> None:
        try:
            if self.header is None:
                self.header = read_header(line, self.path)
                return
            found = read_line(line, f"{self.path}: line {self._line}", self.header, after=self._step)
            if isinstance(found, RecordedStep):
                self._take_step(found, keep, rows)
            elif isinstance(found, RecordedEnd):
                self.end = found
            else:
                self.layouts.append(found)
        except InputError as error:
            self.fault_count += 1
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(str(error))

    def _take_step(self, step: RecordedStep, keep: int, rows: int) -> None:
        last = step.backwards[-1]
        sync = sum(one.sync_end_ns - one.backward_ns for one in step.backwards)
        times = (step.step_ns, last.forward_end_ns + last.sync_end_ns - sync)
        if not 0 <= step.started_at_ns <= LAST_NS or max(map(abs, times)) > MOST_NS:
            raise InputError(f"{self.path}: line {self._line}: a time beyond {MOST_NS} ns or 2116; left out")
        self._step = step.step
        reduced = sum(one.synchronised for one in step.backwards)
        self.rows.extend((step.step, step.started_at_ns, *times, len(step.backwards), reduced))
        if len(self.rows) > rows * len(COLUMNS):
            many = max(1, rows // 4)
            self.forgotten += many
            del self.rows[: many * len(COLUMNS)]
        if len(self.first) < keep:
            self.first.append(step)

    def recorded(self) -> RecordedRank:
        """The first steps, whole."""
        assert self.header is not None
        layouts, steps = tuple(self.layouts), tuple(self.first)
        return RecordedRank(header=self.header, layouts=layouts, steps=steps, torn=bool(self.pending))

    def followed(self) -> FollowedRank:
        """What was read so far; nothing that is read later changes it."""
        assert self.header is not None
        return FollowedRank(
            header=self.header,
            layouts=tuple(self.layouts),
            steps=np.frombuffer(self.rows.tobytes(), ROW).view(np.recarray),
            written_at_s=self.written_at_s,
            end=self.end,
        )
