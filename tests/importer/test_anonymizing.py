"""Whatever stands in an import: nothing that names its owner is in what is written."""

import json
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.formats.documents import parse_text, to_text
from sim.importer.imported import Imported, ImportOptions, Note, RankRow, anonymize
from sim.importer.readers import reader
from sim.nouns.assignment import Assignment, MadeFor
from tests.effort import tries
from tests.handmade import wired
from tests.importer.corpus import Case, corpus
from tests.strategies import hardwares, measurements, workloads

# What the nouns themselves check, and what is a word of ours in every one of them.
CHECKED = {"dtype", "policy", "role", "mode", "ready_includes", "format", "kind", "about"}
MARKS = ("zq", ".77.3", "klondike", "phoenix")
UNDER = ("source", "file", "torch", "host", "device", "records", "library", "group", "statistic", "backend")

# A path, an address, a name, plain words or letters and digits: all hold one of ``MARKS``.
SHAPES = (
    *("zq{}", "/home/zq{}/runs/model.json", "zq{}@example.org", "node-zq{}.cluster.local", "{}zq7b"),
    *("job zq{} of the team", "10.{}.77.3", "cuda:zq{}", "NVIDIA zq{}", "2.8.0+zq{}", "gradient zq{}"),
    *("klondike", "Klondike phoenix"),
)
secrets = st.builds(str.format, st.sampled_from(SHAPES), st.integers(100, 255))


@st.composite
def objects(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """Provenance at any depth: secrets as values under known and unknown keys, and as keys."""
    leaves: Any = secrets | st.integers(0, 9) | st.booleans() | st.none() | st.lists(secrets, max_size=2)
    if depth < 3:
        leaves = leaves | objects(depth + 1) | st.lists(objects(depth + 1), max_size=2)
    return draw(st.dictionaries(st.sampled_from(UNDER) | secrets, leaves, max_size=3))


def plant(draw: st.DrawFn, value: Any) -> Any:
    """``value`` with a secret in each text and each free object of it."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for part in fields(value):
        own = getattr(value, part.name)
        if part.name in CHECKED:
            continue
        if isinstance(own, str) or (own is None and part.type in (str | None, "str | None")):
            changes[part.name] = draw(secrets)
        elif isinstance(own, dict):
            changes[part.name] = {**draw(objects()), draw(secrets): 1}
        elif isinstance(own, tuple) and own and all(isinstance(item, str) for item in own):
            changes[part.name] = tuple(draw(secrets) for _ in own)
        elif isinstance(own, tuple):
            changes[part.name] = tuple(plant(draw, item) for item in own)
        elif is_dataclass(own):
            changes[part.name] = plant(draw, own)
    return replace(value, **changes)


@st.composite
def imports(draw: st.DrawFn) -> Imported:
    """All that an import can hold, with a secret wherever a text can stand."""
    measurement = draw(measurements())
    made_for = MadeFor(workload="w", names=("a",), num_bytes=(4,), dtypes=("float32",))
    asked = measurement.asked and Assignment(bucket_indices=((0,),), made_for=made_for)
    empty = Imported(
        format="kineto",
        name="n",
        workload=draw(workloads(dressed=True)),
        hardware=tuple(draw(st.lists(hardwares(dressed=True), max_size=2))),
        measurements=(replace(measurement, asked=asked),),
        ranks=(RankRow(rank=0, host="h"), RankRow(rank=1)),
        notes=(Note("found", "n"), Note("missing", "m")),
    )
    planted: Imported = plant(draw, empty)
    return planted


@settings(max_examples=tries(40), deadline=None)
@given(imports())
def test_no_secret_is_written(imported: Imported) -> None:
    read = json.dumps(asdict(imported)).lower()
    assert any(mark in read for mark in MARKS)
    plain = anonymize(imported)
    written = json.dumps(asdict(plain)).lower()
    assert not any(mark in written for mark in MARKS)
    assert anonymize(plain) == plain
    assert plain.workload is not None
    assert imported.workload is not None
    one, other = (
        [(g.num_bytes, g.ready_ns) for g in each.gradients] for each in (plain.workload, imported.workload)
    )
    assert one == other
    mine, theirs = ([g.key for g in each.gradients] for each in (plain.workload, imported.workload))
    assert [mine.index(key) for key in mine] == [theirs.index(key) for key in theirs]
    assert [h.all_reduce for h in plain.hardware] == [h.all_reduce for h in imported.hardware]
    nouns: list[Any] = [plain.workload, *plain.hardware, *plain.measurements]
    assert [parse_text(to_text(noun), type(noun), "again") for noun in nouns] == nouns


def test_what_a_reader_needs_stays() -> None:
    told = {"device": "NVIDIA A100", "library": "10.1.2.3", "file": "/home/alice/t", "statistic": "median"}
    spread = {"all_reduce": {"4": {"count": 9, "quantile": "median", "median_ns": 5}}}
    hardware = wired({4: 5}, name="alice's cluster", spread=spread, provenance=told)
    ranks = tuple(RankRow(rank=rank, host=host) for rank, host in enumerate(("n1", "n2", "n1")))
    plain = anonymize(Imported(format="kineto", name="alice", hardware=(hardware,), ranks=ranks))
    assert plain.hardware[0].spread == hardware.spread
    assert plain.hardware[0].provenance == {"statistic": "median"}
    assert [row.host for row in plain.ranks] == ["name 2", "name 3", "name 2"]


@pytest.mark.parametrize(
    "case", [one for one in corpus() if one.form in ("kineto", "recording") and not one.is_public]
)
def test_an_answer_of_an_anonymous_import_is_that_of_the_import(case: Case, tmp_path: Path) -> None:
    """Every number that is drawn from or answered by stays."""
    imported = reader(case.form)(case.write(tmp_path), ImportOptions())
    plain = anonymize(imported)
    assert [one.spread for one in plain.hardware] == [one.spread for one in imported.hardware]
    for one, other in zip(imported.measurements, plain.measurements, strict=True):
        assert other.asked is not None
        assert one.asked is not None
        assert (other.iterations, other.asked.settings) == (one.iterations, one.asked.settings)
