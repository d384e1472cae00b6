"""``sim.explain``: what an event tells, and that times do not matter; real ranks hold it to what is sent."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings

import sim
from sim.nouns.collective import Event
from sim.systems.registry import SYSTEMS
from tests.effort import tries
from tests.systems.ddp_jobs import Job, jobs, mlp

WORKLOAD = mlp()


def test_an_event_says_all_of_itself() -> None:
    """Bytes, the bucket it carries, and the parameter whose hook launches it, by index and name."""
    told = sim.explain(WORKLOAD, bucket_cap_mb=0.05).iterations[1].events
    assert told[-1] == Event(
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
    assert (told[0].kind, told[0].purpose, told[0].num_bytes) == ("broadcast", "rebuilt buckets", 44)


@pytest.mark.parametrize("policy", [policy for policy in SYSTEMS if not policy.startswith("zero")])
def test_every_system_can_be_explained(policy: str) -> None:
    """All gradients travel in every iteration, under whatever system."""
    for step in sim.explain(WORKLOAD, policy).iterations:
        carried = [event.elements for event in step.events if event.purpose == "gradients"]
        assert sum(carried) == 41152
        assert sorted(index for bucket in step.bucket_indices for index in bucket) == list(range(10))


@settings(max_examples=tries(100))
@given(jobs())
def test_times_do_not_matter_but_for_order(job: Job) -> None:
    longer = job.workload.retimed(
        lambda times: tuple(None if time is None else time * 7 + 3 for time in times),
        backward_ns=job.workload.backward_ns * 7 + 3,
        forward_ns=1,
    )
    longer = replace(longer, provenance=job.workload.provenance, extensions=job.workload.extensions)
    assert asdict(sim.explain(longer, **job.options)) == asdict(sim.explain(job.workload, **job.options))
