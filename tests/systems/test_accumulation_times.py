"""Micro-batches that each reduce, and what it takes to add a gradient to an earlier one (A3.12)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

import sim
from sim.clock.program import COPY_IN, OPTIMIZER
from sim.errors import InputError, NotModelledError
from sim.nouns.hardware import SLOWDOWNS
from sim.systems.registry import write
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.systems.ddp_jobs import Job, jobs

EACH = {"accumulation_steps": 3, "no_sync": False}
TWO = handmade([2000, 1000], 1000, name="two", forward_ns=500, optimizer_ns=70)
# 100 ns a gradient for each copy, and 200 ns for adding it up.
HARDWARE = wired({0: 300}, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=1e10, accumulate_bytes_per_s=5e9)


@settings(max_examples=tries(200))
@given(jobs(**EACH))
def test_every_micro_batch_sends_what_the_last_one_sends(job: Job) -> None:
    programs = write(job.workload, job.hardware, job.assign("steady"))
    sent = [[(c.kind, c.elements, c.dtype, c.purpose) for c in program.collectives] for program in programs]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    optimized = [[one.duration_ns for one in program.lane if one.kind == OPTIMIZER] for program in programs]
    assert [sum(one) for one in optimized] == [0, 0, job.workload.optimizer_ns]


@settings(max_examples=tries(200))
@given(jobs(no_sync=False, accumulation_steps=1))
def test_it_is_nothing_to_a_single_micro_batch(job: Job) -> None:
    alone = replace(job, options={name: v for name, v in job.options.items() if name != "no_sync"})
    assert job.simulate("steady").sync_end_ns == alone.simulate("steady").sync_end_ns
    assert job.simulate("steady").accumulation_ns == 0


@settings(max_examples=tries(200))
@given(jobs(**EACH, set_to_none=True, gradient_as_bucket_view=False))
def test_it_costs_no_less_than_no_sync(job: Job) -> None:
    """On a machine that nothing stretches: all that a synchronised micro-batch does comes on top."""
    job = replace(job, hardware=replace(job.hardware, **dict.fromkeys(SLOWDOWNS, 1.0)))
    under = replace(job, options=job.options | {"no_sync": True, "static_graph": False})
    if job.has("static_graph"):
        return  # torch refuses it under no_sync
    assert job.simulate("steady").accumulation_ns >= under.simulate("steady").accumulation_ns


def test_by_hand() -> None:
    """The first: 1000, copy 100, 1000, copy 100, 300 for both, two copies back. Later ones add 2 x 200."""
    step: dict[str, Any] = {"bucket_cap_mb": 25}
    once = sim.simulate(TWO, HARDWARE, sim.assign(TWO, **step))
    assert once.sync_end_ns == 2000 + 2 * 100 + 300 + 2 * 100
    each = sim.simulate(TWO, HARDWARE, sim.assign(TWO, **step, **EACH))
    assert each.sync_end_ns == once.sync_end_ns + 400
    assert each.accumulation_ns == (500 + 2700) + (500 + 3100)
    assert sim.summarize(each).step_ns == each.accumulation_ns + 500 + 3100 + 70
    under = sim.simulate(TWO, HARDWARE, sim.assign(TWO, **step, accumulation_steps=3))
    assert under.accumulation_ns == (500 + 2000) + (500 + 2000 + 400)
    assert under.sync_end_ns == once.sync_end_ns + 400


def test_views_stay_from_one_micro_batch_to_the_next() -> None:
    """A3.4: with a hook nothing is copied into a bucket in which the gradient lies already."""
    options = {"bucket_cap_mb": 25, "gradient_as_bucket_view": True, "comm_hook": "allreduce"}
    programs = write(TWO, HARDWARE, sim.assign(TWO, **options, **EACH))
    copies = [sum(item.kind == COPY_IN for item in program.lane) for program in programs]
    assert copies == [2, 0, 0]


def test_without_set_to_none_recorded_times_contain_additions() -> None:
    made = sim.assign(TWO, bucket_cap_mb=25, set_to_none=False, accumulation_steps=2)
    assert sim.simulate(TWO, HARDWARE, made).accumulation_ns == 2500


def test_what_is_refused() -> None:
    for iteration in (1, 2, 3):
        assignment = sim.assign(TWO, iteration=iteration, **EACH)
        with pytest.raises(NotModelledError, match=f"iteration: {iteration} is not modelled with accumul"):
            sim.simulate(TWO, HARDWARE, assignment, iteration=iteration)
    with pytest.raises(NotModelledError, match="static_graph and accumulation_steps"):
        sim.assign(TWO, static_graph=True, accumulation_steps=3)
    sim.simulate(TWO, HARDWARE, sim.assign(TWO, static_graph=True, **EACH))
    with pytest.raises(InputError, match=r"accumulate_bytes_per_s: -1\.0 is not legal"):
        replace(HARDWARE, accumulate_bytes_per_s=-1.0)
