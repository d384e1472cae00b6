"""README and the pages of the manual, and what stands in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from app.views.manual import HOME, PAGES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MANUAL = [HOME / f"{name}.md" for name in PAGES]
TRUTH, MODELLED, UNMEASURED = (HOME / f"{name}.md" for name in ("truth", "modelled", "unmeasured"))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, and what is in it."""

    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in _FENCE.finditer(page.read_text(encoding="utf-8")):
        yield Block(*found.groups())


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def assert_holds(page: Path, table: list[str]) -> None:
    """The lines of ``table`` stand on the page, one after the other."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert table[0] in lines, f"{page.name} has no line {table[0]!r}"
    starts = [number for number, line in enumerate(lines) if line == table[0]]
    assert table in [lines[start : start + len(table)] for start in starts]
