"""The slowest of the other ranks, and what a step is where each collective starts with its last arriver.

A rank comes to a collective once it has launched it and has a channel for it. There it waits, as a kernel
that spins does: its channel is taken, but nothing moves, so neither its own slow-down nor anything else's
applies. Each rank's program is played alone, with the instants at which the other came to its collectives,
in turns until nothing changes. Every turn settles the next collective that was not settled yet, so that
ranks may be last in any order.
"""

from collections.abc import Sequence
from dataclasses import replace

from sim.clock.outcome import Outcome, Play
from sim.clock.program import Launch, Program
from sim.errors import InputError, NotModelledError
from sim.nouns.collective import Collective
from sim.nouns.workload import Workload


def play_beside(
    workload: Workload,
    programs: Sequence[Program],
    slowest: Workload,
    others: Sequence[Program],
    play: Play,
) -> list[Outcome]:
    """What becomes of ``programs``, a step's micro-batches, beside a rank that runs ``others``.

    Both ranks begin the step in the same instant; what the other one takes longer before a backward makes it
    late there, micro-batch by micro-batch. Collectives before forward and after synchronisation do not wait.

    Raises:
        InputError: the two do not launch the same collectives in the same order.
        NotModelledError: they do, but wait for each other for ever.
    """
    outcomes = []
    behind = 0  # ns, by which the other rank's micro-batch or backward starts after this one's
    for number, (mine, theirs) in enumerate(zip(programs, others, strict=True)):
        check_alike(mine, theirs, number)
        behind += theirs.pre_forward_ns + slowest.forward_ns + slowest.loss_ns
        behind -= mine.pre_forward_ns + workload.forward_ns + workload.loss_ns
        outcome, other = _play_both(mine, theirs, behind, play)
        behind += other.sync_end_ns + theirs.post_sync_ns - outcome.sync_end_ns - mine.post_sync_ns
        outcomes.append(outcome)
    return outcomes


def _play_both(mine: Program, theirs: Program, behind_ns: int, play: Play) -> tuple[Outcome, Outcome]:
    """Both outcomes, each from the start of its own backward; theirs starts ``behind_ns`` after mine."""
    other = play(theirs)
    for _ in range(2 * len(mine.collectives) + 2):
        outcome = play(_waiting(mine, other, behind_ns))
        again = play(_waiting(theirs, outcome, -behind_ns))
        if again == other:
            return outcome, other
        other = again
    raise NotModelledError(
        "slowest: the two ranks reach their collectives in different orders and wait for each other for ever"
    )


def _waiting(program: Program, other: Outcome, behind_ns: int) -> Program:
    """``program``, whose collectives wait for the other rank, which starts ``behind_ns`` later."""
    return replace(
        program,
        collectives=tuple(
            replace(collective, arrival_ns=taken + behind_ns)
            for collective, taken in zip(program.collectives, other.taken_ns, strict=True)
        ),
    )


def check_alike(mine: Program, theirs: Program, micro_batch: int, whose: str = "slowest") -> None:
    """Raise ``InputError`` unless both launch the same collectives in the same order; ``whose`` theirs is."""
    ours, others = _launched(mine), _launched(theirs)
    for place, (one, two) in enumerate(zip(ours, others, strict=False)):
        if one != two:
            raise InputError(
                f"{whose}: its collective {place} of micro-batch {micro_batch} is {_words(two)}, and "
                f"{_words(one)} here; give the same model under the same assignment"
            )
    if len(ours) != len(others):
        raise InputError(
            f"{whose}: it sends {len(others)} collectives in micro-batch {micro_batch}, and {len(ours)} are "
            f"sent here; give the same model under the same assignment"
        )


def _launched(program: Program) -> list[Collective]:
    """What travels, in the order of launches; chained collectives, which time alone orders, come last."""
    launched = [item.collective for item in program.lane if isinstance(item, Launch)]
    chained = [number for number, one in enumerate(program.collectives) if one.after is not None]
    return [_travels(program.collectives[number]) for number in (*launched, *chained)]


def _travels(collective: Collective) -> Collective:
    """A collective without what each rank does in its own time."""
    return replace(collective, service_ns=0, settle_ns=0, phase="backward", gradient=None)


def _words(collective: Collective) -> str:
    bucket = "" if collective.bucket is None else f", bucket {collective.bucket}"
    return f"{collective.kind} of {collective.elements} {collective.dtype}{bucket}"
