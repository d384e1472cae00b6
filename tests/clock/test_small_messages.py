"""Small messages wait behind larger ones in the connection that channels share; worked out by hand."""

from dataclasses import replace

import pytest

from sim.clock import play, simpy_clock
from sim.clock.program import BACKWARD_END, LAUNCH, Item, Program, machine_of, small_messages
from sim.clock.timeline import Outcome
from sim.nouns.collective import Collective
from sim.nouns.hardware import CurvePoint
from tests.handmade import handmade, wired

# Best rate 0.01 ns a byte. A quarter of 1000 + 0.009009 * (bytes - 1000) ns is wire from 31,977 bytes on.
# What is waited for is 3/4 of the largest measured message, 7,500 ns, beside 1,000 of its own.
LINK = wired({1000: 1000, 1_000_000: 10_000}, comm_channels=2, channel_slowdown=2.0, shared_connection=True)


def test_what_is_small_and_how_long_it_waits() -> None:
    assert small_messages(LINK) == (31_977, 8.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"shared_connection": False},
        {"comm_channels": 1},
        {"world_size": 1},
        {"all_reduce": LINK.all_reduce[1:]},
        {"all_reduce": (CurvePoint(num_bytes=0, duration_ns=0),)},
    ],
)
def test_nothing_is_small(changes: dict[str, object]) -> None:
    assert small_messages(replace(LINK, **changes)) == (0, 1.0)  # type: ignore[arg-type]


def played(*sizes: int) -> Outcome:
    """Collectives of so many bytes, all launched at 0 ns, on two channels."""
    times = {1000: 1000, 1_000_000: 10_000}
    program = Program(
        lane=(*(Item(LAUNCH, collective=number) for number in range(len(sizes))), Item(BACKWARD_END)),
        collectives=tuple(
            Collective(
                kind="all_reduce",
                elements=size // 4,
                dtype="float32",
                num_bytes=size,
                service_ns=times[size],
                phase="backward",
                bucket=number,
            )
            for number, size in enumerate(sizes)
        ),
        carriers=tuple((number,) for number in range(len(sizes))),
        machine=machine_of(handmade([0]), LINK),
    )
    outcome = simpy_clock.play(program)
    assert outcome == play.play(program)
    return outcome


def test_a_small_message_does_not_slow_a_larger_one() -> None:
    """The first small one takes 8.5 times as long; of the second, 1,500 / 8.5 ns are done by 10,000."""
    assert played(1_000_000, 1000, 1000).end_ns == (10_000, 8500, 10_824)


def test_messages_alike_share() -> None:
    assert played(1000, 1000).end_ns == (2000, 2000)
    assert played(1_000_000, 1_000_000).end_ns == (20_000, 20_000)
