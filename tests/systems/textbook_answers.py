"""Workloads of what ranks tell."""

from typing import Any

from sim.nouns.workload import Workload
from tests.handmade import handmade


def workload_of(answer: dict[str, Any]) -> Workload:
    """The parameters that a rank trained, ready in the order that was seen there, 1 ns apart."""
    parameters = answer["parameters"]
    return handmade(
        [1 + answer["ready"].index(index) for index in range(len(parameters))],
        [one["num_bytes"] for one in parameters],
        names=[one["name"] for one in parameters],
        dtypes=[one["dtype"] for one in parameters],
    )
