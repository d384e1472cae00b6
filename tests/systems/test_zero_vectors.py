"""T6 to T8: the vectors of ZeRO, by simulation and by real DeepSpeed."""

from itertools import pairwise
from typing import Any

import pytest

from sim.nouns.workload import Workload
from tests.handmade import handmade
from tests.systems.zero_cases import M1, VECTORS
from tests.systems.zero_ranks import everyday_answers, simulated, told


def m1_workload() -> Workload:
    """M1's ten gradients, ready from the last to the first."""
    dims: Any = M1["dims"]
    shapes = [shape for a, b in pairwise(dims) for shape in ((b, a), (b,))]
    return handmade(range(10, 0, -1), shapes=shapes, name="M1")


def check(name: str, events: list[dict[str, Any]]) -> None:
    """The vector's collectives, then what step() sends: a norm, and all parameters gathered (A5.11)."""
    gradients = [
        {"kind": "all_reduce", "elements": elements, "phase": phase, "gradient": gradient, "root": None}
        for elements, phase, gradient in VECTORS[name][1]
    ]
    step = [
        {"kind": kind, "elements": elements, "phase": "step", "gradient": None, "root": None}
        for kind, elements in (("all_reduce", 1), ("all_gather", 41152))
    ]
    common = {"dtype": "float32", "micro_batch": 1}
    assert events == [event | common for event in (*gradients, *step)]


@pytest.mark.parametrize("name", VECTORS)
def test_the_simulation_gives_the_vector(name: str) -> None:
    check(name, simulated(VECTORS[name][0], m1_workload()))


@pytest.mark.dist
@pytest.mark.parametrize("name", VECTORS)
def test_real_deepspeed_gives_the_vector(name: str) -> None:
    for answer in everyday_answers()[name]:
        assert answer["error"] is None
        for iteration in (1, 2):
            check(name, told(answer, iteration))
