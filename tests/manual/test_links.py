"""Links, anchors and pictures of README and manual lead somewhere, on a code host and in the dashboard."""

import re
from pathlib import Path
from urllib.parse import unquote_plus

import pytest

from app.views.manual import PAGES, PICTURES, anchor, parts
from tests.manual.pages import HOME, MANUAL, README, ROOT, prose

WRITTEN = [README, *MANUAL]
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
_SHOWN = re.compile(r'href="\?page=([^"#]+)(?:#([\w-]+))?"|\]\(#([\w-]+)\)')
_NAMES = {title: name for name, title in PAGES.items()}


def anchors(page: Path) -> list[str]:
    return [anchor(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_relative_link_resolves(page: Path) -> None:
    targets = [one or other for one, other in _LINK.findall(prose(page))]
    assert targets
    for target in targets:
        if target.startswith("https://"):
            continue
        path, _, name = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        assert leads_to.exists(), target
        assert leads_to.is_relative_to(ROOT), target
        if name:
            assert name in anchors(leads_to), target


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_shown_page_resolves(name: str) -> None:
    for part in parts(name):
        for title, far, near in _SHOWN.findall(part.text):
            page = _NAMES[unquote_plus(title)] if title else name
            there = {other.name for other in parts(page) if other.level > 0}
            assert (far or near or anchor(PAGES[page])) in there, part.text
        if part.level == 0:
            for scheme in ("light", "dark"):
                assert (PICTURES / f"{part.name}-{scheme}.png").is_file()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_headings_are_told_apart_by_their_anchors(page: Path) -> None:
    found = anchors(page)
    assert len(found) == len(set(found))


def test_every_page_is_listed_with_its_title() -> None:
    home = MANUAL[0].parent
    assert {path.stem for path in home.glob("*.md")} == set(PAGES)
    for page in MANUAL:
        assert page.read_text().startswith(f"# {PAGES[page.stem]}\n")


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_no_page_names_a_place_on_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.…-])/(?:home|root|tmp|work|Users|usr|opt|mnt)/\S*", page.read_text())


# Every cause that a sentence of the tuner may begin with stands in the manual's table of causes.


WITHOUT_COLON = {"backward stands still", "head-of-line blocked"}


def test_every_cause_is_explained() -> None:
    source = (ROOT / "sim" / "metrics" / "bottleneck.py").read_text()
    causes = set(re.findall(r'"([a-z][a-z -]+)(?:: |(?<=-bound)")', source)) | WITHOUT_COLON
    assert {"interference-bound", "no overlap", "tail exposed"} < causes
    assert all(f'"{cause}' in source for cause in causes)
    told = (HOME / "answer.md").read_text()
    assert [cause for cause in sorted(causes) if f"\n| {cause} |" not in told] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_no_link_breaks_over_a_line(page: Path) -> None:
    """The dashboard reads links line by line; and no line ends in a space."""
    for line in prose(page).splitlines():
        words = re.sub(r"`[^`]*`", "", line)
        assert words.rfind("[") <= words.rfind("]"), line
        assert not re.search(r"\]\([^)]*$", words), line
        assert line == line.rstrip(), line
