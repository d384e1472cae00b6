"""One browser and one server for all stories."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.browser import harness
from tests.app.browser.harness import Site, Tab
from tests.app.conftest import add_record, make_traces

BUNDLED = Path(__file__).parents[3] / "traces"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running dashboard over a small made-up world, started where a file has a package's name."""
    harness.require()
    traces = make_traces(tmp_path_factory.mktemp("served") / "traces")
    add_record(traces)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for package in ("click", "numpy"):
        (elsewhere / f"{package}.py").write_text("raise SystemExit('imported from where it was started')\n")
    with harness.serve(elsewhere, traces) as made:
        yield made


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running dashboard over the bundled recordings."""
    harness.require()
    with harness.serve(tmp_path_factory.mktemp("bundled"), BUNDLED) as made:
        yield made


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    harness.require()
    with harness.chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def tab(chromium: Any) -> Iterator[Tab]:
    with harness.tab(chromium) as tab:
        yield tab


@pytest.fixture
def page(tab: Tab) -> Iterator[Any]:
    """A visitor's page in a wide window; a complaint of it fails the test."""
    with harness.visit(tab) as page:
        yield page
