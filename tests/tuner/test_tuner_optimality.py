"""The tuner against every partition there is."""

import re
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.workload import Workload
from sim.tuner import exact, optimum
from sim.tuner.exact import covers, lower_bound_ns
from sim.tuner.optimum import Optimum, find_optimum
from sim.tuner.problem import Buckets, Problem
from tests.effort import tries
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
    oracle_runs,
    resnet50,
    simulated,
    tiny,
    transformer,
)

SEARCHED = "exact search over all contiguous partitions"
TRIED = r"all (\d+) contiguous partitions simulated"


def one_each(problem: Problem) -> Buckets:
    return tuple((index,) for index in problem.order)


def found_from(case: Case, *known: Buckets) -> Optimum:
    """The optimum found from ``known``, or from a bucket for each gradient."""
    problem = Problem(*case)
    return find_optimum(problem, known or [one_each(problem)])


def check(case: Case, found: Optimum) -> None:
    """What is true of every answer: its buckets, its time by the engine, and its bound."""
    assert found.sync_end_ns == simulated(*case, found.buckets)
    assert found.at_least_ns <= found.sync_end_ns
    assert is_contiguous(case[0], found.buckets)


# ---------------------------------------------------------------------------------------------------
# Equal to brute force.


@settings(max_examples=tries(200))
@given(one_run(max_gradients=12))
def test_the_best_of_2048_partitions(case: Case) -> None:
    """Exact on one FIFO channel for any curve, against an oracle that shares no line with the engines."""
    found = found_from(case)
    check(case, found)
    assert found.sync_end_ns == found.at_least_ns == one_channel_optimum(*case)
    assert found.is_proved
    assert found.proof == SEARCHED or re.fullmatch(TRIED, found.proof)


@settings(max_examples=tries(100))
@given(anything(max_gradients=7))
def test_the_best_on_any_machine(case: Case) -> None:
    """Two channels that share, interference, blocking launches, several dtypes, sparse gradients."""
    found = found_from(case)
    check(case, found)
    best = brute_force(*case)
    assert found.is_proved
    assert found.sync_end_ns == found.at_least_ns == best


def agrees_with_the_compiled_minimum(case: Case) -> None:
    found = found_from(case)
    check(case, found)
    assert found.is_proved
    assert found.proof == SEARCHED or re.fullmatch(TRIED, found.proof)
    assert found.sync_end_ns == found.at_least_ns == compiled_minimum(Problem(*case))


@settings(max_examples=tries(200))
@given(st.one_of(one_run(max_gradients=12), anything(max_gradients=12)))
def test_the_best_of_as_many_on_any_machine(case: Case) -> None:
    agrees_with_the_compiled_minimum(case)


@pytest.mark.slow
@settings(max_examples=tries(5000))
@given(st.one_of(one_run(max_gradients=14), anything(max_gradients=14)))
def test_the_best_of_8192(case: Case) -> None:
    agrees_with_the_compiled_minimum(case)


@settings(
    max_examples=tries(100), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(anything(max_gradients=8))
def test_trying_all_needs_no_help(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Where no search covers the case, and what is known is poor."""
    monkeypatch.setattr(optimum, "exact_optimum", lambda *_: None)
    found = found_from(case)
    check(case, found)
    assert found.sync_end_ns == compiled_minimum(Problem(*case))
    tried = re.fullmatch(TRIED, found.proof)
    assert tried
    assert int(tried[1]) == 2 ** (len(case[0].gradients) - len(oracle_runs(case[0])))


# ---------------------------------------------------------------------------------------------------
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
    monkeypatch.setattr(exact, "MOST_STEPS", -1)
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


def test_as_few_buckets_as_do() -> None:
    """Backward hides everything but the last bucket: there is nothing to gain by cutting the rest."""
    found = found_from((resnet50(), link(4000, latency_us=1)))
    assert found.is_proved
    assert len(found.buckets) <= 3


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_smallest(count: int, world_size: int) -> None:
    """One gradient, or two of no bytes, in no time."""
    case = tiny([0] * count, [0] * count, {0: 0}, 0, world_size=world_size)
    found = found_from(case)
    check(case, found)
    assert (found.sync_end_ns, found.at_least_ns, found.is_proved) == (0, 0, True)
    assert len(found.buckets) == 1


# ---------------------------------------------------------------------------------------------------
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


def by_families(workload: Workload) -> list[Buckets]:
    policies: list[dict[str, Any]] = [
        {},
        {"bucket_cap_mb": 5},
        {"policy": "per-parameter"},
        {"policy": "single"},
    ]
    return [sim.assign(workload, **policy).bucket_indices for policy in policies]


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
    known = by_families(workload)
    found = found_from(case, *known)
    check(case, found)
    assert not covers(Problem(*case))
    assert found.sync_end_ns <= found.at_least_ns * (1 + gap)
    assert lower_bound_ns(Problem(*case)) <= found.at_least_ns
    assert found.sync_end_ns <= min(simulated(*case, one) for one in known)
    assert "not proved" in found.proof or found.proof == "meets the lower bound"


@pytest.mark.parametrize("workload", [resnet50(), transformer(12)], ids=["resnet50", "gpt12"])
@pytest.mark.parametrize(
    "hardware", [link(4, copy_out_bytes_per_s=1e10), link(10, launch_cost_ns=50_000)], ids=["4", "10"]
)
def test_climbing_finds_what_the_exact_search_finds(workload: Workload, hardware: Any) -> None:
    """Where both work they can be compared: within 0.05 % from the families alone."""
    problem = Problem(workload, hardware)
    assert covers(problem)
    climbed = optimum._climb(problem, by_families(workload))
    reached = min(map(problem.sync_end_ns, climbed))
    best = found_from((workload, hardware))
    assert best.is_proved
    assert best.sync_end_ns <= reached <= 1.0005 * best.sync_end_ns


@pytest.mark.parametrize(
    ("count", "gbit", "further", "gap"),
    [
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_climbed_is_near_the_optimum(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """If 14 gradients were too many to try: within 0.5 % of the best of 8,192."""
    monkeypatch.setattr(optimum, "EXHAUSTIVE_PLACES", 3)
    random = Random(seed)
    ready = [10**7 * (14 - k) // 14 for k in range(14)]
    sizes = [4 * random.choice([1, 64, 256, 1024]) * random.choice([64, 256, 1024]) for _ in range(14)]
    workload, _ = tiny(ready, sizes, {0: 0}, 10**7)
    gbit, latency = random.choice([4, 10, 40]), random.choice([10, 100, 1000])
    case = workload, link(gbit, latency_us=latency, **FASTER_TOGETHER)
    assert found_from(case).sync_end_ns <= 1.005 * compiled_minimum(Problem(*case))


# ---------------------------------------------------------------------------------------------------
# The search space.
