"""Machines that the constants of ``sim.clusters.nccl_model`` come from; no prediction is tested on them.

All are nccl-tests' all_reduce_perf, out of place. Times in us by size in MiB, bus bandwidths in GB/s at the
largest sizes, where time is bandwidth.
"""

from dataclasses import dataclass

from sim.clusters.fabric import Fabric
from tests.clusters.published_fabrics import A100_NVLINK, GH200_NVLINK, PCIE_3, PCIE_4, PCIE_5, box


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A machine with NVLink, and its times in us by size in MiB."""

    name: str
    source: str
    fabric: Fabric
    time_us: dict[int, float]


# On the first and the last one process drives all GPUs and launches on each in turn, which takes longer than
# small messages do: their bandwidth is taken from 32 MiB on.
NVLINK_MACHINES = (
    Timed(
        name="8 A100-SXM4-40GB, one process",
        source="github.com/AFDWang/Hetu-Galvatron 6f77a6cb29a6, tests/profiler/test_hardware_profile.py",
        fabric=box(8, "nvswitch", A100_NVLINK, "ampere", 12),
        time_us={
            1: 78.77,
            2: 108.8,
            4: 131.1,
            8: 183.4,
            16: 293.6,
            32: 415.7,
            64: 657.2,
            128: 1256.7,
            256: 2338.9,
            512: 4651.2,
            1024: 8139.9,
        },
    ),
    Timed(
        name="8 A100-SXM4-80GB, NCCL 2.16.2",
        source="github.com/facebookresearch/gcm, gcm/tests/health_checks_tests/test_check_nccl.py",
        fabric=box(8, "nvswitch", A100_NVLINK, "ampere", 12),
        time_us={32: 344.8, 64: 557.4, 128: 1149.9, 256: 2106.1, 512: 4145.6, 1024: 8109.1},
    ),
    Timed(
        name="4 H100-HBM3, NCCL 2.26.2",
        source="dudeperf3ct.github.io/posts/distributed_communication_part1",
        fabric=box(4, "nvlink", GH200_NVLINK, "hopper", 16),
        time_us={
            1: 28.06,
            2: 32.05,
            4: 45.05,
            8: 65.19,
            16: 104.4,
            32: 174.9,
            64: 326.6,
            128: 614.7,
            256: 1184.9,
            512: 2314.9,
            1024: 4525.6,
        },
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A machine without NVLink in use: what its slots carry by NCCL's count, and what it reached, in GB/s."""

    name: str
    source: str
    slot: float
    bus: float


# Through host memory (NCCL's SHM transport): GeForce, or NCCL_P2P_DISABLE=1; on the RTX PRO 6000 between the
# two switches only.
THROUGH_HOST = (
    Reached(name="2 GPUs, one channel", source="github.com/NVIDIA/nccl/issues/384", slot=PCIE_3, bus=3.9),
    Reached(
        name="2 RTX 2080 Ti below one switch",
        source="gist.github.com/Anthony-Hoo/5b407716011b3b74df0ddbd7688d6562",
        slot=PCIE_3,
        bus=4.0,
    ),
    Reached(
        name="4 A100 of a DGX, NVLink switched off",
        source="a guide on ghcr.io/coreweave/nccl-tests (tag ends in nccl2.16.2-1-253a5b1), NVSwitch",
        slot=PCIE_4,
        bus=5.2,
    ),
    Reached(
        name="2 GPUs on one socket, NVLink of pairs switched off",
        source="the same guide's other machine",
        slot=PCIE_4,
        bus=3.86,
    ),
    Reached(name="4 GPUs on two sockets", source="the same guide's other machine", slot=PCIE_4, bus=1.4),
    Reached(
        name="4 RTX 4090",
        source="kalavai-net's notes, 'Benchmark interconnectivity across GPUs'",
        slot=PCIE_4,
        bus=2.58,
    ),
    Reached(
        name="8 RTX 4090, two EPYC 7542",
        source="blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked",
        slot=PCIE_4,
        bus=14.9,
    ),
    Reached(
        name="4 RTX PRO 6000 below two switches",
        source="github.com/voipmonitor/rtx6kpro 070506ff96a2, asus-esc8000a-e13p-broadcom-switches.md",
        slot=PCIE_5,
        bus=30.3,
    ),
    Reached(
        name="8 RTX 5090, two Xeon 8480+", source="github.com/NVIDIA/nccl/issues/1639", slot=PCIE_5, bus=28.0
    ),
    Reached(name="4 of them", source="github.com/NVIDIA/nccl/issues/1639", slot=PCIE_5, bus=35.0),
)

# From GPU to GPU over PCIe.
PEER_TO_PEER = (
    Reached(
        name="4 V100 below one switch",
        source="docs.hpc.shef.ac.uk, Bessemer: CUDA 10.1, nccl-tests",
        slot=PCIE_3,
        bus=11.2,
    ),
    Reached(
        name="4 RTX 4090, patched driver",
        source="github.com/tinygrad/open-gpu-kernel-modules/issues/36",
        slot=PCIE_4,
        bus=25.9,
    ),
    Reached(
        name="8 RTX 4090, patched driver, two EPYC 7542",
        source="blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked",
        slot=PCIE_4,
        bus=20.6,
    ),
    Reached(
        name="8 RTX PRO 6000 below four switches",
        source="github.com/voipmonitor/rtx6kpro 070506ff96a2, hardware/pcie-bandwidth.md: default, 32 MB",
        slot=PCIE_5,
        bus=40.1,
    ),
    Reached(
        name="8 RTX PRO 6000 on two EPYC Turin, no switch",
        source="the same table, NCCL_P2P_LEVEL=SYS: default; 37.6 with NCCL_MIN_NCHANNELS=8",
        slot=PCIE_5,
        bus=22.2,
    ),
)
