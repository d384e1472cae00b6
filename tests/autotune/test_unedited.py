"""``python -m sim.tuned``: scripts that nobody edited, and those in which nothing can be tuned."""

import os
from pathlib import Path

import pytest

from tests.commands import Said, process
from tests.effort import PATIENCE_S
from tests.ranks import start

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

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_a_script_that_nobody_edited_is_tuned_to_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    said = process(*LAUNCH, "-m", "sim.tuned", tmp_path / "train.py", "--lr", 1, env=ENVIRONMENT)
    assert said.code == 0, said.err
    plain = process(*LAUNCH, tmp_path / "train.py", env=ENVIRONMENT)
    (alone,) = {line for line in plain.out.splitlines() if line.startswith("left 0")}
    assert said.out.count(alone) == 2  # to the bit, on both ranks
    (verdict,) = (line for line in said.err.splitlines() if "autotune of Sequential" in line)
    assert "on 2 rank(s): kept: faster" in verdict or "on 2 rank(s): reverted: " in verdict, verdict


def tuned(folder: Path, script: str) -> Said:
    """The script, with what it would print behind its own folder and arguments; quickly started."""
    out, err = folder / "out", folder / "err"
    (folder / "train.py").write_text(script)
    (folder / "beside.py").write_text("")
    rank = start("sim.tuned", [folder / "train.py", "--lr", 1], err, out=out)
    rank.join(PATIENCE_S)
    assert rank.exitcode is not None, "it does not end"
    return Said(code=rank.exitcode, out=out.read_text(), err=err.read_text())


def test_one_rank_is_refused_by_name(tmp_path: Path) -> None:
    alone = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)'
    said = tuned(tmp_path, TRAIN.replace('dist.init_process_group("gloo")', alone).replace("260", "2"))
    # Not its code: gloo threads that torch leaves may abort any process as it ends (pytorch#190489).
    assert said.out.startswith("left 0, weights"), said.err
    assert "autotune of Sequential on 1 rank(s): refused: world_size: one rank reduces nothing" in said.err


def test_a_script_ends_as_it_would_and_sees_what_it_would(tmp_path: Path) -> None:
    said = tuned(tmp_path, "import beside, sys; print(sys.argv[1:], __name__); sys.exit(7)")
    assert said.code == 7
    assert said.out == "['--lr', '1'] __main__\n"
    assert "nothing was tuned" in said.err
