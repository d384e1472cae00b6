"""Simulation against real DistributedDataParallel: every collective of construction and of four iterations.

Kind, elements, dtype, phase, gradient, root and order are compared exactly. A workload knows no frozen
parameters, which DDP's constructor sends along with the others: they are taken out of what was sent.
"""

import itertools
from collections import Counter
from typing import Any

import pytest

import sim
from sim.errors import SimError
from tests.systems.ddp_cases import random_case
from tests.systems.ddp_ranks import run_cases
from tests.systems.ddp_simulated import expected_events, options_of, workload_of
from tests.this_torch import Ran, takes

pytestmark = pytest.mark.dist

Case = dict[str, Any]
Answers = list[dict[str, Any]]
SAMPLE = range(10)
MANY = range(1000, 1120)
CAP = {"bucket_cap_mb": 0.001}


def linears(*dims: int) -> list[dict[str, Any]]:
    return [{"kind": "linear", "width": a, "out": b} for a, b in itertools.pairwise(dims)]


def with_extra(**extra: Any) -> list[dict[str, Any]]:
    """Three layers, of which the middle one is special."""
    return [*linears(20, 12), {"kind": "linear", "width": 12, "out": 12, **extra}, *linears(12, 9)]


NORMS = [*linears(8, 12), {"kind": "batch_norm", "width": 12}, *linears(12, 6)]
MIXED = [*linears(8, 12), {"kind": "batch_norm", "width": 12, "dtype": "bfloat16"}, *linears(12, 6)]

# One case for each thing that changes the sequence.
NAMED: dict[str, Case] = {
    "caps of DDP's own": {"layers": linears(300, 400, 500, 200), "ddp": {}},
    "caps in a list": {"layers": linears(20, 12, 15, 9), "ddp": {"bucket_cap_mb_list": [2e-4, 1e-3]}},
    "buffers, accumulated": {"layers": NORMS, "ddp": CAP, "accumulation": 3},
    "buffers of two dtypes": {"layers": MIXED, "ddp": CAP},
    "no buffers in forward": {"layers": NORMS, "ddp": {**CAP, "forward_sync_buffers": False}},
    "no buffers at all": {"layers": NORMS, "ddp": {**CAP, "broadcast_buffers": False}},
    "frozen": {"layers": with_extra(frozen=["weight"]), "ddp": CAP},
    "unused, searched": {"layers": with_extra(used=False), "ddp": {**CAP, "find_unused_parameters": True}},
    "unused now and then": {
        "layers": with_extra(used=[2, 4]),
        "ddp": {**CAP, "find_unused_parameters": True},
    },
    "unused on one rank": {"layers": with_extra(ranks=[1]), "ddp": {**CAP, "find_unused_parameters": True}},
    "outside of the loss": {
        "layers": with_extra(outside=True),
        "ddp": {**CAP, "find_unused_parameters": True},
    },
    "unused, skipped": {
        "layers": with_extra(used=False),
        "ddp": {"bucket_cap_mb": 0, "find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    },
    "unused, static": {"layers": with_extra(used=False), "ddp": {**CAP, "static_graph": True}},
    "twice, static": {
        "layers": with_extra(times=2, checkpoint="reentrant"),
        "ddp": {**CAP, "static_graph": True},
    },
    "compressed": {"layers": linears(20, 12, 9), "ddp": CAP, "hook": {"name": "fp16_compress"}},
}
THREE_RANKS: dict[str, Case] = {
    "plain": {"layers": NORMS, "ddp": CAP},
    "static": {"layers": with_extra(used=False), "ddp": {**CAP, "static_graph": True}},
}
LAST_CAP: dict[str, Case] = {
    "cap": {"layers": linears(20, 12, 15, 9), "ddp": CAP},
    "static": {"layers": linears(20, 12, 15, 9), "ddp": {**CAP, "static_graph": True}},
    "searched": {"layers": linears(20, 12, 15, 9), "ddp": {**CAP, "find_unused_parameters": True}},
    "list": {"layers": NORMS, "ddp": {"bucket_cap_mb_list": [2e-4, 1e-3]}},
}
# name -> (case, what torch raises, in which phase and iteration)
REFUSED: dict[str, tuple[Case, str, tuple[str, int]]] = {
    "unused": (
        {"layers": with_extra(used=False), "ddp": CAP},
        "Expected to have finished reduction in the prior iteration",
        ("before forward", 2),
    ),
    "ready twice": (
        {"layers": with_extra(times=2, checkpoint="reentrant"), "ddp": CAP},
        "Expected to mark a variable ready only once",
        ("backward", 1),
    ),
    "static and accumulated": (
        {"layers": linears(20, 12, 9), "ddp": {**CAP, "static_graph": True}, "accumulation": 2},
        "expect_autograd_hooks_ INTERNAL ASSERT FAILED",
        ("end of backward", 1),
    ),
    "nothing to learn": (
        {"layers": [{"kind": "linear", "width": 4, "out": 4, "frozen": True}], "ddp": CAP},
        "DistributedDataParallel is not needed",
        ("construction", 0),
    ),
}
CREATE_GRAPH: Case = {"layers": linears(20, 12, 9), "ddp": CAP, "create_graph": True}


def without_frozen(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The events, with frozen parameters taken out of the broadcasts of the whole model."""
    frozen: Counter[str] = Counter()
    for parameter in answer["frozen"]:
        frozen[parameter["dtype"]] += parameter["numel"]
    events = []
    for event in answer["events"]:
        of_the_model = event["kind"] == "broadcast" and event["phase"] == "construction"
        left_out = frozen[event["dtype"]] if of_the_model else 0
        if event["elements"] > left_out or not left_out:
            events.append({**event, "elements": event["elements"] - left_out})
    return events


def compare(case: Case, answers: Answers, **more: Any) -> None:
    answer = answers[0]
    assert answer["error"] is None
    simulated, real = expected_events(case, answer, **more), without_frozen(answer)
    for number, (mine, theirs) in enumerate(zip(simulated, real, strict=False)):
        assert mine == theirs, f"collective {number}"
    assert len(simulated) == len(real)


def answer_all(cases: dict[Any, Case], **how: Any) -> Ran:
    taken = {name: case for name, case in cases.items() if takes(case["ddp"])}
    return Ran(dict(zip(taken, run_cases(list(taken.values()), **how), strict=True)), cases)


@pytest.fixture(scope="module")
def real() -> dict[Any, Answers]:
    """What two ranks did in the normal suite's cases."""
    return answer_all(
        {
            **NAMED,
            **{seed: random_case(seed) for seed in SAMPLE},
            **{name: case for name, (case, _, _) in REFUSED.items()},
            "create_graph": CREATE_GRAPH,
        }
    )


@pytest.mark.parametrize("name", NAMED)
def test_sequence(name: str, real: dict[Any, Answers]) -> None:
    """A2.6-A2.8, A3.5, A3.9, A3.12-A3.19, A8.1."""
    compare(NAMED[name], real[name])


@pytest.mark.parametrize("seed", SAMPLE)
def test_random_sequence(seed: int, real: dict[Any, Answers]) -> None:
    """The same for random models and settings."""
    compare(random_case(seed), real[seed])


def test_sequence_is_what_ddp_logs(real: dict[Any, Answers]) -> None:
    """A2.4: the steady iteration's buckets are those that DDP says it has rebuilt, in order."""
    for name, case in NAMED.items():
        if name not in real or case["ddp"].get("find_unused_parameters"):
            continue  # not of this torch, or never rebuilt
        answer = real[name][0]
        made = sim.assign(workload_of(answer, len(answer["ready"])), **options_of(case))
        said = [
            [int(place) for place in bucket.split()]
            for bucket in answer["log"]["rebuilt_per_bucket_param_indices"].split(",")
        ]
        assert [list(bucket) for bucket in made.bucket_indices] == said, name
        assert ", ".join(map(str, made.bucket_bytes or ())) == answer["log"]["rebuilt_bucket_sizes"], name


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str, real: dict[Any, Answers]) -> None:
    """A3.21, A8.5: where the real run stops, the simulator says no."""
    case, text, (phase, iteration) = REFUSED[name]
    for answer in real[name]:
        error = answer["error"]
        assert error is not None
        assert error["text"].startswith(text)
        assert (error["phase"], error["iteration"]) == (phase, iteration)
    with pytest.raises(SimError):
        sim.explain(workload_of(real[name][0]), **options_of(case))


def test_create_graph_stops_in_iteration_1(real: dict[Any, Answers]) -> None:
    """A8.5: no switch of the simulator's stands for it."""
    error = real["create_graph"][0]["error"]
    assert error["text"].startswith("a leaf Variable that requires grad is being used in an in-place")
    assert (error["phase"], error["iteration"]) == ("backward", 1)


def test_three_ranks() -> None:
    """What is sent does not depend on how many ranks there are."""
    for name, answers in answer_all(THREE_RANKS, world_size=3).items():
        compare(THREE_RANKS[name], answers, world_size=3)


def test_last_bucket_cap() -> None:
    """A2.5: DDP_SET_LAST_BUCKET_CAP=1 changes the rebuilt buckets, and nothing before them."""
    for name, answers in answer_all(LAST_CAP, DDP_SET_LAST_BUCKET_CAP="1").items():
        compare(LAST_CAP[name], answers, set_last_bucket_cap=True)


@pytest.fixture(scope="module")
def many() -> dict[int, Answers]:
    """What two ranks did in many random cases."""
    return answer_all({seed: random_case(seed) for seed in MANY})


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_many_random_sequences(seed: int, many: dict[int, Answers]) -> None:
    """Random models and settings by seed."""
    compare(random_case(seed), many[seed])


def test_random_cases_try_every_setting() -> None:
    """What the random comparison would not notice is not left to chance."""
    cases = [random_case(seed) for seed in MANY]
    tried = Counter(name for case in cases for name, value in case["ddp"].items() if value is not None)
    tried.update("accumulation" for case in cases if case["accumulation"] > 1)
    tried.update(case["hook"]["name"] for case in cases if "hook" in case)
    tried.update(key for case in cases for layer in case["layers"] for key in layer)
    wanted = {
        *("bucket_cap_mb", "bucket_cap_mb_list", "find_unused_parameters", "static_graph"),
        *("gradient_as_bucket_view", "batched_grad_copy", "skip_all_reduce_unused_params"),
        *("forward_sync_buffers", "broadcast_buffers", "accumulation", "fp16_compress"),
        *("noop", "allreduce", "builtin_allreduce", "builtin_fp16_compress", "fp16_wrapped_allreduce"),
        *("used", "ranks", "outside", "times", "checkpoint", "frozen", "tied", "sparse", "dtype"),
    }
    assert {name for name in wanted if tried[name] < 3} == set()
