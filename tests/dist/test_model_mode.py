"""The user's own model on real ranks: against the prediction, and default against recommendation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sim
from sim.errors import InputError
from sim.formats.record_files import load_record, start_record
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.recorder.models import load_factory
from sim.recorder.training_step import record as record_step
from sim.validator.jobs import Candidate, UserModel
from sim.validator.launch import Place
from sim.validator.ranks import reducer
from sim.validator.ranks.model import _check_parameters, model_lanes
from sim.validator.ranks.paced import paced_lanes
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.step import Lane
from sim.validator.replay import replay
from tests.dist.starting import FLAT, order

pytestmark = pytest.mark.dist

HERE = "tests.dist.factories"
MODEL = UserModel(factory=f"{HERE}:regression", arguments={"width": 32})
# Weights 0, 2, 4, 6 and biases 1, 3, 5, 7: not contiguous in ready order.
FREE = Assignment(bucket_indices=((6, 4), (7, 5, 3, 1), (2, 0)))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return record_step(load_factory(MODEL.factory, arguments=MODEL.arguments), name="regression", repeats=3)


@pytest.mark.slow
def test_the_real_model_runs_every_candidate(workload: Workload, tmp_path: Path) -> None:
    asked = [
        Candidate(name="DDP default", assignment=sim.assign(workload)),
        Candidate(name="cap 0.005", assignment=sim.assign(workload, bucket_cap_mb=0.005)),
        Candidate(name="free", assignment=FREE),
    ]
    directory = start_record(tmp_path / "record", workload, FLAT)
    replay(order(workload, asked, model=MODEL, rounds=3), Place(), directory)
    record = load_record(directory)
    assert [m.name for m in record.measurements] == ["plain", "noop", *(c.name for c in asked)]
    for measured in record.measurements:
        assert (measured.mode, measured.backend, measured.complete) == ("model", "gloo", True)
        about = measured.environment["model"]
        assert about["factory"] == MODEL.factory
        assert (about["parameters"], about["compiled"]) == (4 * 33 * 32, False)
        for iteration in measured.iterations:
            assert 0 < iteration.backward_end_ns <= iteration.sync_end_ns < iteration.step_ns
    for candidate, measured in zip(asked, record.candidates, strict=True):
        assert measured.observed is not None
        assert [set(b) for b in measured.observed] == [set(b) for b in candidate.assignment.bucket_indices]
        for iteration in measured.traced:
            assert [bucket.index for bucket in iteration.buckets] == list(range(len(measured.observed)))
            for bucket in iteration.buckets:
                assert bucket.ready_ns is not None
                assert bucket.end_ns is not None
                assert 0 < bucket.ready_ns < bucket.end_ns <= iteration.sync_end_ns
    assert {row.name for row in sim.agreement(record).rows} == {candidate.name for candidate in asked}


@pytest.mark.parametrize(
    ("factory", "arguments", "words"),
    [
        ("regression", {"width": 33}, r"parameter 0 is layers.0.weight \[33, 33\].*\[32, 32\]"),
        ("changing", {}, "another model at its second call"),
        ("step", {}, r"a function is not legal; return \(model, batch\)"),
        ("wrapped", {}, "sharded by DataParallel already"),
    ],
)
def test_a_model_that_cannot_be_replayed_is_refused_with_its_reason(
    workload: Workload, factory: str, arguments: dict[str, Any], words: str
) -> None:
    model = UserModel(factory=f"{HERE}:{factory}", arguments=arguments)
    known = workload if factory == "regression" else None
    with pytest.raises(InputError, match=words):
        model_lanes(Rank(order(known, [Candidate(name="d")], model=model, probed=False)))


def test_a_module_around_the_model_is_no_other_model() -> None:
    """What a job recorded bare is replayed with a module that adds the loss."""
    recorded = [[f"layers.{number}.weight", [2, 2], "float32"] for number in range(3)]
    around = [[f"model.{name}", *facts] for name, *facts in recorded]
    _check_parameters(around, recorded)
    _check_parameters(recorded, around)
    with pytest.raises(InputError, match=r"parameter 2 is layers.3.weight .* workload layers.2.weight"):
        _check_parameters([*recorded[:2], ["layers.3.weight", [2, 2], "float32"]], recorded)


@pytest.mark.slow
def test_a_compiled_model_is_compiled_for_every_lane_and_what_ran_is_recorded(tmp_path: Path) -> None:
    """A8.10: torch.compile orders gradients anew; buckets are then recorded, not required."""
    arguments = {"width": 512}
    model = UserModel(factory=f"{HERE}:compiled", arguments=arguments)
    eager = load_factory(f"{HERE}:regression", arguments=arguments)
    workload = record_step(eager, name="eager", repeats=1)
    asked = [
        Candidate(name="DDP default", assignment=sim.assign(workload)),
        # Dynamo's DDPOptimizer takes no cap below its first bucket's, 1 MiB.
        Candidate(name="cap 1", assignment=sim.assign(workload, bucket_cap_mb=1)),
    ]
    measured = replay(order(workload, asked, model=model, rounds=1), Place(), tmp_path)
    assert all(one.environment["model"]["compiled"] for one in measured)
    for one in measured[2:]:
        assert one.observed is not None
        assert sorted(index for bucket in one.observed for index in bucket) == list(range(8))
    assert len(measured[3].observed or ()) > len(measured[2].observed or ())


# However many lanes a replay has, all of them together hold one copy of the gradients.

SWITCHES: list[dict[str, Any]] = [
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


@pytest.mark.parametrize(("lanes_of", "model"), [(model_lanes, MODEL), (paced_lanes, None)])
def test_lanes_hold_one_copy(
    lanes_of: Callable[[Rank], list[Lane]],
    model: UserModel | None,
    workload: Workload,
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrap, models = reducer._wrap, list[Any]()

    def wrapped(one: torch.nn.Module, candidate: Candidate) -> Any:
        models.append(made := wrap(one, candidate))
        return made

    candidates = [Candidate(name=str(one), assignment=sim.assign(workload, **one)) for one in SWITCHES]
    monkeypatch.setattr(reducer, "_wrap", wrapped)
    for lane in 3 * lanes_of(Rank(order(workload, candidates, model=model))):
        lane.step()
    assert len(models) >= 10
    own = {
        parameter.grad.untyped_storage().data_ptr(): parameter.grad.untyped_storage().nbytes()
        for one, _ in models
        if not one.gradient_as_bucket_view  # whose gradients are views of their buckets
        for parameter in one.parameters()
        if parameter.grad is not None
    }
    assert sum(own.values()) <= workload.total_bytes == 4 * 33 * 32 * 4
