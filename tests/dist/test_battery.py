"""The GPU battery: all of it on a CPU, without what a bare GPU machine lacks, and back as records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sim
from sim.cli.commands import app
from sim.errors import InputError
from sim.formats.record_files import load_record
from sim.validator.battery import Battery
from sim.validator.battery_plan import battery_candidates, gpu_plan, quick_plan
from tests.effort import PATIENCE_S

pytestmark = pytest.mark.dist

_ABSENT = ("simpy", "pydantic", "networkx", "typer", "rich", "plotly", "streamlit")
_BLOCK = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.split('.')[0] in {_ABSENT!r} else self.finder.find_spec(name, *rest)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.mark.slow
def test_battery_then_gather_then_agree(tmp_path: Path) -> None:
    out, records = tmp_path / "battery", tmp_path / "records"
    # Ranks are started as ``python -m``: a site file blocks the modules for them too.
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_BLOCK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), os.getcwd()])}
    command = [sys.executable, "-m", "sim.validator.battery", "--out", str(out), "--device", "cpu", "--quick"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in out.rglob("*"))
    assert files == ["battery.json", "emulated.tar.gz", "ranks-gloo.tar.gz", "workloads.tar.gz"]
    summary = json.loads((out / "battery.json").read_text())
    assert all(not section["failures"] for section in summary["sections"].values()), summary
    runner = CliRunner()
    assert runner.invoke(app, ["gather", str(out)]).exit_code == 2
    gathered = runner.invoke(app, ["gather", str(out), "-o", str(records), "--json"])
    assert gathered.exit_code == 0, gathered.output
    names = {path.name for path in sim.find_records(records)}
    assert names == {"gpt-tiny-float32-emulated-3", "gpt-tiny-float32-gloo-2"}
    workload = sim.load_workload(records / "workloads" / "gpt-tiny-float32.json")
    for name in names:
        record = load_record(records / name)
        assert record.workload == workload
        assert [one.name for one in record.candidates] == [one.name for one in battery_candidates(workload)]
        assert all(one.complete and len(one.iterations) == 2 for one in record.measurements)
    assert load_record(records / "gpt-tiny-float32-gloo-2").hardware.comm_channels == 2
    assert runner.invoke(app, ["agree", str(records)]).exit_code == 0
    assert isinstance(runner.invoke(app, ["gather", str(out), "-o", str(records)]).exception, InputError)


def test_a_battery_without_time_still_leaves_what_can_be_read(tmp_path: Path) -> None:
    battery = Battery(tmp_path / "battery", "cpu", quick_plan(), budget_s=0.0)
    battery.run()
    summary = json.loads((tmp_path / "battery" / "battery.json").read_text())
    assert summary["sections"]["emulated"]["folders"] == []
    gathered = CliRunner().invoke(app, ["gather", str(tmp_path / "battery"), "-o", str(tmp_path / "records")])
    assert gathered.exit_code == 1
    with pytest.raises(InputError, match="holds a battery's output already"):
        Battery(tmp_path / "battery", "cpu", quick_plan(), budget_s=0.0)


def test_the_gpu_plan_covers_models_dtypes_and_speeds() -> None:
    plan = gpu_plan()
    assert {recipe.factory for recipe in plan.recipes} == {"gpt", "resnet50", "bert"}
    assert {recipe.dtype for recipe in plan.recipes} == {"float32", "bfloat16"}
    assert len(plan.slowness) == 3
