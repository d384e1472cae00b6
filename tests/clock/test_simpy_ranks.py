"""Ranks side by side: against two ranks played in turns, and what holds of any number of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import recurrence
from sim.clock.outcome import Outcome
from sim.clock.program import Program
from sim.clock.simpy_ranks import play_world
from sim.clock.slowest_rank import play_beside
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.workload import Workload
from sim.systems.registry import write
from tests.effort import tries
from tests.strategies import TINY, Case, other_ranks, paired_cases
from tests.systems.any_system import system_cases


def programs_of(case: Case, *workloads: Workload) -> list[tuple[Program, ...]]:
    return [write(workload, case.hardware, case.assignment) for workload in workloads]


def play_chained(workloads: list[Workload], chains: list[tuple[Program, ...]]) -> list[list[Outcome]]:
    """Each rank's outcomes, micro-batch by micro-batch, all of them beginning the first together."""
    begins = [0] * len(workloads)
    played: list[list[Outcome]] = [[] for _ in workloads]
    for programs in zip(*chains, strict=True):
        begins = [
            begin + program.pre_forward_ns + workload.forward_ns + workload.loss_ns
            for begin, program, workload in zip(begins, programs, workloads, strict=True)
        ]
        outcomes = play_world(programs, begins)
        for of_rank, outcome in zip(played, outcomes, strict=True):
            of_rank.append(outcome)
        begins = [
            begin + outcome.sync_end_ns + program.post_sync_ns
            for begin, outcome, program in zip(begins, outcomes, programs, strict=True)
        ]
    return played


def check_pair(case: Case) -> None:
    assert case.slowest is not None
    pair = [case.workload, case.slowest]
    mine, theirs = programs_of(case, *pair)
    world = play_chained(pair, [mine, theirs])
    assert world[0] == play_beside(case.workload, mine, case.slowest, theirs, recurrence.solve)
    assert world[1] == play_beside(case.slowest, theirs, case.workload, mine, recurrence.solve)


@settings(max_examples=tries(200), deadline=None)
@given(paired_cases())
def test_two_ranks_do_what_they_do_in_turns(case: Case) -> None:
    """Every field of both outcomes, to the nanosecond."""
    check_pair(case)


@settings(max_examples=tries(200), deadline=None)
@given(system_cases())
def test_two_ranks_of_every_system_do_what_they_do_in_turns(case: Case) -> None:
    """PowerSGD's callbacks launch as time has it: such ranks may wait for each other for ever."""
    pair = [case.workload, case.slowest or case.workload]
    try:
        check_pair(replace(case, slowest=pair[1]))
    except SimError:
        with pytest.raises((InputError, NotModelledError), match=r"^(slowest|rank 1|ranks|\w+_indices)\b"):
            play_chained(pair, programs_of(case, *pair))


@settings(max_examples=tries(80), deadline=None)
@given(paired_cases(st.just(TINY)), st.data())
def test_each_rank_does_what_it_would_beside_the_last_of_the_others(case: Case, data: st.DataObject) -> None:
    """Of any number of ranks: each rank's program alone, with the instants at which the last one came."""
    workloads = [case.workload]
    for _ in range(data.draw(st.integers(1, 4))):
        workloads.append(data.draw(other_ranks(case.workload, TINY)))
    programs = [program for (program,) in programs_of(case, *workloads)]
    begins = data.draw(st.lists(st.integers(0, 20), min_size=len(programs), max_size=len(programs)))
    outcomes = play_world(programs, begins)
    for rank, (program, begin) in enumerate(zip(programs, begins, strict=True)):
        last = [
            max(
                outcome.taken_ns[number] + start
                for other, (outcome, start) in enumerate(zip(outcomes, begins, strict=True))
                if other != rank
            )
            for number in range(len(program.collectives))
        ]
        awaited = tuple(
            replace(one, arrival_ns=time - begin) for one, time in zip(program.collectives, last, strict=True)
        )
        assert outcomes[rank] == recurrence.solve(replace(program, collectives=awaited))


@settings(max_examples=tries(60), deadline=None)
@given(paired_cases(), st.integers(1, 4), st.integers(0, 10**6))
def test_ranks_alike_are_one_rank(case: Case, count: int, begin: int) -> None:
    ((program,),) = programs_of(case, case.workload)
    alone = recurrence.solve(program)
    assert play_world([program] * count, [begin] * count) == (alone,) * count


@settings(max_examples=tries(60), deadline=None)
@given(paired_cases(), st.data())
def test_the_order_of_ranks_is_no_matter(case: Case, data: st.DataObject) -> None:
    assert case.slowest is not None
    other = data.draw(other_ranks(case.workload, TINY))
    programs = [program for (program,) in programs_of(case, case.workload, case.slowest, other)]
    begins = data.draw(st.lists(st.integers(0, 20), min_size=3, max_size=3))
    order = data.draw(st.permutations(range(3)))
    moved = play_world([programs[k] for k in order], [begins[k] for k in order])
    told = play_world(programs, begins)
    assert [told[k] for k in order] == list(moved)


def test_as_many_begins_as_programs() -> None:
    with pytest.raises(InputError, match=r"begins_ns: 2 instants for 0 programs"):
        play_world([], [0, 0])
