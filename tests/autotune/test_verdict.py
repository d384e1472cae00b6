"""The rule of a trial, on simulated steps: rarely wrong without a gain, and it finds one that is there."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from sim.autotuner.loop import Verdict, is_candidate_turn, judge, looks
from sim.autotuner.unison import BUDGET_S, LinkProbe, Unison, measure_link
from sim.validator.ranks.probes import Bench
from tests.effort import IS_WHOLE, tries

Floats = NDArray[np.float64]
STEP = 100e6  # ns
TRIALS = 250 if IS_WHOLE else 12


def normal(count: int, chance: Generator) -> Floats:
    return 1 + 0.03 * chance.standard_normal(count)


def heavy(count: int, chance: Generator) -> Floats:
    usual = np.exp(0.03 * chance.standard_normal(count))
    return usual + (chance.random(count) < 0.1) * chance.exponential(0.6, count)


def drifting(count: int, chance: Generator) -> Floats:
    walk = np.zeros(count)
    for place in range(1, count):
        walk[place] = 0.9 * walk[place - 1] + chance.standard_normal()
    return 1 + 0.03 * walk + 0.002 * np.arange(count)


def two_modes(count: int, chance: Generator) -> Floats:
    return 1 + 0.2 * (chance.random(count) < 0.5) + 0.01 * chance.standard_normal(count)


def every(period: int) -> "Noise":
    """One step of so many takes half as long again, as where so many workers load the batches."""

    def times(count: int, chance: Generator) -> Floats:
        made = normal(count, chance)
        made[chance.integers(period) :: period] += 0.5
        return made

    return times


Noise = Callable[[int, Generator], Floats]
NOISES = (normal, heavy, drifting, two_modes, every(3), every(4), every(8))


def trial(noise: Noise, chance: Generator, more: float = 0.0) -> Verdict:
    """The verdict on such steps, of which the candidate's take ``more``, looked at as a job does."""
    planned = looks(20, 200)
    draw = int(chance.integers(1 << 32))
    theirs = np.array([is_candidate_turn(step, draw) for step in range(200)])
    times = noise(200, chance) + more * theirs
    for look in planned:
        verdict = judge(
            [round(STEP * float(time)) for time in times[:look]],
            draw,
            len(planned),
            name="simulated",
            world_size=2,
            plain_ns=1,
            is_last=look == planned[-1],
        )
        if verdict.keeps is not None:
            return verdict
    raise AssertionError("the last look decides")


def test_without_a_gain_at_most_one_in_twenty_is_kept() -> None:
    """In a fixed order A B B A more than half of the trials with a period of four would be."""
    chance = np.random.default_rng(0)
    kept = [bool(trial(noise, chance).keeps) for noise in NOISES for _ in range(TRIALS)]
    assert sum(kept) <= 0.05 * len(kept)


@pytest.mark.parametrize("noise", [normal, heavy, drifting])
def test_a_gain_is_found_and_its_interval_holds_it(noise: Noise) -> None:
    chance = np.random.default_rng(1)
    found = [trial(noise, chance, -0.05) for _ in range(10)]
    assert all(verdict.keeps for verdict in found)
    held = [verdict.ab.gain_low_ns <= 0.05 * STEP <= verdict.ab.gain_high_ns for verdict in found]
    assert sum(held) >= 8


def test_a_slower_candidate_is_never_kept() -> None:
    chance = np.random.default_rng(4)
    kept = [trial(noise, chance, 0.1).keeps for noise in NOISES for _ in range(TRIALS // 4)]
    assert not any(kept)
    at_once = trial(normal, np.random.default_rng(2), 0.2)
    assert (at_once.keeps, at_once.ab.rounds) == (False, 10)


def test_a_trial_that_leaves_it_open_says_what_to_do() -> None:
    verdict = trial(two_modes, np.random.default_rng(5))
    assert (verdict.keeps, verdict.ab.rounds) == (False, 100)
    assert verdict.why.endswith("max_verify_steps above 200 gives a longer trial")


def test_each_pair_has_a_step_of_both_in_an_order_of_its_own() -> None:
    for draw in (0, 1, 1 << 31):
        order = [is_candidate_turn(step, draw) for step in range(2000)]
        pairs = list(zip(order[::2], order[1::2], strict=True))
        assert set(pairs) == {(False, True), (True, False)}
        assert 450 < sum(ours for ours, _ in pairs) < 550
    assert order != [is_candidate_turn(step, 0) for step in range(2000)]


@pytest.mark.parametrize(
    ("first", "most", "expected"),
    [
        (20, 200, (20, 40, 80, 160, 200)),
        (20, 20, (20,)),
        (13, 31, (14, 28, 30)),
        (12, 10**9, (*(12 * 2**k for k in range(9)), 10**9)),
    ],
)
def test_looks_double(first: int, most: int, expected: tuple[int, ...]) -> None:
    assert looks(first, most) == expected


# What is measured of a job's link stays within its budget on any wire, and is what the wire gave.

KIB, MIB = 1 << 10, 1 << 20


class Planted(LinkProbe):
    """A wire with a latency and a rate, on which no time passes; two messages share it.

    Having been idle, it takes its first ``at_once`` bytes for nothing, as a switch's buffer does.
    """

    def __init__(self, total_bytes: int, latency_ns: int, bytes_per_s: float, at_once: int = 0) -> None:
        self.total_bytes, self.is_gloo = total_bytes, True
        self.processor_share = {}
        self.spent_ns = 0
        alone = {"agree": lambda: None, "over_ranks": lambda times_ns, longest: times_ns}
        self._ranks: Any = SimpleNamespace(**alone)
        self._latency_ns, self._bytes_per_s, self._at_once = latency_ns, bytes_per_s, at_once

    def _time(self, size: int, count: int) -> int:
        took = self._latency_ns + round(max(0, count * size - self._at_once) / self._bytes_per_s * 1e9)
        self.spent_ns += took
        return took


@settings(max_examples=tries(400))
@given(st.integers(4, 1 << 34), st.integers(1_000, 100_000_000), st.floats(1e6, 1e11))
def test_it_ends_within_its_budget_and_tells_what_it_saw(
    total_bytes: int, latency_ns: int, bytes_per_s: float
) -> None:
    probe = Planted(total_bytes, latency_ns, bytes_per_s)
    link = measure_link(probe)
    sizes = [point.num_bytes for point in link["all_reduce"]]
    warm_up = Planted(total_bytes, latency_ns, bytes_per_s)._time(16 * KIB, 1)
    assert probe.spent_ns <= BUDGET_S * 1e9 + warm_up
    assert sizes == sorted(set(sizes))
    assert sizes[0] == min(16 * KIB, total_bytes)
    assert sizes[-1] <= total_bytes
    for point in link["all_reduce"]:
        assert point.duration_ns == latency_ns + round(point.num_bytes / bytes_per_s * 1e9)
    assert 1 <= link["channel_slowdown"] <= link["comm_channels"]


def test_what_an_idle_wire_takes_at_once_hardly_changes_what_two_messages_cost() -> None:
    """At 500 Mbit/s 128 kB of 1 MiB would say that each of two takes 2.14 times as long; 4 MiB can be had."""
    link = measure_link(Planted(45 * MIB, 100_000, 62.5e6, at_once=128_000))
    assert 2 <= link["channel_slowdown"] < 2.04


def test_a_slow_wire_is_measured_as_far_as_time_allows_and_a_fast_one_as_far_as_gradients_go() -> None:
    """At 2 MB/s 1 MiB takes half a second: neither larger messages nor two at once are tried."""
    fast = measure_link(Planted(100 * MIB, 50_000, 1e9))
    assert (fast["all_reduce"][-1].num_bytes, fast["comm_channels"]) == (100 * MIB, 2)
    link = measure_link(Planted(100 * MIB, 1_000_000, 2e6))
    assert link["all_reduce"][-1].num_bytes < MIB
    assert (link["comm_channels"], link["channel_slowdown"]) == (1, 1.0)


def test_a_probe_has_the_bytes_that_it_is_asked_for_whatever_the_default_dtype() -> None:
    """Scripts that train in bfloat16 may have made it the default; half of the bytes take half the time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert Bench(torch.device("cpu")).zeros(64 * KIB).nbytes == 64 * KIB
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("said", "gloo"), [(None, True), ("gloo", True), ("cpu:gloo,cuda:nccl", True), ("fake", False)]
)
def test_gloo_is_known_by_what_carries_the_models_device(said: str | None, gloo: bool) -> None:
    """A group may have been made without a backend's name, or with one for each type of device."""
    if said is not None and "nccl" in said and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    store = FakeStore() if said == "fake" else dist.HashStore()
    dist.init_process_group(said, store=store, rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        assert LinkProbe(ddp, Unison(ddp)).is_gloo == gloo
    finally:
        dist.destroy_process_group()
