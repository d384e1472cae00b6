"""A format of imports: how its files are recognised, what they tell, and where its reader is."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path

from sim.importer.bounded_json import MOST_VALUES
from sim.nouns.imported import Imported, ImportOptions

Reader = Callable[[Sequence[Path], ImportOptions], Imported]


class Tells(IntEnum):
    """The most that files of a format tell; ``auto`` reads formats in this order."""

    LINK = 0  # how long collectives take, measured apart from a step
    GRADIENTS = 1  # when each gradient is ready


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a JSON document, or those of its head.

    Attributes:
        top: the document's own keys, each with its value if that is a short text, else None.
        seen: ``(depth, key)`` down to the fourth level; the document's own keys have depth 1.
    """

    top: Mapping[str, str | None]
    seen: Set[tuple[int, str]]

    def has(self, depth: int, *names: str) -> bool:
        """Whether all of these keys stand at a depth."""
        return all((depth, name) in self.seen for name in names)


def _never(said: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A format that ``bucketsim import`` reads.

    Attributes:
        name: what the command line calls it.
        called: one of its files, in an error: ``a Kineto trace``.
        tells: the most that its files tell.
        module: holds its reader, and is imported on first use.
        function: the reader's name.
        by_head: whether the keys of a JSON document so far are those of this format and of no other.
        by_keys: whether all keys of a JSON document are, where no head told the format.
        by_text: whether a text holds it; asked of what is no JSON.
        most_values: how many JSON values an uploaded file may hold, and
        most_values_of_event: how many more for each event in it.
        keys: keys of its details and provenance under which an anonymised import keeps its values (numbers
            and listed words), beside those of ``vocabulary``.
        words: words of its sentences that an anonymised import keeps, beside those of ``vocabulary``.
    """

    name: str
    called: str
    tells: Tells
    module: str
    function: str
    by_head: Callable[[Keys], bool] = _never
    by_keys: Callable[[Keys], bool] = _never
    by_text: Callable[[str], bool] = _never
    most_values: int = MOST_VALUES
    most_values_of_event: int = 0
    keys: str = ""
    words: str = ""

    def reader(self) -> Reader:
        """The function that reads its files."""
        return imported_function(self.module, self.function)


def imported_function(module: str, name: str) -> Reader:
    """A reader, whose module is imported now."""
    read: Reader = getattr(import_module(module), name)
    return read
