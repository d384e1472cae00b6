"""What to do next: the line on stderr that ends a command, with the files that it just made or was given."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from sim.cli.printing import note
from sim.errors import SimError
from sim.formats import documents, record_files
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement

TO_CLUSTER_PAGE = "bucketsim dash (its page Cluster draws this)"
WORKLOAD, HARDWARE = Path("WORKLOAD.json"), Path("HARDWARE.json")  # where the user has yet to name them
_HARDWARE, _ASSIGNMENT = Path("hardware.json"), Path("assignment.json")
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def suggest(line: str) -> None:
    """What to do next, on stderr; nothing where another command runs this one and goes on itself."""
    if not _silent.get():
        note(f"next: {line}")


@contextmanager
def without_suggestions() -> Iterator[None]:
    """Commands that run meanwhile suggest nothing."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def to_calibrate(workload: Path, ranks: int = 2) -> str:
    """From a workload to its first answer, where no link has been measured."""
    measure = _line("calibrate", "--ranks", str(ranks), "--workload", workload, "-o", _HARDWARE)
    return f"{measure}; then: {to_tune(workload, _HARDWARE)}"


def to_tune(workload: Path, hardware: Path) -> str:
    """The best buckets of a workload on a machine."""
    return _line("tune", workload, "--hardware", hardware, "-o", _ASSIGNMENT)


def to_tune_written(workload: Path, hardware: Path | None, corrected: Path | None = None) -> str:
    """The best buckets on a machine that was written to a file, or has yet to be: not over the one that was
    ``corrected``.
    """
    if hardware is not None and _is_kept(hardware):
        return to_tune(workload, hardware)
    named = _HARDWARE if corrected is None else Path(f"{corrected.stem}-anchored.json")
    return f"the same with -o {named}; then: {to_tune(workload, named)}"


def to_import(paths: list[Path], output: Path) -> str:
    """What was read, together with what has yet to be measured."""
    return _line("import", "auto", *paths, "-o", output)


def to_simulate(workload: Path) -> str:
    """One step of a workload on a machine."""
    return _line("simulate", workload, "--hardware", HARDWARE)


def to_find_slower_links(workload: Path, hardware: Path) -> str:
    """Where buckets matter, for those to whom they do not."""
    sweep = _line("sweep", workload, "--hardware", hardware, "--bandwidth", "0.1,0.3,1")
    return f"keep DDP's default; on which slower link buckets would matter: {sweep}"


def to_export(workload: Path, hardware: Path, assignment: Path | None) -> str:
    """The lines for the training script, from an assignment that was written to a file, or has yet to be.

    They need no hardware, but what comes after them does: a replay on the link that was tuned for.
    """
    first = "" if _is_kept(assignment) else f"the same with -o {_ASSIGNMENT}; then: "
    given = assignment if assignment and not first else _ASSIGNMENT
    words = ("export", workload, "--hardware", hardware, "--assignment", given, "--as", "snippet")
    return first + _line(*words)


def to_apply(assignment: Path) -> str:
    """The line for a training script that imports sim."""
    return f"in the training script: ddp_model = sim.apply(model, {str(assignment)!r})"


def to_replay(
    workload: Path, hardware_file: Path | None, hardware: Hardware | None, assignment: Path | None
) -> str:
    """An assignment on real ranks where the hardware was measured, or by a job that is carried there."""
    named = () if assignment is None else ("--assignment", assignment)
    words = ("validate", workload, "--hardware", hardware_file or HARDWARE, *named)
    if hardware is None:
        return _line(*words, "-o", "measured") + (
            f" (with --box and --rate, or --ranks, as {HARDWARE} was measured; --prepare: on other hosts)"
        )
    return _line(*words, *_where(hardware), "-o", "measured")


def to_agree(record: Path) -> str:
    """What was measured, against the prediction."""
    return _line("agree", record)


def to_look(records: Path) -> str:
    """Measured beside predicted, on the screen."""
    return _line("dash", "--watch", records)


def _is_kept(written: Path | None) -> bool:
    """Whether there is a file to go on with."""
    return written is not None and written.is_file()


def _line(*words: str | Path) -> str:
    return shlex.join(("bucketsim", *map(str, words)))


def _where(hardware: Hardware) -> tuple[str, ...]:
    """validate's options for the ranks that ``hardware`` is of."""
    box = record_files.box_in(hardware.provenance, hardware.name)
    is_whole = box is not None and box.uplink_bits is None and box.hosts == tuple(range(len(box.rates_bits)))
    if box is None or not is_whole or "carried" in hardware.provenance:  # carried: computed for another wire
        ranks = ("--ranks", str(hardware.world_size))
        is_here = box is None and str(hardware.provenance.get("place", "")).endswith("over loopback")
        return ranks if is_here else (*ranks, "--prepare")  # a job to carry to where it was measured
    rates = box.rates_bits if len(set(box.rates_bits)) > 1 else box.rates_bits[:1]
    return ("--box", str(len(box.rates_bits)), "--rate", ",".join(map(_rate, rates)))


def _rate(bits: int) -> str:
    """A rate as ``--rate`` reads it."""
    return f"{bits / 10**9:.12g}gbit" if bits >= 10**9 else f"{bits / 10**6:.12g}mbit"


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
    suggest(f"{to_agree(directory)}; {anew}" if (directory / record_files.WORKLOAD).exists() else anew)
