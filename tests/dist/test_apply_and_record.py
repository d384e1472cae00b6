"""``sim.apply`` and ``sim.record`` on two gloo ranks, which check themselves; what is read of their files."""

import signal
from pathlib import Path

import pytest

from sim.formats.recordings import load_recording
from sim.importer.recorded import workload_of
from tests.checked import assert_nothing_fails
from tests.ranks import run_together

pytestmark = pytest.mark.dist
WORKER = "tests.dist.worker"


def test_ranks_find_nothing_wrong_and_workloads_come_out_of_their_files(tmp_path: Path) -> None:
    assert_nothing_fails(WORKER, tmp_path)

    accumulated = workload_of(load_recording(tmp_path / "accumulation"))
    assert accumulated.ready_includes == ()
    assert accumulated.provenance["made_from"] == "4 no_sync backwards"

    on_full_disk = load_recording(tmp_path / "full_disk")
    assert [(rank.torn, len(rank.steps)) for rank in on_full_disk.ranks] == [(True, 1)] * 2

    recording = load_recording(tmp_path / "to_the_bit" / "plain")
    assert (recording.world_size, recording.missing_ranks) == (2, ())
    workload = workload_of(recording)
    assert workload.ready_includes == ("copy_in", "launch", "interference")
    assert len(workload.samples) == 16
    assert [buffer.dtype for buffer in workload.buffers] == ["float32", "int64"]


@pytest.mark.slow
def test_a_killed_rank_leaves_readable_files(tmp_path: Path) -> None:
    assert [code for code, _ in run_together(WORKER, tmp_path, "killed")] == [0, -signal.SIGKILL]
    assert not list(tmp_path.glob("failed-*"))  # the other one was told that its peer was gone
    recording = load_recording(tmp_path / "killed")
    assert [[step.step for step in rank.steps] for rank in recording.ranks] == [[1, 2, 3, 4]] * 2
