"""The Cluster page, run without a browser."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.sources import MACHINE_WORDS
from sim.units import format_ms
from tests.app.conftest import cards, charts, is_clean, make_workload, open_page, said, upload


@pytest.fixture(scope="module")
def traces(unmeasured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each workload four gradients: buckets are searched for on each size of each cluster."""
    few = shutil.copytree(unmeasured, tmp_path_factory.mktemp("few") / "traces")
    for file in (few / "workloads").glob("*.json"):
        workload = sim.load_workload(file)
        file.write_text(sim.to_text(replace(workload, gradients=workload.gradients[:4])))
    return few


@pytest.fixture
def page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return open_page(monkeypatch, "cluster", traces, most_hosts="2")


def give(page: AppTest, text: str) -> AppTest:
    if page.query_params.get("machine") is None:
        page.query_params["machine"] = "upload"
        page.run()
    return upload(page, ("cluster.json", text))


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
        "machine": MACHINE_WORDS["pcie_hosts"],
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
    assert cards(page)["Ranks"] == "6"
    assert cards(page)["All-reduce of 1 GiB"] == format_ms(times[1 << 30])
    assert "another on 6 GPUs" in said(page)


def test_a_cluster_of_ones_own_is_asked_for_and_shown(page: AppTest) -> None:
    page.query_params["machine"] = "upload"
    page.run()
    assert is_clean(page)
    assert "Upload the JSON of a cluster" in said(page)
    assert not page.get("plotly_chart")
    give(page, sim.to_text(sim.cluster("dgx_a100", hosts=2)))
    assert is_clean(page)
    assert cards(page)["Ranks"] == "16"
    assert "scaling" in charts(page)


def test_a_bad_upload_is_one_line(page: AppTest) -> None:
    """What is not recognised, what is of another kind, what has an illegal value."""
    illegal = sim.to_text(sim.cluster("p4de")).replace("ampere", "kepler")
    for text, words in {
        "{not json": "not recognised",
        sim.to_text(make_workload()): "no cluster",
        illegal: "kepler",
    }.items():
        give(page, text)
        assert not page.exception
        (error,) = page.error
        assert words in error.value.replace("\\", "")
        assert "Traceback" not in error.value


def test_what_cannot_be_computed_is_one_line(page: AppTest) -> None:
    """Two hosts that nothing joins: the cluster can still be downloaded."""
    apart = replace(sim.cluster("pcie_hosts", hosts=2, gpus=1, gbit_per_s=10), network=None)
    give(page, sim.to_text(apart))
    assert not page.exception
    assert page.error
    assert all("several hosts" in found.value for found in page.error)
    assert not charts(page)
    assert [button.label for button in page.get("download_button")] == ["Cluster JSON"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_cpu_recorded_is_no_gpu(
    traces: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(traces, tmp_path / "traces")
    for file in (own / "workloads").glob("*.json"):
        made = {"source": "bucketsim record", "device": device}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"provenance": made}))
    page = open_page(monkeypatch, "cluster", own, most_hosts="2").run()
    assert is_clean(page)
    assert ("recorded on a CPU" in said(page)) == (device == "cpu")
