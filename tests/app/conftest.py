"""A small made-up world for the dashboard: a workload, a machine, and a record that nobody measured."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

import sim
from app.launch import MAIN
from app.memo import Memo
from app.playing import Inputs
from sim.formats import documents
from sim.formats import record_files as records
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.workload import Workload
from sim.units import transfer_ns
from tests.effort import PATIENCE_S
from tests.handmade import handmade, measurement, seen_bucket, wired
from tests.saving import save_measurement

MS = 1_000_000
MIB = 1 << 20
COUNT = 20
OTHER = "other"  # the name of a second record
MADE_UP = {"source": "made up for a test; nobody measured this"}
BARE: tuple[Literal["plain", "noop"], ...] = ("plain", "noop")
SIZES = [MIB // 4 * (1 + (index * 7) % 12) for index in range(COUNT)]


def make_workload(name: str = "twenty layers") -> Workload:
    return handmade(
        [(COUNT - index) * 2 * MS for index in range(COUNT)],
        SIZES,
        name=name,
        names="layers.{}.weight",
        forward_ns=18 * MS,
        backward_ns=COUNT * 2 * MS + MS,
        optimizer_ns=5 * MS,
        provenance=MADE_UP,
    )


def make_hardware(name: str = "two hosts") -> Hardware:
    return wired(
        {0: 400_000, MIB: 1_600_000, 64 * MIB: 80 * MS},
        name=name,
        copy_in_bytes_per_s=8e9,
        copy_out_bytes_per_s=8e9,
        provenance=MADE_UP,
    )


def make_measurement(
    workload: Workload, hardware: Hardware, name: str, assignment: Assignment, error: float
) -> Measurement:
    """A measurement that differs from the prediction by ``error`` (relative), with a little scatter."""
    report = sim.summarize(sim.simulate(workload, hardware, assignment))

    def off(value: int, wobble: float = 0.0) -> int:
        return round(value * (1 + error + wobble))

    buckets = tuple(
        seen_bucket(row.index, off(row.ready_ns), off(row.launch_ns), off(row.end_ns))
        for row in report.buckets
    )
    times = ("step_ns", "backward_end_ns", "sync_end_ns")
    iterations = tuple(
        MeasuredIteration(**{time: off(getattr(report, time), wobble) for time in times})
        for wobble in (-0.001, 0.0, 0.001, 0.0005, -0.0005)
    )
    return measurement(
        name,
        assignment,
        iterations,
        traced=tuple(replace(iteration, buckets=buckets) for iteration in iterations[:3]),
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        dropped_warmup=3,
        provenance=MADE_UP,
    )


def make_bare_run(workload: Workload, hardware: Hardware, role: Literal["plain", "noop"]) -> Measurement:
    """The plain backward, or DDP without communication, just as the model has them."""
    copied = 0 if role == "plain" else sum(SIZES)
    backward_end = workload.backward_ns + transfer_ns(copied, hardware.copy_in_bytes_per_s)
    iteration = MeasuredIteration(
        step_ns=workload.forward_ns + backward_end + workload.optimizer_ns,
        backward_end_ns=backward_end,
        sync_end_ns=backward_end + transfer_ns(copied, hardware.copy_out_bytes_per_s),
    )
    like = make_measurement(workload, hardware, role, sim.assign(workload), 0.0)
    return replace(like, role=role, asked=None, observed=None, iterations=(iteration,) * 5, traced=())


def make_unmeasured(folder: Path) -> Path:
    """Two workloads and a machine, and no record."""
    for kind in ("workloads", "hardware"):
        (folder / kind).mkdir(parents=True)
    documents.save(folder / "workloads" / "twenty.json", make_workload())
    documents.save(folder / "workloads" / "another.json", make_workload("another"))
    documents.save(folder / "hardware" / "two-hosts.json", make_hardware())
    return folder


def make_traces(folder: Path) -> Path:
    """The same, and a record of one of the workloads."""
    make_unmeasured(folder)
    workload, hardware = make_workload(), make_hardware()
    record = records.start_record(folder / "measured" / "made-up", workload, hardware)
    candidates = [
        ("default", sim.assign(workload), -0.01),
        ("cap 4", sim.assign(workload, bucket_cap_mb=4), 0.008),
        ("per-parameter", sim.assign(workload, "per-parameter"), -0.015),
        ("single", sim.assign(workload, "single"), 0.005),
    ]
    for number, (name, assignment, error) in enumerate(candidates):
        save_measurement(record, number, make_measurement(workload, hardware, name, assignment, error))
    for number, role in enumerate(BARE, start=len(candidates)):
        save_measurement(record, number, make_bare_run(workload, hardware, role))
    return folder


def add_record(traces: Path) -> None:
    """``OTHER`` beside the record that is there: its steps, as those of a workload of another name."""
    other = records.start_record(traces / "measured" / OTHER, make_workload("other layers"), make_hardware())
    for run in (traces / "measured" / "made-up").glob("measurement*"):
        (other / run.name).write_bytes(run.read_bytes())


def _one_page(name: str) -> None:
    import sys
    from pathlib import Path

    from app import launch, sources
    from app.views import cluster, compare, live, manual, validate
    from app.widgets import told

    settings = launch.settings(sys.argv[1:])
    found = sources.find(settings)
    with told():
        {
            "compare": lambda: compare.show(found, sources.ask(found)),
            "cluster": lambda: cluster.show(found),
            "validate": lambda: validate.show(found, settings.watch),
            "live": lambda: live.show(settings.watch or Path("nowhere"), found),
            "manual": manual.show,
        }[name]()


def a_page(name: str, **query: str) -> AppTest:
    """A page alone at an address, not drawn yet; ``main``: the dashboard, which begins with Tune."""
    if name == "main":
        page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)
    else:
        page = AppTest.from_function(_one_page, default_timeout=PATIENCE_S, args=(name,))
    for key, value in query.items():
        page.query_params[key] = value
    return page


def open_page(patch: pytest.MonkeyPatch, name: str, traces: Path, *more: str, **query: str) -> AppTest:
    """The same over ``traces``."""
    patch.setattr(sys, "argv", ["main.py", "--traces", str(traces), *more])
    return a_page(name, **query)


def upload(page: AppTest, *files: tuple[str, bytes | str]) -> AppTest:
    """Give files to the page."""
    contents = [(name, one.encode() if isinstance(one, str) else one, "") for name, one in files]
    return page.file_uploader(key="up").set_value(contents).run()


def visit(page: AppTest, path: str, **address: str) -> AppTest:
    """Take the menu to the page at ``path``; its link has no knob in it but those of ``address``."""
    pages = page._registered_pages.items()
    page._page_hash = next(key for key, info in pages if info.get("url_pathname") == path)
    page.query_params.clear()
    for key, value in address.items():
        page.query_params[key] = value
    return page.run()


def plain(elements: Any) -> str:
    """What texts say, without the marks that keep markdown out."""
    return " ".join(str(one.value) for one in elements).replace("\\", "")


def is_clean(page: AppTest) -> bool:
    return not page.exception and not page.error


def cards(page: AppTest) -> dict[str, str]:
    return {found.label.replace("\\", ""): found.value for found in page.metric}


def said(page: AppTest) -> str:
    """All that the page says, but its figures, cards and errors."""
    return plain([*page.markdown, *page.caption, *page.info, *page.warning, *page.success])


def charts(page: AppTest) -> dict[str, Any]:
    protos = (chart.proto for chart in page.get("plotly_chart"))
    return {one.id.rsplit("-", 1)[-1]: json.loads(one.spec) for one in protos}


@pytest.fixture
def page(unmeasured: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The dashboard where nothing was measured."""
    return open_page(monkeypatch, "main", unmeasured)


@pytest.fixture
def inputs(workload: Workload, hardware: Hardware) -> Inputs:
    return Inputs(workload=workload, hardware=hardware)


@pytest.fixture
def workload() -> Workload:
    return make_workload()


@pytest.fixture
def hardware() -> Hardware:
    return make_hardware()


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_traces(tmp_path_factory.mktemp("world") / "traces")


@pytest.fixture(scope="session")
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a page draws in half the time that it takes to draw a record, too."""
    return make_unmeasured(tmp_path_factory.mktemp("unmeasured") / "traces")


@pytest.fixture(scope="session", autouse=True)
def _installed_components_are_looked_for_once() -> Iterator[None]:
    """Every AppTest reads what every installed package says of itself: more time than most pages take."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", once)
        yield


@pytest.fixture(autouse=True)
def _main_stays() -> Iterator[None]:
    """AppTest leaves its script as ``__main__``, which every process that is started later would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


def forget() -> None:
    """As in a server that has just started, pages remember nothing."""
    st.cache_data.clear()
    st.cache_resource.clear()
    modules = [module for name, module in sys.modules.items() if name.startswith("app.")]
    for each in [each for module in modules for each in vars(module).values()]:
        if isinstance(each, Memo):
            each._kept.clear()


@pytest.fixture(autouse=True, scope="module")
def _nothing_remembered() -> None:
    forget()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered: for who replaces what makes it, or counts how often it is made."""
    forget()
    yield
    forget()
