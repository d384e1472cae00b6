"""The best contiguous partition: equal to every partition there is where it is proved, bounded elsewhere."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.clock.program import Machine, Rates
from sim.nouns.workload import Workload
from sim.tuner import optimum
from sim.tuner.optimum import Optimum, covers, exact_optimum, find_optimum
from sim.tuner.problem import Buckets, Problem
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.machines import machine, model
from tests.oracle.stepper import service
from tests.strategies import SLOWDOWNS
from tests.tuner.cases import (
    Case,
    anything,
    brute_force,
    compiled_minimum,
    contiguous_partitions,
    is_contiguous,
    large,
    link,
    one_channel_optimum,
    one_run,
    resnet50,
    simulated,
    tiny,
    transformer,
)
from traces.tools.bench.catalogue import ENTRIES, Entry, best
from traces.tools.bench.plain_dp import earliest_finish

SEARCHED = "exact search over all contiguous partitions"
TRIED = r"all (\d+) contiguous partitions simulated"


def found_from(case: Case, *known: Buckets) -> Optimum:
    """The optimum found from ``known``, or from a bucket for each gradient."""
    problem = Problem(*case)
    return find_optimum(problem, known or [problem.singles()])


def check(case: Case, found: Optimum) -> None:
    """What is true of every answer: its buckets, its time by the engine, and its bound."""
    assert found.sync_end_ns == simulated(*case, found.buckets)
    assert found.at_least_ns <= found.sync_end_ns
    assert is_contiguous(case[0], found.buckets)


# Equal to brute force.


@settings(max_examples=tries(300))
@given(st.one_of(one_run(max_gradients=12), anything(max_gradients=12)))
def test_the_best_on_any_machine(case: Case) -> None:
    """Two channels that share, interference, blocking launches, several dtypes, sparse gradients."""
    found = found_from(case)
    check(case, found)
    assert found.is_proved
    assert found.proof == SEARCHED or re.fullmatch(TRIED, found.proof)
    assert found.sync_end_ns == found.at_least_ns == compiled_minimum(Problem(*case))
    if len(case[0].gradients) <= 7:
        assert found.sync_end_ns == brute_force(*case)


# What is known, and what is proved.


@settings(max_examples=tries(100))
@given(anything(max_gradients=8), st.randoms(use_true_random=False))
def test_never_worse_than_what_is_known(case: Case, random: Random) -> None:
    """Whatever it is: contiguous, or in an order of its own (A1.5), or not contiguous at all."""
    workload, hardware = case
    every = list(contiguous_partitions(workload))
    known = [random.choice(every) for _ in range(3)]
    shuffled = list(random.choice(every))
    random.shuffle(shuffled)
    known.append(tuple(shuffled))
    known.append(sim.assign(workload).bucket_indices)
    found = found_from(case, *known)
    assert found.sync_end_ns == simulated(workload, hardware, found.buckets)
    assert found.sync_end_ns <= min(simulated(workload, hardware, one) for one in known)
    assert found.at_least_ns <= found.sync_end_ns


@settings(
    max_examples=tries(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(anything(max_gradients=8))
def test_without_a_proof_it_claims_none(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """If nothing may be searched or tried, it climbs; what it proves then is by the bound alone."""
    monkeypatch.setattr(optimum, "EXHAUSTIVE_PLACES", -1)
    monkeypatch.setattr(optimum, "MOST_STEPS", -1)
    monkeypatch.setattr(optimum, "_PLACES_PLAYED", 10_000)
    found = found_from(case)
    check(case, found)
    best = compiled_minimum(Problem(*case))
    assert found.at_least_ns <= best <= found.sync_end_ns
    if found.is_proved:
        assert found.sync_end_ns == best
        assert found.proof == "meets the lower bound"
    else:
        assert "not proved" in found.proof


# Realistic: what the certificate is worth.

TWO_CHANNELS = {"comm_channels": 2, "channel_slowdown": 2.0, "copy_out_bytes_per_s": 10e9}
FASTER_TOGETHER = {
    "comm_channels": 2,
    "channel_slowdown": 1.8,
    "launch_cost_ns": 50_000,
    "copy_in_bytes_per_s": 4e9,
    "copy_out_bytes_per_s": 4e9,
}
BLOCKING = {"launch_cost_ns": 200_000, "launch_blocks_compute": True}
INTERFERENCE = {"compute_slowdown": 1.1, "comm_slowdown": 1.05, "copy_out_bytes_per_s": 5e11}


@pytest.mark.parametrize(
    ("workload", "gbit", "further", "gap"),
    [
        pytest.param(resnet50(), 4, TWO_CHANNELS, 0.002, id="resnet50-4-two"),  # 0.04 % seen
        pytest.param(resnet50(), 4, FASTER_TOGETHER, 0.005, id="resnet50-4-faster"),  # 0.23 %
        pytest.param(resnet50(), 16, BLOCKING, 0.01, id="resnet50-16-blocking"),  # 0.48 %
        pytest.param(resnet50(), 8, INTERFERENCE, 0.002, id="resnet50-8-interference"),  # 0.02 %
        pytest.param(transformer(12), 16, TWO_CHANNELS, 0.001, id="gpt12-16-two"),  # 0.00 %
        pytest.param(transformer(12), 8, FASTER_TOGETHER, 0.02, id="gpt12-8-faster"),  # 1.26 %
        pytest.param(transformer(12), 8, BLOCKING, 0.0005, id="gpt12-8-blocking"),  # 0.002 %
        pytest.param(transformer(12), 8, INTERFERENCE, 0.002, id="gpt12-8-interference"),  # 0.04 %
    ],
)
def test_climbed_is_near_the_bound(
    workload: Workload, gbit: float, further: dict[str, Any], gap: float
) -> None:
    """Nothing is proved here by search, so the certificate is all there is: it must be worth something."""
    case = workload, link(gbit, **further)
    policies: list[dict[str, Any]] = [{}, {"bucket_cap_mb": 5}, {"policy": "per-parameter"}]
    known = [sim.assign(workload, **policy).bucket_indices for policy in policies]
    found = found_from(case, *known)
    check(case, found)
    assert not covers(Problem(*case))
    assert found.sync_end_ns <= found.at_least_ns * (1 + gap)
    assert found.sync_end_ns <= min(simulated(*case, one) for one in known)
    assert "not proved" in found.proof or found.proof == "meets the lower bound"


@pytest.mark.parametrize(
    ("count", "gbit", "further", "gap"),
    [
        pytest.param(10_000, 10, {}, 0, id="10k"),
        pytest.param(4_000, 1000, {"copy_out_bytes_per_s": 1e11}, 0, id="4k-copies"),
        pytest.param(10_000, 300, {"comm_channels": 2, "channel_slowdown": 2.0}, 1e-4, id="10k-two"),
        pytest.param(10_000, 300, INTERFERENCE, 0.001, id="10k-interference"),
        pytest.param(10_000, 300, BLOCKING, 0.001, id="10k-blocking"),
        pytest.param(10_000, 100, FASTER_TOGETHER, 0.02, id="10k-faster"),
    ],
)
def test_large_models_come_back(count: int, gbit: float, further: dict[str, Any], gap: float) -> None:
    """From one bucket and from DDP's default, with a certificate."""
    workload, hardware = large(count), link(gbit, **further)
    problem = Problem(workload, hardware)
    known = [(problem.order,), sim.assign(workload).bucket_indices]
    found = find_optimum(problem, known)
    assert is_contiguous(workload, found.buckets)
    assert found.sync_end_ns <= min(map(problem.sync_end_ns, known))
    assert found.at_least_ns <= found.sync_end_ns <= found.at_least_ns * (1 + gap)


ABOVE = st.sampled_from([0, 0, 1, 2, 1000, 10**9])


def quick_launches(case: Case) -> Case:
    """Launches that take no longer than what they launch, so that the search covers the case."""
    workload, hardware = case
    sent = min(gradient.on_wire for gradient in workload.gradients)
    sizes = [sent, *(point.num_bytes for point in hardware.all_reduce if point.num_bytes > sent)]
    dearest = min(service(hardware.all_reduce, size, hardware.world_size) for size in sizes)
    return workload, replace(hardware, launch_cost_ns=min(hardware.launch_cost_ns, dearest))


@settings(max_examples=tries(400))
@given(one_run(max_gradients=10).map(quick_launches), ABOVE)
def test_it_is_the_optimum(case: Case, above: int) -> None:
    """To the ns, for any curve, with copies and without, against an oracle that shares no line with it."""
    problem = Problem(*case)
    assert covers(problem)
    best = one_channel_optimum(*case)
    found = exact_optimum(problem, best + above)
    assert found.at_least_ns == best == simulated(*case, found.buckets)
    assert is_contiguous(case[0], found.buckets)


@settings(max_examples=tries(200))
@given(anything(max_gradients=8), ABOVE)
def test_several_runs_are_searched_together(case: Case, above: int) -> None:
    """Dtypes, devices and sparse gradients share the one channel."""
    workload, machine = case
    slow = ("compute", "comm", "copy_in", "copy_out", "comm_copy_out")
    calm = {f"{name}_slowdown": 1.0 for name in slow}
    machine = replace(machine, comm_channels=1, launch_blocks_compute=False, **calm)  # type: ignore[arg-type]
    case = quick_launches((workload, machine))
    problem = Problem(*case)
    assert covers(problem)
    best = compiled_minimum(problem)
    found = exact_optimum(problem, best + above)
    reached = simulated(*case, found.buckets)
    assert is_contiguous(workload, found.buckets)
    assert found.at_least_ns == best == reached


@pytest.mark.parametrize("name", Machine._fields)
def test_any_effect_but_a_launch_is_beyond_it(name: str) -> None:
    """So that none is forgotten: what is not known to the search is not called proved."""
    problem = Problem(resnet50(), link(4, latency_us=50))
    value = {"launch_blocks_compute": True, "channels": 2, "launch_cost_ns": 2, "small_bytes": 2}
    problem.machine = Machine(**{"launch_cost_ns": 1, name: value.get(name, Rates(alone=2))})
    assert covers(problem) == (name == "launch_cost_ns")


# Found by random search.


@st.composite
def crowded(draw: st.DrawFn) -> Case:
    """Many equal gradients, ready at once, on channels that share: where half nanoseconds add up."""
    count = draw(st.integers(2, 9))
    size = draw(st.integers(1, 3))
    slope = draw(st.fractions(0, 4, max_denominator=9))
    latency = draw(st.sampled_from([0, 0, 0, 1, 2]))
    reach = slope.denominator * count * size
    workload = handmade([0] * count, size, backward_ns=draw(st.integers(0, 2)))
    machine = wired(
        {0: latency, reach: latency + int(slope * reach)},
        comm_channels=draw(st.integers(1, 4)),
        channel_slowdown=draw(st.sampled_from([1.0, 1.1, 1.4, 1.45, 1.49, 2.0, 2.45, 3.3])),
        comm_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4, 1.49])),
        compute_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4, 1.49])),
        copy_in_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4])),
        copy_out_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4])),
        comm_copy_out_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4, 7.0])),
        copy_out_bytes_per_s=draw(st.sampled_from([None, 7e8, 9e9])),
        copy_in_bytes_per_s=draw(st.sampled_from([None, None, 2.1e9])),
    )
    return workload, machine


def test_bound_does_not_rely_on_the_last_bucket_being_copied_last() -> None:
    """A sparse gradient is not copied (A3.18). Launched last, it leaves the dense one, ready last of all,
    time to be copied back beside it: 10 + 2 * 100, where the copies alone would make it 230."""
    workload = handmade([10, 10], 20, sparse=(1,))
    hardware = wired({0: 0, 20: 100}, copy_out_bytes_per_s=1e9)
    assert workload.order() == (1, 0)
    found = exact_optimum(Problem(workload, hardware), 210)
    assert found.at_least_ns <= simulated(workload, hardware, ((0,), (1,))) == 210
    assert simulated(workload, hardware, ((1,), (0,))) == 230


# Interference.

factors = st.sampled_from(SLOWDOWNS) | st.floats(1.0, 9.0)


@st.composite
def disturbed(draw: st.DrawFn) -> Case:
    """Backward and collectives slow each other down: a long lane with little to send beside it, or little
    backward with much to send, in pieces of a few ns, hundreds, or millions."""
    count = draw(st.integers(1, 8))
    unit = draw(st.sampled_from([1, 1, 2, 10, 300, 10**6]))
    work, serve = draw(st.sampled_from([(1, 1), (1, 30), (30, 1), (3, 10), (10, 3)]))
    gaps = draw(st.lists(st.integers(0, work * unit) | st.just(work * unit), min_size=count, max_size=count))
    ready = [sum(gaps[k:]) for k in range(count)]
    times = sorted(draw(st.lists(st.integers(0, serve * unit), min_size=1, max_size=3)))
    return tiny(
        ready,
        draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)),
        {3 * k: time for k, time in enumerate(times)},
        ready[0] + draw(st.just(0) | st.integers(0, 30 * unit)),
        compute_slowdown=draw(factors),
        comm_slowdown=draw(factors),
        comm_channels=draw(st.sampled_from([1, 1, 2])),
        channel_slowdown=draw(st.sampled_from([1.0, 2.0]) | factors),
        copy_in_slowdown=draw(st.just(1.0) | factors),
        copy_out_slowdown=draw(st.just(1.0) | factors),
        comm_copy_out_slowdown=draw(st.just(1.0) | factors),
        launch_cost_ns=draw(st.just(0) | st.integers(0, 3 * unit)),
        launch_blocks_compute=draw(st.booleans()),
        copy_in_bytes_per_s=draw(st.sampled_from([None, 1e9, 3e8, 2e6])),
        copy_out_bytes_per_s=draw(st.sampled_from([None, 1e9, 3e8, 2e6])),
    )


@settings(max_examples=tries(500))
@given(disturbed() | crowded() | anything(max_gradients=8), ABOVE)
def test_what_a_search_bounds_is_never_above_the_optimum(case: Case, above: int) -> None:
    """Channels, slow-downs, blocking launches, dtypes; copies back hold up what is sent, and come behind it
    where they do not."""
    problem = Problem(*case)
    least = compiled_minimum(problem)
    found = exact_optimum(problem, least + above)
    assert found.at_least_ns <= least
    assert is_contiguous(case[0], found.buckets)


# Every benchmark once, at a size at which it takes no time: not a measurement, but a check that it runs.

FEW = 13


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.table}; {entry.row}")
def test_an_entry_runs_and_judges_its_answer(entry: Entry) -> None:
    answer = entry.prepare(FEW)()
    assert entry.judge is None or entry.judge(FEW, answer)


@pytest.mark.parametrize("name", ["affine", "concave"])
@pytest.mark.parametrize("count", [2, FEW, 161])
def test_the_plain_programme_is_exact_without_copies(name: str, count: int) -> None:
    buckets = earliest_finish(Problem(model(count, name), machine(name)))
    end = Problem(model(count, name), machine(name)).sync_end_ns(buckets)
    # The programme counts in floats, the engines round each all-reduce.
    assert end == pytest.approx(best(name, count).sync_end_ns, abs=len(buckets))
