"""Steps under DDP's Python reducer, which ``sim.record`` does not take, stamped by the job itself.

Each rank writes a line a step: ``[start, end of forward, end of backward, end of the optimizer, [[launch,
bytes], …]]``. Times are ns of the wall clock; all-reduces are those of torch's flight recorder, so that
``TORCH_FR_BUFFER_SIZE`` must hold a turn's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import _dump_fr_trace_json

from sim.nouns.assignment import Assignment
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import Workload

_WARMUP = 2  # steps that are dropped, as the import of a recording drops them
_ITEM_BYTES = {"Float": 4}


class Stamps:
    """What one rank did, step by step."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        self._path = path
        self._steps: list[list[int]] = []

    def step(self, *times: int) -> None:
        """One step: when it began, and when forward, backward and the optimizer ended."""
        self._steps.append([*times])

    def write(self) -> None:
        """Add the steps since the last call to the file, each with its all-reduces."""
        sent = sorted(
            (entry["time_created_ns"], _num_bytes(entry))
            for entry in json.loads(_dump_fr_trace_json())["entries"]
            if entry["profiling_name"] == "gloo:all_reduce"
        )
        with self._path.open("a", encoding="utf-8") as file:
            for began, forward, backward, ended in self._steps:
                own = [one for one in sent if forward <= one[0] <= backward]
                file.write(json.dumps([began, forward, backward, ended, own]) + "\n")
        self._steps.clear()


def _num_bytes(entry: dict[str, Any]) -> int:
    elements = sum(torch.Size(size).numel() for size in entry["input_sizes"])
    return elements * _ITEM_BYTES[entry["input_dtypes"][0]]


def measured(name: str, folder: Path, asked: Assignment, sent: Workload, eager: Measurement) -> Measurement:
    """What the ranks of ``folder`` did; of each step, the one that waited least tells.

    Backward ends where the last all-reduce is launched: nothing but waiting is behind it.

    Args:
        asked: what they were to do.
        sent: gradients in the order in which they were sent, which all-reduces do not tell.
        eager: the same job as ``sim.record`` saw it, whose plain backward stands for theirs.
    """
    ranks = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(folder.glob("rank-*.jsonl"))
    ]
    steps = [min(row, key=lambda step: int(step[2] - step[1])) for row in zip(*ranks, strict=True)][_WARMUP:]
    sizes = [[size for _, size in step[4]] for step in steps]
    assert all(one == sizes[0] for one in sizes), f"{name}: steps differ in what they sent"
    return Measurement(
        name=name,
        role="candidate",
        mode="trace",
        backend="gloo",
        world_size=len(ranks),
        asked=asked,
        observed=_buckets(sent, sizes[0]),
        iterations=tuple(map(_iteration, steps)),
        plain_backward_ns=eager.plain_backward_ns,
        plain_step_ns=eager.plain_step_ns,
        dropped_warmup=_WARMUP,
        environment=eager.environment,
        provenance={"source": "stamps of its own"},
    )


def _buckets(sent: Workload, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Gradients by all-reduce: as many of them, in order, as its bytes hold."""
    left, buckets = list(sent.order()), []
    for size in sizes:
        bucket: list[int] = []
        while sum(sent.gradients[index].num_bytes for index in bucket) < size:
            bucket.append(left.pop(0))
        assert sum(sent.gradients[index].num_bytes for index in bucket) == size, "a gradient was split"
        buckets.append(tuple(bucket))
    assert not left, "not every gradient was sent"
    return tuple(buckets)


def _iteration(step: Sequence[Any]) -> MeasuredIteration:
    began, forward, backward, ended, sent = step
    return MeasuredIteration(
        step_ns=ended - began,
        backward_end_ns=sent[-1][0] - forward,
        sync_end_ns=backward - forward,
        buckets=tuple(
            MeasuredBucket(index=place, ready_ns=None, launch_ns=at - forward, start_ns=None, end_ns=None)
            for place, (at, _) in enumerate(sent)
        ),
    )
