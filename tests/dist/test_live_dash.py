"""The live view on real ranks: steps appear while they train, unseen ones are predicted, drift is found."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import sim
from sim.live.follower import Followed
from tests.dist.live_dash_worker import SLOW_FROM, SLOW_S, STEPS
from tests.effort import PATIENCE_S

pytestmark = [pytest.mark.dist, pytest.mark.slow]  # a browser watches a job in `make test`

# A step sleeps 26 ms and computes little, but a busy two-core machine wakes ranks late, now more, now less.
WANDERS = 0.25


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> list[Followed]:
    """What was seen at each look while two ranks trained, and after."""
    folder: Path = tmp_path_factory.mktemp("dash")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.dist.live_dash_worker", str(rank), str(folder)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    follower, seen, deadline = sim.follow(folder / "recording"), [], time.monotonic() + PATIENCE_S
    try:
        while any(rank.poll() is None for rank in ranks):
            assert time.monotonic() < deadline
            seen.append(follower.refresh())
            time.sleep(0.2)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [*seen, follower.refresh(30)]


def test_steps_appear_while_the_job_runs(watched: list[Followed]) -> None:
    counts = [one.step_count for one in watched]
    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    assert counts[-1] == STEPS
    assert watched[-1].fault_count == 0
    assert watched[-1].unread_bytes == 0


def test_unseen_steps_are_predicted_and_the_slow_down_is_found(watched: list[Followed]) -> None:
    """The job's own collectives are the machine; the slow-down is 20 ms in one rank's forward."""
    last = watched[-1]
    window = sim.live_window(last, 20)
    assert window is not None
    calibration = sim.calibrate_live(window, last.ranks[0].layouts)
    assert calibration.last_step < SLOW_FROM
    report = sim.judge_live(last, calibration)
    series = report.series
    errors = sorted(
        measured / predicted - 1
        for step, measured, predicted in zip(series.step, series.step_ns, series.predicted, strict=True)
        if calibration.last_step < step < SLOW_FROM
    )
    assert len(errors) > 100
    assert abs(errors[len(errors) // 2]) < WANDERS
    drift = report.drift
    assert drift is not None
    assert abs(drift.since_step - SLOW_FROM) <= 20
    assert drift.largest_part == "forward"
    predicted = series.predicted[-1]
    assert drift.parts["forward"] * predicted == pytest.approx(SLOW_S * 1e9, rel=WANDERS)
    assert report.lateness is not None
    assert report.lateness.rank == 1
    assert report.lateness.share > 0.5
