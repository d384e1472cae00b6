"""However many lanes a replay has, all of them together hold one copy of the gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sim
from sim.recorder.models import load_factory
from sim.recorder.profile import record as record_step
from sim.validator.jobs import Candidate, UserModel
from sim.validator.ranks import reducer
from sim.validator.ranks.model import model_lanes
from sim.validator.ranks.paced import paced_lanes
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import Lane
from tests.dist.starting import order

MODEL = UserModel(factory="tests.dist.factories:regression", arguments={"width": 32})
GRADIENTS = 4 * 33 * 32 * 4  # bytes
ASKED: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"set_to_none": False},
    {"gradient_as_bucket_view": True, "set_to_none": False},
    {"bucket_cap_mb": 0.005},
]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.dist
@pytest.mark.parametrize(
    ("lanes_of", "user_model"),
    [(model_lanes, MODEL), (paced_lanes, None)],
    ids=["model", "paced"],
)
def test_lanes_hold_one_copy(
    lanes_of: Callable[[Rank], list[Lane]],
    user_model: UserModel | None,
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrap, models = reducer._wrap, []

    def wrapped(one: torch.nn.Module, candidate: Candidate) -> Any:
        models.append(made := wrap(one, candidate))
        return made

    made = load_factory(MODEL.factory, arguments=MODEL.arguments)
    workload = record_step(made, name="regression", repeats=3)
    candidates = [Candidate(name=str(one), assignment=sim.assign(workload, **one)) for one in ASKED]
    monkeypatch.setattr(reducer, "_wrap", wrapped)
    for lane in 3 * lanes_of(Rank(order(workload, candidates, model=user_model))):
        lane.step()
    assert len(models) >= 10
    own = {
        parameter.grad.untyped_storage().data_ptr(): parameter.grad.untyped_storage().nbytes()
        for one, _ in models
        if not one.gradient_as_bucket_view  # whose gradients are views of their buckets
        for parameter in one.parameters()
        if parameter.grad is not None
    }
    assert sum(own.values()) <= GRADIENTS
