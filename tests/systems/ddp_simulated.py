"""What the simulator says of a case that ran for real: the same model, switches and iterations."""

from typing import Any

import sim
from sim.nouns.collective import Event, Explanation
from sim.nouns.workload import Buffer, Gradient, Workload

Case = dict[str, Any]
Answer = dict[str, Any]
HOOKS = {
    "fp16_wrapped_allreduce": "fp16_compress",
    "builtin_allreduce": "allreduce",
    "builtin_fp16_compress": "fp16_compress",
}


def workload_of(answer: Answer, iteration: int = 1) -> Workload:
    """The model that ran, with the ready order of one iteration's synchronised backward."""
    fired = answer["ready"][iteration - 1][-1] if answer["ready"] else []
    last = {gradient: place for place, gradient in enumerate(fired)}
    return Workload(
        name="real",
        gradients=tuple(
            Gradient(
                index=index,
                name=facts["name"],
                shape=tuple(facts["shape"]),
                dtype=facts["dtype"],
                num_bytes=facts["num_bytes"],
                ready_ns=last.get(index),
                sparse=facts["sparse"],
                uses=max(1, fired.count(index)),
            )
            for index, facts in enumerate(answer["parameters"])
        ),
        forward_ns=0,
        backward_ns=len(fired),
        optimizer_ns=0,
        buffers=tuple(Buffer(dtype=b["dtype"], num_bytes=b["num_bytes"]) for b in answer["buffers"]),
    )


def options_of(case: Case) -> dict[str, Any]:
    """The case's settings as ``sim.assign`` takes them: ``asked``, where torch says it otherwise."""
    options = {
        **case.get("asked", case.get("ddp", {})),
        "accumulation_steps": case.get("accumulation", 1),
        "set_to_none": case.get("zero_grad_to_none", True),
    }
    if "hook" in case:
        name = case["hook"]["name"]
        options["comm_hook"] = HOOKS.get(name, name)
    return options


def expected_events(case: Case, answer: Answer, **more: Any) -> list[dict[str, Any]]:
    """Every collective of the run, as the simulator tells it from each iteration's own ready order."""
    told: dict[tuple[int, ...], Explanation] = {}
    explained = []
    for iteration, micro_batches in enumerate(answer["ready"], start=1):
        order = tuple(micro_batches[-1])
        if order not in told:
            told[order] = sim.explain(
                workload_of(answer, iteration), iterations=len(answer["ready"]), **options_of(case), **more
            )
        explained.append(told[order])
    return [
        *[_plain(event, 0, 0) for event in explained[0].construction],
        *[
            _plain(event, iteration, event.micro_batch)
            for iteration, explanation in enumerate(explained, start=1)
            for event in explanation.iterations[iteration - 1].events
        ],
    ]


def _plain(event: Event, iteration: int, micro_batch: int) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "elements": event.elements,
        "dtype": event.dtype,
        "phase": event.phase,
        "gradient": event.gradient,
        "root": event.root,
        "iteration": iteration,
        "micro_batch": micro_batch,
    }
