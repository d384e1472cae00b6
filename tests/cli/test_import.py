"""``bucketsim import``: what it writes, prints and refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
import sim.cli.importing
from sim.formats.record_files import load_record
from sim.importer.imported import Imported, ImportOptions, Note
from sim.nouns.hardware import CurvePoint
from tests.commands import bucketsim
from tests.importer.link_texts import Line, today

RECORD = load_record(Path(__file__).parents[2] / "traces" / "measured" / "gpt-loopback-2")
TIMES_US = {1 << 20: 100.0, 1 << 22: 280.0, 1 << 24: 1000.0}
Reads = Callable[..., list[ImportOptions]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Has every format read as an import of these parts; returns the options that its reader was given."""

    def read_as(**parts: Any) -> list[ImportOptions]:
        seen: list[ImportOptions] = []

        def read(form: str, paths: object, options: ImportOptions) -> Imported:
            seen.append(options)
            return Imported(name="n", **{"format": "kineto", "workload": RECORD.workload, **parts})

        monkeypatch.setattr(sim.cli.importing, "read_files", read)
        return seen

    return read_as


def test_a_link_becomes_a_hardware_that_commands_take(tmp_path: Path) -> None:
    log, made = tmp_path / "link.txt", tmp_path / "made"
    lines = [Line(num_bytes=size, in_us=us, out_us=us + 10) for size, us in TIMES_US.items()]
    log.write_text("\n".join(today(lines, 4)) + "\n")
    said = bucketsim("import", "auto", log, "-o", made, "--json")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert document["files"] == [str(made / "hardware.json")]
    assert (document["kind"], document["format"], document["world_size"]) == ("import", "nccl-tests", 4)
    assert json.loads((made / "summary.json").read_text())["files"] == ["hardware.json"]
    hardware = sim.load_hardware(made / "hardware.json")
    assert [point.duration_ns for point in hardware.all_reduce] == [100_000, 280_000, 1_000_000]


def test_a_trace_is_laid_over_its_prediction_and_agrees_again(reads: Reads, tmp_path: Path) -> None:
    reads(
        hardware=(RECORD.hardware, replace(RECORD.hardware, world_size=8)),
        measurements=tuple(replace(one, mode="trace") for one in RECORD.candidates[:2]),
        notes=(Note("missing", "the price of it"),),
    )
    said = bucketsim("import", "kineto", "x", "-o", tmp_path / "made")
    assert said.code == 0, said.err
    assert "missing: the price of it" in said.out
    names = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert names[:2] == ["hardware-8ranks.json", "hardware.json"]
    assert [name[:14] for name in names[2:4]] == ["measurement-00", "measurement-01"]
    _, *again = bucketsim("agree", tmp_path / "made").out.splitlines()  # but for the record's name
    assert said.out.splitlines()[-len(again) :] == again
    assert any("tested are the ends of buckets" in line for line in again)


@pytest.mark.parametrize(
    ("backend", "begins"),
    [
        ("gloo", "bucketsim calibrate "),
        ("nccl", "measure the job's own link with nccl-tests"),
        ("mpi", "measure the job's own link with OSU's"),
    ],
)
def test_a_job_is_sent_to_what_measures_its_own_backend(
    backend: str, begins: str, reads: Reads, tmp_path: Path
) -> None:
    reads(format="recording", measurements=(replace(RECORD.measurements[0], backend=backend),))
    said = bucketsim("import", "recording", "x", "-o", tmp_path / "made")
    assert said.err.splitlines()[-1].startswith(f"next: {begins}"), said.err


def test_gradients_below_the_curve_are_told(reads: Reads, tmp_path: Path) -> None:
    """Of tune's families that have such buckets; not where the curve begins lower."""
    few = replace(RECORD.workload, gradients=RECORD.workload.gradients[:24], ready_order=None, samples=())
    sizes = sorted(gradient.num_bytes for gradient in few.gradients)
    made = tmp_path / "made"
    for least, said_so in ((sizes[-1], True), (sizes[0], False)):
        curve = tuple(CurvePoint(num_bytes=size, duration_ns=10**6 + size) for size in (least, 2 * sizes[-1]))
        reads(workload=few, hardware=(replace(RECORD.hardware, all_reduce=curve, spread={}),))
        assert bucketsim("import", "kineto", "x", "-o", made).code == 0
        tuned = bucketsim("tune", made / "workload.json", "--hardware", made / "hardware.json").out
        assert ("the smallest size of the curve" in tuned) == said_so


def test_options_reach_the_reader(reads: Reads, tmp_path: Path) -> None:
    seen = reads()
    words: list[object] = ["--name", "n", "--world-size", 2]
    assert bucketsim("import", "kineto", "x", "-o", tmp_path / "made", *words).code == 0
    wanted = ImportOptions(name="n", world_size=2)
    assert seen == [wanted]
