"""The manual's pictures show what the pages show: taken anew, and compared with the committed ones."""

import json

import pytest
from PIL import Image

from tests.app.browser import harness, pictures
from tests.app.browser.harness import Site, Tab

STALE = "run make screenshots"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("name", pictures.SHOWN)
def test_the_committed_pictures_show_the_page(name: str, bundled: Site, tab: Tab) -> None:
    with harness.visit(tab, size=pictures.SIZE) as page:
        taken, words = pictures.take(page, bundled, name)
    assert pictures.TEXTS.exists(), f"no {pictures.TEXTS}: {STALE}"
    committed = json.loads(pictures.TEXTS.read_text())
    assert committed.get(name) == words, f"{name} says something else now: {STALE}"
    for scheme, png in taken.items():
        path = pictures.path(name, scheme)
        assert path.exists(), f"no {path}: {STALE}"
        different = pictures.difference(path.read_bytes(), png)
        assert different is None, f"{path.name}: {different}: {STALE}"


@pytest.mark.parametrize("name", pictures.SHOWN)
@pytest.mark.parametrize("scheme", pictures.SCHEMES)
def test_a_picture_is_small(name: str, scheme: str) -> None:
    path = pictures.path(name, scheme)
    assert path.exists(), f"no {path}: {STALE}"
    assert path.stat().st_size <= pictures.MOST_BYTES
    assert Image.open(path).size == pictures.SIZE
