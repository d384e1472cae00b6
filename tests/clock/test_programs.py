"""The two clocks play any program, of one rank or of many, to the nanosecond alike."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play, simpy_clock
from sim.clock import program as lane
from sim.clock.play import END, QUEUED, SERVICE, advance, make_sheet, play_ranks
from sim.clock.program import MOST_NS, Item, Machine, Program, Rates, machine_of, rate_of, small_messages
from sim.clock.timeline import Outcome
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.collective import Collective
from sim.nouns.workload import Workload
from sim.systems.registry import assign, write
from sim.systems.simulate import ENGINES
from sim.systems.step_writer import message
from tests import strategies
from tests.effort import tries
from tests.handmade import handmade, points, wired
from tests.strategies import SLOWDOWNS, TINY, Case, Draw, other_ranks, paired_cases
from tests.systems.cases import system_cases
from tests.tuner.cases import link, resnet50

durations = st.integers(0, 7)
WORK = (lane.FORWARD, lane.BACKWARD, lane.OPTIMIZER, lane.REST, lane.AROUND, lane.HOOK)
speeds = st.sampled_from(SLOWDOWNS).map(rate_of) | st.integers(2, lane.FULL_SPEED)


@st.composite
def machines(draw: Draw) -> Machine:
    names = ("computing", "copying_in", "copying_out") if draw(st.booleans()) else ()
    return Machine(
        channels=draw(st.integers(1, 3)),
        launch_cost_ns=draw(st.integers(0, 3)),
        launch_blocks_compute=draw(st.booleans()),
        idle=Rates(shared=draw(speeds), small=draw(speeds)),
        **{name: draw(st.builds(Rates, speeds, speeds, speeds, speeds)) for name in names},
        small_bytes=draw(st.integers(0, 4)),
    )


@st.composite
def programs(draw: Draw) -> Program:
    """Collectives launched from the lane or chained behind another; waits anywhere after their launch."""
    collectives: list[Collective] = []
    chains = draw(st.booleans())
    for number in range(draw(st.integers(0, 6))):
        chained = chains and number > 0 and draw(st.booleans())
        collectives.append(
            message(
                *("all_reduce", 1, "float32", "backward"),
                num_bytes=draw(st.integers(1, 4)),
                service_ns=draw(durations),
                bucket=number,
                after=draw(st.integers(0, number - 1)) if chained else None,
                settle_ns=draw(st.integers(0, 3)),
                holds_channel=draw(st.booleans()),
                queued_ns=draw(st.none() | durations),
            )
        )
    to_launch = [number for number, one in enumerate(collectives) if one.after is None]
    launched: list[int] = []
    items: list[Item] = []

    def will_be_launched(number: int) -> bool:
        after = collectives[number].after
        return number in launched if after is None else will_be_launched(after)

    copied: set[int] = set()
    while to_launch or draw(st.integers(0, 3)):
        what = draw(st.sampled_from(["work", "copy_in", "launch", "launch", "wait", "copy_back", "ready"]))
        number = draw(st.integers(0, max(0, len(collectives) - 1)))
        if what in ("work", "copy_in"):
            kind = draw(st.sampled_from(WORK)) if what == "work" else lane.COPY_IN
            items.append(Item(kind, draw(durations), gradient=number))
        elif what == "launch" and to_launch:
            launched.append(to_launch.pop(0))
            items.append(Item(lane.LAUNCH, collective=launched[-1]))
        elif what == "wait" and collectives and will_be_launched(number):
            items.append(Item(lane.WAIT, collective=number))
        elif what == "copy_back" and number < len(collectives) and number not in copied:
            copied.add(number)
            items.append(Item(lane.COPY_BACK, draw(durations), bucket=number))
        elif what == "ready" and number < len(collectives):
            items.append(Item(lane.READY, bucket=number))
    items.insert(draw(st.integers(0, len(items))), Item(lane.BACKWARD_END))
    return Program(
        lane=tuple(items),
        collectives=tuple(collectives),
        carriers=tuple((number,) for number in range(len(collectives))),
        machine=draw(machines()),
    )


@settings(max_examples=tries(1500, 80), deadline=None)
@given(programs())
def test_engines_agree_on_any_program(program: Program) -> None:
    assert simpy_clock.play(program) == play.play(program)


def test_a_chained_launch_counts_from_its_own_instant_on() -> None:
    """One collective follows another without a pause, so that work beside both is stretched throughout: 5 ns
    are done after 10, though 1 ns is left where the first collective ends."""
    first = message("all_reduce", 1, "float32", "backward", service_ns=8, bucket=0)
    program = Program(
        lane=(Item(lane.LAUNCH, collective=0), Item(lane.BACKWARD, 5), Item(lane.BACKWARD_END)),
        collectives=(first, replace(first, service_ns=5, after=0)),
        carriers=((0, 1),),
        machine=Machine(launch_blocks_compute=True, computing=Rates(lane=lane.FULL_SPEED // 2)),
    )
    assert simpy_clock.play(program).backward_end_ns == play.play(program).backward_end_ns == 10


@settings(max_examples=tries(400), deadline=None)
@given(programs())
def test_no_work_is_lost_and_nothing_comes_too_early(program: Program) -> None:
    outcome = play.play(program)
    for number, collective in enumerate(program.collectives):
        launch, start = outcome.launch_ns[number], outcome.start_ns[number]
        end, usable = outcome.end_ns[number], outcome.usable_ns[number]
        assert launch <= outcome.taken_ns[number] == start
        waited = launch < start and collective.queued_ns is not None
        assert end - start >= (collective.queued_ns if waited else collective.service_ns)
        assert usable == end + collective.settle_ns
        if collective.after is not None:
            assert launch == outcome.usable_ns[collective.after]
    at = (0, *outcome.ended_ns)
    passed = zip(program.lane, at, at[1:], strict=False)
    computed = (lane.BACKWARD, lane.HOOK, lane.COPY_IN)
    busy = sum(end - start for item, start, end in passed if item.kind in computed)
    asked = sum(item.duration_ns for item in program.lane if item.kind in computed)
    assert busy >= asked
    assert outcome.backward_end_ns <= outcome.sync_end_ns
    # A channel is held while other ranks are waited for.
    held = [span for span in zip(outcome.taken_ns, outcome.end_ns, strict=True) if span[1] > span[0]]
    overlapping = sorted([(taken, +1) for taken, _ in held]) + sorted([(end, -1) for _, end in held])
    active = 0
    for _, change in sorted(overlapping):
        active += change
        assert active <= program.machine.channels


def ends_of(program: Program, services_ns: Sequence[Sequence[int]]) -> list[int]:
    """When the lane of ``program`` ends with other service times of its collectives [machine][collective]."""
    sheet, ends, none = make_sheet([program]), [], np.zeros(1, np.int64)
    for times in services_ns:
        collectives = sheet.collectives.copy()
        collectives[:, SERVICE] = collectives[:, QUEUED] = times
        ranks = play_ranks(sheet._replace(collectives=collectives), none, np.ones(1), none - 1, 0, none)
        ends.append(int(ranks.states[0, END]))
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


# Small messages wait behind larger ones in the connection that channels share; by hand.

# Best rate 0.01 ns a byte. A quarter of 1000 + 0.009009 * (bytes - 1000) ns is wire from 31,977 bytes on.
# What is waited for is 3/4 of the largest measured message, 7,500 ns, beside 1,000 of its own.
TIMES = {1000: 1000, 1_000_000: 10_000}
SHARED = wired(TIMES, comm_channels=2, channel_slowdown=2.0, shared_connection=True)


def test_what_is_small_and_how_long_it_waits() -> None:
    assert small_messages(SHARED) == (31_977, 8.5)
    for changes in (
        {"shared_connection": False},
        {"comm_channels": 1},
        {"world_size": 1},
        {"all_reduce": SHARED.all_reduce[1:]},
        {"all_reduce": points({0: 0})},
    ):
        assert small_messages(replace(SHARED, **changes)) == (0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        # A small message does not slow a larger one. The first one takes 8.5 times as long; of the second,
        # 1,500 / 8.5 ns are done by 10,000.
        ((1_000_000, 1000, 1000), (10_000, 8500, 10_824)),
        ((1000, 1000), (2000, 2000)),
        ((1_000_000, 1_000_000), (20_000, 20_000)),
    ],
)
def test_how_messages_share_a_connection(sizes: tuple[int, ...], ends: tuple[int, ...]) -> None:
    """All launched at 0 ns, on two channels."""
    collectives = (
        message("all_reduce", size // 4, "float32", "backward", service_ns=TIMES[size]) for size in sizes
    )
    program = Program(
        lane=(
            *(Item(lane.LAUNCH, collective=number) for number in range(len(sizes))),
            Item(lane.BACKWARD_END),
        ),
        collectives=tuple(collectives),
        carriers=tuple((number,) for number in range(len(sizes))),
        machine=machine_of(handmade([0]), SHARED),
    )
    assert simpy_clock.play(program).end_ns == play.play(program).end_ns == ends
