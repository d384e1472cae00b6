"""How GPT-2 124M scales on two machines of A100, as the manual tells it.

``python -m tests.contracts.scaling_view`` prints the manual's table. Its commands: ``bucketsim
estimate`` of the model, and ``bucketsim scaling`` on each machine.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import sim
from sim.clusters.scaling import ScalingRow
from sim.columns import SCALING, Column, markdown, plain
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate

MODEL: dict[str, Any] = {"model_type": "gpt2", "batch": 16, "tokens": 512}
BACKWARD_MS = 60
RDMA: dict[str, list[Any]] = {"gpus": [1], "gbit_per_s": [100], "protocol": ["rdma"]}
MACHINES: tuple[tuple[str, dict[str, list[Any]], tuple[int, ...]], ...] = (
    ("dgx_a100", {}, (1, 2, 16, 128, 12_500)),
    ("pcie_hosts", RDMA, (2, 4, 8, 32)),
)


@cache
def workload() -> Workload:
    """The model's gradients on one A100, estimated."""
    return estimate(
        "models:huggingface",
        arguments=MODEL,
        backward_ns=BACKWARD_MS * 1_000_000,
        gpu="a100-80gb-sxm",
        autocast="bfloat16",
    )


@cache
def rows() -> tuple[ScalingRow, ...]:
    """A row a machine and number of hosts."""
    return tuple(
        row
        for machine, settings, hosts in MACHINES
        for row in sim.scaling(workload(), machine, hosts=hosts, settings=settings)
    )


def _saved(row: ScalingRow) -> str:
    """What the best cap saves against the default, at either end of the range of all-reduces, in %."""
    ends = (
        (row.default_regret_low_ns, row.cap_step_low_ns),
        (row.default_regret_high_ns, row.cap_step_high_ns),
    )
    return " to ".join(f"{100 * saved / (step + saved):z.1f}" for saved, step in ends)


COLUMNS: tuple[Column[ScalingRow], ...] = (
    plain("machine", "machine"),
    *SCALING,
    Column("saves, %", lambda row: 100 * row.default_regret_ns / row.default_step_ns, "z.1f"),
    Column("in range, %", _saved),
)


def scaling_rows() -> Iterator[str]:
    """The manual's table."""
    yield from markdown(COLUMNS, rows()).splitlines()


if __name__ == "__main__":
    print("\n".join(scaling_rows()))
    for row in rows():
        if row.reason:
            print(f"{row.machine}: {row.reason_code}: {row.reason}")
