"""Recordings that are still being written: a follower reads only what is new of each rank's file.

Lines are checked as ``load_recording`` checks them; one that is damaged is left out and told, and what
follows it is read all the same. A last line that is not whole waits. All steps are kept in short, the first
and the last ones whole, so that memory stays bounded however long the job runs.
"""

import os
import time
from array import array
from collections import deque
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from sim.errors import InputError
from sim.formats.recordings import check_one_run, rank_of, read_header, read_line
from sim.importer.recorded.recorded_workload import warmup_steps
from sim.nouns.recording import (
    RecordedEnd,
    RecordedLayout,
    RecordedRank,
    RecordedStep,
    Recording,
    RecordingHeader,
)

Column: TypeAlias = "array[int]"  # signed, 64 bits
WHOLE_STEPS = 128  # of each rank, first and last; fewer where there are many ranks
FEWEST_WHOLE_STEPS = 31  # 11 of warm-up on a GPU and 20 to predict from, however many ranks there are
MOST_WHOLE_STEPS = 4096  # over all ranks, unless they are the fewest; one of 161 parameters takes about 8 KiB
MOST_ROWS = 1_000_000  # over all ranks, 88 bytes each
MOST_ROWS_A_RANK = 200_000
MOST_RANKS = 512
MOST_FAULTS = 20  # told in words; the others are counted
MOST_LINE_BYTES = 64 << 20
MOST_NS = 1 << 59  # 18 years; sums of a few fit a column
LAST_NS = 1 << 62  # of the clock: the year 2116
MOST_LOOKED_AT = 10_000  # directory entries
_CHUNK_BYTES = 256 << 10
_MARK_BYTES = 64

_runs = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Steps in their parts, a column each, times in ns.

    The parts are sums over a step's micro-batches: ``sync`` is what follows the end of backward until DDP's
    finalize has ended, ``before`` all that is neither (buffer broadcasts, gaps between micro-batches).
    ``optimizer`` is -1 where no optimizer step was seen.
    """

    step: Column
    started_at: Column
    step_ns: Column
    before: Column
    forward: Column
    backward: Column
    sync: Column
    optimizer: Column

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable(StepColumns):
    """All steps of one rank. ``arrival`` is the end of the last backward since the step began.

    ``backwards`` counts micro-batches, ``reduced`` those of them that were synchronised.
    """

    arrival: Column
    backwards: Column
    reduced: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRank:
    """One rank's file so far. ``written_at_s`` is when it last grew (Unix epoch, the file system's clock).

    ``unread_bytes`` are still to be read, ``torn_bytes`` of a last line that is not whole yet. ``end`` is
    there once the job has closed the recording.
    """

    header: RecordingHeader
    layouts: tuple[RecordedLayout, ...]
    steps: StepTable
    written_at_s: float
    unread_bytes: int = 0
    torn_bytes: int = 0
    end: RecordedEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was read of a recording so far; ``run`` changes when another run takes its place.

    ``first`` and ``latest`` hold whole steps: the first ones of each rank and the last ones (None before the
    first rank's header), so many that a window can have ``whole_steps`` after ``warmup_steps``. ``faults``
    are lines or files that could not be used, the first few of
    ``fault_count``; ``dropped`` says what was read and is not kept.
    """

    name: str
    run: str
    ranks: tuple[FollowedRank, ...] = ()
    first: Recording | None = None
    latest: Recording | None = None
    whole_steps: int = 0
    warmup_steps: int = 0
    faults: tuple[str, ...] = ()
    fault_count: int = 0
    dropped: tuple[str, ...] = ()

    @property
    def step_count(self) -> int:
        """Steps of the rank that is furthest."""
        return max((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def unread_bytes(self) -> int:
        """What is still to be read, over all ranks."""
        return sum(rank.unread_bytes for rank in self.ranks)


def find_recordings(directory: str | os.PathLike[str], most: int = 200) -> tuple[Path, ...]:
    """Directories with rank files: ``directory`` and two levels below it, the last written first."""
    looked_at, found = 0, []
    level = [Path(directory)]
    for depth in range(3):
        below: list[Path] = []
        for folder in level:
            newest = -1.0
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        looked_at += 1
                        if looked_at > MOST_LOOKED_AT:
                            break
                        if rank_of(Path(entry.name)) is not None:
                            newest = max(newest, entry.stat().st_mtime)
                        elif depth < 2 and entry.is_dir(follow_symlinks=False):
                            below.append(Path(entry.path))
            except OSError:
                continue  # it went away, or is not ours to read: there is no recording to show
            if newest >= 0:
                found.append((newest, folder))
        level = below
    return tuple(folder for _, folder in sorted(found, key=lambda one: (-one[0], one[1]))[:most])


def steps_to_keep(ranks: int) -> int:
    """How many steps of each rank are kept whole, from the first on and up to the last."""
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
        self._broken: dict[int, str] = {}
        self._run = f"{self.directory} {os.getpid()} {next(_runs)}"
        self._seen: Followed | None = None

    def refresh(self, limit_s: float = 1.0) -> Followed:
        """All that was read so far, with what is new since the last call.

        Reading stops after about ``limit_s`` seconds and goes on in the next call; ``unread_bytes`` says
        how much is left. A file that is shorter or another than before begins another run.
        """
        with self._lock:
            paths = self._paths()
            if any(rank not in paths or file.is_replaced(paths[rank]) for rank, file in self._files.items()):
                self._start_over()
            was_broken = dict(self._broken)
            is_new = self._read(paths, time.monotonic() + limit_s)
            if self._seen is None or is_new or was_broken != self._broken:
                self._seen = self._snapshot(len(paths))
            return self._seen

    def _paths(self) -> dict[int, Path]:
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}
        paths = {rank: self.directory / name for name in names if (rank := rank_of(Path(name))) is not None}
        return {rank: paths[rank] for rank in sorted(paths)[:MOST_RANKS] if paths[rank].is_file()}

    def _read(self, paths: dict[int, Path], deadline: float) -> bool:
        """Read in turns, a piece of each rank, so that none runs ahead; whether anything was new."""
        for rank, path in paths.items():
            self._files.setdefault(rank, _RankFile(path))
        keep = steps_to_keep(len(paths))
        rows = min(MOST_ROWS_A_RANK, MOST_ROWS // max(1, len(paths)))
        is_new, waiting = False, list(self._files)
        while waiting:
            for rank in list(waiting):
                try:
                    moved = self._files[rank].read_on(keep, rows, deadline)
                    self._broken.pop(rank, None)
                except OSError as error:
                    self._broken[rank] = f"{paths[rank]}: cannot be read: {error.strerror or error}"
                    moved = False
                is_new = is_new or moved
                if not moved:
                    waiting.remove(rank)
            if time.monotonic() >= deadline:
                break
        return is_new

    def _snapshot(self, count_of_ranks: int) -> Followed:
        faults = [*self._broken.values()]
        known: list[_RankFile] = []
        refused = 0
        for _, file in sorted(self._files.items()):
            if file.header is None:
                continue
            try:
                check_one_run([*(one.header for one in known[:1] if one.header), file.header], self.directory)
                known.append(file)
            except InputError as error:
                faults.append(str(error))
                refused += 1
        for file in self._files.values():
            faults += file.faults
        fault_count = len(self._broken) + refused + sum(file.fault_count for file in self._files.values())
        first = self._recording(known, [file.first for file in known])
        warmup = warmup_steps(first) if first else 0
        return Followed(
            name=self.directory.name or str(self.directory),
            run=self._run,
            ranks=tuple(file.followed() for file in known),
            first=first,
            latest=self._recording(known, [list(file.last) for file in known]),
            whole_steps=steps_to_keep(count_of_ranks) - warmup if first else 0,
            warmup_steps=warmup,
            faults=tuple(faults[:MOST_FAULTS]),
            fault_count=fault_count,
            dropped=self._dropped(known, count_of_ranks),
        )

    def _recording(self, files: list["_RankFile"], steps: list[list[RecordedStep]]) -> Recording | None:
        ranks = [
            RecordedRank(
                header=file.header, layouts=tuple(file.layouts), steps=tuple(some), torn=bool(file.pending)
            )
            for file, some in zip(files, steps, strict=True)
            if file.header is not None
        ]
        name = self.directory.name or str(self.directory)
        return Recording(name=name, ranks=tuple(ranks)) if ranks else None

    def _dropped(self, files: list["_RankFile"], count_of_ranks: int) -> tuple[str, ...]:
        told = []
        forgotten = max((file.forgotten for file in files), default=0)
        if forgotten:
            told.append(f"the first {forgotten} steps, as only the last {MOST_ROWS_A_RANK} at most are kept")
        if count_of_ranks >= MOST_RANKS:
            told.append(f"ranks beyond the first {MOST_RANKS}")
        return tuple(told)


def _columns() -> StepTable:
    return StepTable(**{one.name: array("q") for one in fields(StepTable)})


def _row(step: RecordedStep) -> dict[str, int]:
    """A step in short: see ``StepTable``."""
    last = step.backwards[-1]
    forward = sum(one.forward_ns for one in step.backwards)
    backward = sum(one.backward_ns for one in step.backwards)
    sync = sum(one.sync_end_ns - one.backward_ns for one in step.backwards)
    return {
        "step": step.step,
        "started_at": step.started_at_ns,
        "step_ns": step.step_ns,
        "before": last.forward_end_ns + last.sync_end_ns - forward - backward - sync,
        "forward": forward,
        "backward": backward,
        "sync": sync,
        "optimizer": -1 if step.optimizer_ns is None else step.optimizer_ns,
        "arrival": last.forward_end_ns + last.backward_ns,
        "backwards": len(step.backwards),
        "reduced": sum(backward.synchronised for backward in step.backwards),
    }


@dataclass(slots=True, eq=False)
class _RankFile:
    """How far one rank's file was read. ``offset`` counts the bytes taken from it, ``pending`` among them."""

    path: Path
    header: RecordingHeader | None = None
    layouts: list[RecordedLayout] = field(default_factory=list)
    first: list[RecordedStep] = field(default_factory=list)
    last: deque[RecordedStep] = field(default_factory=deque)
    steps: StepTable = field(default_factory=_columns)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0
    end: RecordedEnd | None = None
    forgotten: int = 0
    written_at_s: float = 0.0
    size: int = 0
    offset: int = 0
    pending: bytes = b""
    _identity: tuple[int, int] | None = None
    _stamp: tuple[int, int] | None = None
    _mark: bytes = b""
    _line: int = 0
    _step: int = 0
    _is_usable: bool = True  # False: the header cannot be read, and so nothing that follows
    _skips: bool = False  # in a line that is too long

    def is_replaced(self, path: Path) -> bool:
        """Whether another file is there now, or the same one holds something else."""
        try:
            status = path.stat()
        except OSError:
            return self._identity is not None
        if self._identity is None or self._stamp == (status.st_mtime_ns, status.st_size):
            return False
        if (status.st_dev, status.st_ino) != self._identity or status.st_size < self.offset:
            return True
        with path.open("rb") as stream:
            stream.seek(self.offset - len(self._mark))
            return stream.read(len(self._mark)) != self._mark

    def read_on(self, keep: int, rows: int, deadline: float) -> bool:
        """Read another piece and take its whole lines; False where there was nothing new."""
        if b"\n" in self.pending:
            self._take_lines(keep, rows, deadline)
            return True
        status = self.path.stat()
        if self._stamp == (status.st_mtime_ns, status.st_size) and self.offset >= status.st_size:
            return False
        with self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            stamp = status.st_mtime_ns, status.st_size
            stream.seek(self.offset)
            piece = stream.read(_CHUNK_BYTES)
        self._identity, self._stamp = (status.st_dev, status.st_ino), stamp
        self.size, self.written_at_s = max(status.st_size, self.offset + len(piece)), status.st_mtime
        if not piece:
            return False
        self.offset += len(piece)
        self._mark = (self._mark + piece)[-_MARK_BYTES:]
        self.pending += piece
        self._take_lines(keep, rows, deadline)
        return True

    def _take_lines(self, keep: int, rows: int, deadline: float) -> None:
        """Take the whole lines of ``pending``, at least one, until the time is over."""
        begin = 0
        while (end := self.pending.find(b"\n", begin)) >= 0:
            self._line += 1
            if self._skips:
                self._skips = False
            else:
                self._take(self.pending[begin:end], keep, rows)
            begin = end + 1
            if time.monotonic() >= deadline:
                break
        self.pending = self.pending[begin:]
        if len(self.pending) > MOST_LINE_BYTES and b"\n" not in self.pending:
            if not self._skips:
                self._fault(
                    f"{self.path}: line {self._line + 1}: more than {MOST_LINE_BYTES} bytes; left out"
                )
            self._skips, self.pending = True, b""

    def _take(self, line: bytes, keep: int, rows: int) -> None:
        if not self._is_usable:
            return
        try:
            if self.header is None:
                self.header = read_header(line, self.path)
                return
            found = read_line(line, f"{self.path}: line {self._line}", self.header, after=self._step)
        except InputError as error:
            self._is_usable = self.header is not None
            self._fault(str(error))
            return
        if isinstance(found, RecordedStep):
            self._take_step(found, keep, rows)
        elif isinstance(found, RecordedEnd):
            self.end = found
        else:
            self.layouts.append(found)

    def _take_step(self, step: RecordedStep, keep: int, rows: int) -> None:
        row = _row(step)
        is_legal = 0 <= step.started_at_ns <= LAST_NS
        if not is_legal or any(abs(row[name]) > MOST_NS for name in row if name != "started_at"):
            self._fault(f"{self.path}: line {self._line}: a time beyond {MOST_NS} ns or 2116; left out")
            return
        self._step = step.step
        if len(self.first) < keep:
            self.first.append(step)
        self.last.append(step)
        while len(self.last) > keep:
            self.last.popleft()
        for name, value in row.items():
            getattr(self.steps, name).append(value)
        if len(self.steps) > rows:
            many = max(1, rows // 4)
            self.forgotten += many
            for name in row:
                del getattr(self.steps, name)[:many]

    def _fault(self, words: str) -> None:
        self.fault_count += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(words)

    def followed(self) -> FollowedRank:
        """What was read so far; nothing that is read later changes it."""
        assert self.header is not None
        has_whole_line = b"\n" in self.pending
        return FollowedRank(
            header=self.header,
            layouts=tuple(self.layouts),
            steps=StepTable(**{one.name: getattr(self.steps, one.name)[:] for one in fields(StepTable)}),
            written_at_s=self.written_at_s,
            unread_bytes=self.size - self.offset + (len(self.pending) if has_whole_line else 0),
            torn_bytes=0 if has_whole_line else len(self.pending),
            end=self.end,
        )
