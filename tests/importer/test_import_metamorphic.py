"""What must not change an import, and what must change it in one way only."""

import gzip
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.formats.documents import to_document
from sim.importer.readers import reader
from sim.nouns.imported import Imported, ImportOptions
from tests.effort import tries
from tests.importer import link_texts
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.corpus import LINES, Case, corpus
from tests.importer.test_kineto_built import built

SETTINGS = settings(max_examples=tries(40), deadline=None)
_VALID = [case for case in corpus() if not case.is_public and case.form != "recording"]
_Texts = dict[str, str]


def read(texts: _Texts, form: str = "auto", zipped: bool = False, **options: Any) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in texts.items():
            paths.append(Path(folder) / name)
            paths[-1].write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
        return reader(form)(paths, ImportOptions(name="one", **options))


def essence(imported: Imported) -> dict[str, Any]:
    """All that was imported but where and when it came from."""
    nouns = [imported.workload, *imported.hardware, *imported.measurements]
    documents = [to_document(noun) for noun in nouns if noun is not None]
    return _without(
        {"nouns": documents, "ranks": [asdict(row) for row in imported.ranks], "details": imported.details}
    )


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(item)
            for key, item in value.items()
            if key not in ("provenance", "file", "source", "made_for")
        }
    return [_without(item) for item in value] if isinstance(value, list | tuple) else value


def traces(case: tuple[Job, Dialect]) -> _Texts:
    job, dialect = case
    return {f"trace-{rank}.json": text for rank, text in enumerate(build(job, dialect)[0])}


def edited(texts: _Texts, edit: Callable[[list[dict[str, Any]], int], None]) -> _Texts:
    """Traces whose events were changed: ``edit(events, rank)``, times in whole ns."""
    made = {}
    for rank, (name, text) in enumerate(texts.items()):
        document = json.loads(text, parse_float=str)
        events = document["traceEvents"]
        for event in events:
            event.update({key: _ns(event[key]) for key in ("ts", "dur")})
        edit(events, rank)
        for event in events:
            event.update({key: f"@{_us(event[key])}@" for key in ("ts", "dur") if key in event})
        made[name] = json.dumps(document).replace('"@', "").replace('@"', "")
    return made


def _ns(value: int | str) -> int:
    whole, _, rest = str(value).partition(".")
    return int(whole) * 1000 + int(rest.ljust(3, "0"))


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


@SETTINGS
@given(built(), st.randoms(use_true_random=False))
def test_the_order_of_a_traces_events_is_nothing(case: tuple[Job, Dialect], draw: random.Random) -> None:
    texts, ranks = traces(case), case[0].ranks
    shuffled = edited(texts, lambda events, rank: draw.shuffle(events))
    assert essence(read(shuffled, world_size=ranks)) == essence(read(texts, world_size=ranks))


@SETTINGS
@given(built(), st.randoms(use_true_random=False))
def test_events_of_others_are_nothing(case: tuple[Job, Dialect], draw: random.Random) -> None:
    """Python frames, instants, counters, flows, names of threads, and operators of another process."""

    def add(events: list[dict[str, Any]], rank: int) -> None:
        first, last = min(one["ts"] for one in events), max(one["ts"] for one in events)
        for number in range(20):
            at = draw.randint(first + 1, last)
            common = {"ts": at, "pid": draw.choice((1, 99)), "tid": draw.choice((100, 101, 7))}
            other = {**common, "pid": 99, "tid": 55}
            events += [
                {
                    "ph": "X",
                    "cat": "python_function",
                    "name": f"train.py({number}): step",
                    "dur": 500,
                    **common,
                },
                {
                    "ph": "i",
                    "cat": "cpu_instant_event",
                    "name": "[memory]",
                    "s": "t",
                    "args": {"Bytes": 4},
                    **common,
                },
                {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, **common},
                {"ph": "C", "cat": "counter", "name": "GPU power", "args": {"W": 300}, **common},
                {"ph": "M", "name": "thread_name", "args": {"name": "main"}, **common},
                {"ph": "X", "cat": "cpu_op", "name": "aten::add", "dur": 500, "args": {}, **other},
                {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "dur": 500, **other},
            ]

    texts, ranks = traces(case), case[0].ranks
    assert essence(read(edited(texts, add), world_size=ranks)) == essence(read(texts, world_size=ranks))


@SETTINGS
@given(built())
def test_twice_as_slow_is_twice_as_long(case: tuple[Job, Dialect]) -> None:
    job, dialect = case
    texts = traces((replace(job, offsets_ns=(0,) * job.ranks), dialect))

    def slow(events: list[dict[str, Any]], rank: int) -> None:
        for event in events:
            event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]

    fast, slowed = read(texts, world_size=job.ranks), read(edited(texts, slow), world_size=job.ranks)
    _twice(essence(fast), essence(slowed), "")


# A step is the sum of three medians, each rounded to a nanosecond, which doubling makes two.
_ROUNDED_NS = 3


def _twice(fast: Any, slow: Any, where: str) -> None:
    """Times twice as long (but for rounding), rates half, all else as it was."""
    if isinstance(fast, dict):
        assert fast.keys() == slow.keys(), where
        for key in fast:
            _twice(fast[key], slow[key], f"{where}.{key}")
    elif isinstance(fast, list):
        is_times = where.endswith(("samples", "all_reduce"))
        assert len(fast) == len(slow), where
        for number, (one, other) in enumerate(zip(fast, slow, strict=True)):
            _twice(one, other, f"{where}{'_ns' if is_times and type(one) is int else ''}.{number}")
    elif "_ns" in where.rpartition(".")[2] or ("_ns" in where and type(fast) is int) or ".samples" in where:
        assert (fast is None) == (slow is None), where
        assert fast is None or abs(slow - 2 * fast) <= _ROUNDED_NS, (where, fast, slow)
    elif "per_s" in where:
        assert (fast is None) == (slow is None), where
        assert fast is None or slow == pytest.approx(fast / 2, rel=1e-9), (
            where,
            fast,
            slow,
        )
    elif isinstance(fast, float):
        assert slow == pytest.approx(fast, rel=1e-3, abs=1e-3), where
    else:
        assert fast == slow, where


@SETTINGS
@given(built(), st.integers(0, 2), st.integers(-(10**10), 10**10))
def test_a_clock_that_is_wrong_is_an_offset(case: tuple[Job, Dialect], which: int, shift_us: int) -> None:
    texts, ranks = traces(case), case[0].ranks
    which %= ranks
    shift = shift_us * 1000

    def late(events: list[dict[str, Any]], rank: int) -> None:
        for event in events:
            event["ts"] += shift * (rank == which)

    before = essence(read(texts, world_size=ranks))
    after = essence(read(edited(texts, late), world_size=ranks))
    for place, (row, moved) in enumerate(zip(before["ranks"], after["ranks"], strict=True)):
        if ranks > 1:
            expected = row["clock_offset_ns"] + shift * ((place == which) - (which == 0))
            assert moved.pop("clock_offset_ns") == expected
            row.pop("clock_offset_ns")
    assert after["ranks"] == before["ranks"]
    assert after["nouns"] == before["nouns"]


@SETTINGS
@given(built())
def test_names_of_files_hosts_and_devices_are_only_names(case: tuple[Job, Dialect]) -> None:
    texts, ranks = traces(case), case[0].ranks
    renamed = {
        f"other {rank}.txt": text.replace("A GPU", "Another").replace('"traceName": "t"', '"traceName": "u"')
        for rank, text in enumerate(texts.values())
    }
    after = json.dumps(essence(read(renamed, world_size=ranks))).replace("Another", "A GPU")
    assert json.loads(after) == json.loads(json.dumps(essence(read(texts, world_size=ranks))))


@pytest.mark.parametrize("case", _VALID, ids=lambda case: f"{case.form}-{next(iter(case.files))}")
@pytest.mark.parametrize("form", ["auto", "its own"])
def test_zipped_is_as_plain(case: Case, form: str) -> None:
    form = "auto" if form == "auto" else case.form
    texts = {
        name: (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
        for name, content in case.files.items()
    }
    plain = read(texts, form)
    if "model.json" not in texts:  # our own documents are not packed
        assert essence(read(texts, form, zipped=True)) == essence(plain)
    backwards = dict(reversed(texts.items()))
    assert essence(read(backwards, form))["nouns"] == essence(plain)["nouns"]


@SETTINGS
@given(
    st.sampled_from(
        [link_texts.today, link_texts.old, link_texts.comma, link_texts.named, link_texts.spaced]
    ),
    st.randoms(use_true_random=False),
)
def test_a_links_rows_in_any_order_among_any_lines(write: Any, draw: random.Random) -> None:
    """Rows shuffled, other programs' lines between; twice as slow is twice as long."""
    lines = list(LINES)
    before = read({"link.txt": "\n".join(write(lines, 4)) + "\n"}, world_size=4).hardware
    draw.shuffle(lines)
    rows = write(lines, 4)
    first = next(place for place, row in enumerate(rows) if str(lines[0].num_bytes) in row)
    for _ in range(5):
        noise = draw.choice(("node0:1:2 [0] NCCL INFO Channel 00/02 : 0 1", "", "srun: job 12 queued"))
        rows.insert(draw.randint(first, len(rows)), noise)
    after = read({"link.txt": "\n".join(rows) + "\n"}, world_size=4).hardware
    assert [one.all_reduce for one in after] == [one.all_reduce for one in before]
    slow = [replace(line, in_us=2 * line.in_us, out_us=2 * line.out_us) for line in LINES]
    (twice,) = read({"link.txt": "\n".join(write(slow, 4)) + "\n"}, world_size=4).hardware
    assert [point.duration_ns for point in twice.all_reduce] == [
        2 * point.duration_ns for point in before[0].all_reduce
    ]
