"""Steps under DDP's Python reducer, which ``sim.record`` does not take, stamped by the job itself.

Each rank writes a line a step: when it began and when forward, backward and the optimizer ended, ns of the
wall clock; how long a plain backward before it took, or null; and its all-reduces, ``[launched, bytes]``, as
torch's flight recorder has them, so that ``TORCH_FR_BUFFER_SIZE`` must hold those of a turn.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch._C._distributed_c10d import _dump_fr_trace_json

from sim.nouns.assignment import Assignment
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import Workload

_WARMUP = 2  # steps that are dropped, as the import of a recording drops them
_ITEM_BYTES = {"Float": 4}
_NAMES = ("began_ns", "forward_ns", "backward_ns", "ended_ns", "plain_ns")
Step = dict[str, Any]


class Stamps:
    """What one rank did, step by step."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._steps: list[Step] = []

    def step(self, *times: int | None) -> None:
        """One step: ``_NAMES``."""
        self._steps.append(dict(zip(_NAMES, times, strict=True)))

    def write(self) -> None:
        """Add the steps since the last call to the file, each with its all-reduces."""
        sent = sorted(
            (entry["time_created_ns"], _num_bytes(entry))
            for entry in json.loads(_dump_fr_trace_json())["entries"]
            if entry["profiling_name"] == "gloo:all_reduce"
        )
        with self._path.open("a", encoding="utf-8") as file:
            for step in self._steps:
                own = [one for one in sent if step["forward_ns"] <= one[0] <= step["backward_ns"]]
                file.write(json.dumps(step | {"sent": own}) + "\n")
        self._steps.clear()


def _num_bytes(entry: Step) -> int:
    elements = sum(torch.Size(size).numel() for size in entry["input_sizes"])
    return elements * _ITEM_BYTES[entry["input_dtypes"][0]]


def measured(name: str, folder: Path, asked: Assignment, sent: Workload, eager: Measurement) -> Measurement:
    """What the ranks of ``folder`` did; of each step, the one that waited least tells.

    Backward ends where the last all-reduce is launched: nothing but waiting is behind it. A plain step is the
    slower rank's, as in a recording.

    Args:
        asked: what they were to do.
        sent: gradients in the order in which they were sent, which all-reduces do not tell.
        eager: the same job as ``sim.record`` saw it.
    """
    ranks = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][_WARMUP:]
        for path in sorted(folder.glob("rank-*.jsonl"))
    ]
    steps = [min(row, key=_reduced_ns) for row in zip(*ranks, strict=True)]
    sizes = [[size for _, size in step["sent"]] for step in steps]
    assert all(one == sizes[0] for one in sizes), f"{name}: steps differ in what they sent"
    plain_ns, beside_ns = max(map(_plain_ns, ranks))
    return Measurement(
        name=name,
        role="candidate",
        mode="trace",
        backend="gloo",
        world_size=len(ranks),
        asked=asked,
        observed=_buckets(sent, sizes[0]),
        iterations=tuple(map(_iteration, steps)),
        plain_backward_ns=plain_ns,
        plain_step_ns=plain_ns + beside_ns,
        dropped_warmup=_WARMUP,
        environment=eager.environment,
        provenance={"source": "stamps of its own"},
    )


def _reduced_ns(step: Step) -> int:
    return int(step["backward_ns"] - step["forward_ns"])


def _plain_ns(steps: Sequence[Step]) -> tuple[int, int]:
    """Medians of a plain backward, and of what a step has beside its backward."""
    plain = [step["plain_ns"] for step in steps if step["plain_ns"] is not None]
    beside = [step["ended_ns"] - step["began_ns"] - _reduced_ns(step) for step in steps]
    return round(median(plain)), round(median(beside))


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


def _iteration(step: Step) -> MeasuredIteration:
    return MeasuredIteration(
        step_ns=step["ended_ns"] - step["began_ns"],
        backward_end_ns=step["sent"][-1][0] - step["forward_ns"],
        sync_end_ns=_reduced_ns(step),
        buckets=tuple(
            MeasuredBucket(
                index=place, ready_ns=None, launch_ns=at - step["forward_ns"], start_ns=None, end_ns=None
            )
            for place, (at, _) in enumerate(step["sent"])
        ),
    )
