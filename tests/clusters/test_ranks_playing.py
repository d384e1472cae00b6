"""Many ranks in compiled loops against the same ranks in SimPy: to the nanosecond."""

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import play as compiled
from sim.clock.program import BACKWARD
from sim.clock.ranks import Lanes, Met, Together, make_lanes, play, play_by_simpy
from sim.nouns.workload import Workload
from sim.systems.registry import write
from tests.effort import tries
from tests.strategies import SCALES, Case, Scale, cases, other_ranks


def lanes_of(case: Case, workloads: list[Workload]) -> list[Lanes]:
    """The micro-batches of a step, of these variants."""
    written = [write(workload, case.hardware, case.assignment) for workload in workloads]
    return [
        make_lanes(workloads, programs, number) for number, programs in enumerate(zip(*written, strict=True))
    ]


@st.composite
def crews(draw: st.DrawFn, lanes: Lanes, variants: int, scale: Scale, most: int = 8) -> Together:
    """1 to 8 ranks that differ in all that they may."""
    count = draw(st.integers(1, most))
    paces = st.just(1.0) | st.sampled_from([0.5, 1.5, 2.0, 3.0]) | st.floats(0.3, 3.0)
    rows = [draw(st.integers(0, variants - 1)) for _ in range(count)]
    stalled = [
        draw(st.sampled_from([-1, *np.flatnonzero(lanes.sheet.kinds[row] == BACKWARD).tolist()]))
        for row in rows
    ]
    return Together(
        variants=np.array(rows, dtype=np.int64),
        paces=np.array([draw(paces) for _ in rows]),
        stalled=np.array(stalled, dtype=np.int64),
        stall_ns=draw(st.integers(1, 3 * scale.work_ns + 1)),
        begins_ns=np.array([draw(st.just(0) | st.integers(0, 4 * scale.work_ns)) for _ in rows]),
    )


def same(one: Met, other: Met) -> None:
    assert one.lane_ends_ns.tolist() == other.lane_ends_ns.tolist()
    assert one.came_ns.tolist() == other.came_ns.tolist()
    assert one.last_ns.tolist() == other.last_ns.tolist()
    assert one.ends_ns.tolist() == other.ends_ns.tolist()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Lanes, Together]:
    scale = draw(SCALES)
    case = draw(cases(st.just(scale), max_gradients=8))
    workloads = [case.workload]
    for _ in range(draw(st.integers(0, 2))):
        workloads.append(draw(other_ranks(case.workload, scale)))
    (lanes,) = lanes_of(case, workloads)
    return lanes, draw(crews(lanes, len(workloads), scale))


@settings(max_examples=tries(120), deadline=None)
@given(worlds())
def test_loops_do_what_simpy_does(world: tuple[Lanes, Together]) -> None:
    lanes, ranks = world
    same(play(lanes, ranks), play_by_simpy(lanes, ranks))


@settings(max_examples=tries(40), deadline=None)
@given(worlds())
def test_ranks_shared_out_to_threads_do_the_same(world: tuple[Lanes, Together]) -> None:
    lanes, ranks = world
    alone = play(lanes, ranks)
    with mock.patch.object(compiled, "_FEWEST_RANKS", 1), mock.patch("os.cpu_count", return_value=3):
        same(play(lanes, ranks), alone)
