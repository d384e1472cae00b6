"""Last-hook bucketing for real: how it fails as published, as simulated, and what puts it right."""

from typing import Any

import pytest

import sim
from sim.systems.last_hook import early_launches
from tests.systems.ddp_ranks import run_cases
from tests.systems.last_hook_models import MODELS
from tests.systems.textbook_answers import workload_of

pytestmark = pytest.mark.dist

ENCODER = "nn.TransformerEncoder"
SMALLEST = 264 / 2**20  # in MiB
POLICIES = ("last-hook", "last-hook-safe")
UNUSED = {"task": "leave_unused", "policy": "last-hook", "bucket_cap_mb": 25.0}


def log_spaced(model: str, count: int) -> list[float]:
    """Caps from 64 bytes to all of the model, in MiB."""
    total = sum(parameter.nbytes for parameter in MODELS[model]()[0].parameters())
    return [64 * (total / 64) ** (place / (count - 1)) / 2**20 for place in range(count)]


def late(policy: str, cap_mb: float, *, set_to_none: bool) -> dict[str, Any]:
    return {
        "task": "fail_late",
        "policy": policy,
        "model": ENCODER,
        "bucket_cap_mb": cap_mb,
        "set_to_none": set_to_none,
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """By name of the case, what each rank answered; one job for all."""
    cases = {
        f"{policy} {what} {set_to_none}": late(policy, cap, set_to_none=set_to_none)
        for policy in POLICIES
        for what, cap in (("small", SMALLEST), ("one bucket", 25.0))
        for set_to_none in (True, False)
    }
    cases |= {f"unused {name}": UNUSED | {"unused": name} for name in ("0.weight", "1.weight")}
    return dict(zip(cases, run_cases(list(cases.values()), worker="textbook_worker"), strict=True))


def test_gradients_set_to_none_stop_it_at_flatten(answers: dict[str, list[Any]]) -> None:
    """A6.4: ``TypeError`` in the first backward whose hook is too early."""
    for answer in answers["last-hook small True"]:
        kind, text = answer["error"]
        assert kind == "TypeError"
        assert "expected Tensor" in text
        assert "got NoneType" in text


def test_gradients_zeroed_in_place_are_corrupted_silently(answers: dict[str, list[Any]]) -> None:
    """A6.4: nothing is raised; some of 48 gradients are wrong, none with a single bucket."""
    for answer in answers["last-hook small False"]:
        assert (answer["wrong"], answer["count"]) == (4, 48)
    for answer in answers["last-hook one bucket False"]:
        assert (answer["wrong"], answer["count"]) == (0, 48)


@pytest.mark.parametrize("what", ["small", "one bucket"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_counting_arrivals_puts_it_right(what: str, set_to_none: bool, answers: dict[str, list[Any]]) -> None:
    for answer in answers[f"last-hook-safe {what} {set_to_none}"]:
        assert (answer["wrong"], answer["count"]) == (0, 48)


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent(answers: dict[str, list[Any]]) -> None:
    """A6.4: ranks drift apart without a word; any other unused parameter goes unnoticed, zeroed in place."""
    for answer in answers["unused 0.weight"]:
        assert (answer["elements"], answer["same"]) == ([], [True, False, False, False])
    for answer in answers["unused 1.weight"]:
        assert (answer["elements"], answer["same"]) == ([40], [True] * 4)


def sweep(count: int) -> dict[str, int]:
    """By model, how many of ``count`` caps have a bucket that was sent incomplete.

    At every cap, these are the buckets that the simulator flags.
    """
    caps = {model: log_spaced(model, count) for model in MODELS}
    cases = [{"task": "sweep_last_hook", "model": model, "caps_mb": caps[model]} for model in MODELS]
    failing = {}
    for model, (answer,) in zip(
        MODELS, run_cases(cases, worker="textbook_worker", world_size=1, limit_s=900), strict=True
    ):
        workload = workload_of(answer)
        for cap, buckets, invalid in zip(caps[model], answer["buckets"], answer["invalid"], strict=True):
            assignment = sim.assign(workload, "last-hook", cap)
            assert [list(bucket) for bucket in assignment.bucket_indices] == buckets
            assert [early.bucket for early in early_launches(workload, assignment)] == invalid, (model, cap)
        failing[model] = sum(map(bool, answer["invalid"]))
    return failing


def test_flags_are_what_is_really_sent_incomplete() -> None:
    """A6.2, A6.3: "the last hook is always last" is false for each of these models."""
    assert all(sweep(25).values())


@pytest.mark.slow
def test_flags_are_what_is_really_sent_incomplete_at_300_caps() -> None:
    """A6.3: of 300 caps between 64 bytes and all of the model, those that have such a bucket."""
    assert sweep(300) == {
        "small transformer with LayerNorm": 26,
        "nn.TransformerEncoder": 250,
        "Conv and BatchNorm in Sequential": 73,
        "convs and norms in separate lists": 299,
        "head declared first": 23,
    }
