"""What must hold whatever import is given: an answer that stands, or one of our errors in a short line."""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import SimError
from sim.formats.documents import parse_document, to_document
from sim.importer.anonymizing import anonymize
from sim.importer.readers import reader
from sim.importer.writing import hardware_names, summary_of, write_imported
from sim.nouns.imported import Imported, ImportOptions

LONGEST_MESSAGE, MOST_SECONDS = 400, 10.0
_BESIDE_FILES = ("PATH: ", "--", "model ", "paths: ")


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of many inputs."""

    results: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""

    def __str__(self) -> str:
        total = self.results.total() + self.errors.total()
        return (
            f"{total} inputs: {self.results.total()} results {dict(self.results)}, {self.errors.total()} "
            f"errors {dict(self.errors)}; slowest {self.slowest_s:.2f} s ({self.slowest})"
        )


def judge(form: str, paths: Sequence[Path], options: ImportOptions, tally: Tally, what: str) -> None:
    """Read, hold what comes against the rules, count it. Raises ``AssertionError``, or what escaped."""
    begin = time.process_time()
    try:
        imported = reader(form)(paths, options)
    except SimError as error:
        tally.errors[type(error).__name__] += 1
        check_message(str(error), paths)
    else:
        tally.results[imported.format] += 1
        check_result(imported)
    took = time.process_time() - begin
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest = took, what
    assert took < MOST_SECONDS, f"{took:.1f} s"


def check_message(message: str, paths: Sequence[Path]) -> None:
    """One short line without control characters that names a file, or the option that is wrong."""
    names = {str(path) for path in paths} | {path.name for path in paths}
    names |= {str(path.parent) for path in paths}
    names |= {entry.name for path in paths if os.path.isdir(path) for entry in path.iterdir()}
    assert message.isprintable(), message[:500]
    bare = message
    for name in sorted(names, key=len, reverse=True):
        bare = bare.replace(name, "F")
    assert len(bare) < LONGEST_MESSAGE, message[:800]
    assert bare != message or message.startswith(_BESIDE_FILES), message


def check_result(imported: Imported) -> None:
    """It can be written, read again, made anonymous, and shown; its sentences are lines."""
    for sentence in (*imported.found, *imported.assumed, *imported.missing, *imported.dropped):
        assert sentence.isprintable(), sentence
        assert len(sentence) < 2 * LONGEST_MESSAGE, sentence
    json.dumps(summary_of(imported), allow_nan=False)
    _same_again(imported)
    with tempfile.TemporaryDirectory() as folder:
        for path in (*write_imported(imported, folder), Path(folder) / "summary.json"):
            json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    assert len(set(hardware_names(imported))) == len(imported.hardware)
    anonymize(imported)


def _same_again(imported: Imported) -> None:
    nouns: list[Any] = [*imported.hardware, *imported.measurements]
    if imported.workload is not None:
        nouns.append(imported.workload)
    for noun in nouns:
        again = parse_document(
            json.loads(json.dumps(to_document(noun), allow_nan=False)), type(noun), "again"
        )
        assert again == noun


def no_constant(word: str) -> NoReturn:
    """For ``json.loads``: what is written has no NaN."""
    raise AssertionError(f"{word} was written")
