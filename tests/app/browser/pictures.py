"""The manual's pictures of the dashboard, and the words on them: ``python -m tests.app.browser.pictures``."""

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from app import launch
from tests.app.browser import harness
from tests.app.browser.harness import Site

HOME = launch.MAIN.parent / "screenshots"
TEXTS = HOME / "texts.json"
TRACES = launch.MAIN.parent.parent / "traces"
SIZE = (1280, 960)
MOST_BYTES = 250_000
SCHEMES = ("light", "dark")
# By name: the address below the dashboard's own, of the bundled recordings.
SHOWN = {
    "tune": "/?start=measured+run&record=gpt-box-2x1gbit",
    "compare": "/compare",
    "validate": "/validate",
    "cluster": "/cluster",
}
BLOCK = 32
# Fonts and versions of the browser move edges by a pixel; a number or a line that moved changes blocks.
_DIFFERENT, _MOST_DIFFERENT = 12.0, 0.02

Texts = dict[str, Any]


def take(page: Any, site: Site, name: str) -> tuple[dict[str, bytes], Texts]:
    """A page's pictures by colour scheme (PNG), and what is written on it."""
    harness.go(page, site.url + SHOWN[name])
    harness.still(page)
    words = key_texts(page)
    pictures = {}
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        harness.is_drawn(page)
        harness.still(page)
        page.mouse.move(SIZE[0] - 1, 1)
        pictures[scheme] = small(page.screenshot(animations="disabled", caret="hide"))
    return pictures, words


def key_texts(page: Any) -> Texts:
    """Headline numbers, sentences in bold, headings and lines that tell a result."""
    main = page.get_by_test_id("stMain")

    def lines(selector: str) -> list[str]:
        return [one.inner_text().strip() for one in main.locator(selector).all() if one.is_visible()]

    return {
        "headings": lines("h1, h2, h3"),
        "cards": harness.headline(page),
        "sentences": lines("[data-testid=stMarkdown] strong"),
        "results": lines("[data-testid=stAlert]"),
    }


def small(png: bytes) -> bytes:
    """The same picture in fewer bytes."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(out, "PNG", optimize=True)
    return out.getvalue()


def blocks(png: bytes) -> Any:
    """Mean grey of blocks of 32 x 32 pixels, row by row."""
    grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
    rows, columns = grey.shape[0] // BLOCK, grey.shape[1] // BLOCK
    cut = grey[: rows * BLOCK, : columns * BLOCK]
    return cut.reshape(rows, BLOCK, columns, BLOCK).mean(axis=(1, 3))


def difference(before: bytes, now: bytes) -> str | None:
    """What differs to the eye, in a few words; None where nothing does."""
    old, new = blocks(before), blocks(now)
    if old.shape != new.shape:
        return "another size"
    changed = float(np.mean(np.abs(old - new) > _DIFFERENT))
    if changed > _MOST_DIFFERENT:
        return f"{changed:.1%} of the picture looks different"
    return None


def path(name: str, scheme: str) -> Path:
    return HOME / f"{name}-{scheme}.png"


def main() -> None:
    """Take all pictures and write them beside their texts."""
    HOME.mkdir(exist_ok=True)
    texts = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        harness.serve(Path(folder), TRACES) as site,
        harness.chromium() as browser,
        harness.tab(browser) as tab,
    ):
        for name in SHOWN:
            with harness.visit(tab, size=SIZE) as page:
                pictures, texts[name] = take(page, site, name)
            for scheme, png in pictures.items():
                path(name, scheme).write_bytes(png)
                print(f"{path(name, scheme).relative_to(HOME.parent.parent)}: {len(png):,} bytes")
    TEXTS.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
