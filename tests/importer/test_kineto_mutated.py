"""Traces with something wrong in them are read or refused: no traceback, nothing that cannot be shown."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import SimError
from sim.formats.documents import to_text
from sim.importer.kineto.trace_import import read_kineto
from sim.nouns.imported import ImportOptions
from tests.effort import tries
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.mutations import mutated

JOB = Job(
    shapes=((16, 16), (16,), (8, 16)),
    buckets=(1, 2),
    gradient_ns=(50_000,) * 3,
    transfer_ns=(90_000, 60_000),
    forward_ns=((100_000, 100_000),) * 2,
    copy_in_ns=3_000,
    copy_out_ns=2_000,
    offsets_ns=(0, 500),
)
DIALECTS = (
    Dialect(),
    Dialect(arguments_on="kernel"),
    Dialect(wrappers=False, steps=False, named_copies=False, arguments_on="nccl:all_reduce"),
)
JOBS = (JOB, replace(JOB, micro_batches=2, synchronises="each", runs_ahead=True, prefetch_ns=9_000))
TRACES = [[json.loads(text) for text in build(job, dialect)[0]] for dialect in DIALECTS for job in JOBS]


def read_or_refuse(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{place}.json" for place in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        refusal = ""
        try:
            found = read_kineto(paths, ImportOptions())
        except SimError as error:
            refusal = str(error)
        else:
            "".join((*found.found, *found.assumed, *found.missing, *found.dropped)).encode()
            json.dumps(found.details, allow_nan=False)
            for noun in (found.workload, *found.hardware, *found.measurements):
                if noun is not None:
                    to_text(noun).encode()
        assert len(refusal.splitlines()) <= 1
        assert len(refusal) < 600


@st.composite
def changed(draw: st.DrawFn) -> list[str]:
    traces = draw(st.sampled_from(TRACES))
    texts = [draw(mutated(traces[0])), json.dumps(traces[1])]
    return texts[: draw(st.integers(1, 2))]


@settings(max_examples=tries(100), deadline=None)
@given(changed())
def test_a_changed_trace_is_read_or_refused(texts: list[str]) -> None:
    read_or_refuse(texts)


@pytest.mark.slow
@settings(max_examples=tries(3000), deadline=None)
@given(changed())
def test_many_changed_traces_are_read_or_refused(texts: list[str]) -> None:
    read_or_refuse(texts)
