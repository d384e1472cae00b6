"""The Manual page: ``app/manual/*.md``, the same files that a code host shows; and the About page."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import streamlit as st

from app.widgets import take_name
from app.words import plain

HOME = Path(__file__).parents[1] / "manual"
PICTURES = HOME.parent / "screenshots"
_NAMES = (
    *("start", "your-job", "answer", "truth", "cluster-files", "unmeasured", "table"),
    *("modelled", "dashboard", "how-it-works", "glossary", "house"),
)
# By the name of the file: its title, which is its first line, in the order in which one reads.
PAGES = {name: (HOME / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0][2:] for name in _NAMES}
# A table that is wider than the window is moved, not the page.
_TABLES = "<style>[data-testid=stMain] table { display: block; overflow-x: auto; }</style>"
# Streamlit goes to the word that an address names before what stands above it has its size. Until a hand
# moves the page, that word stays where it is looked for.
_TO_WORD = """<script>
(word => {
  if (!word) return;
  const watch = new ResizeObserver(() => document.getElementById(word)?.scrollIntoView());
  watch.observe(document.querySelector('[data-testid=stMainBlockContainer]'));
  for (const kind of ['wheel', 'pointerdown', 'keydown']) {
    addEventListener(kind, () => watch.disconnect(), {once: true, capture: true, passive: true});
  }
})(decodeURIComponent(location.hash.slice(1)));
</script>"""
_HEADING = re.compile(r"(#{1,3}) (.+)")
_PICTURE = re.compile(r"!\[(.+)\]\(\.\./screenshots/(\w+)-light\.png\)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_INSIDE = re.compile(r"([\w-]+)\.md(#[\w-]+)?")


class Part(NamedTuple):
    """A heading of a level (1 to 3), a picture (``level`` 0, its name and what it shows), or text (-1)."""

    level: int
    text: str
    name: str = ""


def show() -> None:
    """Draw the page that the address names."""
    take_name("page", PAGES)
    with st.sidebar:
        page = st.radio("Page", list(PAGES), format_func=PAGES.__getitem__, key="page", bind="query-params")
    st.html(_TABLES)
    for level, text, name in parts(page):
        if level > 0:
            (st.title, st.header, st.subheader)[level - 1](text, anchor=name)
        elif level == 0:
            st.image(PICTURES / f"{name}-{st.context.theme.type or 'light'}.png", caption=text, alt=text)
        elif text.strip():
            st.markdown(text, unsafe_allow_html=True)  # our own files, with our own links
    st.html(_TO_WORD, unsafe_allow_javascript=True)


@cache
def parts(page: str) -> tuple[Part, ...]:
    """What stands on a page, from top to bottom, with links as this dashboard needs them."""
    return tuple(_parts((HOME / f"{page}.md").read_text(encoding="utf-8").splitlines()))


def anchor(heading: str) -> str:
    """The anchor that code hosts give a heading, and so does this page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _parts(lines: list[str]) -> Iterator[Part]:
    text: list[str] = []
    is_code = False
    for line in lines:
        is_code ^= line.startswith("```")
        heading, picture = _HEADING.fullmatch(line), _PICTURE.fullmatch(line)
        if is_code or not (heading or picture):
            text.append(line if is_code else _LINK.sub(_linked, line))
            continue
        yield Part(-1, "\n".join(text))
        text = []
        if heading:
            yield Part(len(heading[1]), heading[2], anchor(heading[2]))
        elif picture:
            yield Part(0, picture[1], picture[2])
    yield Part(-1, "\n".join(text))


def _linked(link: re.Match[str]) -> str:
    """A link to another page leads to it in this tab; a file of the repository is named instead."""
    words, target = link.groups()
    if target.startswith(("#", "https://")):
        return link[0]
    inside = _INSIDE.fullmatch(target)
    if inside and inside[1] in PAGES:
        shown = quote_plus(PAGES[inside[1]])  # as the page writes it itself, which keeps the anchor behind it
        return f'<a href="?page={shown}{inside[2] or ""}" target="_self">{words}</a>'
    path = target.removeprefix("../../").partition("#")[0]
    return words if words.strip("`") == path else f"{words} (`{path}`)"


def about() -> None:
    """Draw ``about.md``, with the version in it."""
    text = Path(__file__).with_name("about.md").read_text(encoding="utf-8")
    st.title("About")
    st.write("How gradient buckets overlap backward, which assignment is best, and whether it is true.")
    st.markdown(text.replace("VERSION", plain(version("bucketsim"))))
