"""Distributions against what probability and algebra say of them, with tolerances from theory."""

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.ranks import RankGroup, Ranks, SlowRanks
from sim.nouns.step_distribution import StepDistribution
from sim.nouns.workload import Buffer, Workload
from tests.handmade import handmade, wired

MS = 1_000_000
ONE = Assignment(bucket_indices=((0,),))


def compute(backward_ns: int = 100 * MS, **more: Any) -> Workload:
    """One gradient, ready when backward ends: nothing of its all-reduce is hidden."""
    return handmade([backward_ns], **more)


def wire(world_size: int, service_ns: int = 0, **more: Any) -> Hardware:
    return wired({0: service_ns}, world_size=world_size, **more)


def distribution(
    workload: Workload, hardware: Hardware, ranks: Ranks, samples: int, **more: Any
) -> StepDistribution:
    return sim.step_distribution(workload, hardware, ONE, ranks, samples=samples, **more)


def largest_of(count: int, sigma: float) -> tuple[float, float]:
    """Mean and standard deviation of the largest of ``count`` lognormal factors of mean 1, by quadrature."""
    z = np.linspace(-9, 9, 200_001)
    below = np.cumsum(np.exp(-z * z / 2))
    weights = np.diff((below / below[-1]) ** count)
    paces = np.exp(sigma * (z[1:] + z[:-1]) / 2 - sigma**2 / 2)
    mean = float((weights * paces).sum())
    return mean, float((weights * (paces - mean) ** 2).sum()) ** 0.5


@pytest.mark.parametrize(("count", "sigma"), [(1, 0.1), (2, 0.3), (8, 0.05), (64, 0.1), (1024, 0.02)])
def test_a_step_lasts_as_long_as_the_slowest_of_its_ranks(count: int, sigma: float) -> None:
    """Its mean is that of the largest order statistic; 4 standard errors by theory."""
    samples = 2000
    mean, deviation = largest_of(count, sigma)
    told = distribution(compute(), wire(count), Ranks(name="r", pace_jitter=sigma), samples)
    error = 4 * deviation / samples**0.5
    assert told.mean_step_ns / (100 * MS) == pytest.approx(mean, abs=error)
    assert told.slowest_cost_ns / (100 * MS) == pytest.approx(mean - 1, abs=error)
    # All ranks at the mean pace are the mean of count * samples draws of a factor of mean 1.
    assert told.mean_pace == pytest.approx(1, abs=4 * sigma * 1.1 / (count * samples) ** 0.5)


@pytest.mark.parametrize(
    "share", [0.95, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.05, 0.5, 0.99))]
)
def test_quantiles_are_those_of_the_largest(share: float) -> None:
    """The largest of n is below q with probability F(q)**n; binomial error of 4 deviations in the share."""
    count, sigma, samples = 16, 0.2, 4000
    told = distribution(compute(), wire(count), Ranks(name="r", pace_jitter=sigma), samples, seed=5)
    found = told.quantiles_ns[round(100 * share)] / (100 * MS)
    score = (np.log(found) + sigma**2 / 2) / sigma
    below = NormalDist().cdf(float(score)) ** count
    assert below == pytest.approx(share, abs=4 * (share * (1 - share) / samples) ** 0.5 + 1 / samples)


def test_one_slow_rank_lengthens_all_that_is_computed_and_nothing_else() -> None:
    """Forward 30, loss 1, backward 100, wire 7, optimizer 10: at pace 1.2 all but the wire is 1.2 times."""
    workload = compute(forward_ns=30 * MS, loss_ns=MS, optimizer_ns=10 * MS)
    ranks = Ranks(name="r", slow=(SlowRanks(first=2, pace=1.2),))
    told = distribution(workload, wire(4, 7 * MS), ranks, 40)
    assert told.nominal_step_ns == 148 * MS
    assert set(told.quantiles_ns) == {round(141 * 1.2 * MS) + 7 * MS}
    assert told.slowest_cost_ns == round(141 * 0.2 * MS)
    assert told.mean_pace == pytest.approx(1.05)
    assert told.imbalance_cost_ns == pytest.approx(141 * 0.15 * MS, abs=2)
    slow, others = told.parts
    assert (slow.first, slow.count, slow.last_share, slow.waited_ns) == (2, 1, 1.0, 0)
    assert slow.pace == pytest.approx(1.2)
    assert (others.count, others.last_share) == (3, 0.0)
    # The others begin each step 2 ms of optimizer earlier, and take 26.2 ms less until they come.
    assert others.waited_ns == pytest.approx(28.2 * MS, abs=2)


def test_jitter_costs_a_step_next_to_nothing_where_the_wire_is_the_bottleneck() -> None:
    """Ten buckets of 50 ms behind the first gradient: the wire waits for the first 1 ms of backward alone."""
    count = 10
    workload = handmade([(count - k) * MS for k in range(count)])
    each = Assignment(bucket_indices=tuple((k,) for k in reversed(range(count))))
    told = sim.step_distribution(
        workload, wire(256, 50 * MS), each, Ranks(name="r", pace_jitter=0.2), samples=200
    )
    mean, deviation = largest_of(256, 0.2)
    assert told.nominal_step_ns == 501 * MS
    assert told.slowest_cost_ns == pytest.approx((mean - 1) * MS, abs=4 * deviation * MS / 200**0.5)
    assert told.slowest_cost_ns < 0.002 * told.mean_step_ns
    first, *rest = told.collectives
    assert first.straggler_share == 1.0
    assert all((one.waited_ns, one.straggler_share) == (0, 0.0) for one in rest)


def test_a_stall_of_any_rank_is_a_stall_of_all() -> None:
    """With 64 ranks of which each stands still in 1 step of 100: in 1 - 0.99**64 of the steps."""
    ranks = Ranks(name="r", stall_probability=0.01, stall_ns=40 * MS)
    samples, share = 3000, 1 - 0.99**64
    told = distribution(compute(), wire(64), ranks, samples)
    assert set(told.quantiles_ns) == {100 * MS, 140 * MS}
    error = 4 * (share * (1 - share) / samples) ** 0.5
    assert told.slowest_cost_ns / (40 * MS) == pytest.approx(share, abs=error)
    assert told.mean_pace == pytest.approx(1.004, abs=4 * 0.4 * (0.0099 / (64 * samples)) ** 0.5)
    certain = replace(ranks, stall_probability=1.0)
    assert set(distribution(compute(), wire(3), certain, 20).quantiles_ns) == {140 * MS}


def test_a_rank_that_stands_still_slows_nothing_and_is_not_slowed() -> None:
    """Two buckets of 100 ms of wire, twice as long beside compute; backward of twice 50 ms, and a stall of 40
    on each of two ranks.

    In the second half of both the stalls lie under the first all-reduce, of which 25 ms are done by then: it
    ends 75 ms later, as without a stall, and the step after 275 ms. With one in the first half all is 40 ms
    later.
    """
    workload = handmade([100 * MS, 50 * MS])
    two = Assignment(bucket_indices=((1,), (0,)))
    hardware = wire(2, 100 * MS, comm_slowdown=2.0)
    still = Ranks(name="r", stall_probability=1.0, stall_ns=40 * MS)
    told = sim.step_distribution(workload, hardware, two, still, samples=401)
    assert set(told.quantiles_ns) == {275 * MS, 315 * MS}
    late = (told.mean_step_ns - 275 * MS) / (40 * MS)
    assert late == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 401) ** 0.5)
    none = sim.step_distribution(workload, hardware, two, Ranks(name="r"), samples=2)
    assert set(none.quantiles_ns) == {275 * MS}


def test_what_follows_the_optimizer_waits_for_all() -> None:
    """Of two ranks one has an optimizer of 50 ms, the other a forward of 50 ms. Under DDP each step they meet
    60 ms after the last meeting's end; ZeRO's all-gather makes them meet in between as well."""
    workload, hardware = compute(10 * MS, optimizer_ns=50 * MS), wire(2, MS)
    hardware = replace(hardware, all_gather=hardware.all_reduce, reduce=hardware.all_reduce)
    ranks = Ranks(name="r", groups=(RankGroup(first=1, workload="other"),))
    others = {"other": compute(10 * MS, forward_ns=50 * MS)}
    steps = {}
    for policy in ("ddp", "zero1"):
        assignment = sim.assign(workload, policy)
        told = sim.step_distribution(workload, hardware, assignment, ranks, samples=5, others=others)
        alone = sim.step_distribution(workload, hardware, assignment, Ranks(name="alike"), samples=1)
        steps[policy] = told.mean_step_ns - alone.mean_step_ns
    # What is neither 50 ms nor backward is the same on both ranks.
    assert steps == {"ddp": 0, "zero1": 50 * MS}


@pytest.mark.parametrize(("late_rank", "step_ms"), [(0, 112), (1, 62)])
def test_buffers_are_waited_for_from_the_first_rank(late_rank: int, step_ms: int) -> None:
    """Of two ranks one has an optimizer of 50 ms, the other a forward of 50 ms, and a broadcast of 1 ms comes
    before. Where rank 0 is the one late from its optimizer, the other's forward waits for it."""
    buffers = (Buffer(dtype="float32", num_bytes=8),)
    late = replace(compute(10 * MS, optimizer_ns=50 * MS), buffers=buffers)
    early = replace(compute(10 * MS, forward_ns=50 * MS), buffers=buffers)
    hardware = wire(2, MS)
    hardware = replace(hardware, broadcast=hardware.all_reduce)
    ranks = Ranks(name="r", groups=(RankGroup(first=1 - late_rank, workload="other"),))
    told = distribution(late, hardware, ranks, 5, others={"other": early})
    assert set(told.quantiles_ns) == {step_ms * MS}
    assert any("1 collective(s) before forward" in line for line in told.notes)


def test_the_lottery_is_drawn_once_a_job() -> None:
    """Steps of one job are alike; jobs scatter as the largest of 8 factors does."""
    told = distribution(compute(), wire(8), Ranks(name="r", pace_spread=0.1), 202)
    assert told.jobs == 101
    assert len(set(told.quantiles_ns)) > 50
    mean, deviation = largest_of(8, 0.1)
    assert told.mean_step_ns / (100 * MS) == pytest.approx(mean, abs=4 * deviation / 101**0.5)
    assert told.mean_low_ns is not None
    assert told.mean_high_ns is not None
    assert told.mean_low_ns < 100 * MS * mean < told.mean_high_ns
    one = distribution(compute(), wire(8), Ranks(name="r", pace_spread=0.1), 3)
    assert (one.jobs, len(set(one.quantiles_ns)), one.mean_low_ns) == (1, 1, None)


def test_recorded_iterations_are_drawn_by_each_rank() -> None:
    """Backward of 100 ms or 160 ms, one iteration each: with n ranks a step is short with chance 2**-n."""
    workload = compute(samples=((100 * MS,), (160 * MS,)))
    samples = 2000
    told = distribution(workload, wire(3), Ranks(name="r"), samples)
    assert set(told.quantiles_ns) == {100 * MS, 160 * MS}
    share = (told.mean_step_ns - 100 * MS) / (60 * MS)
    assert share == pytest.approx(7 / 8, abs=4 * (7 / 64 / samples) ** 0.5)
    assert told.nominal_step_ns == 100 * MS
    assert told.even_step_ns == pytest.approx(130 * MS, abs=4 * 30 * MS / (3 * samples) ** 0.5)
    assert [line.split(":")[0] for line in told.not_known] == [
        "how forward and optimizer vary",
        "whether ranks' iterations vary together",
        "iterations rarer than 1 in 2, as many as were recorded",
        "how all-reduces vary",
    ]
    unrecorded = distribution(compute(), wire(3), Ranks(name="r"), 1).not_known
    assert [line.split(":")[0] for line in unrecorded] == [
        "how a rank's iterations vary",
        "how all-reduces vary",
    ]


def test_a_group_runs_its_own_workload() -> None:
    ranks = Ranks(name="r", groups=(RankGroup(first=1, count=2, workload="older GPUs"),))
    others = {"older GPUs": compute(130 * MS)}
    told = distribution(compute(), wire(4, MS), ranks, 10, others=others)
    assert set(told.quantiles_ns) == {131 * MS}
    assert told.even_step_ns == pytest.approx(116 * MS, abs=1)
    assert [(part.name, part.last_share) for part in told.parts] == [("older GPUs", 1.0), ("all others", 0.0)]
    assert [part.waited_ns for part in told.parts] == [0, 30 * MS]


def test_lateness_is_carried_over_and_forgiven_at_the_next_collective() -> None:
    """A long optimizer makes a rank late for the next step's forward, not for its own bucket twice."""
    workload = compute(10 * MS, optimizer_ns=50 * MS)
    ranks = Ranks(name="r", slow=(SlowRanks(first=0, pace=2.0),))
    told = distribution(workload, wire(2, MS), ranks, 10)
    assert set(told.quantiles_ns) == {(20 + 1 + 100) * MS}


def test_what_all_reduces_vary_by_is_drawn_from_the_calibration() -> None:
    """Uniform around 10 ms by its quantiles: the mean of 1,000 draws is the mean to 4 of its errors."""
    spread = {
        "all_reduce": {
            "0": {
                "count": 50,
                "p10_ns": 8 * MS,
                "median_ns": 10 * MS,
                "p90_ns": 12 * MS,
                "quantile": "median",
            }
        }
    }
    told = distribution(compute(), wire(2, 10 * MS, spread=spread), Ranks(name="r"), 1000)
    assert told.mean_step_ns == pytest.approx(110 * MS, abs=0.2 * MS)
    assert told.p95_step_ns > 111 * MS
    assert not any("all-reduces" in line for line in told.not_known)
    still = distribution(compute(), wire(2, 10 * MS), Ranks(name="r"), 1000)
    assert set(still.quantiles_ns) == {110 * MS}
    assert any("all-reduces" in line for line in still.not_known)


def test_one_rank_waits_for_nobody() -> None:
    told = distribution(compute(), wire(1), Ranks(name="r", pace_jitter=0.1), 100)
    assert told.waited_ns == 0
    assert all(one.straggler_share == 0 for one in told.collectives)
    assert told.p95_step_ns > told.p5_step_ns
