"""The Python reducer under torch.compile (A11.6 to A11.9): its collectives are real ones; times by hand."""

import random
from dataclasses import replace
from math import prod
from typing import Any

import pytest

import sim
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Buffer
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import MIB, NS_PER_MS
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.replayable import check_replayable
from tests.handmade import handmade, wired
from tests.systems.compiled_cases import Case, eager_workload, random_case
from tests.systems.ddp_ranks import run_cases
from tests.systems.test_compile_cuts import FIVE, HARDWARE, told

MODE: dict[str, Any] = {"optimize_ddp": "python_reducer"}
WIDTHS = (200, 301, 503, 602)


def case_of(seed: int, *, backend: str = "inductor", kernels: bool = False) -> Case:
    """A chain of parts, as a rule with more than one bucket of 1 MiB."""
    cap_mb = random.Random(seed).choice((None, 0.5, 1, 2, 3.7))
    more = {"cap_mb": cap_mb, "widths": WIDTHS, "kernels": kernels, "backend": backend}
    return random_case(seed, plain=True, widths=WIDTHS) | more | {"reorders": bool(seed % 2)}


def predicted(case: Case, answer: Any) -> Timeline:
    workload = eager_workload(answer)
    return sim.simulate(workload, HARDWARE, sim.assign(workload, bucket_cap_mb=case["cap_mb"], **MODE))


def check(case: Case, answer: Any) -> None:
    """All-reduces are as the rules have them, and go out where they say unless Inductor reorders (A11.8)."""
    seen = [(one["kind"], one["elements"], one["dtype"]) for one in answer["events"]]
    if case["backend"] != "inductor":  # nothing is fused
        sizes = [prod(shape) for _, shape, _ in answer["parameters"]]
        assert sorted(elements for _, elements, _ in seen) == sorted(sizes), case
        return
    timeline = predicted(case, answer)
    sent = [one.collective for one in timeline.collectives]
    assert seen == [(one.kind, one.elements, one.dtype) for one in sent], case
    assert answer["averaged"] or not case["kernels"], case
    if not case["reorders"]:
        ready = timeline.workload.order()
        matrices = [len(gradient.shape) == 2 for gradient in timeline.workload.gradients]
        before = [
            sum(matrices[index] for index in ready[: ready.index(one.gradient) + 1])
            for one in sent
            if one.gradient is not None
        ]
        assert [one["gradient"] or 0 for one in answer["events"]] == before, case


def compare(*cases: Case) -> None:
    for case, by_rank in zip(cases, run_cases(list(cases), worker="python_reducer_worker"), strict=True):
        for answer in by_rank:
            check(case, answer)


@pytest.mark.dist
def test_real_all_reduces_are_fused_so() -> None:
    compare(case_of(2))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_real_all_reduces_of_random_models_are_fused_so(first: int) -> None:
    compare(*map(case_of, range(first, first + 10)))


@pytest.mark.slow
@pytest.mark.dist
def test_the_kernels_that_real_runs_leave_out_change_nothing_and_without_inductor_nothing_is_fused() -> None:
    compare(case_of(2, kernels=True), case_of(3, backend="aot_eager"))


def played(hardware: Hardware = HARDWARE, **options: Any) -> Timeline:
    assignment = sim.assign(FIVE, **MODE, **options)
    one = sim.simulate(FIVE, hardware, assignment)
    assert replace(sim.simulate(FIVE, hardware, assignment, "analytic"), engine="simpy") == one
    return one


def test_the_worked_example_of_the_rules() -> None:
    assert told(played()) == [("head", 10, 25), ("norm mid wide", 40, 55), ("stem", 50, 70)]
    small = [("head", 10, 25), ("norm mid", 30, 45), ("wide", 40, 60), ("stem", 50, 75)]
    assert told(played(bucket_cap_mb=4.9)) == told(played(bucket_cap_mb=4)) == small
    copying = wired({0: 15 * NS_PER_MS}, copy_in_bytes_per_s=2000 * MIB)
    slow = played(copying, bucket_cap_mb=4)
    times = [("head", 11, 26), ("norm mid", 37.5, 52.5), ("wide", 57.5, 72.5), ("stem", 73.5, 88.5)]
    assert told(slow) == times
    fused = [held for held in slow.holdings if held.what == "fused buckets"]
    assert sum(held.num_bytes for held in slow.holdings if held not in fused) == FIVE.total_bytes
    assert [(held.num_bytes, held.start_ns, held.end_ns) for held in fused] == [
        (int(size * MIB), int(start * NS_PER_MS), int(end * NS_PER_MS))
        for size, start, end in ((2, 10, 11), (13, 31, 37.5), (20, 47.5, 57.5), (12, 67.5, 73.5))
    ]
    assert any("reorder_for_peak_memory" in note for note in slow.notes)


def test_a_weight_is_sent_before_its_bias_and_a_cap_below_one_mebibyte_is_none() -> None:
    """In an eager backward the bias is ready first; compiled, it waits for the weight."""
    linear = handmade([30, 20, 10], [2 * MIB, 8, 8], names=["a.weight", "a.bias", "b.bias"])
    timeline = sim.simulate(linear, HARDWARE, sim.assign(linear, bucket_cap_mb=0.5, **MODE))
    assert timeline.assignment.bucket_indices == ((2, 0), (1,))
    assert [one.collective.gradient for one in timeline.collectives] == [0, 1]
    assert [one.launch_ns for one in timeline.collectives] == [30, 30]


def test_buffers_are_sent_by_the_constructor_only() -> None:
    buffered = replace(FIVE, buffers=(Buffer(dtype="float32", num_bytes=64),))
    timeline = sim.simulate(buffered, HARDWARE, sim.assign(buffered, **MODE))
    assert {one.collective.phase for one in timeline.collectives} == {"backward"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bucket_cap_mb_list": [1, 25]}, InputError, "torch stops on it"),
        ({"first_bucket_mb": 1}, InputError, "torch stops on it"),
        ({"set_last_bucket_cap": True}, InputError, "has no set_last_bucket_cap"),
        ({"policy": "single"}, InputError, "has no policy 'single'"),
        ({"compile_cap_mb": 25}, InputError, "needs optimize_ddp=ddp_optimizer"),
        ({"static_graph": True}, NotModelledError, "python_reducer and static_graph together"),
        ({"accumulation_steps": 2}, NotModelledError, "and accumulation_steps together"),
        ({"set_to_none": False}, NotModelledError, "and set_to_none together"),
        ({"comm_hook": "fp16_compress"}, NotModelledError, "and comm_hook together"),
        ({"mixed_precision": {"param_dtype": "bfloat16"}}, NotModelledError, "and reduce_dtype together"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sim.assign(FIVE, **MODE, **options)


def test_workloads_and_buckets_that_are_refused() -> None:
    first, *others = FIVE.gradients
    for changed, words in (
        ({"ready_ns": None}, "is never ready; the Python reducer"),
        ({"uses": 2}, "is ready 2 times; the Python reducer"),
        ({"dtype": "bfloat16"}, "one dtype and device only"),
        ({"sparse": True}, "some gradients are sparse"),
    ):
        workload = replace(FIVE, gradients=(replace(first, **changed), *others))  # type: ignore[arg-type]
        with pytest.raises(NotModelledError, match=words):
            sim.assign(workload, **MODE)
    with pytest.raises(NotModelledError, match=r"recorded under torch\.compile"):
        sim.assign(replace(FIVE, extensions=AS_RECORDED), **MODE)
    with pytest.raises(NotModelledError, match=r"give it to sim\.assign"):
        sim.torch_compiled(FIVE, "python_reducer")
    with pytest.raises(NotModelledError, match="only the Reducer fills DDP's log"):
        sim.ddp_logging_data(played())
    with pytest.raises(NotModelledError, match="python_reducer has no Reducer to replay"):
        check_replayable(FIVE, [Candidate(name="one", assignment=sim.assign(FIVE, **MODE))])
    given = sim.with_switches(FIVE, sim.assign(FIVE, bucket_cap_mb=4), **MODE)
    with pytest.raises(AssignmentError, match="cannot be given to it"):
        sim.simulate(FIVE, HARDWARE, given)
