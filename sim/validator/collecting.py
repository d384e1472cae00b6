"""From the events of a replay's ranks to Measurements."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from sim.errors import ReplayError
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement, Mode, Role
from sim.validator.candidates.candidate import Candidate
from sim.validator.launch import Place

Progress = Callable[[int, int, str], None]


def _slowest(ranks: list[dict[str, Any]]) -> MeasuredIteration:
    """One iteration over ranks: the latest of each instant."""
    buckets = []
    rows = [row["buckets"] for row in ranks if "buckets" in row]
    if rows:
        for index, column in enumerate(zip(*rows, strict=True)):
            ready, launch, end = (max(stamp) for stamp in zip(*column, strict=True))
            buckets.append(
                MeasuredBucket(index=index, ready_ns=ready, launch_ns=launch, start_ns=None, end_ns=end)
            )
    return MeasuredIteration(
        step_ns=max(row["step"] for row in ranks),
        backward_end_ns=max(row["backward_end"] for row in ranks),
        sync_end_ns=max(row["sync_end"] for row in ranks),
        buckets=tuple(buckets),
    )


def _check_buckets(candidate: Candidate, seen: list[Any], are_any: bool) -> None:
    """Raise unless every rank used the same buckets: those asked for, or ``are_any``."""
    asked = seen[0] if candidate.assignment is None or are_any else candidate.assignment.bucket_indices
    wanted = [sorted(bucket) for bucket in asked]
    for observed in seen:
        if [sorted(bucket) for bucket in observed] != wanted:
            raise ReplayError(
                f"candidate {candidate.name!r}: DDP used {len(observed)} buckets {observed}, not the "
                f"{len(wanted)} asked for {list(map(list, asked))}; gradients may have become ready in "
                f"another order than was recorded"
            )


class Collected:
    """What came back from one replay: steps of every rank and the buckets that each rank used.

    Args:
        candidates: what is replayed.
        lanes: how many lanes a round has.
        rounds: how many rounds are measured, after ``warmup`` that are not.
        warmup: rounds that are dropped.
        progress: told after every step.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        lanes: int,
        rounds: int,
        warmup: int,
        progress: Progress | None,
    ) -> None:
        self._candidates = {candidate.name: candidate for candidate in candidates}
        self._rounds, self._warmup = rounds, warmup
        self._total = (rounds + warmup) * lanes
        self._done = 0
        self._progress = progress
        self._steps: dict[str, list[MeasuredIteration]] = defaultdict(list)
        self._traced: dict[str, list[MeasuredIteration]] = defaultdict(list)
        self._buckets: dict[str, list[Any]] = defaultdict(list)
        self.about_model: dict[str, Any] = {}
        self.about_pacing: dict[str, Any] = {}
        self._environment: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of rank 0. Raises ``ReplayError`` if buckets are not those that were asked for."""
        lane = event.get("lane", "")
        if event["event"] == "step":
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, "warm-up" if event["round"] < 0 else "measuring")
            if event["round"] >= 0:
                steps = self._traced if event["traced"] else self._steps
                steps[lane].append(_slowest(event["ranks"]))
        elif event["event"] == "buckets" and lane in self._candidates:
            # torch.compile orders gradients anew for each cap (A8.10): what ran is recorded, not assumed.
            _check_buckets(self._candidates[lane], event["ranks"], self.about_model.get("compiled", False))
            self._buckets[lane] += event["ranks"]
        elif event["event"] == "model":
            self.about_model = event["about"]
        elif event["event"] == "pacing":
            self.about_pacing = {key: value for key, value in event.items() if key != "event"}
        elif event["event"] == "started":
            self._environment = event["environment"]

    def measurements(self, place: Place, mode: Mode, backend: str, complete: bool) -> list[Measurement]:
        """The measurements so far: plain, noop and candidates; none before the first plain step.

        Raises:
            ReplayError: a complete run in which a candidate's buckets were never read back.
        """
        plain = self._steps["plain"]
        if not plain:
            return []
        where = {"place": place.describe(), **self._environment, **place.document()}
        if self.about_model:
            where["model"] = self.about_model
        if self.about_pacing:
            where["pacing"] = self.about_pacing

        def measurement(name: str, role: Role) -> Measurement | None:
            iterations = tuple(self._steps[name])
            seen = self._buckets[name]
            if not iterations:
                return None
            if role == "candidate" and not seen:
                if complete:
                    raise ReplayError(f"candidate {name!r}: the Reducer's buckets were not read back")
                return None
            observed = tuple(tuple(bucket) for bucket in seen[0]) if seen else None
            return Measurement(
                name=name,
                role=role,
                mode=mode,
                backend=backend,
                world_size=place.world_size,
                asked=None if observed is None else self._asked(name, observed),
                observed=observed,
                iterations=iterations,
                traced=tuple(self._traced[name]),
                plain_backward_ns=round(median(iteration.sync_end_ns for iteration in plain)),
                plain_step_ns=round(median(iteration.step_ns for iteration in plain)),
                dropped_warmup=self._warmup,
                complete=complete and len(iterations) == self._rounds,
                environment=where,
                provenance={
                    "source": "bucketsim validate",
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            )

        made = [measurement("plain", "plain"), measurement("noop", "noop")]
        made += [measurement(name, "candidate") for name in self._candidates]
        return [one for one in made if one is not None]

    def _asked(self, name: str, observed: tuple[tuple[int, ...], ...]) -> Assignment:
        return self._candidates[name].assignment or Assignment(policy="ddp", bucket_indices=observed)
