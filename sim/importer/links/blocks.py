"""A table of a text as it is found: its header, the fields of its rows, and what was said before it."""

from dataclasses import dataclass, field

from sim.importer.links.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Columns, and what stands between them (None: spaces)."""

    columns: tuple[Column, ...]
    delimiter: str | None = None

    @property
    def width(self) -> int:
        """Fields of a row, without the second word of a time of day."""
        return len(self.columns)


@dataclass(slots=True, kw_only=True)
class TextBlock:
    """A table as it is found: its header, the fields of its rows, and what was said before it."""

    header: Header
    collective: str | None = None
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    said_ranks: tuple[int, str] | None = None
    iterations: int | None = None
    is_over_ranks: bool = False  # OSU's least and greatest are over ranks, not over iterations
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    cut: int | None = None
