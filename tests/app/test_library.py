"""Which files the dashboard finds."""

from pathlib import Path

from app.launch import Settings
from app.library import find


def test_other_folders_are_in_all_records_alone(traces: Path, tmp_path: Path) -> None:
    for folder in ("measured/a", "claims/deep/b", "systems/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "measurement-00-x.json").touch()
    watched = traces / "measured"
    found = find(Settings(traces=tmp_path, watch=watched))
    assert list(found.records) == ["live: made-up", "a", "systems/c"]
    assert list(found.all_records) == ["live: made-up", "claims/deep/b", "measured/a", "systems/c"]
    assert found.all_records["measured/a"] == found.records["a"]


def test_without_directories_there_is_nothing(tmp_path: Path) -> None:
    found = find(Settings(traces=None, watch=tmp_path / "not there"))
    assert found.is_empty
    assert found.all_records == {}
