"""Buckets switched at random while models train: in every mode gradients and weights are as without."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.switch_worker import BY_HAND, CASES, COMPILED
from tests.ranks import run_together

pytestmark = pytest.mark.dist
Answers = list[dict[str, Any]]
QUICK = [name for name in CASES if name not in COMPILED]
TUNED = ["find_unused, accumulated", "static_graph, views", "fp16 hook"]


def run(folder: Path, world: int, steps: int, cases: list[str]) -> Answers:
    """What each rank answered."""
    words = (str(world), str(steps), *cases)
    for code, errors in run_together("tests.autotune.switch_worker", folder, *words, world_size=world):
        assert code == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def check(answers: Answers, cases: list[str]) -> None:
    """Every step was right, on all ranks, and the Reducer that DDP began with is back."""
    for answer in answers:
        for name in cases:
            case = answer[name]
            assert case["wrong"] == [], name
            assert set(case["used"]) == {"own", "other"}, name
            assert case["original"], name
            assert case["alike"], name
            assert case["used"] == answers[0][name]["used"]
        assert answer["many swaps"]["live"] == 1


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return run(tmp_path_factory.mktemp("switch"), 2, 9, [*QUICK, *(f"tuned: {name}" for name in TUNED)])


@pytest.mark.parametrize("name", QUICK)
def test_every_step_is_that_of_plain_ddp(name: str, two_ranks: Answers) -> None:
    """And where the model allows it, that of an all-reduce by hand."""
    check(two_ranks, [name])


def check_tuned(answers: Answers, name: str) -> None:
    """It came to a verdict, the same on all ranks, and changed no gradient."""
    for answer in answers:
        case = answer[f"tuned: {name}"]
        assert case == answers[0][f"tuned: {name}"]
        assert case["outcome"] in ("kept", "reverted"), case["why"]
        assert case["rounds"] == 6
        assert case["wrong"] == []


@pytest.mark.parametrize("name", TUNED)
def test_a_whole_tuning_in_modes_whose_recording_is_special(name: str, two_ranks: Answers) -> None:
    check_tuned(two_ranks, name)


@pytest.mark.slow
def test_a_whole_tuning_in_every_mode(tmp_path: Path) -> None:
    answers = run(tmp_path, 2, 1, [f"tuned: {name}" for name in CASES])
    for name in CASES:
        check_tuned(answers, name)


def test_a_switched_ddp_is_pickled_as_ever(two_ranks: Answers) -> None:
    assert [answer["plain"]["pickled"] for answer in two_ranks] == [14, 14]


@pytest.mark.slow
def test_a_thousand_switches_in_every_mode(tmp_path: Path) -> None:
    check(run(tmp_path, 2, 1000 // len(CASES) + 40, list(CASES)), list(CASES))


@pytest.mark.slow
def test_a_thousand_swaps_leave_one_reducer_and_no_memory(tmp_path: Path) -> None:
    """Any that stayed would hold a copy of the gradients: seven hundred between the first and last looks."""
    for answer in run(tmp_path, 2, 1000, ["none"]):
        swaps = answer["many swaps"]
        assert swaps["live"] == 1
        assert swaps["grown"] < 10 * swaps["gradients"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 4])
def test_every_step_is_an_all_reduce_of_the_buckets_in_use(world: int, tmp_path: Path) -> None:
    """On more than two ranks other buckets round in another order: what counts are the bits of these.

    Gradients that are integers are not rounded: on four ranks they are plain DDP's as well.
    """
    check(run(tmp_path, world, 40, [*BY_HAND]), [*BY_HAND])
