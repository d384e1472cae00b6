"""What is left of a measurement that was stopped: told before the command ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.cli.next_steps import suggest, to_agree
from sim.cli.printing import note
from sim.errors import SimError
from sim.formats import documents
from sim.formats.record_files import WORKLOAD
from sim.nouns.measurement import Measurement


@contextmanager
def telling_what_is_kept(directory: Path | None) -> Iterator[None]:
    """Where the block is stopped or fails, say what it left in ``directory``, and how to go on from there."""
    try:
        yield
    except BaseException as end:
        if directory is not None:
            _tell(directory, was_stopped=isinstance(end, KeyboardInterrupt))
        raise


def _tell(directory: Path, *, was_stopped: bool) -> None:
    try:
        kept = [documents.load(path, Measurement) for path in sorted(directory.glob("measurement-*.json"))]
    except SimError:
        return  # what ended the command is the one thing to tell
    if not kept:
        if was_stopped:
            note("nothing was measured yet: the same command begins anew")
        return
    counts = sorted(len(one.iterations) for one in kept)
    rounds = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    note(f"kept in {directory}, marked incomplete: {rounds} rounds of {', '.join(one.name for one in kept)}")
    anew = "to measure all rounds: the same command with another -o"
    suggest(f"{to_agree(directory)}; {anew}" if (directory / WORKLOAD).exists() else anew)
