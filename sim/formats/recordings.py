"""Recordings on disk: a directory of ``rank-<r>.jsonl`` files that ``sim.record`` wrote."""

import os
import re
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats.documents import SCHEMA_VERSION, parse_body, parse_json, read_bytes
from sim.nouns.recording import RecordedLayout, RecordedRank, RecordedStep, Recording, RecordingHeader

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
    paths = [path for path in folder.iterdir() if _FILE.fullmatch(path.name)]
    if not paths:
        raise InputError(f"{folder}: no rank-<r>.jsonl in it; give the directory that sim.record wrote")
    ranks = sorted((_load_rank(path) for path in sorted(paths)), key=lambda rank: rank.header.rank)
    first = ranks[0].header
    for rank in ranks[1:]:
        for field in ("world_size", "level", "every", "parameters"):
            if getattr(rank.header, field) != getattr(first, field):
                raise InputError(
                    f"{folder}: {field}: rank {rank.header.rank} has another than rank {first.rank}; give "
                    f"the files of one run"
                )
    return Recording(name=folder.name or str(folder), ranks=tuple(ranks))


def _load_rank(path: Path) -> RecordedRank:
    *lines, rest = read_bytes(path).split(b"\n")
    if not lines:
        raise InputError(f"{path}: no whole line in it; nothing was recorded")
    header = _header(lines[0], path)
    layouts: list[RecordedLayout] = []
    steps: list[RecordedStep] = []
    for number, line in enumerate(lines[1:], start=2):
        source = f"{path}: line {number}"
        body = _object(line, source)
        kind = body.pop("kind", None)
        if kind == "buckets":
            layouts.append(_checked_layout(parse_body(body, RecordedLayout, source), header, source))
        elif kind == "step":
            step = _checked_step(parse_body(body, RecordedStep, source), header, source)
            if steps and step.step <= steps[-1].step:
                raise InputError(
                    f"{source}: step: {step.step} is not legal; it follows step {steps[-1].step}"
                )
            steps.append(step)
        else:
            raise InputError(f"{source}: kind: {kind!r} is not legal; give 'step' or 'buckets'")
    return RecordedRank(header=header, layouts=tuple(layouts), steps=tuple(steps), torn=bool(rest))


def _header(line: bytes, path: Path) -> RecordingHeader:
    source = f"{path}: line 1"
    body = _object(line, source)
    for key, legal in (("kind", "recording"), ("schema_version", SCHEMA_VERSION)):
        value = body.pop(key, None)
        if value != legal or type(value) is not type(legal):
            raise InputError(f"{source}: {key}: {value!r} is not legal; it must be {legal!r}")
    header = parse_body(body, RecordingHeader, source)
    match = _FILE.fullmatch(path.name)
    if match is None or int(match[1]) != header.rank:
        raise InputError(f"{source}: rank: {header.rank} is not legal in a file of this name")
    return header


def _object(line: bytes, source: str) -> dict[str, Any]:
    value = parse_json(line, source)
    if not isinstance(value, dict):
        raise InputError(f"{source}: not a JSON object")
    return value


def _checked_layout(layout: RecordedLayout, header: RecordingHeader, source: str) -> RecordedLayout:
    count = len(header.parameters)
    for index in (index for bucket in layout.bucket_indices for index in bucket):
        if not 0 <= index < count:
            raise InputError(f"{source}: bucket_indices: {index} is not legal; there are {count} parameters")
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
