"""Replays candidate assignments on real ranks and keeps what was measured."""

from collections.abc import Sequence
from pathlib import Path

from sim.formats.record_files import save_measurements
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.validator.candidates.candidate import Candidate, lane_count
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier
from sim.validator.candidates.replay_jobs import UserModel, replay_job
from sim.validator.collecting import Collected, Progress
from sim.validator.launch import Place, run_ranks


def replay(
    workload: Workload,
    candidates: Sequence[Candidate],
    place: Place,
    directory: Path,
    *,
    model: UserModel | None = None,
    carrier: Carrier = GLOO_ON_HOST,
    rounds: int = 10,
    warmup: int | None = None,
    seed: int = 0,
    probed: bool = True,
    progress: Progress | None = None,
) -> list[Measurement]:
    """Replay candidates on real ranks, interleaved with plain and noop runs.

    Without ``model`` the replay is paced: backward keeps the recorded schedule. With ``model`` the user's own
    model computes for real, and its parameters must be those of ``workload``. ``carrier`` says on what
    device, and what sums up the buckets. If ``probed`` is False, a replay of a model has neither the lanes
    that stamp buckets nor the noop lane.

    Measurements are written to ``directory`` when they are complete; after a failure or Ctrl-C what
    was measured so far is written too, marked incomplete.

    Raises:
        ReplayError: a rank failed, or DDP did not use the buckets asked for.
        NotModelledError: a candidate that cannot be run.
    """
    job = replay_job(
        workload,
        candidates,
        model=model,
        carrier=carrier,
        rounds=rounds,
        warmup=warmup,
        seed=seed,
        probed=probed,
    )
    collected = Collected(
        candidates,
        lanes=lane_count(candidates) if probed else 1 + len(candidates),
        rounds=rounds,
        warmup=job["warmup"],
        progress=progress,
    )
    complete = False
    try:
        run_ranks(place, job, collected.take)
        complete = True
    finally:
        measurements = collected.measurements(place, job["mode"], carrier.name, complete)
        save_measurements(directory, measurements)
    return measurements
