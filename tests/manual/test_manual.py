"""README and manual: commands that there are, blocks that print what they say, links that lead somewhere.

A block marked ``console`` is run, in the order of the page: lines behind ``$`` are commands, what follows is
what they print, with ``...`` for what is left out. Python blocks that read only the files that were made
before are run after them. Blocks marked ``bash`` need ranks, a network or files of the reader's: there each
command and option is looked up.
"""

import re
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from torch import nn

import sim.cli.commands
from app.views.manual import PAGES, PICTURES, anchor, parts
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.recorder.training_step import record
from tests.commands import bucketsim
from tests.manual.pages import HOME, MANUAL, README, ROOT, blocks, prose

each_page = pytest.mark.parametrize("page", [README, *MANUAL], ids=lambda page: page.name)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
_SHOWN = re.compile(r'href="\?page=([^"#]+)(?:#([\w-]+))?"|\]\(#([\w-]+)\)')
_SOMEBODYS = re.compile(r"(?<![\w.…-])/(?:home|root|tmp|work|Users|usr|opt|mnt)/\S*")
_MADE = re.compile(r'load_(?:workload|hardware)\("(?:gpt|wire)\.json"\)')


def flat(text: str) -> str:
    return " ".join(text.split())


def told(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the pieces of output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], [""]))
        elif line == "...":
            found[-1][1].append("")
        else:
            found[-1][1][-1] += line + "\n"
    return [(command, [flat(piece) for piece in pieces if piece.strip()]) for command, pieces in found]


@cache
def tune_once() -> Callable[..., Any]:
    """``sim.tune``, but worked out once for the same files: both pages tune one recording."""
    kept: dict[tuple[object, ...], Any] = {}
    tune = sim.tune

    def search(workload: Workload, hardware: Hardware, **options: Any) -> Any:
        asked = sorted((name, value) for name, value in options.items() if name != "progress")
        key = (sim.digest(workload), sim.digest(hardware), *asked)
        if key not in kept:
            kept[key] = tune(workload, hardware, **options)
        return kept[key]

    return search


def run(command: str, pieces: list[str]) -> None:
    program, *words = shlex.split(command)
    if program == "cp":
        shutil.copy(*words)
        return
    assert program == "bucketsim", command
    said = bucketsim(*words)
    assert said.code == 0, said.err
    printed, at = flat(said.out), 0
    for piece in pieces:
        assert piece in printed[at:], f"{command} no longer prints, in this order: {piece}"
        at = printed.index(piece, at) + len(piece)


@pytest.mark.parametrize("page", [README, ROOT / "app" / "manual" / "start.md"], ids=lambda page: page.name)
def test_a_reader_sees_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim, "tune", tune_once())
    monkeypatch.chdir(tmp_path)
    ran = 0
    for block in blocks(page):
        if block.language == "console":
            for command, pieces in told(block.text):
                run(command, pieces)
                ran += 1
        elif block.language == "python" and _MADE.search(block.text):
            exec(compile(block.text, str(page), "exec"), {"__name__": "read"})
            assert capsys.readouterr().out
            ran += 1
    assert ran >= 3


@each_page
def test_every_command_and_option_exists_and_python_is_python(page: Path) -> None:
    given = sim.cli.commands.app.commands
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, str(page), "exec")
        for line in block.text.replace("\\\n", " ").splitlines():
            if not re.match(r"(\$ )?bucketsim ", line):
                continue
            _, name, *words = shlex.split(line.removeprefix("$ "), comments=True)
            assert name in given, line
            ours = words[: words.index("--")] if "--" in words else words
            known = {option for parameter in given[name].params for option in parameter.opts}
            assert {word.split("=")[0] for word in ours if re.match(r"--?[a-z]", word)} <= known, line


def test_the_factory_of_the_manual_is_recorded() -> None:
    names: dict[str, Any] = {"MyModel": lambda: nn.Linear(512, 10)}
    for block in blocks(HOME / "your-job.md"):
        if "def build" in block.text:
            exec(compile(block.text, "your-job.md", "exec"), names)
    pair = record(names["build"](), warmup=1, repeats=1)
    assert [gradient.name for gradient in pair.gradients] == ["model.weight", "model.bias"]


# Links, anchors and pictures.


def anchors(page: Path) -> list[str]:
    return [anchor(title) for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]


@each_page
def test_links_resolve_are_whole_and_name_no_place_on_somebodys_machine(page: Path) -> None:
    """The dashboard reads links line by line; no line ends in a space; headings differ by their anchors."""
    targets = [one or other for one, other in _LINK.findall(prose(page))]
    assert targets
    for target in targets:
        if target.startswith("https://"):
            continue
        path, _, name = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        assert leads_to.exists(), target
        assert leads_to.is_relative_to(ROOT), target
        assert not name or name in anchors(leads_to), target
    assert len(anchors(page)) == len(set(anchors(page)))
    assert not _SOMEBODYS.findall(page.read_text())
    for line in prose(page).splitlines():
        words = re.sub(r"`[^`]*`", "", line)
        assert words.rfind("[") <= words.rfind("]"), line
        assert not re.search(r"\]\([^)]*$", words), line
        assert line == line.rstrip(), line


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_shown_page_resolves(name: str) -> None:
    names = {title: name for name, title in PAGES.items()}
    assert (HOME / f"{name}.md").read_text().startswith(f"# {PAGES[name]}\n")
    for part in parts(name):
        for title, far, near in _SHOWN.findall(part.text):
            page = names[unquote_plus(title)] if title else name
            there = {other.name for other in parts(page) if other.level > 0}
            assert (far or near or anchor(PAGES[page])) in there, part.text
        for scheme in ("light", "dark") if part.level == 0 else ():
            assert (PICTURES / f"{part.name}-{scheme}.png").is_file()


def test_every_page_is_listed_and_every_cause_explained() -> None:
    """What a sentence of the tuner may begin with stands in the manual's table of causes."""
    assert {path.stem for path in HOME.glob("*.md")} == set(PAGES)
    source = (ROOT / "sim" / "metrics" / "bottleneck.py").read_text()
    without_colon = {"backward stands still", "head-of-line blocked"}
    causes = set(re.findall(r'"([a-z][a-z -]+)(?:: |(?<=-bound)")', source)) | without_colon
    assert {"interference-bound", "no overlap", "tail exposed"} < causes
    assert all(f'"{cause}' in source for cause in causes)
    told = (HOME / "answer.md").read_text()
    assert [cause for cause in sorted(causes) if f"\n| {cause} |" not in told] == []
