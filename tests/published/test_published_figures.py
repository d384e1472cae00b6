"""The figures that are kept are still what the measurements say."""

import pytest

from tests.public_data import needs_data
from tests.published.figures import FOLDER, figures
from tests.published.take import FILES, text

HIGHEST_KB = 16


@needs_data
@pytest.mark.parametrize("name", FILES)
def test_they_are_what_the_measurements_say(name: str) -> None:
    """``python -m tests.published.take`` writes them."""
    assert (FOLDER / f"{name}.json").read_text() == text(name)


def test_each_names_its_source_and_licence_and_none_is_a_copy() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(FILES)
    for name in FILES:
        assert (FOLDER / f"{name}.json").stat().st_size < HIGHEST_KB * 1000
        for entry in figures(name).values():
            assert entry["source"]
            assert entry["licence"]
