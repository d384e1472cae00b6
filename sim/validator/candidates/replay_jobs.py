"""What the ranks of a replay are told to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.errors import InputError
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.validator.candidates.candidate import Candidate, check_replayable
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier

# The Reducer rebuilds its buckets before iteration 2 (A2.6); on CUDA iterations 2 to 11 wait for the
# host, because DDP's logger reads its events there (A4.3).
MIN_WARMUP = {"cpu": 3, "cuda": 12}
MODEL_TIMEOUT_S = 600  # a model may load weights or compile before its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """The user's own model: a factory that returns ``(model, batch)``.

    ``dtype`` casts model and batch as ``bucketsim record --dtype`` does.
    """

    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None


def replay_job(
    workload: Workload,
    candidates: Sequence[Candidate],
    *,
    model: UserModel | None,
    carrier: Carrier,
    rounds: int,
    warmup: int | None,
    seed: int,
    probed: bool = True,
) -> dict[str, Any]:
    """The job of a replay on ``carrier``, paced, or ``model`` for real; ``warmup`` None: the device's least.

    Raises:
        NotModelledError: a candidate that cannot be run. InputError: illegal rounds.
    """
    warmup = MIN_WARMUP[carrier.device] if warmup is None else warmup
    check_replayable(workload, candidates, "paced" if model is None else "model", carrier)
    check_rounds(rounds, warmup, carrier.device)
    if model is None:
        return paced_job(workload, candidates, rounds, warmup, seed, carrier)
    return model_job(model, candidates, rounds, warmup, seed, carrier, workload=workload, probed=probed)


def paced_job(
    workload: Workload,
    candidates: Sequence[Candidate],
    rounds: int,
    warmup: int,
    seed: int,
    carrier: Carrier = GLOO_ON_HOST,
) -> dict[str, Any]:
    """The recorded schedule, kept by sleeping or by timed kernels, with every candidate stock and traced."""
    return {
        **_rounds(candidates, rounds, warmup, seed),
        "mode": "paced",
        **carrier.order_to_ranks(),
        "shapes": [list(gradient.shape) for gradient in workload.gradients],
        "dtypes": [gradient.dtype for gradient in workload.gradients],
        "buffers": [[b.dtype, b.num_bytes // DTYPE_BYTES[b.dtype]] for b in workload.buffers],
        "order": list(workload.order()),
        "due_ns": _due_ns(workload),
        "forward_ns": workload.forward_ns + workload.loss_ns,
        "optimizer_ns": workload.optimizer_ns,
    }


def _due_ns(workload: Workload) -> list[int]:
    """When the nodes of a backward are due: ready times in ready order, and its end."""
    ready = [workload.gradients[index].ready_ns for index in workload.order()]
    return [*(time for time in ready if time is not None), workload.backward_ns]


def model_job(
    model: UserModel,
    candidates: Sequence[Candidate],
    rounds: int,
    warmup: int,
    seed: int,
    carrier: Carrier,
    *,
    workload: Workload | None,
    probed: bool,
) -> dict[str, Any]:
    """The user's model; ``probed`` adds the noop lane and a traced lane per candidate.

    ``workload`` is what its parameters must match; None: nothing is known of them.
    """
    gradients = None if workload is None else workload.gradients
    return {
        **_rounds(candidates, rounds, warmup, seed),
        "mode": "model",
        **carrier.order_to_ranks(),
        "timeout_s": MODEL_TIMEOUT_S,
        "quiet_s": MODEL_TIMEOUT_S,
        "dtype": model.dtype,
        "factory": model.factory,
        "arguments": model.arguments,
        "parameters": gradients and [[g.name, list(g.shape), g.dtype] for g in gradients],
        "probed": probed,
    }


def _rounds(candidates: Sequence[Candidate], rounds: int, warmup: int, seed: int) -> dict[str, Any]:
    return {
        "task": "replay",
        "rounds": rounds,
        "warmup": warmup,
        "seed": seed,
        "candidates": [candidate.order_to_ranks() for candidate in candidates],
    }


def check_rounds(rounds: int, warmup: int, device: str) -> None:
    """Raise ``InputError`` unless a round is measured, and warm-up covers what DDP does only at first."""
    if rounds < 1:
        raise InputError(f"rounds: {rounds} is not legal; give at least 1")
    if warmup < MIN_WARMUP[device]:
        raise InputError(
            f"warmup: {warmup} is not legal; give at least {MIN_WARMUP[device]} on {device}: DDP rebuilds "
            f"its buckets first"
        )
