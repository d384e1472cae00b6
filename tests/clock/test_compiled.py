"""One program on many machines, compiled, against SimPy: to the nanosecond."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import simpy_clock
from sim.clock.play import QUEUED, SERVICE, advance, make_sheet, play_alone
from sim.clock.program import MOST_NS, Program, machine_of
from sim.errors import InputError
from sim.systems.registry import write
from sim.systems.simulate import ENGINES
from tests import strategies
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.tuner.cases import link, resnet50


def ends_of(program: Program, services_ns: Sequence[Sequence[int]]) -> list[int]:
    """When the lane of ``program`` ends with other service times of its collectives [machine][collective]."""
    sheet, ends = make_sheet([program]), []
    for times in services_ns:
        collectives = sheet.collectives.copy()
        collectives[:, SERVICE] = collectives[:, QUEUED] = times
        ends.append(play_alone(sheet._replace(collectives=collectives)))
    return ends


@settings(max_examples=tries(400))
@given(strategies.cases(), st.data())
def test_ends_are_the_engines(case: strategies.Case, data: st.DataObject) -> None:
    """Any assignment on any machine: the times of a tiny scale are where roundings and ties come up."""
    (program,) = write(case.workload, case.hardware, case.assignment)
    count = len(program.collectives)
    time = st.integers(0, data.draw(st.sampled_from([9, 1000, 40_000_000])))
    services = data.draw(st.lists(st.lists(time, min_size=count, max_size=count), min_size=1, max_size=3))
    for end, times in zip(ends_of(program, services), services, strict=True):
        collectives = tuple(
            replace(one, service_ns=time) for one, time in zip(program.collectives, times, strict=True)
        )
        outcome = simpy_clock.play(replace(program, collectives=collectives))
        assert end == outcome.lane_end_ns


@pytest.mark.parametrize("slow", [{}, {"compute_slowdown": 512.0, "comm_slowdown": 512.0}])
def test_the_longest_step_that_may_be_played(slow: dict[str, float]) -> None:
    """73 minutes of work, in pieces as long as they can be, slowed down to weeks: no int64 is too small."""
    workload = handmade([0], 1, dtypes="int8", backward_ns=MOST_NS // 2)
    hardware = wired({0: MOST_NS // 2}, **slow)
    one, two = (sim.simulate(workload, hardware, sim.assign(workload), engine) for engine in ENGINES)
    assert replace(two, engine="simpy") == one
    assert one.sync_end_ns == (MOST_NS // 2 * 512 if slow else MOST_NS // 2)
    longer = replace(workload, backward_ns=MOST_NS // 2 + 1)
    with pytest.raises(InputError, match=r"a step could take .* look at the recorded times"):
        sim.simulate(longer, hardware, sim.assign(workload))


def test_slow_downs_beyond_what_rates_can_tell_are_refused() -> None:
    with pytest.raises(InputError, match=r"slow-downs: 1000000 times as long is not legal"):
        machine_of(resnet50(), link(4, comm_channels=2, comm_slowdown=1e6, channel_slowdown=1e6))


def test_the_clock_is_compiled_once() -> None:
    """However what it is given lies in memory: whoever simulates first waits for each compilation."""
    case = resnet50(), link(10)
    (program,) = write(*case, sim.assign(case[0]))
    sim.simulate(*case, sim.assign(case[0]), "analytic")
    before = len(advance.signatures)  # type: ignore[attr-defined]
    ends_of(program, [[one.service_ns for one in program.collectives]] * 2)
    assert len(advance.signatures) == before  # type: ignore[attr-defined]


def test_longer_service_is_never_earlier() -> None:
    workload, hardware = resnet50(), link(4, comm_channels=2, channel_slowdown=2.0063)
    assignment = sim.assign(workload, bucket_cap_mb=5)
    (program,) = write(workload, hardware, assignment)
    services = [[k * 300_000] * len(program.collectives) for k in range(50)]
    ends = ends_of(program, services)
    assert all(a <= b for a, b in pairwise(ends))
    computed = workload.forward_ns + workload.loss_ns + workload.backward_ns + workload.optimizer_ns
    assert ends[0] == computed
    assert len(set(ends)) > 40
