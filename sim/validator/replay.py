"""Replays candidates on real ranks, started here or by somebody else, and keeps what was measured."""

from collections import Counter, defaultdict
from collections.abc import Callable
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
from sim.nouns.recommendation import Gain
from sim.truth.turns import AbTest, judge_turns
from sim.validator.candidates import check_replayable
from sim.validator.jobs import JOB, Candidate, ReplayJob, commands, read_job, write_job
from sim.validator.launch import EVENTS, FAILED, Place, events_in, named, run_ranks

Progress = Callable[[int, int, str], None]
_DEFAULT, _RECOMMENDED = "DDP default", "recommended"


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
    _check(job)
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
    _check(job)
    return write_job(directory, job, world_size)


def _check(job: ReplayJob) -> None:
    if job.workload is not None:
        check_replayable(job.workload, job.candidates, job.mode, job.carrier)


def gather_record(directory: Path) -> list[Measurement]:
    """Turn what the ranks of a prepared job wrote into the record's measurements, which are returned as well.

    Measurements of a run that failed or has not finished are written too, marked incomplete.

    Raises:
        InputError: no job or no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    job, _ = read_job(directory / JOB)
    collected = Collected(job)
    place, unfinished = gather_events(directory, collected.take)
    measurements = collected.measurements(place, unfinished is None)
    save_measurements(directory, measurements)
    if unfinished is not None:
        kept = "what was measured is kept, incomplete" if measurements else "nothing was measured"
        raise ReplayError(f"{directory}: {unfinished}; {kept}")
    return measurements


# The user's own model under DDP's default and under a recommended assignment.


def ab_job(recommended: Assignment, **options: Any) -> ReplayJob:
    """Both in every round, in a shuffled order, with the model without DDP as a third.

    ``options`` are further fields of ``ReplayJob``: ``model``, the user's, and ``workload``, where its
    parameters are known.
    """
    candidates = Candidate(name=_DEFAULT), Candidate(name=_RECOMMENDED, assignment=recommended)
    return ReplayJob(candidates=candidates, probed=False, is_ab=True, **options)


def judge_ab(job: ReplayJob, measurements: list[Measurement], predicted: Gain | None = None) -> AbTest:
    """What the measurements of a job of ``ab_job`` come to; ``predicted`` is written down beside it."""
    steps = {one.name: [each.step_ns for each in one.iterations] for one in measurements}
    one = measurements[0]
    about = one.environment["model"]
    return judge_turns(
        *(steps[name] for name in (_DEFAULT, _RECOMMENDED, "plain")),
        name=about["factory"],
        world_size=one.world_size,
        predicted=predicted,
        environment=one.environment,
        hours="rank-hours" if about["device"] == "cpu" else "GPU-hours",
    )


# What ranks that somebody else started left in the folder of their job.


def gather_events(directory: Path, take: Callable[[dict[str, Any]], None]) -> tuple[Place, str | None]:
    """Hand on what rank 0 wrote while it ran a job: where that was, and why it has not finished, if so.

    Raises:
        InputError: the job has not been run, or by another number of ranks.
        ReplayError: the ranks failed before they could begin.
    """
    path, (_, world_size) = directory / EVENTS, read_job(directory / JOB)
    left = [parse_json(read_bytes(one), str(one)) for one in directory.glob(FAILED.format("*"))]
    failure = named(sorted(left, key=lambda one: one["at"]))
    if not path.exists() and failure is not None:
        raise ReplayError(f"{directory}: {failure}; nothing was measured")
    if not path.exists():
        raise InputError(f"{directory}: no {EVENTS} in it; run the job first: {commands(directory / JOB)[0]}")
    place, unfinished = Place(ranks=world_size), failure or "the run has not finished"
    with open(path, "rb") as stream:
        for event in events_in(stream):
            if event["event"] == "started":
                place = _place(world_size, event, path)
            if event["event"] == "finished":
                return place, None
            take(event)
    return place, unfinished


def _place(world_size: int, started: dict[str, Any], path: Path) -> Place:
    """Where the ranks ran, by the event that they started with."""
    hosts = Counter(started["hosts"])
    if hosts.total() != world_size:
        raise InputError(
            f"{path}: written by {hosts.total()} ranks, but {path.with_name(JOB)} is for {world_size}; run "
            f"the job again"
        )
    said = ", ".join(f"{name} x {count}" for name, count in sorted(hosts.items()))
    return Place(ranks=world_size, spread=f"by {started['launcher']} on {said}")


# From the events of ranks to measurements.


class Collected:
    """What came back from one replay: steps of every rank and the buckets that each rank used.

    Args:
        job: what the ranks were told to do.
        progress: told after every step.
    """

    def __init__(self, job: ReplayJob, progress: Progress | None = None) -> None:
        self._job, self._progress = job, progress
        self._candidates = {candidate.name: candidate for candidate in job.candidates}
        self._lanes, self._done = 1, 0  # the plain one, and each that is built; steps
        # by lane, and whether it is traced
        self._steps: dict[tuple[str, bool], list[MeasuredIteration]] = defaultdict(list)
        self._observed: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._model: dict[str, Any] = {}
        self._environment: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of rank 0. Raises ``ReplayError`` if buckets are not those that were asked for."""
        kind, lane = event["event"], event.get("lane", "")
        if kind == "step":
            self._done += 1
            if self._progress is not None:
                total = (self._job.rounds + self._job.warmup) * self._lanes
                self._progress(self._done, total, "warm-up" if event["round"] < 0 else "measuring")
            if event["round"] >= 0:
                self._steps[lane, event["traced"]].append(_slowest(event["ranks"]))
        elif kind == "buckets" and lane in self._candidates:
            # torch.compile orders gradients anew for each cap (A8.10): what ran is recorded, not assumed.
            are_any = self._model.get("model", {}).get("compiled", False)
            _check_buckets(self._candidates[lane], event["ranks"], are_any)
            # of the lane without a hook, which is told first
            self._observed.setdefault(lane, tuple(tuple(bucket) for bucket in event["ranks"][0]))
        elif kind == "built":
            self._lanes += 1
        elif kind == "model":
            self._model = {"model": event["about"]}
        elif kind == "started":
            self._environment = event["environment"]

    def measurements(self, place: Place, complete: bool) -> list[Measurement]:
        """The measurements so far: plain, noop and candidates; none before the first plain step.

        Raises:
            ReplayError: a complete run in which a candidate's buckets were never read back.
        """
        plain, made = self._steps["plain", False], []
        roles: dict[str, Role] = {"plain": "plain", "noop": "noop"}
        for name in (*roles, *self._candidates):
            role, iterations = roles.get(name, "candidate"), tuple(self._steps[name, False])
            observed = self._observed.get(name)
            if role == "candidate" and iterations and observed is None and complete:
                raise ReplayError(f"candidate {name!r}: the Reducer's buckets were not read back")
            if not (plain and iterations) or (role == "candidate" and observed is None):
                continue
            asked = self._candidates[name].assignment if role == "candidate" else None
            if asked is None and observed is not None:
                asked = Assignment(policy="ddp", bucket_indices=observed)
            measurement = Measurement(
                name=name,
                role=role,
                mode=self._job.mode,
                backend=self._job.carrier.name,
                world_size=place.world_size,
                asked=asked,
                observed=observed,
                iterations=iterations,
                traced=tuple(self._steps[name, True]),
                plain_backward_ns=round(median(iteration.sync_end_ns for iteration in plain)),
                plain_step_ns=round(median(iteration.step_ns for iteration in plain)),
                dropped_warmup=self._job.warmup,
                complete=complete and len(iterations) == self._job.rounds,
                environment={
                    "place": place.describe(),
                    **self._environment,
                    **place.document(),
                    **self._model,
                },
                provenance={
                    "source": "bucketsim validate",
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            )
            made.append(measurement)
        return made


def _slowest(ranks: list[dict[str, Any]]) -> MeasuredIteration:
    """One iteration over ranks: the latest of each instant."""
    buckets = []
    columns = zip(*(row["buckets"] for row in ranks if "buckets" in row), strict=True)
    for index, column in enumerate(columns):
        ready, launch, end = map(max, zip(*column, strict=True))
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
    assignment = candidate.assignment
    asked: Any = seen[0] if assignment is None or are_any else assignment.bucket_indices
    wanted = [sorted(bucket) for bucket in asked]
    for observed in seen:
        if [sorted(bucket) for bucket in observed] != wanted:
            raise ReplayError(
                f"candidate {candidate.name!r}: DDP used {len(observed)} buckets {observed}, not the "
                f"{len(wanted)} asked for {list(map(list, asked))}; gradients may have become ready in "
                f"another order than was recorded"
            )
