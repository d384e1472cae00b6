"""A trace in columns is what ``json`` reads of it, however it is cut into pieces."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings

from sim.errors import InputError
from sim.importer.kineto import events
from sim.importer.kineto.events import read_events
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.test_kineto_built import built

JOB = Job(shapes=((4,),), buckets=(1,), gradient_ns=(9_000,), transfer_ns=(3_000,), forward_ns=((7_000,),))


def read(content: bytes, chunk: int = 1 << 20) -> events.TraceEvents:
    pieces = mock.patch.object(events, "_CHUNK_BYTES", chunk)
    with pieces, tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        return read_events(file.name)


def ns(text: str) -> int:
    whole, _, rest = text.partition(".")
    return int(whole + rest.ljust(3, "0"))


@settings(max_examples=tries(60), deadline=None)
@given(built())
def test_columns_are_what_the_file_says(case: tuple[Job, Dialect]) -> None:
    """In pieces of 200 bytes or of the whole file; indented, with NaN and line ends in it, or not."""
    text = build(*case)[0][0]
    document = json.loads(text, parse_float=str, parse_int=str)
    given = document if isinstance(document, list) else document["traceEvents"]
    on_device = [one for one in given if one["cat"].lower() in ("kernel", "gpu_memcpy")]
    expected = sorted((ns(one["ts"]), ns(one["ts"]) + ns(one["dur"]), one["name"]) for one in on_device)
    odd = text.replace('"args": {', '"x": [{"a": NaN}, {"b": [-Infinity, {}]}], "y": "},\n{", "args": {\n')
    for content in (text, odd, text.replace("},", "}\n  ,\t")):
        for chunk in (200, 1 << 20):
            trace = read(content.encode(), chunk)
            found = zip(*(trace.gpu[key].tolist() for key in ("start", "end", "name")), strict=True)
            assert sorted((start, end, trace.names[name]) for start, end, name in found) == expected


def test_every_cut_of_a_trace_is_an_error() -> None:
    content = build(JOB, Dialect())[0][0].encode()
    for end in range(len(content)):
        with pytest.raises(InputError, match="not JSON"):
            read(content[:end])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b" \n", "truncated"),
        (b"7", "Expected `object`"),
        (b'{"traceEvents": {}}', "traceEvents must be a list"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [1,]}', "not JSON"),
        (b'{"traceEvents": [{}, 1]}', r"traceEvents\.1: Expected `object`"),
        (b"[{}] []", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'[{"a":' * 200_000, "nested too deeply"),
        (b'[{"name": "\xff"}]', "not JSON"),
        (b'{"host_name": "\xff", "traceEvents": [{}]}', "not JSON"),
        (b'[{"name": "\\ud800"}]', "not JSON"),
        (b'[{"name": 1e999}]', "Number out of range"),
        ("[{}]".encode("utf-16"), "not JSON"),
    ],
)
def test_what_is_no_trace_is_an_error_of_one_line(content: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        read(content)
    assert len(str(error.value).splitlines()) == 1


def test_an_event_of_many_mib_is_refused() -> None:
    events: list[Any] = [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}] * 3
    events[1] = events[1] | {"args": {"Input Dims": [[1] * (5 << 20)]}}
    with pytest.raises(InputError, match="longer than 8 MiB"):
        read(json.dumps(events).encode())


def test_a_trace_takes_the_memory_of_its_file(tmp_path: Path) -> None:
    """Twice the file would hold it as bytes and as text; objects of all events ten times."""
    import tracemalloc

    event = b'{"ph": "X", "cat": "python_function", "name": "f", "ts": 1.5, "dur": 2, "args": {"a": 1}},\n'
    path = tmp_path / "large.json"
    path.write_bytes(b'{"traceEvents": [' + event * 300_000 + b'{"ph": "X"}]}')
    tracemalloc.start()
    read_events(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.7 * path.stat().st_size
