"""What sets two steps apart: parts that add up, and parts that theory names."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import SimError
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Buffer
from sim.truth.ladder import Part
from tests.effort import tries
from tests.metrics.test_bottleneck import MS, hardware, workload
from tests.strategies import REAL, TINY, Case, assignments, cases, hardwares, paired_cases
from tests.systems.cases import system_cases


def play(case: Case) -> Timeline:
    return sim.simulate(case.workload, case.hardware, case.assignment, slowest=case.slowest)


def check_adds_up(found: tuple[Part, ...], before: Timeline, after: Timeline) -> None:
    if found:
        assert sum(part.before_ns for part in found) == before.step_ns
        assert sum(part.after_ns for part in found) == after.step_ns
    assert sum(part.change_ns for part in found) == after.step_ns - before.step_ns
    sizes = [abs(part.change_ns) for part in found]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=tries(60), deadline=None)
@given(st.data(), cases() | paired_cases())
def test_parts_add_up_between_any_two_assignments(data: st.DataObject, case: Case) -> None:
    drawn = data.draw(assignments(case.workload))
    other = replace(
        case, assignment=replace(case.assignment, bucket_indices=drawn.bucket_indices, bucket_bytes=None)
    )
    before, after = play(case), play(other)
    found = sim.difference(before, after)
    check_adds_up(found, before, after)
    assert (found == ()) == (case.assignment.bucket_indices == drawn.bucket_indices)


@settings(max_examples=tries(40), deadline=None)
@given(st.data(), st.sampled_from([TINY, REAL]))
def test_parts_add_up_between_two_machines(data: st.DataObject, scale: object) -> None:
    case = data.draw(cases(st.just(scale)))  # type: ignore[arg-type]
    other = replace(
        case,
        hardware=data.draw(hardwares(scale)),  # type: ignore[arg-type]
        assignment=data.draw(assignments(case.workload)),
    )
    before, after = play(case), play(other)
    check_adds_up(sim.difference(before, after), before, after)


@settings(max_examples=tries(40), deadline=None)
@given(system_cases())
def test_parts_add_up_for_every_system(case: Case) -> None:
    """Against DDP's own default, on the same machine; late ranks are a change of it."""
    try:
        before, after = play(replace(case, assignment=sim.assign(case.workload), slowest=None)), play(case)
    except SimError:  # ranks that launch in different orders, or unused parameters
        assume(False)
    check_adds_up(sim.difference(before, after), before, after)


@settings(max_examples=tries(20), deadline=None)
@given(cases())
def test_a_step_does_not_differ_from_itself(case: Case) -> None:
    found = sim.difference(play(case), play(case))
    assert found == ()


@settings(max_examples=tries(20), deadline=None)
@given(st.data(), cases())
def test_there_and_back_is_the_same_difference(data: st.DataObject, case: Case) -> None:
    other = replace(case, assignment=data.draw(assignments(case.workload)))
    there, back = sim.difference(play(case), play(other)), sim.difference(play(other), play(case))
    turned = {part.name: (part.after_ns, part.before_ns) for part in back}
    assert {part.name: (part.before_ns, part.after_ns) for part in there} == turned


def parts(found: tuple[Part, ...]) -> dict[str, tuple[float, float]]:
    """Each part in ms, before and after."""
    return {part.name: (part.before_ns / MS, part.after_ns / MS) for part in found}


def built(latency_ms: float, *, buckets: str | float, **machine: object) -> Timeline:
    """Four gradients of 10 MB at 10, 20, 30, 40 of 100 ms on a link of 1 ms a MB, then latency on top."""
    job = workload([40, 30, 20, 10], [10, 10, 10, 10])
    policy = {"policy": buckets} if isinstance(buckets, str) else {"bucket_cap_mb": buckets}
    return sim.simulate(job, hardware(latency_ms=latency_ms, **machine), sim.assign(job, **policy))  # type: ignore[arg-type]


def test_latency_against_bytes_by_hand() -> None:
    """Latency 40, bytes 10 a bucket, all of it after 10 ms of backward's 100.

    Four buckets: latency alone ends at 10 + 4 x 40 = 170, 70 past backward; bytes add 40. One bucket, ready
    at 40: its latency ends at 80 and hides behind backward; its bytes end at 120, and add 20.
    """
    found = sim.difference(built(40, buckets="per-parameter"), built(40, buckets="single"))
    assert parts(found) == {"compute": (150, 150), "latency": (70, 0), "bytes": (40, 20)}
    assert [part.name for part in found] == ["latency", "bytes", "compute"]


_SHARDED = {
    "overlap_grad_reduce": True,
    "bucket_size": 4_000_000,
    "use_distributed_optimizer": True,
    "overlap_param_gather": True,
}


@pytest.mark.parametrize(
    ("policy", "options"),
    [("megatron", {}), ("megatron", _SHARDED), ("fully_shard", {}), ("zero2", {})],
)
def test_another_system_differs_by_parts_that_add_up(policy: str, options: dict[str, Any]) -> None:
    """Gathers that hide behind forward, too, are told in parts that add up to the nanosecond."""
    job = workload([40, 30, 20, 10], [10, 10, 10, 10])
    curve = hardware(latency_ms=4).all_reduce
    machine = replace(hardware(latency_ms=4), all_gather=curve, reduce_scatter=curve)
    before, after = (
        sim.simulate(job, machine, sim.assign(job, name, **given))
        for name, given in (("ddp", {}), (policy, options))
    )
    check_adds_up(sim.difference(before, after), before, after)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("ddp", {}),
        ("ddp", {"find_unused_parameters": True}),
        ("per-parameter", {"accumulation_steps": 2}),
        ("zero1", {}),
        ("zero2", {"gradient_accumulation_steps": 2}),
        ("after-backward", {}),
        ("megatron", _SHARDED),
        ("fully_shard", {"accumulation_steps": 2}),
    ],
)
def test_collectives_are_those_that_are_explained(policy: str, options: dict[str, Any]) -> None:
    buffers = (Buffer(dtype="float32", num_bytes=400),)
    job = replace(workload([40, 30, 20, 10], [10, 10, 10, 10]), buffers=buffers)
    curve = hardware().all_reduce
    machine = replace(hardware(), all_gather=curve, reduce_scatter=curve, broadcast=curve)
    played = sim.simulate(job, machine, sim.assign(job, policy, **options))
    told = sim.explain(job, policy, **options).iterations[-1].events
    assert [(one.kind, one.num_bytes, one.phase) for one in sim.collectives(played)] == [
        (one.kind, one.num_bytes, one.phase) for one in told
    ]


def test_another_assignment_on_another_machine_by_hand() -> None:
    """Four buckets become one, and latency falls from 40 to 4: 70 + 40 ms past backward are all hidden."""
    found = sim.difference(built(40, buckets="per-parameter"), built(4, buckets="single"))
    assert parts(found) == {"compute": (150, 150), "latency": (70, 0), "bytes": (40, 0)}
