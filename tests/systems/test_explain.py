"""``sim.explain``: what it tells, in which order, and what it refuses."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings

import sim
from sim.nouns.collective import Event, Explanation
from sim.systems.registry import SYSTEMS, write
from tests.effort import tries
from tests.systems.ddp_jobs import Job, jobs, mlp

WORKLOAD = mlp()
CAP = 0.05


def test_an_event_says_all_of_itself() -> None:
    """Bytes, the bucket it carries, and the parameter whose hook launches it, by index and name."""
    told = sim.explain(WORKLOAD, bucket_cap_mb=CAP)
    assert told.iterations[1].events[-1] == Event(
        kind="all_reduce",
        elements=20704,
        dtype="float32",
        num_bytes=82816,
        phase="backward",
        purpose="gradients",
        micro_batch=1,
        gradient=0,
        name="layers.0.weight",
        bucket=1,
        root=None,
    )
    assert told.iterations[1].events[0] == Event(
        kind="broadcast",
        elements=11,
        dtype="int32",
        num_bytes=44,
        phase="before forward",
        purpose="rebuilt buckets",
        root=0,
    )


@pytest.mark.parametrize("policy", [policy for policy in SYSTEMS if not policy.startswith("zero")])
def test_every_system_can_be_explained(policy: str) -> None:
    """All gradients travel in every iteration, under whatever system."""
    for step in sim.explain(WORKLOAD, policy).iterations:
        carried = [event.elements for event in step.events if event.purpose == "gradients"]
        assert sum(carried) == 41152
        assert sorted(index for bucket in step.bucket_indices for index in bucket) == list(range(10))


@settings(max_examples=tries(200))
@given(jobs())
def test_what_is_explained_is_what_is_simulated(job: Job) -> None:
    """The same collectives in the same order, whatever the machine."""
    told: Explanation = sim.explain(job.workload, **job.options)
    for step in told.iterations:
        assignment = job.assign(step.iteration)
        assert step.bucket_indices == assignment.bucket_indices
        programs = write(job.workload, job.hardware, assignment, step.iteration)
        expected = [
            (number, c.kind, c.elements, c.dtype, c.num_bytes, c.phase, c.gradient, c.bucket)
            for number, program in enumerate(programs, start=1)
            for c in program.collectives
        ]
        assert expected == [
            (e.micro_batch, e.kind, e.elements, e.dtype, e.num_bytes, e.phase, e.gradient, e.bucket)
            for e in step.events
        ]
    for event in (event for step in told.iterations for event in step.events):
        names = [gradient.name for gradient in job.workload.gradients]
        assert event.name == (None if event.gradient is None else names[event.gradient])


@settings(max_examples=tries(100))
@given(jobs())
def test_times_do_not_matter_but_for_order(job: Job) -> None:
    stretched = replace(
        job.workload,
        backward_ns=job.workload.backward_ns * 7 + 3,
        forward_ns=1,
        gradients=tuple(
            replace(gradient, ready_ns=None if gradient.ready_ns is None else gradient.ready_ns * 7 + 3)
            for gradient in job.workload.gradients
        ),
    )
    assert asdict(sim.explain(stretched, **job.options)) == asdict(sim.explain(job.workload, **job.options))
