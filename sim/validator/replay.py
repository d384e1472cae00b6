"""Replays candidate assignments on real ranks and keeps what was measured."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from sim.engine.bucketing import check_reaches
from sim.errors import InputError, NotModelledError, ReplayError
from sim.formats.records import save_measurement
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement, Role
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.validator.calibrate import environment
from sim.validator.launch import Place, run_ranks

Progress = Callable[[int, int, str], None]
_TIMEOUT_S = 120.0
_MIN_WARMUP = 3  # the Reducer rebuilds its buckets before iteration 2 (A2.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment to replay, under a name."""

    name: str
    assignment: Assignment


def check_replayable(workload: Workload, candidates: Sequence[Candidate]) -> None:
    """Raise unless stock DDP can be made to run every candidate on this workload, paced."""
    if not candidates:
        raise InputError("candidates: none given; give at least one")
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise InputError(f"candidates: {names} are not legal; every name may occur once")
    for gradient in workload.gradients:
        if gradient.ready_ns is None or gradient.sparse:
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name}) is "
                f"{'sparse' if gradient.sparse else 'never ready'}; paced replay takes dense gradients "
                f"that all become ready"
            )
        numel = prod(gradient.shape)
        if (
            numel * DTYPE_BYTES[gradient.dtype] != gradient.num_bytes
            or gradient.on_wire != gradient.num_bytes
        ):
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name}): shape "
                f"{list(gradient.shape)} of {gradient.dtype} must hold num_bytes, {gradient.num_bytes}, and "
                f"wire_bytes, {gradient.on_wire}, must not differ from it; paced replay sends real tensors"
            )
    if workload.ready_includes:
        raise NotModelledError(
            f"workload {workload.name!r}: ready_includes {list(workload.ready_includes)} is not replayed; "
            f"the real DDP would pay for these effects a second time"
        )
    for candidate in candidates:
        candidate.assignment.check_fits(workload)
        if candidate.assignment.policy == "explicit" and not candidate.assignment.ddp_kwargs:
            raise NotModelledError(
                f"candidate {candidate.name!r}: no ddp_kwargs that make stock DDP use these buckets; only "
                f"partitions contiguous in ready order, of one dtype, can be replayed so far"
            )
        if "environment" in candidate.assignment.requires:
            raise NotModelledError(
                f"candidate {candidate.name!r}: needs {candidate.assignment.requires['environment']} in "
                f"the environment, which one interleaved run cannot vary"
            )
        check_reaches(workload, candidate.assignment)


@dataclass(slots=True)
class _Collected:
    """What came back, by lane: steps of every rank and the buckets that each rank used."""

    steps: dict[str, list[list[dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    traced: dict[str, list[list[dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    buckets: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))


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


def _check_buckets(candidate: Candidate, seen: list[Any]) -> None:
    """Raise unless the buckets read back from every rank are the ones asked for."""
    asked = [sorted(bucket) for bucket in candidate.assignment.bucket_indices]
    for observed in seen:
        if [sorted(bucket) for bucket in observed] != asked:
            raise ReplayError(
                f"candidate {candidate.name!r}: DDP used {len(observed)} buckets {observed}, not the "
                f"{len(asked)} asked for {list(map(list, candidate.assignment.bucket_indices))}"
            )


def _job(
    workload: Workload, candidates: Sequence[Candidate], rounds: int, warmup: int, seed: int
) -> dict[str, Any]:
    order = workload.order()
    return {
        "task": "replay",
        "backend": "gloo",
        "shapes": [list(gradient.shape) for gradient in workload.gradients],
        "dtypes": [gradient.dtype for gradient in workload.gradients],
        "buffers": [[b.dtype, b.num_bytes // DTYPE_BYTES[b.dtype]] for b in workload.buffers],
        "order": list(order),
        "due_ns": [workload.gradients[index].ready_ns for index in order] + [workload.backward_ns],
        "forward_ns": workload.forward_ns + workload.loss_ns,
        "optimizer_ns": workload.optimizer_ns,
        "rounds": rounds,
        "warmup": warmup,
        "seed": seed,
        "candidates": [
            {
                "name": candidate.name,
                "ddp_kwargs": candidate.assignment.ddp_kwargs,
            }
            for candidate in candidates
        ],
    }


def replay(
    workload: Workload,
    candidates: Sequence[Candidate],
    place: Place,
    directory: Path,
    *,
    rounds: int = 10,
    warmup: int = _MIN_WARMUP,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Replay candidates in paced mode on real gloo ranks, interleaved with plain and noop runs.

    Measurements are written to ``directory`` when they are complete; after a failure or Ctrl-C what
    was measured so far is written too, marked incomplete.

    Raises:
        ReplayError: a rank failed, or DDP did not use the buckets asked for.
        NotModelledError: a candidate that stock DDP cannot be made to run.
    """
    check_replayable(workload, candidates)
    if rounds < 1:
        raise InputError(f"rounds: {rounds} is not legal; give at least 1")
    if warmup < _MIN_WARMUP:
        raise InputError(
            f"warmup: {warmup} is not legal; give at least {_MIN_WARMUP}: DDP rebuilds its buckets first"
        )
    collected = _Collected()
    by_name = {candidate.name: candidate for candidate in candidates}
    total = (rounds + warmup) * (2 + 2 * len(candidates))
    done = 0

    def take(event: dict[str, Any]) -> None:
        nonlocal done
        lane = event.get("lane", "")
        if event["event"] == "step":
            done += 1
            if progress is not None:
                progress(done, total, "warm-up" if event["round"] < 0 else "measuring")
            if event["round"] >= 0:
                steps = collected.traced if event["traced"] else collected.steps
                steps[lane].append(event["ranks"])
        elif event["event"] == "buckets" and lane in by_name:
            _check_buckets(by_name[lane], event["ranks"])
            collected.buckets[lane] += event["ranks"]

    complete = False
    try:
        run_ranks(place, _job(workload, candidates, rounds, warmup, seed), take, _TIMEOUT_S)
        complete = True
    finally:
        measurements = _measurements(collected, candidates, place, warmup, rounds, complete)
        for number, measurement in enumerate(measurements):
            save_measurement(directory, number, measurement)
    return measurements


def _measurements(
    collected: _Collected,
    candidates: Sequence[Candidate],
    place: Place,
    warmup: int,
    rounds: int,
    complete: bool,
) -> list[Measurement]:
    plain = [_slowest(ranks) for ranks in collected.steps["plain"]]
    if not plain:
        return []
    plain_backward = round(median(iteration.sync_end_ns for iteration in plain))
    plain_step = round(median(iteration.step_ns for iteration in plain))
    where = environment()

    def measurement(name: str, role: Role, candidate: Candidate | None) -> Measurement | None:
        iterations = tuple(_slowest(ranks) for ranks in collected.steps[name])
        if not iterations:
            return None
        observed = None
        if candidate is not None:
            seen = collected.buckets[name]
            if not seen:
                if complete:
                    raise ReplayError(f"candidate {name!r}: the Reducer's buckets were not read back")
                return None
            observed = tuple(tuple(bucket) for bucket in seen[0])
        return Measurement(
            name=name,
            role=role,
            mode="paced",
            backend="gloo",
            world_size=place.world_size,
            asked=candidate.assignment if candidate is not None else None,
            observed=observed,
            iterations=iterations,
            traced=tuple(_slowest(ranks) for ranks in collected.traced[name]),
            plain_backward_ns=plain_backward,
            plain_step_ns=plain_step,
            dropped_warmup=warmup,
            complete=complete and len(iterations) == rounds,
            environment={"place": place.describe(), **where},
            provenance={
                "source": "bucketsim validate",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )

    made = [measurement("plain", "plain", None), measurement("noop", "noop", None)]
    made += [measurement(candidate.name, "candidate", candidate) for candidate in candidates]
    return [one for one in made if one is not None]
