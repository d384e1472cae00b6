"""The textbook systems on two gloo ranks: their gradients, what they refuse, and the times that they tell."""

from itertools import pairwise
from typing import Any

import pytest

from tests.systems.ddp_ranks import run_cases
from tests.systems.textbook_models import random_cap_mb, random_layers

pytestmark = pytest.mark.dist

CORRECT = (
    "per-parameter-sync",
    "per-parameter-async",
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook-safe",
)
IN_BACKWARD = ("per-parameter-async", "arrival-counted", "flat-views", "last-hook-safe")
PACED = {"task": "pace", "count": 6, "spacing_ms": 8.0, "bucket_cap_mb": 0.125}  # two gradients a bucket


def gradient_cases(policy: str, seeds: range) -> list[dict[str, Any]]:
    """A random model for each seed."""
    asked = []
    for seed in seeds:
        layers = random_layers(seed)
        cap = random_cap_mb(seed, layers)
        asked.append({"task": "compare_gradients", "policy": policy, "layers": layers, "bucket_cap_mb": cap})
    return asked


def check_gradients(answers: Any) -> None:
    """Every gradient of every step is the plain average."""
    for by_rank in answers:
        for answer in by_rank:
            assert answer.get("equal") == [True] * 4, answer


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """By name of the case, what each rank answered; one job for all."""
    cases: dict[str, dict[str, Any]] = {}
    for number, policy in enumerate(CORRECT):
        for case in gradient_cases(policy, range(100 * number, 100 * number + 3)):
            cases[f"gradients {policy} {len(cases)}"] = case
        cases[f"pace {policy}"] = PACED | {"policy": policy}
        cases[f"unused {policy}"] = {
            "task": "leave_unused",
            "policy": policy,
            "unused": "0.bias",
            "bucket_cap_mb": 0.0,
        }
    cases["views"] = {"task": "take_views_away"}
    cases["pace last-hook"] = PACED | {"policy": "last-hook"}
    return dict(zip(cases, run_cases(list(cases.values()), worker="textbook_worker"), strict=True))


@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages(policy: str, answers: dict[str, list[Any]]) -> None:
    found = [rows for name, rows in answers.items() if name.startswith(f"gradients {policy} ")]
    assert len(found) == 3
    check_gradients(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages_on_many_models(policy: str) -> None:
    check_gradients(
        run_cases(gradient_cases(policy, range(1000, 1060)), worker="textbook_worker", limit_s=900)
    )


@pytest.mark.parametrize("policy", CORRECT)
def test_a_parameter_without_a_gradient_is_refused_by_name(
    policy: str, answers: dict[str, list[Any]]
) -> None:
    for answer in answers[f"unused {policy}"]:
        assert answer["error"][0] == "ReplayError"
        assert "parameter 1 (0.bias) was not used" in answer["error"][1]


def test_gradients_that_are_no_longer_views_are_refused(answers: dict[str, list[Any]]) -> None:
    """A7.4: the layout is frozen."""
    for answer in answers["views"]:
        assert answer["error"][0] == "ReplayError"
        assert "is no longer a view" in answer["error"][1]


@pytest.mark.parametrize("policy", [*CORRECT, "last-hook"])
def test_a_paced_step_tells_ready_launch_and_end_of_every_bucket(
    policy: str, answers: dict[str, list[Any]]
) -> None:
    """A row a bucket, as a traced lane of DDP has them (``stepping.Recorder``)."""
    for answer in answers[f"pace {policy}"]:
        row, buckets, due = answer["row"], answer["buckets"], answer["due"]
        assert len(row["buckets"]) == len(buckets)
        for times, bucket in zip(row["buckets"], buckets, strict=True):
            ready, launch, end = times
            complete = max(due[5 - index] for index in bucket)
            assert complete <= ready <= launch <= end <= row["sync_end"]
            if policy in IN_BACKWARD and bucket != buckets[-1]:
                assert ready < row["backward_end"]
            if policy in ("per-parameter-sync", "after-backward"):
                assert ready >= row["backward_end"]
        if policy in ("per-parameter-sync", "after-backward"):
            assert all(before[2] <= after[0] for before, after in pairwise(row["buckets"]))
