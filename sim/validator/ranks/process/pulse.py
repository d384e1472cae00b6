"""The heart of a rank: a thread that says every two seconds that it lives and how far it is."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from sim.validator.ranks.process.beats import BEAT_S, Beat


class Progress:
    """How far this rank is, counted by its main thread and read by the one that beats."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._told = 0
        self._steps = 0
        self._longest_s = 0.0
        self._last_step: float | None = None

    def count(self, event: str, *, compiles: bool = False) -> None:
        """Note that an event was told; ``step`` ends a step.

        One that may have compiled says nothing of how long the next one takes, which may compile as well.
        """
        self._told += 1
        if event != "step":
            return
        self._steps += 1
        if compiles:
            return
        now = time.monotonic()
        if self._last_step is not None:
            self._longest_s = max(self._longest_s, now - self._last_step)
        self._last_step = now

    def beat(self, number: int) -> Beat:
        """What there is to say now."""
        return Beat(
            number=number,
            told=self._told,
            steps=self._steps,
            longest_step_s=round(self._longest_s, 3),
            where=self._where(),
        )

    def _where(self) -> str:
        frame = sys._current_frames().get(self._main)
        if frame is None:
            return "no main thread"
        last = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=1, lookup_lines=False)[0]
        return f"{last.name} ({Path(last.filename).name}:{last.lineno})"


def start_pulse(progress: Progress, post: Callable[[Beat], None], fail: Callable[[Exception], None]) -> None:
    """Hand a beat to ``post`` every two seconds, from a thread; what it raises is handed to ``fail``."""

    def run() -> None:
        number = 0
        while True:
            try:
                post(progress.beat(number))
            except Exception as error:  # noqa: BLE001  (a rank whose heart stops must say why)
                fail(error)
                return
            number += 1
            time.sleep(BEAT_S)

    threading.Thread(target=run, name="pulse", daemon=True).start()
