"""The manual's pictures show what the pages show: taken anew, and compared with the committed ones."""

import io
import json
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFilter

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


def drawn(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def picture() -> Any:
    """Something like a page: a bar at the left, cards, lines of text."""
    image = Image.new("RGB", pictures.SIZE, "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 280, 960), fill="#F3F5F8")
    for place in range(4):
        draw.rectangle((320 + 230 * place, 80, 540 + 230 * place, 180), outline="#888888")
        draw.text((340 + 230 * place, 110), "123.45 ms", fill="black", font_size=28)
    for line in range(12):
        draw.text((320, 240 + 40 * line), f"line {line} " + "of words " * 12, fill="black", font_size=18)
    draw.rectangle((320, 760, 900, 800), fill="#0072B2")
    return image


def test_a_pixel_and_another_font_rendering_are_no_difference(picture: Any) -> None:
    moved = Image.new("RGB", pictures.SIZE, "white")
    moved.paste(picture, (1, 0))
    for other in (picture, moved, picture.filter(ImageFilter.GaussianBlur(0.7))):
        assert pictures.difference(drawn(picture), drawn(other)) is None
    assert pictures.difference(drawn(picture), pictures.small(drawn(picture))) is None


def test_a_layout_that_changed_is_a_difference(picture: Any) -> None:
    shifted = Image.new("RGB", pictures.SIZE, "white")
    shifted.paste(picture, (0, 60))
    gone = picture.copy()
    ImageDraw.Draw(gone).rectangle((320, 700, 1280, 960), fill="white")
    dark = Image.eval(picture, lambda value: 255 - value)
    for other in (shifted, gone, dark):
        words = pictures.difference(drawn(picture), drawn(other))
        assert words is not None
        assert "of the picture looks different" in words
    assert pictures.difference(drawn(picture), drawn(picture.resize((640, 480)))) == "another size"


@pytest.mark.slow
@pytest.mark.browser
def test_a_number_that_changed_is_found(site: Site, page: Any) -> None:
    """The words are compared exactly: one digit of a card is enough."""
    harness.go(page, site.url)
    before = pictures.key_texts(page)
    assert before["cards"]["Step time"].endswith("ms")
    assert before["sentences"]
    page.evaluate(
        """() => {
      const number = document.querySelector('[data-testid=stMetricValue] p') ||
                     document.querySelector('[data-testid=stMetricValue]');
      number.textContent = number.textContent.replace(/[0-9]/, d => (Number(d) + 1) % 10);
    }"""
    )
    assert pictures.key_texts(page) != before
