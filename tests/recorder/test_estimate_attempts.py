"""What runs for real in an estimate, and what is told before: making the model, its step, or nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sim.recorder.estimate import estimate

ROWS = 2_000  # of 1,024 values
FACTORY, STEP = f"{__name__}:factory", f"{__name__}:training_step"


class Model(nn.Module):
    """Two layers; what ``how`` names needs values while it is made."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(1024, 4096), nn.Linear(4096, 1024)
        self.factor: Any = 1.0
        if how == "truncated":
            nn.init.trunc_normal_(self.first.weight, std=0.02)
        elif how == "orthogonal":
            nn.init.orthogonal_(self.first.weight)
        elif how == "item":
            self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        elif how == "tolist":
            self.rates = torch.arange(5).tolist()
        elif how == "numpy":
            self.factor = float(torch.linspace(0, 0.1, 3).numpy().mean())
        elif how == "from numpy":
            values = np.random.default_rng(0).normal(size=(4096, 1024)).astype(np.float32)
            self.first.weight.data = torch.from_numpy(values)
        elif how == "loop":
            while bool((self.first.weight.abs() > 0.03).any()):
                nn.init.uniform_(self.first.weight, -0.03, 0.03)
        elif how == "size":
            self.register_buffer("places", torch.ones(7).nonzero())
        elif how == "cuda":
            self.rates = torch.linspace(0, 0.1, 3, device="cuda").tolist()
            self.cuda()
        elif how == "constants":  # tensors that are neither parameters nor buffers
            self.rates, self.factor = torch.arange(3).tolist(), torch.tensor(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "constants":
            x = x * int(self.factor)
        loss: Tensor = self.second(self.first(x).relu()).square().mean()
        if self.how == "branch" and loss > 0:
            loss = loss * 2
        return loss


def factory(how: str, rows: int = ROWS) -> tuple[nn.Module, tuple[Tensor]]:
    return Model(how), (torch.randn(rows, 1024),)


def training_step(how: str, rows: int = ROWS) -> Any:
    model, (x,) = factory(how, rows)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step


def walked(spec: str, how: str, **arguments: Any) -> tuple[str, list[str], tuple[int, ...]]:
    told: list[str] = []
    workload = estimate(
        spec, arguments={"how": how, **arguments}, name=how, backward_ns=10**7, gpu="a40", tell=told.append
    )
    return workload.provenance["walked_on"], told, workload.order()


@pytest.mark.parametrize("spec", [FACTORY, STEP])
@pytest.mark.parametrize("how", ["nothing", "truncated", "orthogonal", "from numpy"])
def test_nothing_runs_for_real_where_nothing_is_read(spec: str, how: str) -> None:
    on, told, order = walked(spec, how)
    assert (on, told, order) == ("stand-ins without data", [], (3, 2, 1, 0))


@pytest.mark.parametrize("spec", [FACTORY, STEP])
@pytest.mark.parametrize("how", ["item", "tolist", "numpy", "loop", "size", "cuda", "constants"])
def test_only_the_making_runs_for_real_where_only_it_reads(spec: str, how: str) -> None:
    on, told, order = walked(spec, how)
    assert on.startswith("stand-ins of a model that was built for real")
    assert order == (3, 2, 1, 0)
    (line,) = told
    assert f"{Path(__file__).name}:" in line  # where, and what
    if how not in ("numpy",):
        assert "aten." in line


@pytest.mark.parametrize("spec", [FACTORY, STEP])
def test_a_step_that_reads_runs_for_real_and_says_so_first(spec: str) -> None:
    on, told, order = walked(spec, "branch", rows=10)
    assert on.startswith("real tensors on the CPU")
    assert order == (3, 2, 1, 0)
    assert "for real on the CPU" in told[-1]
    assert "in forward" in told[-1]
    assert "aten._local_scalar_dense" in told[-1]


def test_the_walk_on_real_parameters_is_that_on_stand_ins() -> None:
    same = [
        estimate(spec, arguments={"how": how}, name="x", backward_ns=10**7, gpu="a40", tell=lambda _: None)
        for spec, how in ((FACTORY, "nothing"), (FACTORY, "tolist"))
    ]
    assert same[0].gradients == same[1].gradients
    assert same[0].provenance["work"] == same[1].provenance["work"]
