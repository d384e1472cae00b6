"""Replays candidates on real ranks, started here or by somebody else, and keeps what was measured."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from sim.errors import InputError, ReplayError
from sim.formats.documents import parse_json
from sim.formats.files import read_bytes
from sim.formats.record_files import save_measurements
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement, Role
from sim.validator.candidates import check_replayable
from sim.validator.jobs import JOB, Candidate, ReplayJob, commands, read_job, write_job
from sim.validator.launch import EVENTS, FAILED, Place, events_in, named, run_ranks

Progress = Callable[[int, int, str], None]


def replay(
    job: ReplayJob, place: Place, directory: Path | None, *, progress: Progress | None = None
) -> list[Measurement]:
    """Replay the candidates of ``job`` in turns with plain and noop runs; returns what was measured.

    It is written to ``directory`` when it is complete; after a failure or Ctrl-C what was measured so far is
    written too, marked incomplete. ``progress`` is told after every step.

    Raises:
        ReplayError: a rank failed, or DDP did not use the buckets asked for.
        NotModelledError: a candidate that cannot be run.
    """
    check_job(job)
    collected = Collected(job, progress)
    complete = False
    try:
        run_ranks(place, job, collected.take)
        complete = True
    finally:
        measurements = collected.measurements(place, complete)
        if directory is not None:
            save_measurements(directory, measurements)
    return measurements


def prepare(job: ReplayJob, directory: Path, world_size: int) -> Path:
    """Write ``job`` for ranks that torchrun or srun starts, into a record; returns its path.

    Raises:
        NotModelledError: a candidate that cannot be run.
    """
    check_job(job)
    return write_job(directory, job, world_size)


def check_job(job: ReplayJob) -> None:
    """Raise unless all candidates can be run, as far as it is known on what."""
    if job.workload is not None:
        check_replayable(job.workload, job.candidates, job.mode, job.carrier)


def gather_record(directory: Path) -> list[Measurement]:
    """Turn what the ranks of a prepared job wrote into the record's measurements, which are returned as well.

    Measurements of a run that failed or has not finished are written too, marked incomplete.

    Raises:
        InputError: no job or no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    job, world_size = read_job(directory / JOB)
    collected = Collected(job)
    started: dict[str, Any] = {}
    complete = False
    try:
        for event in told(directory, world_size):
            collected.take(event)
            started = event if event["event"] == "started" else started
            complete = complete or event["event"] == "finished"
    finally:
        measurements = collected.measurements(place_of(world_size, started), complete)
        save_measurements(directory, measurements)
    if not complete:
        kept = "what was measured is kept, incomplete" if measurements else "nothing was measured"
        raise ReplayError(f"{directory}: {why_unfinished(directory)}; {kept}")
    return measurements


# What ranks that somebody else started left in the folder of their job.


def told(directory: Path, world_size: int) -> Iterator[dict[str, Any]]:
    """What rank 0 wrote while it ran the job of ``world_size`` ranks.

    Raises:
        InputError: the job has not been run, or by another number of ranks.
        ReplayError: the ranks failed before they could begin.
    """
    path = directory / EVENTS
    if not path.exists():
        if failure := _failure(directory):
            raise ReplayError(f"{directory}: {failure}; nothing was measured")
        raise InputError(f"{directory}: no {EVENTS} in it; run the job first: {commands(directory / JOB)[0]}")
    with open(path, "rb") as stream:
        for event in events_in(stream):
            if event["event"] == "started" and len(event["hosts"]) != world_size:
                raise InputError(
                    f"{path}: written by {len(event['hosts'])} ranks, but {directory / JOB} is for "
                    f"{world_size}; run the job again"
                )
            yield event


def why_unfinished(directory: Path) -> str:
    """Who failed and why, as the ranks left it; else that the run has not finished."""
    return _failure(directory) or "the run has not finished"


def _failure(directory: Path) -> str | None:
    left = [parse_json(read_bytes(path), str(path)) for path in directory.glob(FAILED.format("*"))]
    return named(sorted(left, key=lambda one: one["at"]))


def place_of(world_size: int, started: dict[str, Any]) -> Place:
    """Where the ranks ran, by the event that they started with."""
    hosts = Counter(started.get("hosts", ()))
    said = ", ".join(f"{name} x {count}" for name, count in sorted(hosts.items()))
    launcher = started.get("launcher", "an unknown launcher")
    return Place(ranks=world_size, spread=f"by {launcher} on {said or 'unknown hosts'}")


# From the events of ranks to measurements.


class Collected:
    """What came back from one replay: steps of every rank and the buckets that each rank used.

    Args:
        job: what the ranks were told to do.
        progress: told after every step.
    """

    def __init__(self, job: ReplayJob, progress: Progress | None = None) -> None:
        self._job = job
        self._candidates = {candidate.name: candidate for candidate in job.candidates}
        assert job.warmup is not None
        self._warmup = job.warmup
        self._total = (job.rounds + self._warmup) * job.lanes
        self._done = 0
        self._progress = progress
        self._steps: dict[str, list[MeasuredIteration]] = defaultdict(list)
        self._traced: dict[str, list[MeasuredIteration]] = defaultdict(list)
        self._buckets: dict[str, list[Any]] = defaultdict(list)
        self._about: dict[str, Any] = {}
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
            are_any = self._about.get("model", {}).get("compiled", False)
            _check_buckets(self._candidates[lane], event["ranks"], are_any)
            self._buckets[lane] += event["ranks"]
        elif event["event"] == "model":
            self._about["model"] = event["about"]
        elif event["event"] == "pacing":
            self._about["pacing"] = {key: value for key, value in event.items() if key != "event"}
        elif event["event"] == "started":
            self._environment = event["environment"]

    def measurements(self, place: Place, complete: bool) -> list[Measurement]:
        """The measurements so far: plain, noop and candidates; none before the first plain step.

        Raises:
            ReplayError: a complete run in which a candidate's buckets were never read back.
        """
        plain = self._steps["plain"]
        if not plain:
            return []
        where = {"place": place.describe(), **self._environment, **place.document(), **self._about}

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
                mode=self._job.mode,
                backend=self._job.carrier.name,
                world_size=place.world_size,
                asked=None if observed is None else self._asked(name, observed),
                observed=observed,
                iterations=iterations,
                traced=tuple(self._traced[name]),
                plain_backward_ns=round(median(iteration.sync_end_ns for iteration in plain)),
                plain_step_ns=round(median(iteration.step_ns for iteration in plain)),
                dropped_warmup=self._warmup,
                complete=complete and len(iterations) == self._job.rounds,
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
    asked: Sequence[Any] = (
        seen[0] if candidate.assignment is None or are_any else candidate.assignment.bucket_indices
    )
    wanted = [sorted(bucket) for bucket in asked]
    for observed in seen:
        if [sorted(bucket) for bucket in observed] != wanted:
            raise ReplayError(
                f"candidate {candidate.name!r}: DDP used {len(observed)} buckets {observed}, not the "
                f"{len(wanted)} asked for {list(map(list, asked))}; gradients may have become ready in "
                f"another order than was recorded"
            )
