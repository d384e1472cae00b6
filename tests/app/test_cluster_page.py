"""The Cluster page, run without a browser."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.views import cluster as labels_cluster
from sim.units import format_ms
from tests.app.conftest import charts, is_clean, make_workload
from tests.effort import PATIENCE_S

FILE = "cluster.json"


def cluster_page() -> None:
    import sys

    from app import launch, sources
    from app.views import cluster
    from app.widgets import told

    with told():
        cluster.show(sources.find(launch.settings(sys.argv[1:])))


@pytest.fixture
def page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(traces)])
    page = AppTest.from_function(cluster_page, default_timeout=PATIENCE_S)
    page.query_params["most_hosts"] = "2"
    return page


def upload(page: AppTest, text: str) -> AppTest:
    if page.query_params.get("machine") is None:
        page.query_params["machine"] = "upload"
        page.run()
    page.file_uploader(key="up").set_value([(FILE, text.encode(), "application/json")]).run()
    return page


@pytest.mark.parametrize(
    "presets",
    [("pcie_hosts", "gh200_slingshot"), pytest.param(("pcie_box", "hgx_ethernet"), marks=pytest.mark.slow)],
)
def test_presets_are_drawn(page: AppTest, presets: tuple[str, ...]) -> None:
    page.query_params["machine"] = presets[0]  # its bare name, as on the command line
    page.run()
    for preset in presets:
        if page.selectbox(key="machine").value != preset:
            page.selectbox(key="machine").set_value(preset).run()
        assert is_clean(page), preset
        assert page.selectbox(key="machine").value == preset
        assert "curve" in charts(page), preset


def test_a_url_restores_the_knobs(page: AppTest) -> None:
    knobs = {
        "machine": labels_cluster.MACHINE_WORDS["pcie_hosts"],
        "pcie_hosts_hosts": "3",
        "pcie_hosts_gbit_per_s": "25",
        "pcie_hosts_gpus": "2",
        "scaled": "another",
    }
    for name, value in knobs.items():
        page.query_params[name] = value
    page.run()
    assert is_clean(page)
    hardware = sim.cluster_hardware(
        sim.cluster("pcie_hosts", hosts=3, gpus=2, gbit_per_s=25, pcie_gen=4, peer_to_peer=False)
    )
    times = {point.num_bytes: point.duration_ns for point in hardware.all_reduce}
    shown = {found.label: found.value for found in page.metric}
    assert shown["Ranks"] == "6"
    assert shown["All-reduce of 1 GiB"] == format_ms(times[1 << 30])
    assert any("another on 6 GPUs" in found.value for found in page.markdown)


def test_a_cluster_of_ones_own_is_asked_for_and_shown(page: AppTest) -> None:
    page.query_params["machine"] = "upload"
    page.run()
    assert is_clean(page)
    assert any("Upload the JSON of a cluster" in found.value for found in page.info)
    assert not page.get("plotly_chart")
    upload(page, sim.to_text(sim.cluster("dgx_a100", hosts=2)))
    assert is_clean(page)
    assert next(found.value for found in page.metric if found.label == "Ranks") == "16"
    assert "scaling" in charts(page)


def test_a_bad_upload_is_one_line(page: AppTest) -> None:
    """What is not recognised, what is of another kind, what has an illegal value."""
    illegal = sim.to_text(sim.cluster("p4de")).replace("ampere", "kepler")
    for text, words in {
        "{not json": "not recognised",
        sim.to_text(make_workload()): "no cluster",
        illegal: "kepler",
    }.items():
        upload(page, text)
        assert not page.exception
        (error,) = page.error
        assert words in error.value.replace("\\", "")
        assert "Traceback" not in error.value


def test_what_cannot_be_computed_is_one_line(page: AppTest) -> None:
    """Two hosts that nothing joins: the cluster can still be downloaded."""
    apart = replace(sim.cluster("pcie_hosts", hosts=2, gpus=1, gbit_per_s=10), network=None)
    upload(page, sim.to_text(apart))
    assert not page.exception
    assert page.error
    assert all("several hosts" in found.value for found in page.error)
    assert not charts(page)
    assert [button.label for button in page.get("download_button")] == ["Cluster JSON"]


def recorded_on(traces: Path, device: str) -> None:
    """The workloads of the library, as if they had been recorded on ``device``."""
    for file in (traces / "workloads").glob("*.json"):
        document = json.loads(file.read_text())
        document["provenance"] = {"source": "bucketsim record", "device": device}
        file.write_text(json.dumps(document))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_cpu_recorded_is_no_gpu(
    page: AppTest, traces: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(traces, tmp_path / "traces")
    recorded_on(own, device)
    monkeypatch.setattr(sys, "argv", ["main.py", "--traces", str(own)])
    page.run()
    assert is_clean(page)
    assert [("recorded on a CPU" in found.value) for found in page.warning] == (
        [True] if device == "cpu" else []
    )
