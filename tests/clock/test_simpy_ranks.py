"""Ranks side by side: SimPy against the compiled clock, and what holds of any number of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import play, simpy_clock
from sim.clock.program import Program
from sim.clock.timeline import Outcome
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.workload import Workload
from sim.systems.registry import assign, write
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import TINY, Case, other_ranks, paired_cases
from tests.systems.cases import system_cases

PlayTogether = Callable[[Sequence[Program], Sequence[int]], tuple[Outcome, ...]]


def programs_of(case: Case, *workloads: Workload) -> list[tuple[Program, ...]]:
    return [write(workload, case.hardware, case.assignment) for workload in workloads]


def play_chained(chains: list[tuple[Program, ...]], play_together: PlayTogether) -> list[list[Outcome]]:
    """Each rank's outcomes, micro-batch by micro-batch, all of them beginning the first together."""
    begins = [0] * len(chains)
    played: list[list[Outcome]] = [[] for _ in chains]
    for programs in zip(*chains, strict=True):
        outcomes = play_together(programs, begins)
        for of_rank, outcome in zip(played, outcomes, strict=True):
            of_rank.append(outcome)
        begins = [begin + outcome.lane_end_ns for begin, outcome in zip(begins, outcomes, strict=True)]
    return played


def check_together(chains: list[tuple[Program, ...]]) -> None:
    """Every field of every outcome, to the nanosecond."""
    expected = play_chained(chains, simpy_clock.play_together)
    assert play_chained(chains, play.play_together) == expected


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases(), st.data())
def test_the_compiled_clock_plays_ranks_as_simpy_does(case: Case, data: st.DataObject) -> None:
    assert case.slowest is not None
    workloads = [case.workload, case.slowest]
    for _ in range(data.draw(st.integers(0, 2))):
        workloads.append(data.draw(other_ranks(case.workload, TINY)))
    check_together(programs_of(case, *workloads))


@settings(max_examples=tries(200), deadline=None)
@given(system_cases())
def test_two_ranks_of_every_system_are_played_alike(case: Case) -> None:
    pair = [case.workload, case.slowest or case.workload]
    try:
        check_together(programs_of(case, *pair))
    except SimError:
        for play_together in (simpy_clock.play_together, play.play_together):
            with pytest.raises((InputError, NotModelledError), match=r"^(rank 1|ranks|\w+_indices)\b"):
                play_chained(programs_of(case, *pair), play_together)


@settings(max_examples=tries(60), deadline=None)
@given(paired_cases(), st.integers(1, 4), st.integers(0, 10**6))
def test_ranks_alike_are_one_rank(case: Case, count: int, begin: int) -> None:
    ((program,),) = programs_of(case, case.workload)
    alone = play.play(program)
    assert simpy_clock.play_together([program] * count, [begin] * count) == (alone,) * count


@settings(max_examples=tries(60), deadline=None)
@given(paired_cases(), st.data())
def test_the_order_of_ranks_is_no_matter(case: Case, data: st.DataObject) -> None:
    """But for broadcasts, which wait for rank 0."""
    assert case.slowest is not None
    workload, slowest = (replace(one, buffers=()) for one in (case.workload, case.slowest))
    other = data.draw(other_ranks(workload, TINY))
    programs = [program for (program,) in programs_of(case, workload, slowest, other)]
    begins = data.draw(st.lists(st.integers(0, 20), min_size=3, max_size=3))
    order = data.draw(st.permutations(range(3)))
    moved = simpy_clock.play_together([programs[k] for k in order], [begins[k] for k in order])
    told = simpy_clock.play_together(programs, begins)
    assert [told[k] for k in order] == list(moved)


@pytest.mark.parametrize("play_together", [simpy_clock.play_together, play.play_together])
def test_ranks_that_send_in_another_order_are_refused(play_together: PlayTogether) -> None:
    """Where all of it takes no time, too, and one order would do as well as the other."""
    mine = handmade([0] * 3, 4)
    theirs = replace(mine, ready_order=(2, 0, 1))
    assignment = assign(mine, "per-parameter-async")
    programs = [program for one in (mine, theirs) for program in write(one, wired({4: 0}), assignment)]
    with pytest.raises(InputError, match=r"rank 1: its collective 1 .* bucket 0, and .* bucket 1 on"):
        play_together(programs, [0, 0])
