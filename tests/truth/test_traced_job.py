"""A traced job is one with its own buckets, as a recorded one, and its steps are set against their parts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sim
from sim.formats.record_files import recorded_step
from sim.nouns.assignment import Assignment
from sim.nouns.workload import AsRun
from sim.systems.simulate import simulated_step_ns
from sim.truth.recorded_job import held_to
from sim.tuner.recommend import IN_USE
from tests.commands import bucketsim
from tests.importer.built_traces import Dialect, Job, build, write
from tests.importer.test_kineto_steps import JOB

STEADY = replace(JOB, forward_ns=((1_000_000, 1_000_000),) * 4)
LATE = replace(JOB, forward_ns=((1_000_000, 29_000_000),) * 4)


def imported(job: Job, at: Path) -> tuple[Path, Path]:
    """The workload and the hardware that are made of its traces."""
    texts, _ = build(job, Dialect())
    (at / "traces").mkdir()
    paths = write(texts, at / "traces", Dialect())
    assert bucketsim("import", "kineto", *paths, "-o", at / "imported").code == 0
    return at / "imported" / "workload.json", at / "imported" / "hardware.json"


@pytest.mark.parametrize("command", ["simulate", "sweep", "tune", "export"])
def test_its_own_buckets_are_told_and_compared_with(command: str, tmp_path: Path) -> None:
    files = imported(STEADY, tmp_path)
    workload, hardware = sim.load_workload(files[0]), sim.load_hardware(files[1])
    step = recorded_step(files[0])
    assert workload.job == AsRun(bucket_indices=step.observed or ())
    own = Assignment(bucket_indices=workload.job.bucket_indices)
    assert len(own.bucket_indices) == 3 != len(sim.assign(workload).bucket_indices)
    said = bucketsim(command, files[0], "--hardware", files[1], *["--json"] * (command != "export"))
    own_ns = simulated_step_ns(workload, hardware, own)
    assert "the job's own buckets: 3 of " in said.err
    assert f"a step with them: {own_ns / 1e6:.2f} ms" in said.err
    assert "doubtful" not in said.err
    if command == "tune":
        answer = json.loads(said.out)
        assert (answer["against"], answer["baseline"]["step_ns"]) == (IN_USE, own_ns)


def test_steps_that_are_longer_than_their_parts_are_told_and_nothing_is_fitted(tmp_path: Path) -> None:
    """All ranks wait for one, which no part holds: a fit would take it for a slow link."""
    files = imported(LATE, tmp_path)
    said = bucketsim("tune", files[0], "--hardware", files[1], "--json").err
    assert "ms longer than their parts on this link (last came rank 1, to " in said
    assert "held to" not in said
    assert "ms longer" not in bucketsim("tune", files[0], "--hardware", files[1], "--json", "--parts").err
    workload, hardware = sim.load_workload(files[0]), sim.load_hardware(files[1])
    step = recorded_step(files[0])
    job, own = held_to(workload, hardware, step), sim.own_step(workload, hardware, step)
    assert (job.workload, job.hardware, job.own, job.is_held) == (workload, hardware, own, False)
    assert job.own.step_ns > 1.5 * job.own.parts_ns
    elsewhere = held_to(workload, replace(hardware, world_size=4), step)
    assert (elsewhere.own, "4 is not legal; the job has 2 ranks" in elsewhere.why_not) == (None, True)
