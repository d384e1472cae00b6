"""However many lanes a replay has, all of them together hold one copy of the gradients."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sim
from sim.errors import MachineError
from sim.nouns.workload import Workload
from sim.recorder.factory import load_factory
from sim.recorder.profile import record as record_step
from sim.validator.jobs import Candidate, ReplayJob, UserModel
from sim.validator.ranks import model, paced
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import Lane
from tests.dist.starting import order

MODEL = UserModel(factory="tests.dist.factories:regression", arguments={"width": 32})
GRADIENTS = 4 * 33 * 32 * 4  # bytes


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def workload() -> Workload:
    return record_step(load_factory(MODEL.factory, arguments=MODEL.arguments), name="regression", repeats=3)


def candidates(workload: Workload) -> list[Candidate]:
    made = {
        "default": sim.assign(workload),
        "views": sim.assign(workload, gradient_as_bucket_view=True),
        "kept": sim.assign(workload, set_to_none=False),
        "kept views": sim.assign(workload, gradient_as_bucket_view=True, set_to_none=False),
        "small": sim.assign(workload, bucket_cap_mb=0.005),
    }
    return [Candidate(name=name, assignment=one) for name, one in made.items()]


def run(lanes_of: ModuleType, make: str, job: ReplayJob, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of all lanes, after three rounds."""
    wrap, models = lanes_of.wrap, []

    def wrapped(module: torch.nn.Module, candidate: Candidate) -> Any:
        models.append(made := wrap(module, candidate))
        return made

    monkeypatch.setattr(lanes_of, "wrap", wrapped)
    lanes: list[Lane] = getattr(lanes_of, make)(Rank(job))
    for lane in 3 * lanes:
        lane.step()
    return [model for model, _ in models]


def held_beside_buckets(models: list[Any]) -> int:
    """Bytes of gradients, each storage once, of models whose gradients are no views of their buckets."""
    own = {
        parameter.grad.untyped_storage().data_ptr(): parameter.grad.untyped_storage().nbytes()
        for model in models
        if not model.gradient_as_bucket_view
        for parameter in model.parameters()
        if parameter.grad is not None
    }
    return sum(own.values())


@pytest.mark.dist
def test_lanes_of_a_model(alone: None, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(workload, candidates(workload), model=MODEL)
    models = run(model, "model_lanes", job, monkeypatch)
    assert len(models) >= 10
    assert held_beside_buckets(models) <= GRADIENTS


@pytest.mark.dist
def test_paced_lanes(alone: None, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(workload, candidates(workload))
    models = [one for one in run(paced, "paced_lanes", job, monkeypatch) if hasattr(one, "parameters")]
    assert len(models) >= 10
    assert held_beside_buckets(models) <= GRADIENTS


@pytest.mark.parametrize(("probed", "lanes"), [(True, 11), (False, 5)])
def test_lanes_that_do_not_fit_are_told_before_the_first_step(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, probed: bool, lanes: int
) -> None:
    """With what there is: a copy of the gradients for each lane that has a DDP, and one beside."""
    job = order(workload, candidates(workload), model=MODEL, probed=probed)
    module = load_factory(MODEL.factory, arguments=MODEL.arguments)[0]
    gpu = torch.device("cuda", 3)
    free = (lanes + 1) * GRADIENTS
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    model._check_room(job, module, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - 1, 1 << 40))
    with pytest.raises(MachineError, match=f"memory: {lanes} lanes .* on cuda:3") as refused:
        model._check_room(job, module, gpu)
    assert ("--steps-only" in str(refused.value)) == probed
