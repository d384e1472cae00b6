"""What one place says, the others say: caveats, machines, what is not as measured, what was not uploaded."""

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.launch import MAIN
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_size
from tests.app.test_addresses import visit
from tests.effort import PATIENCE_S


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
