"""Records on disk: a directory with the inputs and one file a measurement."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats import documents
from sim.formats import record_files as records
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import measurement
from tests.saving import save_measurement
from tests.strategies import KINDS, hardwares, measurements, workloads

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
WORKLOAD = sim.load_workload(EXAMPLES / "workload.json")
HARDWARE = sim.load_hardware(EXAMPLES / "hardware.json")
STEP = MeasuredIteration(step_ns=3, backward_end_ns=1, sync_end_ns=2)
PLAIN = measurement("plain", None, [STEP], role="plain")


@settings(max_examples=tries(25))
@given(workloads(), hardwares(), st.lists(measurements(), min_size=1, max_size=2))
def test_a_record_comes_back_as_it_went(
    workload: Workload, hardware: Hardware, measured: list[Measurement]
) -> None:
    """CONTRACT, Measurement: self-contained; in the order in which it was measured."""
    with TemporaryDirectory() as home:
        folder = Path(home) / "a" / "b"
        records.start_record(folder, workload, hardware)
        paths = [save_measurement(folder, number, one) for number, one in enumerate(measured)]
        back = records.load_record(folder)
        assert (back.name, back.workload, back.hardware) == ("b", workload, hardware)
        assert back.measurements == tuple(measured)
        assert all(one.role == "candidate" for one in back.candidates)
        assert records.find_records(home) == [folder]
        assert set(folder.iterdir()) == {folder / "workload.json", folder / "hardware.json", *paths}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A record of one measurement."""
    folder = tmp_path / "record"
    records.start_record(folder, WORKLOAD, HARDWARE)
    save_measurement(folder, 0, PLAIN)
    return folder


def test_a_record_is_not_overwritten(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(InputError, match="holds a record already"):
        records.start_record(made, WORKLOAD, HARDWARE)
    assert {path: path.read_bytes() for path in made.iterdir()} == before


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("workload.json", "cannot be read"),
        ("hardware.json", "no hardware.json in it"),
        ("measurement-00-plain.json", "no measurement"),
        ("*.json", "not a directory"),
    ],
)
def test_an_incomplete_record_is_refused_by_name(made: Path, gone: str, says: str) -> None:
    for path in made.glob(gone):
        path.unlink()
    if gone == "*.json":
        made.rmdir()
    with pytest.raises(InputError, match=f"{made}.*{says}"):
        records.load_record(made)


def test_names_with_slashes_stay_in_the_directory(made: Path) -> None:
    """A candidate's name comes from a user; its file lies in the record all the same."""
    path = save_measurement(made, 7, replace(PLAIN, name="../../etc/x y"))
    assert path.parent == made
    assert path.name.startswith("measurement-07-")
    assert documents.load(path, KINDS["measurement"]).name == "../../etc/x y"
