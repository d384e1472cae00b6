"""Who misses a rank that dies or hangs: the process that started it, or, where there is none, its peers."""

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError

from sim.validator.ranks.process.beats import BEAT_S, SILENCE_S, Beat, Fault, Observer, WakingClock
from sim.validator.ranks.process.notices import post_beat

_LOST_S = 4 * BEAT_S
_LINGER_S = 2 * BEAT_S
_VERDICT = "verdict"


class Parent:
    """The process on this machine that started the rank and reads the job's folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank

    def post(self, beat: Beat) -> None:
        """Write the beat where the parent looks for it."""
        post_beat(self._folder, self._rank, beat)

    def who_is_missing(self) -> Fault | None:
        """None: the parent sees every rank and judges."""
        return None

    def tell(self, fault: Fault) -> None:
        """Nothing: the parent reads the folder."""

    def stop(self) -> None:
        """Nothing: the parent sees this process end."""


class Peers:
    """The other ranks, seen through the store: rank 0 watches all, the others watch rank 0.

    So each rank that dies or hangs is missed by another, which ends the run and says whom it missed.

    Args:
        store: a connection of its own; the main thread must not wait behind these calls.
        rank: this one.
        world_size: number of ranks.
        quiet_s: how long the ranks may take to their second step.
        keeper: the rank that serves the store, or None where a launcher does.
        end: called from a thread with the first fault that is found; must end the process.
    """

    def __init__(
        self,
        store: TCPStore,
        rank: int,
        world_size: int,
        quiet_s: float,
        keeper: int | None,
        end: Callable[[Fault], None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._keeper = () if keeper is None else (keeper,)
        self._watched = [k for k in range(world_size) if k != rank] if rank == 0 else [0]
        self._known: set[str] = set()
        self._observer = Observer(self._watched, quiet_s, WakingClock())
        self._end = end
        self._parent = os.getppid()
        self._posting, self._judging = threading.Lock(), threading.Lock()
        self._stopped = False
        store.set_timeout(timedelta(seconds=SILENCE_S))
        threading.Thread(target=self._guard, name="guard", daemon=True).start()

    def post(self, beat: Beat) -> None:
        """Put this rank's beat, note the others', and end where another rank has found a fault."""
        with self._posting:
            if self._stopped:
                return
            try:
                self._store.set(f"beat/{self._rank}", beat.to_text())
                texts = {rank: self._get(f"beat/{rank}") for rank in self._watched}
                verdict = self._verdict()
            except DistError as error:
                verdict = Fault(ranks=self._keeper, reason=f"the ranks' store is gone: {_first_line(error)}")
                texts = {}
        with self._judging:
            for rank, text in texts.items():
                if text is not None:
                    self._observer.see(rank, Beat.from_text(text))
        if verdict is not None:
            self._end(verdict)

    def who_is_missing(self) -> Fault | None:
        """Wait some seconds for the reason why others do not answer: a verdict, or a rank that is silent."""
        deadline = time.monotonic() + _LOST_S + 2 * BEAT_S
        while time.monotonic() < deadline:
            try:
                fault = self._verdict()
            except DistError:
                fault = None
            with self._judging:
                fault = fault or self._observer.silent(_LOST_S)
            if fault is not None:
                return fault
            time.sleep(0.2)
        return None

    def tell(self, fault: Fault) -> None:
        """Let the other ranks know, the first fault for all; a store that does not answer is left alone."""

        def put() -> None:
            text = json.dumps([fault.ranks, fault.reason])
            try:
                self._store.compare_set(_VERDICT, "", text)
            except DistError:
                return

        teller = threading.Thread(target=put, name="teller", daemon=True)
        teller.start()
        # The store goes with the rank that keeps it: wait until the others have looked.
        time.sleep(_LINGER_S if self._rank in self._keeper else 0)
        teller.join(_LINGER_S)

    def stop(self) -> None:
        """Watch no more: from here on ranks may end."""
        with self._posting, self._judging:
            self._stopped = True

    def _verdict(self) -> Fault | None:
        text = self._get(_VERDICT)
        if text is None:
            return None
        ranks, reason = json.loads(text)
        return Fault(ranks=tuple(ranks), reason=reason)

    def _get(self, key: str) -> bytes | None:
        """A key's value, or None before it is first set; ``get`` alone would wait for it."""
        if key not in self._known:
            if not self._store.check([key]):
                return None
            self._known.add(key)
        value: bytes = self._store.get(key)
        return value

    def _guard(self) -> None:
        while True:
            time.sleep(1)
            if os.getppid() != self._parent:
                os._exit(1)  # whoever started this rank was killed, and nobody waits for it
            with self._judging:
                if self._stopped:
                    return
                fault = self._observer.silent() or self._observer.standing_still()
            if fault is not None:
                self._end(fault)
                return


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
