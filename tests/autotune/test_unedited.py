"""``bucketsim autotune -- COMMAND``: scripts that nobody edited, and those in which nothing can be tuned."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from sim.autotuner import at_start
from sim.autotuner.at_start import sitecustomize
from sim.autotuner.unedited import OPTIONS, tuned_environment
from sim.cli import autotuning
from sim.formats.autotune_files import FILE_NAME
from tests.commands import Said, bucketsim, process

pytestmark = pytest.mark.dist
TRAIN = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(260):
    optimizer.zero_grad()
    ddp(torch.full((4, 64), 0.1 * (1 + dist.get_rank()))).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
digest = weights.double().sum().item(), weights.abs().max().item()
left = len(ddp._forward_pre_hooks) + len(ddp._forward_hooks)
os.write(1, f"left {left}, weights {digest}\\n".encode())  # whole, beside the other rank's
dist.destroy_process_group()
"""


def autotune(folder: Path, script: str, *before: str, own: str | None = None) -> Said:
    """The script under ``bucketsim autotune``, with a ``sitecustomize`` of the machine's own."""
    (folder / "train.py").write_text(script)
    places = [str(Path(__file__).parents[2])]
    if own is not None:
        (folder / "own").mkdir()
        (folder / "own" / "sitecustomize.py").write_text(own)
        places.insert(0, str(folder / "own"))
    words = ["-m", "sim", "autotune", "--", sys.executable, *before, str(folder / "train.py")]
    return process(*words, env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_a_script_that_nobody_edited_is_tuned_to_a_verdict(tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = autotune(tmp_path, TRAIN, *launch, own="print('the own one')")
    assert said.code == 0, said.err
    assert "the own one" in said.out
    plain = process(*launch, tmp_path / "train.py", env={**os.environ, "OMP_NUM_THREADS": "1"})
    (alone,) = {line for line in plain.out.splitlines() if line.startswith("left 0")}
    assert said.out.count(alone) == 2  # to the bit, on both ranks
    (verdict,) = (line for line in said.out.splitlines() if line.startswith("autotune of Sequential"))
    assert "on 2 rank(s): kept: faster" in verdict or "on 2 rank(s): reverted: " in verdict, verdict


def test_one_rank_is_refused_by_name(tmp_path: Path) -> None:
    alone = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)'
    said = autotune(tmp_path, TRAIN.replace('dist.init_process_group("gloo")', alone).replace("260", "2"))
    assert said.code == 0, said.err
    assert "autotune of Sequential on 1 rank(s): refused: world_size: one rank reduces nothing" in said.out


def test_what_makes_no_ddp_is_told_and_its_exit_code_kept(tmp_path: Path) -> None:
    said = autotune(tmp_path, "import sys; print('torch' in sys.modules); sys.exit(7)")
    assert said.code == 7
    assert "False" in said.out
    assert "nothing was tuned" in said.out


def test_the_environment_keeps_what_is_there() -> None:
    made = tuned_environment({"PYTHONPATH": "/mine", "A": "b"}, live="there", cache=None)
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
    assert (made["A"], json.loads(made[OPTIONS])) == ("b", {"live": "there", "cache": None})
    assert sitecustomize._OPTIONS == OPTIONS


def test_a_python_that_got_no_options_is_left_as_it_is() -> None:
    place = str(Path(at_start.__file__).parent)
    places = os.pathsep.join([place, str(Path(__file__).parents[2])])
    words = ("-c", "import sys; print([type(one).__name__ for one in sys.meta_path])")
    told = [process(*words, env={"PYTHONPATH": places, **more}).out for more in ({}, {OPTIONS: "{}"})]
    assert ["_Finder" in names for names in told] == [False, True]


def test_where_another_sim_comes_first_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Made:
        whole = False

        def __init__(self) -> None:
            self.whole = True

    sitecustomize._follow(Made, {})
    monkeypatch.setitem(sys.modules, "sim.autotuner.attached", None)
    assert Made().whole
    assert capsys.readouterr().err.endswith("; nothing is tuned\n")


@pytest.mark.parametrize("number", autotuning._PASSED_ON)
def test_what_a_scheduler_sends_goes_to_the_command(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        waits = f"trap 'exit 9' {number.name[3:]}; kill -{number.name[3:]} $PPID; "
        script = waits + "for _ in $(seq 6000); do sleep 0.01; done"
        assert autotuning._run(["sh", "-c", script], dict(os.environ)) == 9
        assert heard == []
        signal.raise_signal(number)
        assert heard == [number]
        signal.signal(number, signal.SIG_IGN)  # nohup
        assert autotuning._run(["sh", "-c", f"kill -{number.name[3:]} $PPID; exit 3"], dict(os.environ)) == 3
    finally:
        signal.signal(number, before)


def test_what_an_earlier_run_told_is_not_told_again(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "model-1"):
        folder.mkdir(exist_ok=True)
        (folder / FILE_NAME).write_text("{}")
    before = autotuning._written(tmp_path)
    assert set(before) == {tmp_path.name, "model-1"}
    os.utime(tmp_path / "model-1" / FILE_NAME, ns=(1, 1))
    now = autotuning._written(tmp_path)
    assert [name for name in now if now[name] != before[name]] == ["model-1"]


def test_a_cache_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    said = bucketsim("autotune", "--cache", tmp_path / "none" / "kept.json", "--", "touch", tmp_path / "ran")
    assert said.code != 0
    assert "--cache" in said.err
    assert not (tmp_path / "ran").exists()
