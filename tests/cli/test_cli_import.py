"""``bucketsim import``: what it writes, prints and refuses."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import sim
import sim.cli.importing
from sim.formats.documents import save
from sim.formats.record_files import load_record
from sim.importer.imported import Imported, ImportOptions, Note
from sim.nouns.hardware import CurvePoint
from tests.commands import bucketsim
from tests.importer.link_texts import Line, today

RECORD = Path(__file__).parents[2] / "traces" / "measured" / "gpt-loopback-2"
LINES = [
    Line(num_bytes=1 << 20, in_us=100.0, out_us=110.0),
    Line(num_bytes=1 << 22, in_us=280.0, out_us=290.0),
    Line(num_bytes=1 << 24, in_us=1e3, out_us=1e3),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "klondike.txt"
    path.write_text("\n".join(today(LINES, 4)) + "\n")
    return path


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[ImportOptions]:
    """Every format reads as a measured record; the options that the reader was called with."""
    record = load_record(RECORD)
    seen: list[ImportOptions] = []

    def read(paths: Sequence[Path], options: ImportOptions) -> Imported:
        seen.append(options)
        return Imported(
            format="kineto",
            name=options.name or "run",
            workload=record.workload,
            hardware=(record.hardware, replace(record.hardware, world_size=8)),
            measurements=tuple(replace(one, mode="trace") for one in record.candidates[:2]),
            notes=(Note("missing", "the price of it"),),
        )

    monkeypatch.setattr(sim.cli.importing, "reader", lambda form: read)
    return seen


def test_a_link_becomes_a_hardware_that_commands_take(log: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    said = bucketsim("import", "auto", log, "-o", made, "--json")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert document["files"] == [str(made / "hardware.json")]
    assert document["summary"] == str(made / "summary.json")
    assert (document["kind"], document["format"], document["world_size"]) == ("import", "nccl-tests", 4)
    for key in ("found", "assumed", "missing", "dropped", "ranks", "buckets"):
        assert isinstance(document[key], list)
    assert document["as_run"] is None
    summary = json.loads((made / "summary.json").read_text())
    assert summary["files"] == ["hardware.json"]
    hardware = sim.load_hardware(made / "hardware.json")
    assert [point.duration_ns for point in hardware.all_reduce] == [100_000, 280_000, 1_000_000]


def test_a_trace_is_laid_over_its_prediction_and_agrees_again(
    traced: list[ImportOptions], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    said = bucketsim("import", "kineto", "x", "-o", made)
    assert said.code == 0, said.err
    assert "as run: predicted over measured" in said.out
    assert "bucket 0 ends" in said.out
    assert "predicted from the trace itself" in said.out
    assert "tested are the ends of buckets and exposed communication" in said.out
    assert "missing: the price of it" in said.out
    names = sorted(path.name for path in made.iterdir())
    assert names[:2] == ["hardware-8ranks.json", "hardware.json"]
    assert [name[:14] for name in names[2:4]] == ["measurement-00", "measurement-01"]
    document = json.loads(bucketsim("import", "kineto", "x", "-o", made, "--json").out)
    again = json.loads(bucketsim("agree", made, "--json").out)
    rows = document["as_run"]["rows"]
    assert [row["predicted_step_ns"] for row in rows] == [row["predicted_step_ns"] for row in again["rows"]]
    assert [row["step_error"] for row in rows] == [row["step_error"] for row in again["rows"]]
    assert document["buckets"][0]["num_bytes"] > 0
    assert "no pass or fail" in document["as_run"]["rule"]
    assert {"exposed_error", "median_bucket_end_error"} <= rows[0].keys()


def test_a_gloo_job_is_sent_to_calibrate_and_not_to_nccl_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = load_record(RECORD)
    for backend, begins in (
        ("gloo", "next: bucketsim calibrate "),
        ("nccl", "next: measure the job's own link with nccl-tests"),
    ):
        (one, *_) = record.measurements
        imported = Imported(
            format="recording",
            name="n",
            workload=record.workload,
            measurements=(replace(one, backend=backend),),
        )
        monkeypatch.setattr(sim.cli.importing, "reader", lambda form, made=imported: lambda *_: made)
        said = bucketsim("import", "recording", "x", "-o", tmp_path / backend)
        assert said.err.splitlines()[-1].startswith(begins), said.err


def test_gradients_below_the_curve_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import, and of tune's families that have such buckets; not where the curve begins lower."""
    record = load_record(RECORD)
    workload = replace(
        record.workload, gradients=record.workload.gradients[:24], ready_order=None, samples=()
    )
    sizes = sorted(gradient.num_bytes for gradient in workload.gradients)
    smaller = sum(size < sizes[-1] for size in sizes)
    made = tmp_path / "made"
    for least, said_so in ((sizes[-1], True), (sizes[0], False)):
        curve = tuple(CurvePoint(num_bytes=size, duration_ns=10**6 + size) for size in (least, 2 * sizes[-1]))
        imported = Imported(
            format="kineto",
            name="n",
            workload=workload,
            hardware=(replace(record.hardware, all_reduce=curve, spread={}),),
        )
        monkeypatch.setattr(sim.cli.importing, "reader", lambda form, made=imported: lambda *_: made)
        said = bucketsim("import", "kineto", "x", "-o", made).err
        assert (f"{smaller} of {len(sizes)} gradients are smaller" in said) == said_so
        tuned = bucketsim("tune", made / "workload.json", "--hardware", made / "hardware.json").out
        assert ("the smallest size of the curve" in tuned) == said_so


def test_options_reach_the_reader(traced: list[ImportOptions], tmp_path: Path) -> None:
    model = load_record(RECORD).workload
    save(tmp_path / "w.json", model)
    words: list[object] = ["--model", tmp_path / "w.json", "--name", "n", "--world-size", 2]
    assert bucketsim("import", "kineto", "x", "-o", tmp_path / "made", *words).code == 0
    (options,) = traced
    assert replace(options, progress=print) == ImportOptions(
        name="n",
        model=model,
        world_size=2,
        progress=print,
    )


def test_nothing_of_names_is_left_where_they_are_to_go(log: Path, tmp_path: Path) -> None:
    said = bucketsim("import", "auto", log, "-o", tmp_path / "made", "--anonymize", "--json")
    assert said.code == 0, said.err
    written = "".join(path.read_text() for path in (tmp_path / "made").iterdir())
    for secret in ("node0", "klondike", str(tmp_path)):
        assert secret not in written
    assert sim.load_hardware(tmp_path / "made" / "hardware.json").world_size == 4
