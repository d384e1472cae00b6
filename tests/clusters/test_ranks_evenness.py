"""What unevenness costs: nothing where one rank is alone, and what algebra says where ranks differ."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.nouns.ranks import RankGroup, Ranks, SlowRanks
from sim.nouns.step_distribution import StepDistribution
from sim.nouns.workload import Workload
from tests.clusters.test_ranks_theory import MS, ONE, compute, distribution, wire

FORWARD = compute(forward_ns=60 * MS, loss_ns=MS, optimizer_ns=20 * MS)
RECORDED = replace(FORWARD, samples=((100 * MS,), (160 * MS,), (130 * MS,)))
KINDS: dict[str, tuple[Workload, Ranks]] = {
    "jitter": (FORWARD, Ranks(name="r", pace_jitter=0.3)),
    "spread": (FORWARD, Ranks(name="r", pace_spread=0.3)),
    "slow": (FORWARD, Ranks(name="r", slow=(SlowRanks(first=0, pace=1.7),))),
    "stalls": (FORWARD, Ranks(name="r", stall_probability=0.4, stall_ns=50 * MS)),
    "always stalled": (FORWARD, Ranks(name="r", stall_probability=1.0, stall_ns=50 * MS)),
    "recorded": (RECORDED, Ranks(name="r")),
    "group": (FORWARD, Ranks(name="r", groups=(RankGroup(first=0, workload="other"),))),
    "all": (
        RECORDED,
        Ranks(name="r", pace_jitter=0.1, pace_spread=0.1, stall_probability=0.2, stall_ns=9 * MS),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 3}])
def test_one_rank_alone_is_even(kind: str, options: dict[str, Any]) -> None:
    """Nothing is hidden behind its one all-reduce: its mean step is that of its mean work, to roundings."""
    workload, ranks = KINDS[kind]
    others = {"other": compute(170 * MS, forward_ns=10 * MS, optimizer_ns=90 * MS)}
    told = sim.step_distribution(
        workload, wire(1, 7 * MS), sim.assign(workload, **options), ranks, samples=100, others=others
    )
    assert told.mean_step_ns != told.nominal_step_ns
    assert abs(told.imbalance_cost_ns) <= 4


@pytest.mark.parametrize(
    "other",
    [
        compute(200 * MS, forward_ns=100 * MS),
        compute(100 * MS, forward_ns=200 * MS),
        compute(100 * MS, forward_ns=100 * MS, optimizer_ns=100 * MS),
    ],
)
def test_what_one_rank_of_two_has_more_costs_half_of_it(other: Workload) -> None:
    """Forward 100 ms and backward 100 ms, and 100 ms more on one rank, wherever in the step."""
    workload = compute(100 * MS, forward_ns=100 * MS)
    ranks = Ranks(name="r", groups=(RankGroup(first=1, workload="other"),))
    told = distribution(workload, wire(2), ranks, 20, others={"other": other})
    assert (told.mean_step_ns, told.even_step_ns, told.imbalance_cost_ns) == (300 * MS, 250 * MS, 50 * MS)
    assert told.mean_pace == pytest.approx(1.25)


def parts_of(ranks: Ranks, world_size: int, **more: Any) -> StepDistribution:
    return distribution(compute(), wire(world_size, MS), ranks, 20, **more)


def test_parts_that_overlap_are_cut_and_add_up() -> None:
    ranks = Ranks(
        name="r",
        slow=(SlowRanks(first=1, count=3, pace=1.5), SlowRanks(first=3, count=2, pace=1.2)),
        groups=(RankGroup(first=3, count=3, workload="older"),),
    )
    told = parts_of(ranks, 8, others={"older": compute(110 * MS)})
    assert [(part.name, part.first, part.count) for part in told.parts] == [
        ("slow, pace 1.5", 1, 2),
        ("older, slow, pace 1.8", 3, 1),
        ("older, slow, pace 1.2", 4, 1),
        ("older", 5, 1),
        ("all others", 0, 3),
    ]
    assert sum(part.last_share for part in told.parts) == pytest.approx(1)
    assert told.parts[1].last_share == 1


def test_who_waits_how_long_and_who_came_last_most_often() -> None:
    """Rank 2 of 4 comes 50 ms after the others: they wait 50 ms, 37.5 ms in the mean of all ranks."""
    told = parts_of(Ranks(name="r", slow=(SlowRanks(first=2, pace=1.5),)), 4)
    (collective,) = told.collectives
    assert (collective.waited_ns, collective.longest_ns) == (37.5 * MS, 50 * MS)
    assert told.waited_ns == 37.5 * MS
    assert [(part.name, part.last_share) for part in told.worst] == [("rank 2", 1.0)]
    shares = [part.last_share for part in parts_of(Ranks(name="r", pace_jitter=0.1), 8).worst]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 1 / 8


def test_the_first_step_which_all_begin_together_is_not_counted() -> None:
    """Rank 0 has an optimizer of 50 ms, rank 1 a forward of 50 ms: they meet 60 ms after the last meeting's
    end from the second step on, while the first step took 111 ms."""
    workload = compute(10 * MS, optimizer_ns=50 * MS)
    ranks = Ranks(name="r", groups=(RankGroup(first=1, workload="other"),))
    others = {"other": compute(10 * MS, forward_ns=50 * MS)}
    told = distribution(workload, wire(2, MS), ranks, 5, others=others)
    assert set(told.quantiles_ns) == {61 * MS}


def test_ends_of_backward_move_with_recorded_gradients() -> None:
    """The last gradient after 100 ms or 160 ms, and 30 ms of backward behind it."""
    workload = replace(compute(), backward_ns=130 * MS, samples=((100 * MS,), (160 * MS,)))
    told = sim.step_distribution(workload, wire(1), ONE, Ranks(name="r"), samples=101)
    assert set(told.quantiles_ns) == {130 * MS, 190 * MS}
