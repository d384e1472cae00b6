"""Machines looked up once the model was made: presets are held to them, and nothing is set by them.

nccl-tests' all_reduce_perf, out of place: times in us by size in MiB.
"""

from dataclasses import dataclass

from sim.clusters.fabric import fabric_of
from sim.clusters.machines import preset
from sim.clusters.nccl_model import collective_ns
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CurvePoint
from tests.clusters.published_fabrics import MIB, median_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A preset, and what such a machine took."""

    name: str
    source: str
    cluster: Cluster
    time_us: dict[int, float]

    def error(self) -> float:
        """Median of |computed / measured - 1| over the sizes, in per cent."""
        points = tuple(
            CurvePoint(num_bytes=size * MIB, duration_ns=round(time * 1000))
            for size, time in self.time_us.items()
        )
        fabric = fabric_of(self.cluster)
        return median_error((collective_ns(fabric, "all_reduce", p.num_bytes) for p in points), points)


ELSEWHERE = (
    Elsewhere(
        name="`dgx_h100`, 8 H100, NVLS",
        source="'NCCL-Test', ./build/all_reduce_perf -b 256M -e 2G -f 2 -g 8, bus ids 1b to df",
        cluster=preset("dgx_h100", 1),
        time_us={256: 1119.8, 512: 2157.5, 1024: 4027.3, 2048: 7983.5},
    ),
    Elsewhere(
        name="`dgx_h100 hosts=2`, 16 H100, eight NICs of 400 Gbit/s a host",
        source="'Multiple Nodes NCCL Test', mpirun -np 16, all_reduce_perf -b 256M -e 8G, the same author",
        cluster=preset("dgx_h100", 2),
        time_us={256: 1291.8, 512: 2375.3, 1024: 4490.8, 2048: 8747.2, 4096: 17316.0, 8192: 34417.0},
    ),
    Elsewhere(
        name="`dgx_a100 hosts=2`, 16 A100, eight NICs of 200 Gbit/s a host",
        source="github.com/facebookresearch/gcm, test_check_nccl.py, pairwise; NICs by the 183 GB/s reached",
        cluster=preset("dgx_a100", 2),
        time_us={32: 650.2, 64: 956.9, 128: 1740.3, 256: 2966.1, 512: 5693.6, 1024: 11013.0},
    ),
)
