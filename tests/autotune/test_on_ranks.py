"""``sim.autotune`` on real ranks, which check themselves: how it ends, what ranks tell, and bad luck."""

from pathlib import Path

import pytest

from tests.checked import assert_nothing_fails
from tests.effort import PATIENCE_S
from tests.ranks import run_together, start

pytestmark = pytest.mark.dist
WORKER = "tests.autotune.survival_worker"  # which checks itself
PHASES = ("recording", "link", "prediction", "switch", "trial", "verdict")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_dies_ends_the_other_with_whole_weights(phase: str, tmp_path: Path) -> None:
    (code, error), (killed, _) = run_together(WORKER, tmp_path, phase, "SIGKILL")
    assert (code, killed) == (0, -9), error


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_by_the_process_group(tmp_path: Path) -> None:
    """In every phase, all at once: after the time that the group was given the other rank raises."""
    ranks = [
        (rank, start(WORKER, [rank, tmp_path, phase, "SIGSTOP"], tmp_path / f"said.{phase}.{rank}"))
        for phase in PHASES
        for rank in (0, 1)
    ]
    for _, process in ranks:
        process.join(PATIENCE_S)
        process.kill()
        process.join()
    said = "".join(path.read_text()[-2000:] for path in tmp_path.glob("said.*.0"))
    assert [process.exitcode for rank, process in ranks if rank == 0] == [0] * len(PHASES), said


def test_ranks_that_go_on_find_nothing_wrong(tmp_path: Path) -> None:
    assert_nothing_fails(WORKER, tmp_path, "lucky")


def test_all_ranks_keep_revert_and_refuse_alike_and_nothing_is_left(tmp_path: Path) -> None:
    assert_nothing_fails("tests.autotune.autotune_worker", tmp_path)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_ranks_tell_goes_over_a_group_of_ours_and_a_failure_reaches_all(
    world_size: int, tmp_path: Path
) -> None:
    worker = "tests.autotune.unison_worker"
    assert_nothing_fails(worker, tmp_path, str(world_size), world_size=world_size)
