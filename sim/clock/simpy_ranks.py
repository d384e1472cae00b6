"""Ranks of one job side by side in one SimPy environment: a collective starts once the last has come to it.

A rank comes to a collective once it has launched it and has a channel for it. There it waits, as a kernel
that spins does: its channel is taken, nothing moves, and nothing is slowed down. This is the oracle for
``clock.compiled`` and ``clock.plain``, which play many ranks in compiled loops.
"""

from collections.abc import Sequence
from dataclasses import replace

import simpy

from sim.clock.likeness import check_ranks
from sim.clock.outcome import Outcome
from sim.clock.program import Program
from sim.clock.simpy_clock import Player, Step
from sim.errors import NotModelledError


def play_world(
    programs: Sequence[Program],
    begins_ns: Sequence[int],
    pauses: Sequence[tuple[int, int] | None] | None = None,
) -> tuple[Outcome, ...]:
    """What becomes of each rank's micro-batch; its backward starts at ``begins_ns`` on one clock.

    ``pauses``: for each rank the place in its lane behind which the lane stands still, and for how many ns;
    None where it does not. Meanwhile it slows nothing down, and nothing slows it.

    Outcomes count from the start of the rank's own backward. What follows a backward is the rank's own: to
    chain micro-batches and steps, begin the next one where this one, and what the rank does after it, ends.

    Raises:
        InputError: programs that do not launch the same collectives in the same order, or not one a rank.
        NotModelledError: ranks that wait for each other for ever.
    """
    check_ranks(programs, begins_ns)
    env = simpy.Environment(min(begins_ns))
    meetings = [_Meeting(env, len(programs)) for _ in programs[0].collectives]
    still = pauses if pauses is not None else [None] * len(programs)
    ranks = [_Rank(env, *of, meetings) for of in zip(programs, begins_ns, still, strict=True)]
    for rank_ in ranks:
        env.process(rank_.play())
    env.run()
    if any(meeting.missing for meeting in meetings):
        orders = "they reach their collectives in different orders and wait for each other for ever"
        if any(one.after is not None for one in programs[0].collectives):
            raise NotModelledError(
                f"ranks: collectives that follow each other are not modelled of ranks that differ: {orders}"
            )
        raise NotModelledError(f"ranks: {orders}")
    return tuple(rank.ledger.outcome(rank.sync_end) for rank in ranks)


class _Meeting:
    """One collective of all ranks: how many are still missing, and what fires when the last has come."""

    def __init__(self, env: simpy.Environment, ranks: int) -> None:
        self.missing = ranks
        self.all_here = env.event()


class _Rank(Player):
    """One rank's program, from its own start of backward."""

    def __init__(
        self,
        env: simpy.Environment,
        program: Program,
        begin_ns: int,
        pause: tuple[int, int] | None,
        meetings: Sequence[_Meeting],
    ) -> None:
        super().__init__(env, program)
        self.begin_ns, self.pause, self.meetings = begin_ns, pause, meetings
        self.sync_end = 0

    @property
    def now(self) -> int:
        return int(self.env.now) - self.begin_ns

    def play(self) -> Step:
        """The whole of it: waits for its backward to start, then the lane and launches beside it."""
        yield self.env.timeout(-self.now)
        if not self.program.effects.launch_blocks_compute:
            self.env.process(self.launcher())
        if self.pause is None:
            yield from self.lane()
        else:
            behind, lane = self.pause[0] + 1, self.program.lane
            self.program = replace(self.program, lane=lane[:behind])
            yield from self.lane()
            yield self.env.timeout(self.pause[1])
            self.program = replace(self.program, lane=lane[behind:])
            yield from self.lane()
        self.sync_end = self.now

    def _await_others(self, number: int) -> Step:
        taken, meeting = self.now, self.meetings[number]
        meeting.missing -= 1
        if meeting.missing:
            yield meeting.all_here
        else:
            meeting.all_here.succeed()
        self.ledger.late[number] = self.now - taken
