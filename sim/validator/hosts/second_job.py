"""A second job in the same box, that runs for as long as the one measured does."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sim.errors import ReplayError
from sim.validator.hosts.boxed_hosts import Host
from sim.validator.hosts.elastic_launch import started
from sim.validator.hosts.watch import POLL_S, Watch

_WARM_UP = 4  # steps: DDP rebuilds its buckets before the second (A2.6), and touches them there first
_ALONE = 3
_QUIET_S = 120.0
_PORT = 29501


@dataclass(slots=True, kw_only=True)
class SecondJob:
    """The second job: what its ranks do step after step, on which hosts, and what was seen of it.

    ``alone_ns``: its warm steps before the job measured began. ``beside_ns``: its whole steps since that job
    began to measure. ``failure``: why it did not last to the end, if it did not. ``said``: what it does.
    """

    hosts: tuple[int, ...]
    job: dict[str, Any]
    said: str
    alone_ns: list[int] = field(default_factory=list)
    beside_ns: list[int] = field(default_factory=list)
    failure: str | None = None
    _steps: int = field(default=0, init=False)
    _is_measured: bool = field(default=False, init=False)
    _is_whole: bool = field(default=False, init=False)

    def take(self, event: dict[str, Any]) -> None:
        """Read one event of the second job's rank 0."""
        if event["event"] != "step":
            return
        self._steps += 1
        if self._steps <= _WARM_UP:
            return
        if len(self.alone_ns) < _ALONE:
            self.alone_ns.append(event["step_ns"])
        elif self._is_measured:
            if self._is_whole:
                self.beside_ns.append(event["step_ns"])
            self._is_whole = True  # the step under way when measuring began was not beside it from its start

    def see(self, event: dict[str, Any]) -> None:
        """Read one event of the job measured: the second job's steps count from its first measurement on."""
        if event["event"] == "all_reduce" or (event["event"] == "step" and event["round"] >= 0):
            self._is_measured = True

    def describe(self) -> str:
        """What ran beside, in words."""
        return f"{self.said} on host{'s' if len(self.hosts) > 1 else ''} {' and '.join(map(str, self.hosts))}"

    def document(self) -> dict[str, Any]:
        """What is known of it, for provenance; durations are medians in ns."""
        return {
            "what": self.describe(),
            "hosts": list(self.hosts),
            "steps_beside": len(self.beside_ns),
            "alone_ns": round(median(self.alone_ns)) if self.alone_ns else None,
            "beside_ns": round(median(self.beside_ns)) if self.beside_ns else None,
        }


@contextmanager
def running_beside(second: SecondJob, hosts: Sequence[Host]) -> Iterator[Watch]:
    """The second job on its ``hosts`` of the box, warm and running; it is ended with the context in any case.

    Give what is yielded to ``check_lasts`` while the other job runs.

    Raises ``ReplayError`` if the second job does not start to run.
    """
    with started([hosts[k] for k in second.hosts], 1, _PORT, second.job) as (launched, folder):
        watched = Watch(launched, folder, second.take, _QUIET_S)
        while len(second.alone_ns) < _ALONE:
            check_lasts(second, watched)
            time.sleep(POLL_S)
        yield watched


def check_lasts(second: SecondJob, watched: Watch) -> None:
    """Raise ``ReplayError`` unless the second job still runs: nothing counts that was measured without it."""
    try:
        if not watched.poll():
            return
        reason = "its ranks ended"
    except ReplayError as error:
        reason = str(error).removeprefix("replay: ")
    second.failure = reason
    raise ReplayError(f"neighbour: {reason}; what was measured beside it is refused")
