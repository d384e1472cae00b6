"""Valid files of every format that import reads: what damage and metamorphic tests begin with.

A new format gives its own here; ``test_sniffing`` fails until it does.
"""

import gzip
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sim.formats.documents import to_text
from tests.formats.test_recordings import backward, lines_of, rank_of, step
from tests.handmade import handmade, wired
from tests.importer import link_texts
from tests.importer.built_traces import Dialect, Job, build

LARGEST_PUBLIC = 60_000  # bytes, as stored
LINES = [
    link_texts.Line(num_bytes=1 << power, in_us=5.0 + 2 ** (power - 10), out_us=6.0 + 2 ** (power - 10))
    for power in range(10, 22, 2)
]
JOB = Job(
    shapes=((8, 4), (4,), (16, 8), (8,), (3, 3)),
    buckets=(2, 2, 1),
    gradient_ns=(40_000, 20_000, 60_000, 10_000, 30_000),
    transfer_ns=(50_000, 90_000, 20_000),
    forward_ns=((100_000, 120_000), (110_000, 100_000), (105_000, 130_000)),
    optimizer_ns=40_000,
    copy_in_ns=3_000,
    copy_out_ns=2_000,
    offsets_ns=(0, 7_000_000),
)
MODEL = handmade(
    [900, 700, 500, 300],
    name="model",
    names="w{}",
    shapes=[(rows, 4) for rows in (1, 2, 3, 4)],
    forward_ns=500,
    backward_ns=1_000,
    optimizer_ns=100,
)
WIRE = wired({1 << power: 1 << power for power in (10, 14, 20)}, name="wire")
_DIALECTS = {
    "": Dialect(),
    "-old": Dialect(
        kernel="Kernel", operator="Operator", runtime="Runtime", dims="Input dims", bare_list=True
    ),
    "-bare": Dialect(wrappers=False, steps=False, dims=None, arguments_on="kernel", zipped=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files by name, of one import in one format. A recording's stand in a directory of their own."""

    form: str
    files: dict[str, bytes]
    is_public: bool = False

    def write(self, folder: Path) -> list[Path]:
        """The files in ``folder``; returns what import is to be given."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return [folder] if self.form == "recording" else [folder / name for name in self.files]


@cache
def corpus() -> tuple[Case, ...]:
    """Every format in its dialects, small; the public files too where ``BUCKETSIM_DATA`` is set."""
    return (*_traces(), *_links(), *_ours(), *_public())


def _case(form: str, **files: str) -> Case:
    return Case(form=form, files={name: text.encode() for name, text in files.items()})


def _traces() -> list[Case]:
    cases = []
    for word, dialect in _DIALECTS.items():
        texts, _ = build(JOB, dialect)
        # A list does not say of which rank it is, nor steps without numbers which belong together.
        texts = texts[: 2 if dialect.steps and not dialect.bare_list else 1]
        pack = gzip.compress if dialect.zipped else bytes
        files = {f"trace{word}-{rank}.json": pack(text.encode()) for rank, text in enumerate(texts)}
        cases.append(Case(form="kineto", files=files))
    return cases


def _links() -> list[Case]:
    texts = ("\n".join(write(LINES, 4)) + "\n" for write in link_texts.WRITERS)
    cases = [_case("nccl-tests", **{"link.txt": text}) for text in texts]
    return [*cases, _case("nccl-tests", **{"link.json": link_texts.report(LINES, 4)})]


def _ours() -> list[Case]:
    steps = tuple(step(number, backward((400, 300 + number, 200, 100))) for number in range(1, 8))
    lines = {f"rank-{rank}.jsonl": lines_of(rank_of(rank, steps)) for rank in (0, 1)}
    return [
        _case("recording", **lines),
        _case("auto", **{"model.json": to_text(MODEL), "wire.json": to_text(WIRE)}),
    ]


def _public() -> list[Case]:
    data = os.environ.get("BUCKETSIM_DATA")
    cases = []
    for folder in ("nccl_tests", "traces") if data else ():
        for path in sorted((Path(data or "") / folder).rglob("*")):
            if path.is_file() and path.stat().st_size < LARGEST_PUBLIC and "_et" not in path.name:
                form = "nccl-tests" if folder == "nccl_tests" else "kineto"
                cases.append(Case(form=form, files={path.name: path.read_bytes()}, is_public=True))
    return cases


def without(value: Any, keys: Collection[str]) -> Any:
    """What JSON holds, without the members of these names."""
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list | tuple) else value
