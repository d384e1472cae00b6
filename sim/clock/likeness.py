"""Whether ranks launch the same collectives in the same order, without which they would wait for ever."""

from collections.abc import Sequence
from dataclasses import replace

from sim.clock.program import Launch, Program
from sim.errors import InputError
from sim.nouns.collective import Collective


def check_ranks(programs: Sequence[Program], begins_ns: Sequence[int]) -> None:
    """Raise ``InputError`` unless there is a program a rank, each alike the first."""
    if len(programs) != len(begins_ns) or not programs:
        raise InputError(
            f"begins_ns: {len(begins_ns)} instants for {len(programs)} programs; give one a rank"
        )
    for rank, program in enumerate(programs):
        if program is not programs[0]:
            check_alike(programs[0], program, 0, f"rank {rank}")


def check_alike(mine: Program, theirs: Program, micro_batch: int, whose: str = "slowest") -> None:
    """Raise ``InputError`` unless both launch the same in one order; the error calls ``theirs`` ``whose``."""
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
    """The collective without its times, its phase and its gradient, in which ranks may differ."""
    return replace(collective, service_ns=0, settle_ns=0, phase="backward", gradient=None)


def _words(collective: Collective) -> str:
    bucket = "" if collective.bucket is None else f", bucket {collective.bucket}"
    return f"{collective.kind} of {collective.elements} {collective.dtype}{bucket}"
