"""The wheel holds what an installation needs away from any checkout: pages, pictures and recordings."""

import email
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.commands import process

ROOT = Path(__file__).parents[2]
LOOK = """
from app import launch
from app import sources
from app.views import manual
found = sources.find(launch.settings([]))
print(len(found.workloads), len(found.hardware), len(found.records), len(found.all_records))
print(sum(len(manual.parts(page)) for page in manual.PAGES))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building writes beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("sim", "app", "traces"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    out = tmp_path_factory.mktemp("wheel")
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    built = process("-c", build, cwd=source)
    assert built.code == 0, built.err
    (made,) = out.glob("*.whl")
    return made


def test_it_holds_all_that_is_not_code_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, pattern in (
        ("app/manual", "*.md"),
        ("app/screenshots", "*.png"),
        ("app/views", "*.md"),
        ("app/.streamlit", "*.toml"),
        ("sim", "**/*.md"),
        ("sim/validator/examples", "*"),
        ("traces", "**/*"),
    ):
        inside = "app" if folder == "traces" else "."
        there = {
            str(Path(inside) / path.relative_to(ROOT))
            for path in (ROOT / folder).glob(pattern)
            if path.is_file() and "tools" not in path.parts
        }
        assert there, folder
        assert there <= names, there - names
    assert {"sim/py.typed", "sim/__init__.pyi"} <= names
    (about,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names} == {"app", "sim", about}
    assert f"{about}/licenses/LICENSE" in names
    assert not {name for name in names if "__pycache__" in name}


def test_its_extras_are_those_of_the_manual(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    extras = {extra for extra in metadata.get_all("Provides-Extra", []) if extra != "dev"}
    page = (ROOT / "app" / "manual" / "start.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?`) \|", page.partition("| what it adds |")[2], re.MULTILINE)
    assert extras == set(re.findall(r"`(\w+)`", " ".join(cells)))


@pytest.mark.slow
@pytest.mark.dist
def test_the_demo_runs_from_an_installation(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, in an empty folder, on real ranks."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    there = {"PYTHONPATH": str(site), "HOME": str(empty), "PATH": os.environ["PATH"]}
    said = process("-m", "sim", "demo", "--no-dash", cwd=empty, env=there)
    assert said.code == 0, said.err
    assert "gain of the recommended buckets over DDP's default: measured" in said.out
    assert said.err.endswith("next: bucketsim dash --watch bucketsim-demo\n")


def test_an_installation_has_its_recordings_and_its_manual(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, in an empty folder: what the dashboard would show."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    said = process("-c", LOOK, cwd=empty, env={"PYTHONPATH": str(site), "HOME": str(empty)})
    assert said.code == 0, said.err
    assert min(map(int, said.out.split())) >= 3, said.out
