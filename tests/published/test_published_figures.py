"""The figures that are kept say where they are from."""

from tests.published.figures import FOLDER, figures

HIGHEST_KB = 16


def test_each_names_its_source_and_licence_and_none_is_a_copy() -> None:
    for path in FOLDER.glob("*.json"):
        assert path.stat().st_size < HIGHEST_KB * 1000
        for entry in figures(path.stem).values():
            assert entry["source"]
            assert entry["licence"]
