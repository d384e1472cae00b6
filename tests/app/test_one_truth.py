"""What one place says, the others say: caveats, machines, what is not as measured, what was not uploaded."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.cached_records import Trouble
from app.launch import MAIN
from app.shelf import Card
from app.views import records_table, validate
from app.views.cluster_knobs import PRESETS
from app.words import cluster as cluster_words
from sim.formats import documents
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_size
from tests.app.conftest import make_unmeasured
from tests.app.test_addresses import visit
from tests.effort import PATIENCE_S

CARD = Card(
    workload="w",
    place="here",
    ranks=2,
    backend="gloo",
    mode="paced",
    tests="",
    candidates=3,
    date="",
    torch="",
)


@pytest.fixture
def page(unmeasured: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(unmeasured)])
    return AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)


def plain(elements: object) -> str:
    return " ".join(str(one.value) for one in elements).replace("\\", "")  # type: ignore[attr-defined]


def test_compare_says_what_a_step_lacks(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    """ZeRO's all-gather has no curve here: Tune says so, and so does Compare, with what it carries."""
    zero = sim.simulate(workload, hardware, sim.assign(workload, "zero1"))
    (note,) = [one for one in sim.summarize(zero).notes if "not counted" in one]
    carried = sum(one.num_bytes for one in sim.collectives(zero) if one.kind == "all_gather")
    page.run()
    visit(page, "compare", a_pick="DDP's default", b_pick="DeepSpeed ZeRO-1", c_pick="single bucket")
    told = plain(page.warning)
    assert note in told
    assert f"{format_size(carried)} of what it sends" in told
    assert "A DDP's default takes longer" not in told


def test_a_recording_of_a_cpu_on_gpus_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    traces = make_unmeasured(tmp_path / "traces")
    slow = replace(workload, provenance={**workload.provenance, "device": "cpu"})
    documents.save(traces / "workloads" / "twenty.json", slow)
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)
    page.query_params["start"] = "bundled files"
    page.query_params["workload"] = "twenty"
    page.query_params["hardware"] = "computed: DGX H100"
    page.run()
    warning = cluster_words.device_sentence(slow, None)
    assert warning is not None
    assert warning in plain(page.warning)
    visit(page, "compare", b_pick="single bucket", c_pick="single bucket")
    assert warning in plain(page.warning), "on Compare"
    computed = sim.cluster_hardware(sim.cluster("dgx_h100", hosts=2))
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)
    page.query_params["start"] = "upload"
    page.run()
    files = [
        (name, sim.to_text(noun).encode(), "application/json")
        for name, noun in (("w", slow), ("h", computed))
    ]
    page.file_uploader(key="up").set_value(files).run()
    assert warning in plain(page.warning), "on a machine that the Cluster page computed, uploaded"


def test_machines_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardware: Hardware
) -> None:
    traces = make_unmeasured(tmp_path / "traces")
    for day in (1, 2):
        dated = replace(
            hardware, provenance={**hardware.provenance, "date": f"2026-11-0{day}T10:30:00+00:00"}
        )
        documents.save(traces / "hardware" / f"day-{day}.json", dated)
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    page = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S)
    page.query_params["start"] = "bundled files"
    page.query_params["hardware"] = "day-2"
    page.run()
    assert "two hosts, calibrated 2026-11-02 10:30 · " in plain(page.caption)


def test_the_headline_of_a_cluster_is_of_the_hosts_that_were_set(page: AppTest, workload: Workload) -> None:
    page.run()
    visit(page, "cluster", pcie_hosts_hosts="3", machine="hosts of PCIe GPUs on Ethernet", most_hosts="8")
    another = sim.load_workload(Path(sys.argv[2]) / "workloads" / "another.json")
    settings = {one.name: [one.default] for one in PRESETS["pcie_hosts"] if one.name != "hosts"}
    (row,) = sim.scaling(another, "pcie_hosts", hosts=[3], settings=settings)
    assert row.world_size == 12
    assert cluster_words.scaling_sentence("another", row) in plain(page.markdown)
    link = page.get("page_link")[0].proto
    asked = dict(part.split("=") for part in link.query_string.split("&"))
    assert asked["workload"] == "another"
    assert asked["pcie_hosts_hosts"] == "3"
    visit(page, "", **{key: value.replace("+", " ").replace("%3A", ":") for key, value in asked.items()})
    assert not page.error
    assert "another on " in plain(page.caption)
    assert page.selectbox(key="hardware").value == "computed: hosts of PCIe GPUs on Ethernet"


def test_a_workload_that_was_uploaded_can_be_scaled(page: AppTest, workload: Workload) -> None:
    page.query_params["start"] = "upload"
    page.run()
    mine = replace(workload, name="mine")
    page.file_uploader(key="up").set_value(
        [("mine.json", sim.to_text(mine).encode(), "application/json")]
    ).run()
    visit(page, "cluster", scaled="uploaded: mine", most_hosts="2", machine="hosts of PCIe GPUs on Ethernet")
    assert not page.error
    assert "mine on " in plain(page.markdown)


@pytest.mark.usefixtures("fresh")
def test_no_totals_are_told_before_all_is_scored(
    page: AppTest, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    seen: list[tuple[bool, bool]] = []

    def rerun() -> None:
        seen.append((any("candidates in" in one for one in told), any("are scored" in one for one in told)))

    told: list[str] = []
    for name in ("markdown", "caption"):
        drawn = getattr(validate.st, name)

        def draw(body: str, *given: object, drawn: object = drawn, **more: object) -> object:
            told.append(body)
            return drawn(body, *given, **more)  # type: ignore[operator]

        monkeypatch.setattr(validate.st, name, draw)
    monkeypatch.setattr(validate.st, "rerun", rerun)
    page.run()
    visit(page, "validate")
    assert seen == [(False, True)]
    told.clear()
    page.run()
    assert any("candidates in" in one for one in told)


def test_records_that_did_not_pass_come_first() -> None:
    names = ["a", "b", "c"]
    scores = {"b": Trouble(words="it cannot")}
    cards = dict.fromkeys(names, CARD)
    assert records_table.worst_first(names, cards, scores) == ["b", "a", "c"]
