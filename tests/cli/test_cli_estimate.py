"""``bucketsim estimate``: words in, a workload and what to think of it out."""

import json
from pathlib import Path

import pytest

import sim
from tests.commands import bucketsim

GPT = ("estimate", "sim.recorder.models:gpt", "layers=1", "width=16", "heads=2", "vocab=32", "context=8")


def test_it_writes_a_workload_that_the_others_read(tmp_path: Path) -> None:
    said = bucketsim(*GPT, "--arg", "tied=true", "--backward-ms", 87.35, "-o", tmp_path / "w.json", "--json")
    assert said.code == 0, said.err
    workload = sim.load_workload(tmp_path / "w.json")
    assert json.loads(said.out) == json.loads((tmp_path / "w.json").read_text())
    assert workload.estimated
    assert workload.band is not None
    assert workload.backward_ns == 87_350_000
    assert workload.provenance["arguments"]["tied"] is True
    assert sim.assign(workload, bucket_cap_mb=0).bucket_indices
    told = bucketsim(*GPT, "--arg", "tied=true", "--backward-ms", 87.35, "-o", tmp_path / "w.json")
    assert "estimated, not recorded; a band of " in told.out
    assert workload.provenance["band"] in told.out
    assert "nine of ten ready times past the first tenth" in told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing tells how long backward takes"),
        (("--backward-ms", "-1"), "backward_ns: -1000000 is not legal"),
        (("--backward-ms", "nan"), "backward_ms: nan is not legal"),
        (("--gpu", "abacus"), "gpu: 'abacus' is not in the table"),
        (("depth=3", "--backward-ms", "1"), "takes no 'depth'"),
        (("layers", "--backward-ms", "1"), "argument: 'layers' is not legal"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    said = bucketsim("estimate", "sim.recorder.models:gpt", *words, "-o", tmp_path / "w.json")
    assert said.code == 1
    assert message in " ".join(said.err.split())
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "w.json").exists()


def test_a_spec_that_is_none(tmp_path: Path) -> None:
    for spec in (
        "gpt",
        ":gpt",
        "sim.recorder.models:",
        "sim.recorder.nothing:gpt",
        "sim.recorder.models:gtp",
    ):
        said = bucketsim("estimate", spec, "--backward-ms", 1, "-o", tmp_path / "w.json")
        assert said.code == 1
        assert said.err.startswith("error: factory: ")
