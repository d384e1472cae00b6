"""Watches over ranks started on this machine: hands on their events, and names the one that fails."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sim.errors import ReplayError
from sim.validator.ranks.process import notices
from sim.validator.ranks.process.beats import Fault, Observer, WakingClock

POLL_S = 0.1
_GRACE_S, _LONG_GRACE_S = 3.0, 15.0
# What torchrun reports of a rank that failed; the exit code is negative where a signal ended it.
_ENDED = re.compile(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+) \(pid")
# What torchrun itself says when a signal ends it.
_TOLD_TO_END = re.compile(r"SignalException: Process \d+ got signal: (\d+)")
_REASON = re.compile(r"rank \d+: ")
# Where its report of ranks that failed begins; and the lines of its log.
_TORCHRUN_SAYS = "failed (exitcode: "
_LOGGED = re.compile(r"\[?[EWI]\d{4} ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launcher process, the ranks that it started, and what they print, kept in memory."""

    process: subprocess.Popen[bytes]
    ranks: tuple[int, ...]
    log: BinaryIO

    def said(self) -> str:
        """All that was printed so far."""
        return os.pread(self.log.fileno(), 1 << 24, 0).decode(errors="replace")


class EventFile:
    """Reads the events that rank 0 appends, each once; a line that is not whole yet is left for later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def fresh(self) -> Iterator[dict[str, Any]]:
        """The events since the last call."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._position)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                try:
                    event = json.loads(line)
                except ValueError:
                    raise ReplayError(
                        f"{self._path}: byte {self._position}: not a line of JSON; run the job again"
                    ) from None
                self._position += len(line)
                yield event


class Watch:
    """Ranks that run: hands on their events, and names the one that fails.

    Args:
        launched: the launchers, with the ranks of each.
        folder: where the ranks leave events, beats and failures.
        on_event: is handed every event.
        quiet_s: how long the ranks may be quiet before they make steps.
    """

    def __init__(
        self,
        launched: Sequence[Launched],
        folder: Path,
        on_event: Callable[[dict[str, Any]], None],
        quiet_s: float,
    ) -> None:
        self._launched, self._folder, self._on_event = launched, folder, on_event
        self._observer = Observer((rank for one in launched for rank in one.ranks), quiet_s, WakingClock())
        self._events = EventFile(folder / notices.EVENTS)
        self._finished = False
        self._failed_at: float | None = None

    def poll(self) -> bool:
        """Hand on what is new; True once all ranks have ended with a result. Ask every tenth of a second.

        Raises:
            ReplayError: a rank failed, died, or is silent or behind; the message names it.
        """
        launched, folder = self._launched, self._folder
        codes = [one.process.poll() for one in launched]
        for event in self._events.fresh():
            self._finished = self._finished or event["event"] == "finished"
            self._on_event(event)
        for rank, beat in notices.read_beats(folder).items():
            self._observer.see(rank, beat)
        if any(codes) or notices.failures(folder) or notices.left_alone(folder):
            # Those that lost touch often complain before their launcher sees who died.
            self._failed_at = self._failed_at or time.monotonic()
            culprit = _culprit(launched, folder, self._observer)
            grace_s = _LONG_GRACE_S if culprit is None else _GRACE_S
            if None not in codes or time.monotonic() - self._failed_at > grace_s:
                raise ReplayError(f"replay: {culprit or _left_alone(launched, folder, self._observer)}")
        elif None not in codes:
            if not self._finished:
                raise ReplayError(f"replay: the ranks ended without a result: {_last_line(launched)}")
            return True
        elif (fault := self._observer.silent() or self._observer.standing_still()) is not None:
            raise ReplayError(f"replay: {_in_words(fault)}")
        return False


def watch(
    launched: Sequence[Launched],
    folder: Path,
    on_event: Callable[[dict[str, Any]], None],
    quiet_s: float,
) -> None:
    """Hand every event to ``on_event`` until all ranks have ended.

    Raises:
        ReplayError: a rank failed, died, or is silent or behind; the message names it.
    """
    ranks = Watch(launched, folder, on_event, quiet_s)
    while not ranks.poll():
        time.sleep(POLL_S)


def _in_words(fault: Fault) -> str:
    return f"{_names(fault.ranks)}: {fault.reason}" if fault.ranks else fault.reason


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _culprit(launched: Sequence[Launched], folder: Path, observer: Observer) -> str | None:
    """The launcher or rank that a signal ended, or else the rank that gave a reason of its own first.

    None: not known yet.
    """
    logs = [one.said() for one in launched]
    for one, log in zip(launched, logs, strict=True):
        code = one.process.returncode or 0
        if (number := -code if code < 0 else int((_TOLD_TO_END.findall(log) or ["0"])[0])) > 0:
            return f"the launcher of {_names(one.ranks)} was killed by {signal.Signals(number).name}"
    for log in logs:
        for rank, code in _ended(log):
            if code < 0 and -code != signal.SIGTERM:  # torchrun's own, to the ranks that are left
                return f"rank {rank} was killed by {signal.Signals(-code).name}, {observer.describe(rank)}"
    for rank, reason in notices.failures(folder).items():
        return f"rank {rank}: {reason}"
    # A rank that could not write its reason printed it.
    said = (line for log in logs for line in log.splitlines() if _REASON.match(line))
    return next(said, None)


def _left_alone(launched: Sequence[Launched], folder: Path, observer: Observer) -> str:
    """What is left to say where no rank is known to have failed."""
    ranks = [rank for one in launched for rank in one.ranks]
    for rank, reason in notices.left_alone(folder).items():
        others = "; ".join(f"rank {k} {observer.describe(k)}" for k in ranks if k != rank)
        return f"rank {rank} lost touch with the others: {reason} ({others})"
    for one in launched:
        if one.process.returncode:
            ended = [(rank, code) for rank, code in _ended(one.said()) if code >= 0]
            who = f"rank {ended[-1][0]} ended with exit code {ended[-1][1]}" if ended else None
            return f"{who or f'the launcher of {_names(one.ranks)} failed'}: {_last_line([one])}"
    return f"a rank failed: {_last_line(launched)}"


def _ended(log: str) -> list[tuple[int, int]]:
    """Ranks and exit codes that torchrun reports."""
    return [(int(rank), int(code)) for rank, code in _ENDED.findall(log)]


def _last_line(launched: Sequence[Launched]) -> str:
    """The last thing that was said before torchrun said that a rank had failed."""
    words = [one.said().split(_TORCHRUN_SAYS)[0] for one in launched]
    lines = [line.strip() for said in words for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not _LOGGED.match(line)]
    return (own or lines or ["no rank said why"])[-1]
