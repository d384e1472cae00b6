"""``bucketsim autotune -- COMMAND``: scripts that nobody edited, and those in which nothing can be tuned."""

import os
import sys
from pathlib import Path

import pytest

from sim.autotuner.unedited import options_from, tuned_environment
from tests.commands import Said, process

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
    assert (made["A"], options_from(made)) == ("b", {"live": "there", "cache": None})
