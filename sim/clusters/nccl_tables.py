"""The constants of NCCL's own cost model, by algorithm and protocol.

From NVIDIA/nccl, release 2.27, src/graph/tuning.cc at commit 72d2432094d6ae36abd6e511c3a16a2d052dbf94, and
src/graph/search.cc (the speeds that its search tries). Latencies in us, bandwidths in GB/s, as there. NCCL
chooses by this model; that its times are those of the machine is not promised.
"""

from typing import Literal, get_args

from sim.nouns.cluster import Generation

Protocol = Literal["LL", "LL128", "Simple"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree"]
Wire = Literal["nvlink", "pci", "net"]

SOURCE = "NVIDIA/nccl 2.27, src/graph/tuning.cc, commit 72d2432094d6"
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
GENERATIONS: tuple[Generation, ...] = get_args(Generation)  # the oldest first

# baseLat: LL, LL128, Simple
BASE_US: dict[Algorithm, tuple[float, float, float]] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    **dict.fromkeys(("nvls", "nvls_tree"), (0.0, 0.0, 0.0)),
}

# hwLat: what one step takes, by the same columns
_ORDER: tuple[Algorithm, ...] = ("tree", "ring", "nvls", "nvls_tree")
_HW_LAT: dict[Wire, tuple[tuple[float, float, float], ...]] = {
    "nvlink": ((0.6, 1.25, 4.0), (0.6, 1.9, 3.4), (0.0, 0.0, 25.0), (0.0, 0.0, 25.0)),
    "pci": ((1.0, 1.9, 4.0), (1.0, 2.5, 5.7), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    "net": ((5.0, 8.5, 14.0), (2.7, 4.0, 14.0), (0.0, 0.0, 18.0), (0.0, 0.0, 14.0)),
}
STEP_US = {wire: dict(zip(_ORDER, rows, strict=True)) for wire, rows in _HW_LAT.items()}

# Columns: one host, two, more. llMaxBws is of a whole communicator, by GPU in one host and by CPU beyond
# (row 0 Intel and others, row 1 AMD); the others are of one channel, by GPU.
LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
RING_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4,) * 3)
TREE_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (73.4, 73.4, 58.0))
TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (77.4, 82.8, 72.0))

# treeCorrectionFactor: powers of two from 64 B to 256 MiB
TREE_CORRECTION = (
    (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    + (1.0,) * 4,
    (1.0,) * 5 + (0.9, 0.8, 0.8, 0.8) + (0.7,) + (0.6,) * 6 + (0.8,) + (0.9,) * 4 + (1.0,) * 2,
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
CORRECTED_FROM = 64

# From this many bytes per rank and channel a ring with Simple across hosts waits longer at each step.
PLATEAU_BYTES = 64
PLATEAU = {"volta": 1.9, "turing": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}

NET_OVERHEAD_US = {"intel": 1.0, "amd": 2.0, "arm": 1.0}

# Of what the heads of NVLS carry this release counts 5/6. Later ones count 0.85 on Hopper, nearly the same,
# and 0.74 on Blackwell (nvlsEfficiency, tuning.cc, later src/tuning/nvls.cc). These are factors on 5/6.
NVLS_LEFT: dict[Generation, float] = {"hopper": 1.0, "blackwell": 0.74 * 6 / 5}
MOST_NVLS = 32  # NCCL_MAX_NVLS_ARITY: heads, and GPUs of a host in all but all-reduces
# search.cc, sm90SpeedArrayIntra and sm100SpeedArrayIntra: GB/s that the search for NVLS tries for each head
NVLS_SPEEDS: dict[Generation, tuple[float, ...]] = {
    "hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "blackwell": (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
