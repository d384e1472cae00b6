"""The Compare page, run without a browser."""

import csv
import io
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.playing import Choice, Inputs
from app.sources import Library, Preset
from app.views import validate
from app.views.compare import Candidate, csv_rows, play_candidate, table_rows, truth_rows
from app.widgets import provenance, signed_csv
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_size
from tests.app.conftest import cards, charts, is_clean, open_page, plain, said
from tests.commands import bucketsim
from tests.manual.pages import ROOT, blocks

DASHBOARD = ROOT / "app" / "manual" / "dashboard.md"
NOWHERE = Library(workloads={}, hardware={}, records={})

QUICK = {"b_pick": "one per parameter", "c_pick": "single bucket"}  # candidates that need no search


@pytest.fixture
def opened(traces: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """The page at an address, drawn."""

    def made(**query: str) -> AppTest:
        return open_page(monkeypatch, "compare", traces, **QUICK | query).run()

    return made


def steps(page: AppTest) -> list[str]:
    return [found.value for found in page.metric]


def step_of(workload: Workload, hardware: Hardware, policy: str = "ddp", **knobs: Any) -> str:
    assignment = sim.assign(workload, policy, **knobs)
    return format_ms(sim.summarize(sim.simulate(workload, hardware, assignment)).step_ns)


def test_the_address_restores_all(
    opened: Callable[..., AppTest], workload: Workload, hardware: Hardware
) -> None:
    page = opened(
        candidates="4",
        a_pick="bucket_cap_mb",
        a_cap="4",
        b_pick="DDP's default",
        b_gradient_as_bucket_view="true",
        d_pick="not DDP: buckets after backward",
        against="D",
    )
    assert is_clean(page)
    found = steps(page)
    assert found[0] == step_of(workload, hardware, bucket_cap_mb=4)
    assert found[1] == step_of(workload, hardware, gradient_as_bucket_view=True)
    assert found[3] == step_of(workload, hardware, "after-backward")
    assert page.selectbox(key="against").value == "D"


def test_one_gpt_under_four_systems_is_on_the_page_what_the_command_line_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the address and the commands of the manual."""
    (shown,) = [one.text for one in blocks(DASHBOARD) if "/compare?" in one.text]
    (typed,) = [one.text for one in blocks(DASHBOARD) if "--policy zero2" in one.text]
    address = {key: value for key, (value,) in parse_qs(urlsplit(shown.strip()).query).items()}
    page = open_page(monkeypatch, "compare", ROOT / "traces", **address).run()
    assert is_clean(page)
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "traces" / "workloads" / "gpt-13.8M-cpu.json", "gpt.json")
    made, *simulated = typed.replace("\\\n", " ").splitlines()
    assert bucketsim(*shlex.split(made)[1:]).code == 0
    reports = [json.loads(bucketsim(*shlex.split(line)[1:], "--json").out) for line in simulated]
    assert [one["policy"] for one in reports] == ["ddp", "megatron", "fully_shard", "zero2"]
    assert steps(page) == [format_ms(one["step_ns"]) for one in reports]
    assert len(set(steps(page))) == len(reports)
    for one in reports:
        assert one["verdict"] in said(page)


def test_what_cannot_be_played_is_one_line_and_the_others_stay(opened: Callable[..., AppTest]) -> None:
    """Megatron-Core's distributed optimizer needs a curve that this machine has not."""
    quick = opened(b_pick="Megatron-Core DDP", b_use_distributed_optimizer="true")
    assert not quick.exception
    (error,) = quick.error
    assert error.value.startswith("B\\: ")
    assert "curve" in error.value
    assert [step == "-" for step in steps(quick)] == [False, True, False]
    assert "stacked" in charts(quick)
    notes = list(quick.dataframe[0].value["note"])
    assert ["curve" in str(note) for note in notes] == [False, True, False, False]


def test_a_candidate_on_another_machine_is_taken_apart_too(opened: Callable[..., AppTest]) -> None:
    quick = opened(b_machine="computed: DGX A100", b_dgx_a100_hosts="2")
    assert is_clean(quick)
    assert "bytes on the wire" in said(quick)
    assert "B one per parameter on computed: DGX A100, 2 hosts" in cards(quick)


def test_measured_steps_stand_beside_predicted_ones(opened: Callable[..., AppTest]) -> None:
    """The made-up record's steps are off by -1, -1.5 and 0.5 %."""
    quick = opened()
    assert is_clean(quick)
    table = quick.dataframe[0].value.iloc[[0, 1, 3]]  # beside rows of differences
    for found, off in zip(table["error, %"], (0.99, 0.985, 1.005), strict=True):
        assert found == pytest.approx(100 * (1 / off - 1), abs=0.01)
    gains = table["measured, ms"].iloc[0] - table["measured, ms"]
    assert list(table["faster than A, measured, ms"]) == pytest.approx(list(gains))


def played(inputs: Inputs, *candidates: Candidate) -> list[Candidate]:
    found = [play_candidate(inputs, one, NOWHERE) for one in candidates]
    assert not any(one.error for one in found)
    return found


A = Candidate(letter="A", choice=Choice(pick="default"))


def test_a_switch_or_a_machine_that_was_not_measured_is_not_shown_as_measured(
    inputs: Inputs, traces: Path
) -> None:
    _, agreement = validate.judge(traces / "measured" / "made-up")
    view = Choice(pick="default", options=(("gradient_as_bucket_view", True),))
    computed = Preset("dgx_a100")
    others = (Candidate(letter="B", choice=view), Candidate(letter="C", choice=A.choice, machine=computed))
    assert list(truth_rows(agreement, played(inputs, A, *others), inputs)) == ["A DDP's default"]


def test_the_csv_is_exact_and_names_what_was_played(inputs: Inputs) -> None:
    bad = Candidate(letter="C", choice=Choice(pick="single"), machine="gone")
    asked = [A, Candidate(letter="B", choice=Choice(pick="per-parameter")), bad]
    found = [play_candidate(inputs, one, NOWHERE) for one in asked]
    text = signed_csv(csv_rows(found), provenance(inputs, {}))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["candidate"] for row in rows] == [
        "A DDP's default",
        "B one per parameter",
        "C single bucket on gone",
    ]
    steps_ns = [one.report.step_ns for one in found[:2]]
    assert [round(float(row["step, ms"]) * 1e6) for row in rows[:2]] == steps_ns
    assert round(float(rows[1]["faster than A, ms"]) * 1e6) == steps_ns[0] - steps_ns[1]
    assert rows[0]["played_on_sha256"] == sim.digest(inputs.hardware)
    assert "'gone'" in rows[2]["note"]


def test_every_collective_of_a_step_is_counted(inputs: Inputs) -> None:
    each = (("accumulation_steps", 3), ("no_sync", False))
    other = Candidate(letter="B", choice=Choice(pick="default", options=each))
    once, thrice, differ = table_rows(played(inputs, A, other))
    assert differ["collectives"] == thrice["collectives"] - once["collectives"]
    assert thrice["collectives"] == 3 * once["collectives"]
    assert thrice["sent, MiB"] == pytest.approx(3 * once["sent, MiB"])
    assert (once["micro-batches"], thrice["micro-batches"]) == (1, 3)


def test_steps_of_different_micro_batches_are_not_ranked(opened: Callable[..., AppTest]) -> None:
    quick = opened(a_pick="DDP's default", a_accumulation_steps="4")
    assert is_clean(quick)
    assert "not the same work" in quick.warning[0].value
    assert not any("fast" in found.value for found in quick.markdown)
    assert [found.delta for found in quick.metric] == ["", "", ""]
    table = quick.dataframe[0].value
    assert "faster than A, ms" not in table or table["faster than A, ms"].dropna().eq(0).all()


def test_compare_says_what_a_step_lacks(
    opened: Callable[..., AppTest], workload: Workload, hardware: Hardware
) -> None:
    """ZeRO's all-gather has no curve here: Tune says so, and so does Compare, with what it carries."""
    zero = sim.simulate(workload, hardware, sim.assign(workload, "zero1"))
    (note,) = [one for one in sim.summarize(zero).notes if "not counted" in one]
    carried = sum(one.num_bytes for one in sim.collectives(zero) if one.kind == "all_gather")
    page = opened(a_pick="DDP's default", b_pick="DeepSpeed ZeRO-1")
    told = plain(page.warning)
    assert note in said(page)
    assert f"{format_size(carried)} of what it sends" in told
    assert "A DDP's default takes longer" not in told
