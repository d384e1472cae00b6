"""An import on disk: all of it, or nothing."""

import os
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.importer.writing import SUMMARY, write_imported
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.imported import Imported
from tests.importer.test_auto import MODEL

HARDWARE = Hardware(name="link", world_size=2, all_reduce=(CurvePoint(num_bytes=1, duration_ns=1),))
IMPORTED = Imported(format="kineto", name="x", workload=MODEL, hardware=(HARDWARE,))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_an_import_that_is_cut_short_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    real = os.replace

    def cut(source: Path, target: Path) -> None:
        if target.name == "hardware.json":
            raise fault
        real(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else InputError):
        write_imported(IMPORTED, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    written = write_imported(IMPORTED, tmp_path / "out")
    assert [path.name for path in written] == ["workload.json", "hardware.json"]
    assert (tmp_path / "out" / SUMMARY).exists()


def test_what_an_earlier_import_left_is_replaced(tmp_path: Path) -> None:
    write_imported(IMPORTED, tmp_path)
    write_imported(Imported(format="kineto", name="x", workload=MODEL), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"workload.json", SUMMARY}
