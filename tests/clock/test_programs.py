"""Both engines play any program alike, to the nanosecond, whatever system might have written it."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import play, simpy_clock
from sim.clock.program import (
    AROUND,
    BACKWARD,
    BACKWARD_END,
    COPY_BACK,
    COPY_IN,
    FORWARD,
    FULL_SPEED,
    HOOK,
    LAUNCH,
    OPTIMIZER,
    READY,
    WAIT,
    Item,
    Machine,
    Program,
    Rates,
    rate_of,
)
from sim.nouns.collective import Collective
from tests.effort import tries
from tests.strategies import SLOWDOWNS, Draw

durations = st.integers(0, 7)
WORK = (FORWARD, BACKWARD, OPTIMIZER, AROUND, HOOK)
speeds = st.sampled_from(SLOWDOWNS).map(rate_of) | st.integers(2, FULL_SPEED)


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
            Collective(
                kind="all_reduce",
                elements=1,
                dtype="float32",
                num_bytes=draw(st.integers(1, 4)),
                service_ns=draw(durations),
                phase="backward",
                bucket=number,
                after=draw(st.integers(0, number - 1)) if chained else None,
                settle_ns=draw(st.integers(0, 3)),
                holds_channel=draw(st.booleans()),
                queued_ns=draw(st.none() | durations),
            )
        )
    to_launch = [number for number, one in enumerate(collectives) if one.after is None]
    launched: list[int] = []
    lane: list[Item] = []

    def will_be_launched(number: int) -> bool:
        after = collectives[number].after
        return number in launched if after is None else will_be_launched(after)

    copied: set[int] = set()
    while to_launch or draw(st.integers(0, 3)):
        what = draw(st.sampled_from(["work", "copy_in", "launch", "launch", "wait", "copy_back", "ready"]))
        number = draw(st.integers(0, max(0, len(collectives) - 1)))
        if what in ("work", "copy_in"):
            kind = draw(st.sampled_from(WORK)) if what == "work" else COPY_IN
            lane.append(Item(kind, draw(durations), gradient=number))
        elif what == "launch" and to_launch:
            launched.append(to_launch.pop(0))
            lane.append(Item(LAUNCH, collective=launched[-1]))
        elif what == "wait" and collectives and will_be_launched(number):
            lane.append(Item(WAIT, collective=number))
        elif what == "copy_back" and number < len(collectives) and number not in copied:
            copied.add(number)
            lane.append(Item(COPY_BACK, draw(durations), bucket=number))
        elif what == "ready" and number < len(collectives):
            lane.append(Item(READY, bucket=number))
    lane.insert(draw(st.integers(0, len(lane))), Item(BACKWARD_END))
    return Program(
        lane=tuple(lane),
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
    first = Collective(
        kind="all_reduce", elements=1, dtype="float32", num_bytes=4, service_ns=8, phase="backward", bucket=0
    )
    program = Program(
        lane=(Item(LAUNCH, collective=0), Item(BACKWARD, 5), Item(BACKWARD_END)),
        collectives=(first, replace(first, service_ns=5, after=0)),
        carriers=((0, 1),),
        machine=Machine(launch_blocks_compute=True, computing=Rates(lane=FULL_SPEED // 2)),
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
    lane = zip(program.lane, at, at[1:], strict=False)
    busy = sum(end - start for item, start, end in lane if item.kind in (BACKWARD, HOOK, COPY_IN))
    asked = sum(item.duration_ns for item in program.lane if item.kind in (BACKWARD, HOOK, COPY_IN))
    assert busy >= asked
    assert outcome.backward_end_ns <= outcome.sync_end_ns
    # A channel is held while other ranks are waited for.
    held = [span for span in zip(outcome.taken_ns, outcome.end_ns, strict=True) if span[1] > span[0]]
    overlapping = sorted([(taken, +1) for taken, _ in held]) + sorted([(end, -1) for _, end in held])
    active = 0
    for _, change in sorted(overlapping):
        active += change
        assert active <= program.machine.channels
