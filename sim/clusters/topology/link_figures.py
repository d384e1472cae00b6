"""What published sources say of links, in bytes/s in each direction.

NVLink, PCIe and the links between sockets are those that NCCL itself counts with, which is what a kernel gets
of them: NCCL src/graph/topo.h and kvDictPciGen of src/graph/topo.cc, commit 069a3d4 (2026). Network ports are
their line rate.
"""

from sim.errors import InputError

NVLINK = {
    "volta": 20e9,  # SM70_NVLINK_BW
    "turing": 20e9,  # the same, by compute capability (ncclTopoNVLinkBw)
    "ampere": 20e9,  # SM80_NVLINK_BW
    "hopper": 20.6e9,  # SM90_NVLINK_BW
    "blackwell": 40.1e9,  # SM100_NVLINK_BW
}
PCIE_LANE = {  # 6, 12 and 24 Gbit/s a lane of what it carries
    3: 0.75e9,  # 8 GT/s
    4: 1.5e9,  # 16 GT/s
    5: 3e9,  # 32 GT/s
}
SOCKETS = {
    "broadwell": 6e9,  # BDW_QPI_BW
    "skylake": 10e9,  # SKL_QPI_BW: Skylake and Cascade Lake
    "sapphire_rapids": 22e9,  # SRP_QPI_BW
    "emerald_rapids": 40e9,  # ERP_QPI_BW
    "rome": 16e9,  # AMD_ZEN12_BW
    "milan": 24e9,  # AMD_ZEN34_BW: Milan and Genoa
    "turin": 32e9,  # AMD_ZEN5_BW
}
# Grace to Hopper, NVIDIA Grace Hopper Superchip Architecture whitepaper (2022): 900 GB/s in both directions.
C2C_GH200 = 450e9
# Grace to two Blackwells, NVIDIA GB200 NVL72 data sheet: 900 GB/s in both directions, for both GPUs.
C2C_GB200 = 225e9
# Eight channels of DDR4-3200 a socket, at 8 bytes a transfer (JEDEC JESD79-4): what host memory can move.
HOST_MEMORY = 204.8e9
_MOST_GBIT_PER_S = 1_000_000


def pcie(generation: int, lanes: int = 16) -> float:
    """Bytes/s of a PCIe link, such as ``pcie(4)`` for generation 4 with 16 lanes."""
    if generation not in PCIE_LANE:
        raise InputError(f"pcie_gen: {generation!r} is not legal; give one of 3, 4, 5")
    if lanes not in (1, 2, 4, 8, 16):
        raise InputError(f"lanes: {lanes!r} is not legal; give one of 1, 2, 4, 8, 16")
    return PCIE_LANE[generation] * lanes


def port(gbit_per_s: float) -> float:
    """Bytes/s of a network port of so many Gbit/s, at most a million."""
    if not gbit_per_s <= _MOST_GBIT_PER_S:
        raise InputError(f"gbit_per_s: more than {_MOST_GBIT_PER_S} is not legal; give Gbit/s of a port")
    return gbit_per_s * 1e9 / 8


def tcp_port(gbit_per_s: float, mtu: int = 1500) -> float:
    """Bytes/s of data that TCP gets through an Ethernet port.

    A frame has 38 bytes beside its ``mtu`` (preamble 8, header 14, checksum 4, gap 12: IEEE 802.3), and
    within it 52 are headers (IPv4 20, TCP 20 and 12 of time stamps: RFC 791, 9293, 7323).
    """
    if not 576 <= mtu <= 9216:
        raise InputError(f"mtu: {mtu!r} is not legal; give bytes, 576 to 9216")
    return port(gbit_per_s) * (mtu - 52) / (mtu + 38)
