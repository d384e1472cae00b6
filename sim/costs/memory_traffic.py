"""What moving gradients about in a GPU's own memory costs: from its bandwidth, where nobody measured it."""

from sim.costs.own_costs import is_unmeasured, with_measured
from sim.errors import InputError
from sim.nouns.hardware import Hardware

# Times that each byte of a gradient passes the memory bus.
COPY_PASSES = 2  # read and written: into and out of a bucket (A3.4)
ACCUMULATE_PASSES = 3  # two read, one written: AccumulateGrad's addition in place (A3.12)


def with_memory_bandwidth(hardware: Hardware, bytes_per_s: float) -> Hardware:
    """``hardware`` with the rates of copies and additions that a memory of ``bytes_per_s`` allows.

    Rates that were measured stay. The bandwidth is a data sheet's, so that these times are the least.

    Raises:
        InputError: a bandwidth below what rates may be.
    """
    if not bytes_per_s >= ACCUMULATE_PASSES:
        raise InputError(f"memory bandwidth: {bytes_per_s} is not legal; give bytes/s, such as 696e9")
    copies, additions = bytes_per_s / COPY_PASSES, bytes_per_s / ACCUMULATE_PASSES
    rates = {
        "copy_in_bytes_per_s": copies,
        "copy_out_bytes_per_s": copies,
        "accumulate_bytes_per_s": additions,
    }
    unknown = [name for name in rates if getattr(hardware, name) is None or is_unmeasured(hardware, name)]
    return with_measured(hardware, **{name: rates[name] for name in unknown})
