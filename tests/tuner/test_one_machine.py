"""One machine for all answers: tune, simulate and sweep say one step of the same buckets."""

from pathlib import Path

import pytest

import sim

TRACES = Path(__file__).parents[2] / "traces"
WORKLOADS = sorted((TRACES / "workloads").glob("*.json"))
MACHINES = [TRACES / "hardware" / f"{name}.json" for name in ("box-2x1gbit", "box-2x4gbit-families")]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda path: path.stem)
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_every_family_takes_as_long_as_it_is_simulated_and_swept(path: Path, machine: Path) -> None:
    workload, hardware = sim.load_workload(path), sim.load_hardware(machine)
    answer = sim.tune(workload, hardware, draws=1)
    for family in answer.families.values():
        played = sim.summarize(sim.simulate(workload, hardware, family.assignment))
        assert played.step_ns == family.report.step_ns
    swept = {row.bucket_cap_mb: row.step_ns for row in sim.sweep(workload, hardware)}
    assert answer.setting is not None
    assert answer.setting.saved_ns == answer.baseline.step_ns - answer.setting.step_ns
    if answer.setting.cap_mb is not None:
        cap = sim.assign(workload, bucket_cap_mb=answer.setting.cap_mb)
        step_ns = sim.summarize(sim.simulate(workload, hardware, cap)).step_ns
        assert step_ns == answer.setting.cap_step_ns == swept[answer.setting.cap_mb]
