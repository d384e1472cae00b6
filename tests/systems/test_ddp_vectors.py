"""The test vectors of RULES.md for DDP, written down: by simulation, and by real ranks.

Each line is one iteration: (kind, elements, phase, gradient) of every collective, in order.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import sim
from sim.nouns.explanation import Explanation
from sim.nouns.workload import Workload
from tests.handmade import handmade
from tests.systems.ddp_ranks import run_cases

MIB = 1 << 20
M1 = [64, 128, 96, 80, 112, 32]
Line = list[tuple[str, int, str, int | None]]


def linears(dims: list[int]) -> list[dict[str, Any]]:
    return [{"kind": "linear", "width": a, "out": b} for a, b in itertools.pairwise(dims)]


def sent(elements: int, gradient: int) -> tuple[str, int, str, int | None]:
    return ("all_reduce", elements, "backward", gradient)


def afterwards(elements: int) -> tuple[str, int, str, int | None]:
    return ("all_reduce", elements, "end of backward", None)


def rebuilt(parameters: int, buckets: int) -> Line:
    return [
        ("broadcast", parameters + 1, "before forward", None),
        ("broadcast", buckets, "before forward", None),
    ]


M1_REBUILT = [sent(20448, 4), sent(20704, 0)]
M1_SEARCHED = [sent(3728, 7), sent(16816, 3), sent(20608, 0), sent(10, 0)]
T4_REBUILT = [sent(415, 7), sent(3458, 3), sent(2739, 0)]
T5_REBUILT = [sent(2788684, 3), sent(489984, 0)]
T10_REBUILT = [sent(33088, 1), sent(64000, 0)]
CAP = {"bucket_cap_mb": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "T1": {"layers": linears(M1), "ddp": CAP},
    "T2": {"layers": linears(M1), "ddp": {**CAP, "find_unused_parameters": True}},
    "T3": {"layers": linears(M1), "ddp": {**CAP, "static_graph": True}},
    "T4": {
        "layers": linears([17, 33, 65, 29, 51, 7]),
        "ddp": {"bucket_cap_mb_list": [size / MIB for size in (1660, 13832, 10956)]},
    },
    "T5": {"layers": linears([256, 512, 700, 640, 2000, 512, 64]), "ddp": {}},
    "T10": {
        "layers": [
            {"kind": "embedding", "width": 64, "rows": 1000, "sparse": True},
            *linears([64, 256, 64]),
        ],
        "ddp": {"bucket_cap_mb_list": [70e3 / MIB, 1.0]},
    },
}
WRITTEN: dict[str, list[Line]] = {
    "T1": [[sent(41152, 0)], [*rebuilt(10, 2), *M1_REBUILT], M1_REBUILT],
    "T2": [M1_SEARCHED, M1_SEARCHED, M1_SEARCHED],
    "T3": [
        [afterwards(10), afterwards(41152)],
        [sent(41152, 0)],
        [*rebuilt(10, 2), *M1_REBUILT],
        M1_REBUILT,
    ],
    "T4": [
        [sent(1923, 5), sent(4128, 1), sent(561, 0)],
        [*rebuilt(10, 3), *T4_REBUILT],
        T4_REBUILT,
    ],
    "T5": [[sent(3278668, 0)], [*rebuilt(12, 2), *T5_REBUILT], T5_REBUILT],
    "T10": [
        [sent(64, 4), sent(33024, 1), sent(64000, 0)],
        [*rebuilt(5, 2), *T10_REBUILT],
        T10_REBUILT,
    ],
}


def workload(case: dict[str, Any]) -> Workload:
    """The gradients of a case, each ready before those that come earlier in the model."""
    shapes: list[tuple[int, ...]] = []
    for layer in case["layers"]:
        if layer["kind"] == "embedding":
            shapes.append((layer["rows"], layer["width"]))
        else:
            shapes += [(layer["out"], layer["width"]), (layer["out"],)]
    sparse = (0,) if case["layers"][0].get("sparse", False) else ()
    return handmade(range(len(shapes), 0, -1), shapes=shapes, sparse=sparse)


def explained(name: str) -> Explanation:
    case = CASES[name]
    options = {**case["ddp"], "set_last_bucket_cap": name == "T5"}
    return sim.explain(workload(case), iterations=len(WRITTEN[name]), **options)


@pytest.mark.parametrize("name", WRITTEN)
def test_simulated(name: str) -> None:
    """T1-T5, T10."""
    for iteration, line in zip(explained(name).iterations, WRITTEN[name], strict=True):
        assert [(e.kind, e.elements, e.phase, e.gradient) for e in iteration.events] == line, iteration


@pytest.fixture(scope="module")
def real() -> Callable[[str], list[dict[str, Any]]]:
    """Every rank's answer to a vector."""
    plain = [name for name in CASES if name != "T5"]
    answers = dict(zip(plain, run_cases([CASES[name] for name in plain]), strict=True))
    answers["T5"] = run_cases([CASES["T5"]], DDP_SET_LAST_BUCKET_CAP="1")[0]
    return answers.__getitem__


def lines(answer: dict[str, Any], count: int) -> list[Line]:
    by_iteration: list[Line] = [[] for _ in range(count + 1)]
    for event in answer["events"]:
        if event["iteration"] < len(by_iteration):
            by_iteration[event["iteration"]].append(
                (event["kind"], event["elements"], event["phase"], event["gradient"])
            )
    return by_iteration[1:]


@pytest.mark.dist
@pytest.mark.parametrize("name", WRITTEN)
def test_real(name: str, real: Callable[[str], list[dict[str, Any]]]) -> None:
    """T1-T5, T10, on the last rank; all ranks see the same collectives."""
    answer = real(name)[-1]
    assert answer["error"] is None
    assert answer["ready"][0][-1] == list(range(len(answer["parameters"])))[::-1]
    assert lines(answer, len(WRITTEN[name])) == WRITTEN[name]
