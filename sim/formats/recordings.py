"""What a training leaves: ``rank-<r>.jsonl`` of ``sim.record``."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.errors import InputError
from sim.formats.documents import parse_body, parse_json, parse_text
from sim.formats.files import read_bytes
from sim.nouns.devices import backend_of, device_type
from sim.nouns.recording import (
    RecordedEnd,
    RecordedLayout,
    RecordedRank,
    RecordedStep,
    Recording,
    RecordingHeader,
)

_FILE = re.compile(r"rank-([0-9]+)\.jsonl")


def load_recording(directory: str | os.PathLike[str]) -> Recording:
    """A recording from its directory; a last line that was cut off is left out and told.

    Raises:
        InputError: no recording there, a line that is not legal (named by file, line and field), or
            ranks that did not train the same model.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: not a directory; give the directory of a recording")
    paths = [path for path in folder.iterdir() if rank_of(path) is not None]
    if not paths:
        raise InputError(f"{folder}: no rank-<r>.jsonl in it; give the directory that sim.record wrote")
    ranks = sorted((_load_rank(path) for path in sorted(paths)), key=lambda rank: rank.header.rank)
    check_one_run([rank.header for rank in ranks], folder)
    return Recording(name=folder.name or str(folder), ranks=tuple(ranks))


def check_one_run(headers: Sequence[RecordingHeader], folder: Path) -> None:
    """Raise ``InputError`` unless these ranks trained the same model together.

    Each has a device of its own, of one type: ``cuda:0`` of every host, or ``cuda:0`` to ``cuda:7`` of each.
    """
    first = _alike(headers[0])
    for header in headers[1:]:
        for field, other in _alike(header).items():
            if (one := first.get(field)) != other:
                shown = "" if isinstance(other, tuple) else f" ({other} and {one})"
                raise InputError(
                    f"{folder}: {field}: rank {header.rank} has another than rank {headers[0].rank}{shown}; "
                    f"give the files of one run"
                )


# Of the job, and so alike in the headers of all ranks, as are DDP's arguments, but not what it logged so far.
_OF_JOB = ("world_size", "level", "every", "torch", "backend", "clock", "module", "buffers")


def _alike(header: RecordingHeader) -> dict[str, object]:
    """What all ranks of a run say alike, by fields; of devices, the type and which of them are one."""
    places: dict[str, str] = {}
    for one in header.parameters:
        places.setdefault(one.device, f"{device_type(one.device)} {len(places)}")
    return {
        **{field: getattr(header, field) for field in _OF_JOB},
        **{f"ddp.{name}": value for name, value in header.ddp.items() if name != "rebuilt_buckets"},
        "comm_hook": str(header.comm_hook).partition(" at 0x")[0],  # of an object each process has its own
        "device": header.device_type,
        "parameters": tuple(replace(one, device=places[one.device]) for one in header.parameters),
    }


def rank_of(path: Path) -> int | None:
    """The rank that a file's name says it is of; None where it is no rank's file."""
    return int(match[1]) if (match := _FILE.fullmatch(path.name)) else None


def _load_rank(path: Path) -> RecordedRank:
    *lines, rest = read_bytes(path).split(b"\n")
    if not lines:
        raise InputError(f"{path}: no whole line in it; nothing was recorded")
    header = read_header(lines[0], path)
    layouts: list[RecordedLayout] = []
    steps: list[RecordedStep] = []
    for number, line in enumerate(lines[1:], start=2):
        found = read_line(line, f"{path}: line {number}", header, after=steps[-1].step if steps else 0)
        if isinstance(found, RecordedStep):
            steps.append(found)
        elif isinstance(found, RecordedLayout):
            layouts.append(found)
    return RecordedRank(header=header, layouts=tuple(layouts), steps=tuple(steps), torn=bool(rest))


def read_line(
    line: bytes, source: str, header: RecordingHeader, after: int
) -> RecordedStep | RecordedLayout | RecordedEnd:
    """A line that follows the header; ``after`` is the number of the step before it, 0 before the first.

    Raises:
        InputError: a line that is not legal, or does not belong to ``header``.
    """
    body = parse_json(line, source)
    if not isinstance(body, dict):
        raise InputError(f"{source}: not a JSON object")
    kind = body.pop("kind", None)
    if kind == "buckets":
        return _checked_layout(parse_body(body, RecordedLayout, source), header, source)
    if kind == "end":
        return parse_body(body, RecordedEnd, source)
    if kind != "step":
        raise InputError(f"{source}: kind: {kind!r} is not legal; give 'step', 'buckets' or 'end'")
    if body.pop("aside", False):  # which older recordings tell, and nothing is made of any more
        words = "copies into buckets ran on a stream of their own, which is not modelled; record it again"
        raise InputError(f"{source}: aside: {words}")
    step = _checked_step(parse_body(body, RecordedStep, source), header, source)
    if after and step.step <= after:
        raise InputError(f"{source}: step: {step.step} is not legal; it follows step {after}")
    return step


def read_header(line: bytes, path: Path) -> RecordingHeader:
    """The header in the first line of ``path``. Raises ``InputError`` where it is not legal there."""
    source = f"{path}: line 1"
    header = parse_text(line, RecordingHeader, source)
    if rank_of(path) != header.rank:
        raise InputError(f"{source}: rank: {header.rank} is not legal in a file of this name")
    return replace(header, backend=backend_of(header.backend, header.device))


def _checked_layout(layout: RecordedLayout, header: RecordingHeader, source: str) -> RecordedLayout:
    count = len(header.parameters)
    for field, buckets in (("bucket_indices", layout.bucket_indices), ("fired", (layout.fired,))):
        for index in (index for bucket in buckets for index in bucket):
            if not 0 <= index < count:
                raise InputError(f"{source}: {field}: {index} is not legal; there are {count} parameters")
    return layout


def _checked_step(step: RecordedStep, header: RecordingHeader, source: str) -> RecordedStep:
    count = len(header.parameters)
    for place, backward in enumerate(step.backwards):
        if len(backward.ready_ns) != count:
            raise InputError(
                f"{source}: backwards.{place}.ready_ns: {len(backward.ready_ns)} times; there are {count} "
                f"parameters"
            )
    return step
