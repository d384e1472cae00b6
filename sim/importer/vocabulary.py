"""The words of our own that may be written out: what stands in the source of importers, nouns and formats."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGES = ("importer", "nouns", "formats")
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")
# What torch calls the collectives (torch.distributed.flight_recorder) and their states.
_COLLECTIVES = frozenset(
    (
        *("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "reduce_scatter", "gather"),
        *("_reduce_scatter_base", "scatter", "all_to_all", "all_to_allv", "alltoall_base", "barrier", "send"),
        *("allreduce_coalesced", "all_reduce_barrier", "recv", "scheduled", "started", "completed"),
    )
)
_UNITS = frozenset({"ns", "us", "ms", "s", "B", "KiB", "MiB", "GiB", "GB", "MB", "KB", "x"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """``literals``: whole texts of our source; ``names``: its keywords and fields; ``words``: of both."""

    literals: frozenset[str]
    names: frozenset[str]
    words: frozenset[str]

    def knows_key(self, key: str) -> bool:
        """A key that our source wrote, or a number (a size, a rank)."""
        return key in self.names or key in self.literals or (key.isascii() and key.isdigit())

    def knows_word(self, word: str) -> bool:
        """A word of a sentence, or its plural."""
        return word in self.words or word.removesuffix("s") in self.words or word.lower() in self.words


@cache
def vocabulary() -> Vocabulary:
    """Read once from the source files. What is found there says nothing of a user, wherever it turns up."""
    literals: set[str] = set()
    names: set[str] = set()
    root = Path(__file__).parent.parent
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and id(node) not in docstrings
                ):
                    literals.add(node.value)
                elif isinstance(node, ast.keyword) and node.arg is not None:
                    names.add(node.arg)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
    words = {word for text in literals | names for word in _WORD.findall(text)}
    return Vocabulary(
        literals=frozenset(literals), names=frozenset(names), words=frozenset(words | _UNITS | _COLLECTIVES)
    )
