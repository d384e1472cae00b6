"""Keeps answers in a form in which a change can be read, and tells what changed."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.golden.answers import ROOT, SUBJECTS

HERE = Path(__file__).parent
LONG = 8  # rows of a list that are kept one by one; of a longer one the ends and a digest of all
DIGITS = 9  # of a figure that is no integer: further ones may differ from machine to machine
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_CHANGING = {"date", "tool_version", "version", "digest", "digests", "cpu", "seconds", "schema_version"}


def make(subject: str, folder: Path) -> dict[str, Any]:
    """All answers of ``subject``, asked for in ``folder``."""
    (folder / "made").mkdir()
    (folder / "traces").symlink_to(ROOT / "traces")
    before = Path.cwd()
    os.chdir(folder)
    columns = os.environ.pop("COLUMNS", None)  # where it is set, tables are as wide as it says
    try:
        return {name: shortened(answer) for name, answer in SUBJECTS[subject](folder)}
    finally:
        os.chdir(before)
        if columns is not None:
            os.environ["COLUMNS"] = columns


def shortened(value: Any) -> Any:
    """``value`` without dates and versions, with figures of nine digits, and long lists as their ends."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        kept = {str(key): shortened(member) for key, member in value.items() if key not in _CHANGING}
        is_table = len(kept) > LONG and all(key.isdigit() for key in kept)
        return shortened([[key, member] for key, member in kept.items()]) if is_table else kept
    if not isinstance(value, list | tuple):
        return value
    rows = [shortened(member) for member in value]
    if len(rows) <= LONG or isinstance(rows[0], str):
        return rows
    return {"first": rows[0], "last": rows[-1], "count": len(rows), "sha256": digest(rows)}


def digest(value: Any) -> str:
    """What stands for a value of which nobody wants to read the whole."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def path_of(subject: str) -> Path:
    """Where a subject's answers are kept."""
    return HERE / f"{subject}.json"


def kept(subject: str) -> dict[str, Any]:
    """A subject's answers as they were; none where it is new."""
    return json.loads(path_of(subject).read_text()) if path_of(subject).exists() else {}


def keep(subject: str, made: dict[str, Any]) -> None:
    """Write a subject's answers, a line a value, so that a difference can be read in a commit."""
    path_of(subject).write_text(json.dumps(made, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """A line for each value that changed: where, whether a figure or a word, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from differences(old.get(key), new.get(key), f"{where} > {key}" if where else str(key))
    elif isinstance(old, list) and isinstance(new, list):
        olds, news = ([json.dumps(row) for row in rows] for rows in (old, new))
        for _, start, end, begins, ends in SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
            for number, pair in enumerate(zip_longest(old[start:end], new[begins:ends]), start):
                yield from differences(*pair, f"{where} > {number}")
    elif old != new:
        before, after = (_NUMBER.sub("#", one) if isinstance(one, str) else None for one in (old, new))
        is_figure = before == after
        yield f"{'figure' if is_figure else 'words '}  {where}\n    was {old!r:.300}\n    is  {new!r:.300}"
