"""Whatever stands in an import: nothing that names its owner is in what is written."""

import json
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.formats.documents import parse_text, to_text
from sim.importer.imported import Imported, ImportOptions, Note, RankRow, anonymize
from sim.importer.readers import reader
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.importer.corpus import corpus
from tests.strategies import hardwares, measurements, workloads

# What the nouns themselves check, and what is a word of ours in every one of them.
CHECKED = {"dtype", "policy", "role", "mode", "ready_includes", "format", "kind", "about"}
MARKS = ("zq", ".77.3", "klondike", "phoenix")
UNDER = ("source", "file", "torch", "host", "device", "records", "library", "group", "statistic", "backend")

numbers = st.integers(100, 255)
# A path, an address, a name, plain words or letters and digits: all hold one of ``MARKS``.
shapes = st.sampled_from(
    (
        *("zq{}", "/home/zq{}/runs/model.json", "zq{}@example.org", "node-zq{}.cluster.local", "{}zq7b"),
        *("job zq{} of the team", "10.{}.77.3", "cuda:zq{}", "NVIDIA zq{}", "2.8.0+zq{}", "gradient zq{}"),
        *("klondike", "Klondike phoenix"),
    )
)
secrets = st.builds(str.format, shapes, numbers)


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
    assignment = Assignment(
        bucket_indices=((0,),),
        made_for=MadeFor(workload="w", names=("a",), num_bytes=(4,), dtypes=("float32",)),
    )
    if measurement.asked is not None:
        measurement = replace(measurement, asked=assignment)
    empty = Imported(
        format="kineto",
        name="n",
        workload=draw(workloads(dressed=True)),
        hardware=tuple(draw(st.lists(hardwares(dressed=True), max_size=2))),
        measurements=(measurement,),
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
    assert plain.workload is not None
    assert imported.workload is not None
    both = [plain.workload.gradients, imported.workload.gradients]
    one, other = ([(g.num_bytes, g.ready_ns) for g in each] for each in both)
    assert one == other
    keys = [[g.key for g in each] for each in both]
    assert [keys[0].index(key) for key in keys[0]] == [keys[1].index(key) for key in keys[1]]
    assert [h.all_reduce for h in plain.hardware] == [h.all_reduce for h in imported.hardware]
    assert parse_text(to_text(plain.workload), Workload, "w") == plain.workload
    for hardware in plain.hardware:
        assert parse_text(to_text(hardware), Hardware, "h") == hardware
    for measurement in plain.measurements:
        assert parse_text(to_text(measurement), Measurement, "m") == measurement
    assert anonymize(plain) == plain


def test_what_a_reader_needs_stays() -> None:
    told = {
        "device": "NVIDIA A100",
        "library": "10.1.2.3",
        "file": "/home/alice/t.json",
        "statistic": "median",
    }
    hardware = Hardware(
        name="alice's cluster",
        world_size=4,
        all_reduce=(CurvePoint(num_bytes=4, duration_ns=5),),
        spread={"all_reduce": {"4": {"count": 9, "quantile": "median", "median_ns": 5}}},
        provenance=told,
    )
    ranks = tuple(RankRow(rank=rank, host=host) for rank, host in enumerate(("n1", "n2", "n1")))
    plain = anonymize(Imported(format="kineto", name="alice", hardware=(hardware,), ranks=ranks))
    assert plain.hardware[0].spread == hardware.spread
    assert plain.hardware[0].provenance == {"statistic": "median"}
    assert [row.host for row in plain.ranks] == ["name 2", "name 3", "name 2"]


def test_an_answer_of_an_anonymous_import_is_that_of_the_import(tmp_path: Path) -> None:
    """Every number that is drawn from or answered by stays."""
    for case in corpus():
        if case.is_public or case.form not in ("kineto", "recording"):
            continue
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        imported = reader(case.form)(case.write(folder), ImportOptions())
        plain = anonymize(imported)
        assert [one.spread for one in plain.hardware] == [one.spread for one in imported.hardware]
        for one, other in zip(imported.measurements, plain.measurements, strict=True):
            assert other.asked is not None
            assert one.asked is not None
            assert (other.iterations, other.asked.settings) == (one.iterations, one.asked.settings)
