"""The tables that are found in a text, each with its header, its rows, and what was said before it."""

from dataclasses import dataclass, field

from sim.importer.links.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The columns of a table, and what separates them (None: spaces)."""

    columns: tuple[Column, ...]
    delimiter: str | None = None


@dataclass(slots=True, kw_only=True)
class Said:
    """What the lines before a header say of the run; ``ranks``: host and device of each."""

    collective: str | None = None
    is_fresh: bool = False  # the collective was named after the last table
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_ranks: tuple[int, str] | None = None  # and words for what told it
    iterations: int | None = None
    is_used: bool = False  # a table has been found since
    is_over_ranks: bool = False  # OSU's least and greatest are over ranks, not over iterations
    headline: str = ""  # which run it is, by the last headline and the last command
    comment: str = ""
    command: str = ""
    origin: str = ""  # who wrote it, by what stands before its lines
    over: tuple[str, str] | None = None  # the backend, and the device whose buffers were reduced
    weak: tuple[Column, ...] | None = None  # columns named in a sentence, which serve where no header is


@dataclass(slots=True, kw_only=True)
class TextBlock:
    """A table as it is found: its header, the fields of its rows, and what was said before it.

    ``rows`` begin with the number of their line; ``broken`` are numbers of lines that are no whole rows;
    ``cut`` is that of a last row that is cut off. ``ended`` is the line after which nothing belongs to it,
    ``strays`` are lines below that which look like its rows: of another run, whose header is not there.
    """

    header: Header
    said: Said
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    cut: int | None = None
    before: str | None = None  # what stands before each of its rows, but for numbers
    ended: int | None = None
    strays: list[tuple[int, str]] = field(default_factory=list)
