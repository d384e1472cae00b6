"""How many single-line mutations of the heart the suite kills: ``python -m tests.mutations --count 200``.

A mutation changes one operator, number or condition of a function. It is killed where a test of its wing, a
golden output or a contract fails, or takes longer than ``--patience`` seconds. What survives is printed:
either a test is missing, or what the line does makes no difference. Run by hand, on a copy of the tree.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WINGS = {
    "clock": ("clock", "metrics"),
    "systems": ("systems", "clock"),
    "tuner": ("tuner",),
    "importer": ("importer",),
    "validator": ("dist",),
}
_EVERYWHERE = ("tests/golden", "tests/contracts")
_COPIED = ("sim", "app", "tests", "traces", "pyproject.toml", "README.md")
_SWAPPED: dict[type, ast.operator | ast.cmpop | ast.boolop] = {
    **{ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt()},
    **{ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is()},
    **{ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.And: ast.Or(), ast.Or: ast.And()},
    **{ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(), ast.FloorDiv: ast.Mult()},
    ast.Div: ast.Mult(),
}
_OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutation(NamedTuple):
    """What stands at ``line`` (from 1), from column ``begin`` to ``end``, becomes ``new``."""

    file: Path
    line: int
    begin: int
    end: int
    new: str

    def apply(self, root: Path) -> None:
        """Change the file in a copy of the tree."""
        path = root / self.file
        lines = path.read_bytes().split(b"\n")
        old = lines[self.line - 1]
        lines[self.line - 1] = old[: self.begin] + self.new.encode() + old[self.end :]
        path.write_bytes(b"\n".join(lines))


def _changed(node: ast.AST) -> ast.AST | None:
    """``node`` with one thing in it changed; None where there is nothing to change."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPPED:
        return ast.Compare(node.left, [_SWAPPED[type(node.ops[0])]], node.comparators)  # type: ignore[list-item]
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED and not isinstance(node.left, ast.JoinedStr):
        return ast.BinOp(node.left, _SWAPPED[type(node.op)], node.right)  # type: ignore[arg-type]
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(_SWAPPED[type(node.op)], node.values)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OTHER_NAMES:
        return ast.Call(ast.Name(_OTHER_NAMES[node.func.id]), node.args, node.keywords)
    return None


def mutations(root: Path, wing: str) -> Iterator[Mutation]:
    """All that one line of a wing's functions can become."""
    for path in sorted((root / "sim" / wing).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in (inner for statement in function.body for inner in ast.walk(statement)):
                changed = _changed(node)
                if changed is None or not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
                    continue
                assert node.end_col_offset is not None
                new = f"({ast.unparse(ast.fix_missing_locations(changed))})"
                yield Mutation(path.relative_to(root), node.lineno, node.col_offset, node.end_col_offset, new)


def is_killed(copy: Path, mutation: Mutation, wing: str, patience_s: float) -> bool:
    """Whether tests fail in ``copy`` of the tree with this mutation, which is taken back."""
    path = copy / mutation.file
    before = path.read_bytes()
    mutation.apply(copy)
    tests = [*(f"tests/{name}" for name in WINGS[wing]), *_EVERYWHERE]
    found = [name for name in tests if (copy / name).exists()]
    argv = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "-n0", *found]
    environment, told = os.environ | {"PYTHONPATH": str(copy)}, subprocess.DEVNULL
    try:
        ran = subprocess.run(argv, cwd=copy, env=environment, stdout=told, stderr=told, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(before)
    return ran.returncode != 0


def copied(root: Path, folder: Path) -> Path:
    """A copy of what tests take."""
    for name in _COPIED:
        one = root / name
        if one.is_dir():
            shutil.copytree(one, folder / name, symlinks=True)  # app/traces is one
        else:
            shutil.copy(one, folder / name)
    return folder


def main() -> None:
    """Draw mutations from all wings in turn, and tell which survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=900.0)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the tree; default: this one")
    asked = parser.parse_args()
    drawn = random.Random(asked.seed)
    all_of = {wing: list(mutations(asked.root, wing)) for wing in WINGS}
    killed = dict.fromkeys(WINGS, 0)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(asked.root, Path(folder))
        for number in range(asked.count):
            wing = list(WINGS)[number % len(WINGS)]
            one = drawn.choice(all_of[wing])
            dies = is_killed(copy, one, wing, asked.patience)
            killed[wing] += dies
            told = "killed" if dies else "SURVIVED"
            print(f"{told} {one.file}:{one.line}:{one.begin} {one.new}", flush=True)
    print(f"{sum(killed.values())} of {asked.count} killed: {killed}")


if __name__ == "__main__":
    main()
