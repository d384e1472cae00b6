"""Workloads of what ranks tell."""

from typing import Any

from sim.nouns.workload import Gradient, Workload


def workload_of(answer: dict[str, Any]) -> Workload:
    """The parameters that a rank trained, ready in the order that was seen there, 1 ns apart."""
    return Workload(
        name="seen",
        gradients=tuple(
            Gradient(
                index=index,
                name=parameter["name"],
                shape=(),
                dtype=parameter["dtype"],
                num_bytes=parameter["num_bytes"],
                ready_ns=1 + answer["ready"].index(index),
            )
            for index, parameter in enumerate(answer["parameters"])
        ),
        forward_ns=0,
        backward_ns=len(answer["parameters"]),
        optimizer_ns=0,
    )
