"""``sim.autotune`` under bad luck: a rank dies or hangs, a loop raises, a job resumes; what it costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.effort import PATIENCE_S
from tests.ranks import run_together, start

pytestmark = pytest.mark.dist
Answers = list[dict[str, Any]]
WORKER = "tests.autotune.survival_worker"
# Where rank 1 dies or hangs, after how many whole steps of the other, and whether that was in ``tuner.step``.
PHASES = {
    "recording": (6, False),
    "link": (9, True),
    "prediction": (10, False),
    "switch": (14, True),
    "trial": (21, False),
    "verdict": (29, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_dies_ends_the_other_with_whole_weights(phase: str, tmp_path: Path) -> None:
    (code, error), (killed, _) = run_together(WORKER, tmp_path, phase, "SIGKILL")
    assert (code, killed) == (0, -9), error
    answer = json.loads((tmp_path / f"{phase}.json").read_text())
    assert "gloo/transport" in answer["raised"]  # which says whose connection broke
    check_end(answer, phase)


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_by_the_process_group(tmp_path: Path) -> None:
    """In every phase, all at once: after the time that the group was given the other rank raises."""
    said = tmp_path / "said"
    ranks = [
        start(WORKER, [rank, tmp_path, phase, "SIGSTOP"], said.with_suffix(f".{phase}.{rank}"))
        for phase in PHASES
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
    for phase in PHASES:
        answer = json.loads((tmp_path / f"{phase}.json").read_text())
        assert "imed out" in answer["raised"] or "imeout" in answer["raised"], answer
        check_end(answer, phase)


def check_end(answer: dict[str, Any], phase: str) -> None:
    """After so many whole steps, with their weights, and told where the tuner itself was at work."""
    whole, in_ours = PHASES[phase]
    assert answer["whole"] == whole, answer
    assert answer["same"]
    if in_ours:
        outcome, why = answer["result"]
        assert outcome == "refused"
        assert answer["raised"] in why
    else:
        assert answer["result"] is None


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("survival")
    for code, error in run_together(WORKER, folder, "lucky"):
        assert code == 0, error
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_resumed_from_within_a_trial_is_as_never_stopped(ranks: Answers) -> None:
    for answer in (answers["resumed"] for answers in ranks):
        assert 20 < answer["at"] < 30
        assert answer["tuned again"] in ("kept", "reverted")
        assert answer["same"]
        assert answer["by hand"]


def test_a_loop_that_raises_in_a_trial_goes_on(ranks: Answers) -> None:
    for answer in (answers["raises_in_trial"] for answers in ranks):
        assert answer["raised"] == 1
        assert answer["outcome"] == "kept", answer["why"]
        assert (answer["hooks"], answer["threads"], answer["differs"]) == ([0, 0, 0, 0], 1, [])


def test_only_the_first_ranks_prediction_counts(ranks: Answers) -> None:
    for answer in (answers["predicts_otherwise"] for answers in ranks):
        assert answer["outcome"] == "kept", answer["why"]
        assert answer["why"] == ranks[0]["predicts_otherwise"]["why"]


def test_a_gain_that_the_slowest_rank_does_not_have_is_none(ranks: Answers) -> None:
    for answer in (answers["slower_by_half"] for answers in ranks):
        assert (answer["outcome"], answer["own"]) == ("reverted", True)
        assert answer["why"] == ranks[0]["slower_by_half"]["why"]


def test_once_it_has_ended_nothing_runs(ranks: Answers) -> None:
    """In calls: ``step`` is one, a training step after a revert is plain DDP's, a kept Reducer adds some."""
    for answer in (answers["costs_nothing"] for answers in ranks):
        assert answer["reverted"] == {"step": ["step"], "more": 0}
        assert answer["kept"]["step"] == ["step"]
        assert 0 <= answer["kept"]["more"] <= 8
