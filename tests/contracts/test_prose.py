"""No logic reads prose: sentences are made of facts at the end, and nothing takes them apart again."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_WORDS = re.compile(r"[a-z]{2,}[:,;]? [a-z]{2,}")
_CUTTING = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find"}


def sought(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression looks for in another text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CUTTING:
        yield from node.args[:1]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield node.left


def test_no_logic_reads_prose() -> None:
    found = {
        (str(path.relative_to(ROOT)), text.value)
        for folder in ("sim", "app")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for text in sought(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and _WORDS.search(text.value)
    }
    assert not found
