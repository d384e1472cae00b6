"""What moving gradients about in a GPU's own memory costs: from its bandwidth, where nobody measured it."""

from dataclasses import replace

from sim.errors import InputError
from sim.nouns.hardware import Hardware

# Times that each byte of a gradient passes the memory bus.
COPY_PASSES = 2  # read and written: into and out of a bucket (A3.4)
ACCUMULATE_PASSES = 3  # two read, one written: AccumulateGrad's addition in place (A3.12)


def with_memory_bandwidth(hardware: Hardware, bytes_per_s: float) -> Hardware:
    """``hardware`` with the rates of copies and additions that a memory of ``bytes_per_s`` allows.

    Rates that it has already stay. The bandwidth is a data sheet's, so that these times are the least.

    Raises:
        InputError: a bandwidth below what rates may be.
    """
    if not bytes_per_s >= ACCUMULATE_PASSES:
        raise InputError(f"memory bandwidth: {bytes_per_s} is not legal; give bytes/s, such as 696e9")
    copies, additions = bytes_per_s / COPY_PASSES, bytes_per_s / ACCUMULATE_PASSES
    known = hardware.copy_in_bytes_per_s, hardware.copy_out_bytes_per_s, hardware.accumulate_bytes_per_s
    return replace(
        hardware,
        copy_in_bytes_per_s=copies if known[0] is None else known[0],
        copy_out_bytes_per_s=copies if known[1] is None else known[1],
        accumulate_bytes_per_s=additions if known[2] is None else known[2],
    )
