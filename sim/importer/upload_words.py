"""What an upload is called: by the names that the user gave, never by paths on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.importer.wording import plain
from sim.nouns.imported import Imported
from sim.nouns.measurement import Measurement

_LONGEST = 500
# Options of the command line, as sentences of readers have them, and their names on the page.
_OPTIONS = {
    "--world-size N": "the world size",
    "--world-size": "the world size",
    "--model": "a workload of the model",
    "PATH: ": "",
}


class Labels:
    """What each path is called."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def add(self, path: Path, label: str) -> None:
        """Call ``path`` by ``label``."""
        self._labels[str(path)] = label

    def applied(self, text: str) -> str:
        """``text`` with labels in place of paths, and of the file name that it may begin with."""
        for path in sorted(self._labels, key=len, reverse=True):
            text = text.replace(path, self._labels[path])
        for path, label in self._labels.items():
            name = Path(path).name
            if text.startswith(f"{name}:"):
                return label + text.removeprefix(name)
        return text

    def told(self, text: str) -> str:
        """A sentence of a reader as one line for a page, with options named as on the page."""
        text = self.applied(text)
        for option, words in _OPTIONS.items():
            text = text.replace(option, words)
        return plain(text, _LONGEST)


def cleaned(imported: Imported, labels: Labels) -> Imported:
    """An import with labels in place of paths wherever it tells its origin, and without the day of import.

    So the same files have the same digest on any day and in any directory.
    """
    workload = imported.workload
    return replace(
        imported,
        workload=None
        if workload is None
        else replace(workload, provenance=_cleaned(workload.provenance, labels)),
        hardware=tuple(
            replace(one, provenance=_cleaned(one.provenance, labels)) for one in imported.hardware
        ),
        measurements=tuple(_measurement(one, labels) for one in imported.measurements),
    )


def _measurement(one: Measurement, labels: Labels) -> Measurement:
    asked = one.asked
    return replace(
        one,
        asked=None if asked is None else replace(asked, provenance=_cleaned(asked.provenance, labels)),
        environment=_cleaned(one.environment, labels),
        provenance=_cleaned(one.provenance, labels),
    )


def _cleaned(value: Any, labels: Labels) -> Any:
    if isinstance(value, str):
        return labels.applied(value)
    if isinstance(value, list):
        return [_cleaned(item, labels) for item in value]
    if isinstance(value, dict):
        imported_today = value.get("source") == "bucketsim import kineto"
        return {
            key: _cleaned(item, labels)
            for key, item in value.items()
            if not (imported_today and key == "date")
        }
    return value
