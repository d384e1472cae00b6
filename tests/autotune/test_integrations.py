"""``sim.autotune`` and ``sim.record`` in real trainers on two gloo ranks, where they are installed."""

from pathlib import Path

import pytest

from sim.formats.recordings import load_recording
from sim.importer.recorded import workload_of
from tests.ranks import run_together

pytestmark = [pytest.mark.dist, pytest.mark.slow]
LOOPS = {
    "transformers": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "fabric": ("lightning",),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_tuned_or_recorded_and_its_weights_are_those_without(loop: str, tmp_path: Path) -> None:
    """``trainers_worker`` checks itself; what was recorded accumulates gradients."""
    for package in LOOPS[loop]:
        pytest.importorskip(package)
    for code, error in run_together("tests.autotune.trainers_worker", tmp_path, loop):
        assert code == 0, error
    if loop in ("accelerate", "fabric"):
        return
    recording = load_recording(tmp_path / "recording")
    for recorded in recording.ranks:
        assert len(recorded.steps) == 40
        for step in recorded.steps:
            assert [backward.synchronised for backward in step.backwards] == [False, True]
    assert len(workload_of(recording).gradients) == len(recording.ranks[0].header.parameters)
