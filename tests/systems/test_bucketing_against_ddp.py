"""Our assignments against real DistributedDataParallel: one rank over gloo, in processes of their own.

Every case trains four iterations; what the Reducer logs and what its communication hook saw are compared
with ``sim.assign`` for iterations 1, 2 and steady.
"""

import itertools
import random
from typing import Any

import pytest

import sim
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired
from tests.ranks import answered
from tests.this_torch import Ran, takes

pytestmark = pytest.mark.dist

M1 = [64, 128, 96, 80, 112, 32]
MIB = 1 << 20
Spec = dict[str, Any]


def mlp(dims: list[int], dtypes: list[str] | None = None) -> Spec:
    return {"kind": "mlp", "dims": dims, "dtypes": dtypes or []}


def mlp_workload(spec: Spec) -> Workload:
    """What an MLP makes ready: last layer first, and of each layer its bias first (A6.5)."""
    sizes, kinds = [], []
    dims = spec["dims"]
    for layer, (a, b) in enumerate(itertools.pairwise(dims)):
        dtype = spec["dtypes"][layer] if layer < len(spec["dtypes"]) else "float32"
        sizes += [a * b, b]
        kinds += [dtype, dtype]
    return make_workload(
        [(size, 4 if kind == "float32" else 2, kind, False) for size, kind in zip(sizes, kinds, strict=True)],
        list(range(len(sizes)))[::-1],
    )


def make_workload(parameters: list[Any], order: list[int]) -> Workload:
    numels, _, dtypes, sparse = zip(*parameters, strict=True)
    return handmade(
        [order.index(index) for index in range(len(parameters))],
        shapes=[(numel,) for numel in numels],
        dtypes=dtypes,
        sparse=[index for index, is_sparse in enumerate(sparse) if is_sparse],
        backward_ns=len(order),
    )


def _random_cases() -> dict[str, tuple[Spec, dict[str, Any]]]:
    generator = random.Random(0)
    cases: dict[str, tuple[Spec, dict[str, Any]]] = {}
    for number in range(24):
        dims = [generator.randint(1, 96) for _ in range(generator.randint(2, 8))]
        dtypes = [generator.choice(["float32", "bfloat16"]) for _ in dims] if number % 4 == 3 else None
        total = sum(4 * (a * b + b) for a, b in itertools.pairwise(dims)) / MIB
        if number % 2:
            caps = [generator.uniform(0, total) for _ in range(generator.randint(1, 5))]
            cases[f"random list {number}"] = (mlp(dims, dtypes), {"bucket_cap_mb_list": caps})
        else:
            cases[f"random cap {number}"] = (
                mlp(dims, dtypes),
                {"bucket_cap_mb": generator.uniform(0, total)},
            )
    return cases


# name -> (model, arguments of sim.assign)
CASES: dict[str, tuple[Spec, dict[str, Any]]] = {
    "T1": (mlp(M1), {"bucket_cap_mb": 0.05}),
    "T4": (
        mlp([17, 33, 65, 29, 51, 7]),
        {"bucket_cap_mb_list": [size / MIB for size in (1660, 13832, 10956)]},
    ),
    "T10": ({"kind": "embedding"}, {"bucket_cap_mb_list": [70e3 / MIB, 1.0]}),
    "sparse, default": ({"kind": "embedding"}, {}),
    "default": (mlp([256, 512, 700, 640, 64]), {}),
    "default, small model": (mlp(M1), {}),
    "explicit 25": (mlp([256, 512, 700, 640, 64]), {"bucket_cap_mb": 25}),
    "explicit 1": (mlp([256, 512, 700, 640, 64]), {"bucket_cap_mb": 1}),
    "explicit 0": (mlp(M1), {"bucket_cap_mb": 0}),
    "first bucket": (mlp(M1), {"first_bucket_mb": 0.01}),
    "first bucket and cap": (mlp(M1), {"first_bucket_mb": 0.01, "bucket_cap_mb": 0.06}),
    "bucket views": (mlp(M1), {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": True}),
    "per-parameter": (mlp(M1), {"policy": "per-parameter"}),
    "single": (mlp(M1), {"policy": "single"}),
    "two dtypes": (mlp(M1, ["float32", "bfloat16", "float32", "bfloat16"]), {"bucket_cap_mb": 0.03}),
    "two dtypes, default": (mlp(M1, ["float32", "bfloat16"]), {}),
    "norms": ({"kind": "norms", "width": 16}, {"bucket_cap_mb": 0.001}),
    "an empty parameter": ({"kind": "empty"}, {"bucket_cap_mb_list": [40 / MIB, 256 / MIB]}),
    "an empty parameter, cap 0": ({"kind": "empty"}, {"bucket_cap_mb": 0}),
    **_random_cases(),
}
LAST_CAP: dict[str, tuple[Spec, dict[str, Any]]] = {  # A2.5, with DDP_SET_LAST_BUCKET_CAP=1
    "T5": (mlp([256, 512, 700, 640, 2000, 512, 64]), {}),
    "explicit": (mlp(M1), {"bucket_cap_mb": 0.05}),
    "list": (mlp(M1), {"bucket_cap_mb_list": [0.01, 0.05]}),
    "two dtypes": (mlp(M1, ["float32", "bfloat16"]), {"bucket_cap_mb": 0.02}),
    "norms": ({"kind": "norms", "width": 16}, {"bucket_cap_mb": 0.001}),
    "sparse": ({"kind": "embedding"}, {"bucket_cap_mb_list": [70e3 / MIB, 1.0]}),
}
SNIPPETS: dict[str, dict[str, Any]] = {  # arguments of sim.assign on M1
    "default": {},
    "cap": {"bucket_cap_mb": 0.05},
    "list": {"bucket_cap_mb_list": [0.01, 0.05]},
    "first bucket": {"first_bucket_mb": 0.02},
    "first bucket and cap": {"first_bucket_mb": 0.02, "bucket_cap_mb": 0.05},
    "per-parameter": {"policy": "per-parameter"},
    "single": {"policy": "single"},
    "views": {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": True},
    "last bucket cap": {"bucket_cap_mb": 0.05, "set_last_bucket_cap": True},
}


def real_kwargs(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same wish in torch's own words."""
    kwargs = dict(arguments)
    policy = kwargs.pop("policy", "ddp")
    if "first_bucket_mb" in kwargs:
        kwargs["bucket_cap_mb_list"] = [kwargs.pop("first_bucket_mb"), kwargs.pop("bucket_cap_mb", 25)]
    if policy == "per-parameter":
        kwargs["bucket_cap_mb"] = 0
    elif policy == "single":
        kwargs["bucket_cap_mb"] = 1000
    return kwargs


def work(cases: dict[str, dict[str, Any]], **environment: str) -> Ran:
    taken = {name: case for name, case in cases.items() if takes(case["kwargs"])}
    return Ran(answered("tests.systems.bucketing_worker", taken, environment), cases)


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """What real DDP did in every case."""
    cases = {
        name: {"model": spec, "kwargs": real_kwargs(arguments)} for name, (spec, arguments) in CASES.items()
    }
    workload = mlp_workload(mlp(M1))
    for name, arguments in SNIPPETS.items():
        if name != "last bucket cap":
            made = sim.assign(workload, **arguments)
            text = sim.snippet(made, workload)
            cases[f"snippet: {name}"] = {"model": mlp(M1), "snippet": text, "kwargs": made.ddp_kwargs}
    return work(cases)


@pytest.fixture(scope="module")
def real_last_cap() -> dict[str, Any]:
    """The same where ``DDP_SET_LAST_BUCKET_CAP`` is set."""
    cases = {
        name: {"model": spec, "kwargs": real_kwargs(arguments)}
        for name, (spec, arguments) in LAST_CAP.items()
    }
    return work(cases, DDP_SET_LAST_BUCKET_CAP="1")


def lists(buckets: Any) -> list[list[int]]:
    return [list(bucket) for bucket in buckets]


def compare(answer: dict[str, Any], arguments: dict[str, Any], **more: Any) -> None:
    workload = make_workload(answer["parameters"], answer["ready_order"])
    for iteration in ("steady", 2, 3):
        mine = lists(sim.assign(workload, iteration=iteration, **arguments, **more).bucket_indices)
        assert mine == answer["buckets"], iteration
    _, *rebuilt = answer["by_iteration"]
    if rebuilt[0]:  # no communication hook where a gradient is sparse
        assert all(seen == answer["buckets"] for seen in rebuilt)  # A3.5: launched in bucket order


@pytest.mark.parametrize("name", CASES)
def test_rebuilt_buckets_are_ddps(name: str, real: dict[str, Any]) -> None:
    """A1, A2.1, A2.4, A2.6, A3.5: the same indices in the same order, from iteration 2 on."""
    compare(real[name], CASES[name][1])


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (spec, arguments) in CASES.items()
        if "policy" not in arguments and spec["kind"] != "embedding"  # no hook sees sparse ones
    ],
)
def test_buckets_of_iteration_1_are_ddps(name: str, real: dict[str, Any]) -> None:
    """A2.2, A2.3: one bucket per dtype and device, or the list from the front, then reversed."""
    answer = real[name]
    workload = make_workload(answer["parameters"], answer["ready_order"])
    mine = sim.assign(workload, iteration=1, **CASES[name][1])
    assert lists(mine.bucket_indices) == answer["by_iteration"][0]


@pytest.mark.parametrize("name", LAST_CAP)
def test_last_bucket_cap_is_ddps(name: str, real_last_cap: dict[str, Any]) -> None:
    """A2.5: DDP_SET_LAST_BUCKET_CAP reverses ready order before, and the bucket list after."""
    compare(real_last_cap[name], LAST_CAP[name][1], set_last_bucket_cap=True)


@pytest.mark.parametrize("name", [name for name, (spec, _) in CASES.items() if spec["kind"] == "mlp"])
def test_linear_is_ready_bias_first(name: str, real: dict[str, Any]) -> None:
    """A6.5: of a Linear the bias is ready before the weight: ties go by descending index (CONTRACT)."""
    answer = real[name]
    assert answer["ready_order"] == list(range(len(answer["parameters"])))[::-1]
    workload = mlp_workload(CASES[name][0])
    assert lists(sim.assign(workload, **CASES[name][1]).bucket_indices) == answer["buckets"]


@pytest.mark.parametrize("name", [name for name in SNIPPETS if name != "last bucket cap"])
def test_snippet_gives_the_buckets(name: str, real: dict[str, Any]) -> None:
    """The three lines to paste do what they say, on a real model."""
    workload = mlp_workload(mlp(M1))
    assignment = sim.assign(workload, **SNIPPETS[name])
    assert real[f"snippet: {name}"]["buckets"] == lists(assignment.bucket_indices)


def test_snippet_for_the_last_bucket_cap() -> None:
    """The environment variable is set before torch is imported."""
    workload = mlp_workload(mlp(M1))
    assignment = sim.assign(workload, **SNIPPETS["last bucket cap"])
    text = sim.snippet(assignment, workload)
    case = {"model": mlp(M1), "snippet": text, "kwargs": assignment.ddp_kwargs}
    answer = work({"snippet": case})["snippet"]
    assert text.index("os.environ") < text.index("import torch\n")
    assert answer["buckets"] == lists(assignment.bucket_indices)


def test_tuned_snippet_gives_the_tuned_buckets() -> None:
    """B(i): the recommendation's list makes stock DDP rebuild exactly these buckets."""

    workload = mlp_workload(mlp(M1))
    hardware = wired({0: 1, 1 << 20: 90})
    best = sim.tune(workload, hardware).assignment
    assert len(best.bucket_indices) > 1
    case = {"model": mlp(M1), "snippet": sim.snippet(best, workload), "kwargs": best.ddp_kwargs}
    answer = work({"tuned": case})["tuned"]
    assert answer["buckets"] == lists(best.bucket_indices)
