"""Signs of life: what a rank says of itself every two seconds, and who, judging by that, is at fault."""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

BEAT_S = 2.0
SILENCE_S = 20.0
_START_S = 120.0
_STANDSTILL_S = 25.0
_LONGEST_STEPS = 20
_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One sign of life: its number, how far the rank is, and the line of Python that it is at.

    ``told`` counts the events that the rank has told of, ``steps`` those of them that ended a step.
    """

    number: int
    told: int
    steps: int
    longest_step_s: float
    where: str

    def to_text(self) -> str:
        """The beat as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> "Beat":
        """The beat of a line that ``to_text`` made."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The ranks at fault (none where all wait for one another) and what there is to say."""

    ranks: tuple[int, ...]
    reason: str


class WakingClock:
    """Seconds that this process was awake: while it is stopped itself, no other can be called late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._awake = 0.0

    def __call__(self) -> float:
        """Seconds awake since the clock was made; ask more often than every five seconds."""
        now = self._clock()
        self._awake += min(now - self._last, _PAUSE_S)
        self._last = now
        return self._awake


@dataclass(slots=True)
class _Seen:
    beat: Beat | None = None
    changed_s: float = 0.0


class Observer:
    """Notes the beats of ranks, on its own clock, and says which rank is silent or behind.

    Ranks may stand still for ``quiet_s`` before their second step that compiles nothing; from then on for
    25 s, or for 20 times the longest step so far where that is more.
    """

    def __init__(self, ranks: Iterable[int], quiet_s: float, clock: Callable[[], float]) -> None:
        self._seen = {rank: _Seen(changed_s=clock()) for rank in ranks}
        self._quiet_s = quiet_s
        self._clock = clock
        self._moved_s = clock()

    def see(self, rank: int, beat: Beat) -> None:
        """Note a rank's latest beat; the same one twice is no new sign of life."""
        seen = self._seen[rank]
        if seen.beat is not None and seen.beat.number == beat.number:
            return
        if beat.told > (0 if seen.beat is None else seen.beat.told):
            self._moved_s = self._clock()
        seen.beat, seen.changed_s = beat, self._clock()

    def silent(self, silence_s: float = SILENCE_S) -> Fault | None:
        """The ranks not heard of for ``silence_s``, or, if never, for two minutes; None: there are none."""
        now = self._clock()
        gone = [
            rank
            for rank, seen in self._seen.items()
            if now - seen.changed_s > (_START_S if seen.beat is None else silence_s)
        ]
        if not gone:
            return None
        longest = max(now - self._seen[rank].changed_s for rank in gone)
        said = "; ".join(self.describe(rank) for rank in gone)
        return Fault(ranks=tuple(gone), reason=f"no sign of life for {longest:.0f} s; last heard of {said}")

    def standing_still(self) -> Fault | None:
        """The ranks behind the foremost, once no rank has got on for too long; none if all are level."""
        told = {rank: 0 if seen.beat is None else seen.beat.told for rank, seen in self._seen.items()}
        longest = max((seen.beat.longest_step_s for seen in self._seen.values() if seen.beat), default=0.0)
        allowed = max(_STANDSTILL_S, _LONGEST_STEPS * longest) if longest else self._quiet_s
        if self._clock() - self._moved_s <= allowed:
            return None
        behind = [rank for rank, count in told.items() if count < max(told.values())]
        said = "; ".join(f"rank {rank} {self.describe(rank)}" for rank in sorted(self._seen))
        return Fault(ranks=tuple(behind), reason=f"nothing heard from the ranks for {allowed:.0f} s: {said}")

    def describe(self, rank: int) -> str:
        """Where a rank was when it was last heard of."""
        beat = self._seen[rank].beat
        return "not started" if beat is None else f"after step {beat.steps}, in {beat.where}"


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
