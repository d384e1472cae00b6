"""How GPT-2 124M scales on two machines of A100, as the manual tells it.

``python -m tests.contracts.scaling_view`` prints the manual's table. Its commands: ``bucketsim
estimate`` of the model, and ``bucketsim scaling`` on each machine.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import sim
from sim.clusters.scaling import ScalingRow
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


def scaling_rows() -> Iterator[str]:
    """The manual's table."""
    yield (
        "| machine | GPUs | all-reduce of the model, ms | DDP's default, ms | best cap, ms "
        "| best buckets, ms | efficiency, default | best cap | best `bucket_cap_mb` | as good around it "
        "| the default loses | in range |"
    )
    yield "|---" * 12 + "|"
    for row in rows():
        high = " up" if row.cap_high_mb is None else f" to {row.cap_high_mb:.4g}"
        more = f", {row.cap_num_stretches - 1} more" if row.cap_num_stretches > 1 else ""
        cells = [
            f"`{row.machine}`",
            f"{row.world_size:,}",
            f"{row.all_reduce_ns / 1e6:.1f}, {row.all_reduce_method}",
            *(f"{ns / 1e6:.1f}" for ns in (row.default_step_ns, row.cap_step_ns, row.optimum_step_ns)),
            f"{row.default_efficiency:.1%}",
            f"{row.cap_efficiency:.1%}",
            f"{row.bucket_cap_mb:g}",
            f"{row.cap_low_mb:.4g}{high}{more}",
            _share(row.default_regret_ns, row.default_step_ns),
            f"{_share(row.default_regret_low_ns, row.cap_step_low_ns + row.default_regret_low_ns)} to "
            f"{_share(row.default_regret_high_ns, row.cap_step_high_ns + row.default_regret_high_ns)}",
        ]
        yield f"| {' | '.join(cells)} |"


def _share(lost_ns: int, step_ns: int) -> str:
    return f"{lost_ns / step_ns:z.1%}"


if __name__ == "__main__":
    print("\n".join(scaling_rows()))
    for row in rows():
        if row.reason:
            print(f"{row.machine}: {row.reason_code}: {row.reason}")
