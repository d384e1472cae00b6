"""How long the pipeline of NVLS takes to fill: what its first chunks cost before all stages are busy.

A channel cuts its part of a message into loops of one chunk for each head. A loop is copied into the buffers
that the switch reads (scatter), reduced and sent to all (reduce, broadcast) and copied out (gather), each by
warps of its own (RunWorkColl of NVLS and NVLS_TREE, src/device/all_reduce.h; reduce_scatter.h and
all_gather.h have two of the three). Loops follow one another through these stages, so that every stage but
the first adds the time of one loop to a message. That is much for small messages, which have few loops:
16 MiB on eight H100 are four loops, and two more stages make them take as long as six.

Each stage is taken to be as slow as the slowest, the switch's. NCCL's cost model has no such term. How much
quicker the copies within a GPU are is not known; the range of a computed curve contains it
(``computed_hardware``).
"""

from sim.clusters.nccl.bandwidths import bytes_per_us, nvls_heads
from sim.clusters.nccl.constants import Algorithm
from sim.clusters.nccl.fabric import Fabric

_KIB = 1 << 10
# NVLS_NCHANNELS_SM90, _SM100 (several hosts) and _SM100_NVL (one), src/transport/nvls.cc
_CHANNELS_HOPPER, _CHANNELS_BLACKWELL, _CHANNELS_BLACKWELL_ALONE = 16, 32, 24
_MOST_CHUNK = 128 * _KIB  # NCCL_NVLS_CHUNKSIZE
_SLOW_GB_PER_S = 150  # of several hosts whose switches reduce: chunks of 32 KiB at most
# calcCollChunking, src/enqueue.cc: a message of fewer such loops than the first number has chunks of at most
# the second, in bytes.
_NVLS_CHUNKS = ((64, 64 * _KIB), (8, 32 * _KIB), (2, 16 * _KIB))
_TREE_CHUNKS = ((4, 64 * _KIB), (1, 32 * _KIB))
_MANY_HOSTS = 4  # from so many on a tree's chunks are 64 KiB at most


def filling_bytes(fabric: Fabric, collective: str, num_bytes: int, algorithm: Algorithm) -> int:
    """Bytes that take as long to send as the pipeline takes to fill; 0 for what is not NVLS."""
    if algorithm not in ("nvls", "nvls_tree"):
        return 0
    return (_stages(fabric, collective, algorithm) - 1) * min(
        num_bytes, loop_bytes(fabric, num_bytes, algorithm)
    )


def loop_bytes(fabric: Fabric, num_bytes: int, algorithm: Algorithm) -> int:
    """What all channels take up in one loop of a message of ``num_bytes``."""
    at_once = _channels(fabric) * nvls_heads(fabric)
    chunk = _MOST_CHUNK
    if algorithm == "nvls_tree":
        chunk = 64 * _KIB if fabric.hosts >= _MANY_HOSTS else chunk
    elif fabric.hosts > 1 and bytes_per_us(fabric, "all_reduce", "nvls", "Simple") < _SLOW_GB_PER_S * 1000:
        chunk = 32 * _KIB
    for loops, smaller in _TREE_CHUNKS if algorithm == "nvls_tree" else _NVLS_CHUNKS:
        if num_bytes < loops * at_once * chunk:
            chunk = min(chunk, smaller)
    return at_once * chunk


def _channels(fabric: Fabric) -> int:
    if fabric.generation == "blackwell":
        return _CHANNELS_BLACKWELL if fabric.hosts > 1 else _CHANNELS_BLACKWELL_ALONE
    return _CHANNELS_HOPPER


def _stages(fabric: Fabric, collective: str, algorithm: Algorithm) -> int:
    """Groups of warps that a chunk passes in a row; each level of a tree adds one up and one down."""
    if collective != "all_reduce":
        return 2
    if algorithm == "nvls_tree":
        return 3 + 2 * (fabric.hosts.bit_length() - 1)
    return 3 if fabric.hosts == 1 else 4
