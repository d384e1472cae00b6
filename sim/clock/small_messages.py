"""Small messages on channels that share one connection, as gloo's do: they wait, and slow nothing.

Gloo cuts an all-reduce into segments, of which two are in flight in each of its two halves, and all channels
send through the one connection that two ranks have. A small message that is sent beside a larger one waits
behind those segments, in either half, and the larger one does not notice.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil
from statistics import median

from sim.nouns.hardware import Curve, Hardware
from sim.units import MIB

# On average 1.5 of the 2 segments in flight in each half are still to be sent; a message up to 4 MiB has 4.
_WAITED = Fraction(3, 4)
_MOST_WIRE = Fraction(1, 4)  # of a small message's time
_USUAL_BYTES = 2 * MIB  # of what a small message waits behind: a gradient of a layer
_NONE = (0, 1.0)


def small_messages(hardware: Hardware) -> tuple[int, float]:
    """From how many bytes on a message is not small, and how much longer a small one takes beside others.

    A message is small where less than a quarter of its time is the wire's, at the best rate of the all-reduce
    curve; 0 bytes and a factor of 1 where nothing is.
    """
    if not hardware.shared_connection or hardware.comm_channels == 1 or hardware.world_size == 1:
        return _NONE
    return _by_curve(hardware.all_reduce)


@lru_cache(maxsize=256)
def _by_curve(curve: Curve) -> tuple[int, float]:
    rates = [Fraction(point.duration_ns, point.num_bytes) for point in curve if point.num_bytes]
    edge = min(rates, default=Fraction(0)) / _MOST_WIRE  # ns a byte of a message that is just not small
    small = []
    for point in curve:
        if edge * point.num_bytes >= point.duration_ns:
            break
        small.append(point)
    if not small or len(small) == len(curve):
        return _NONE
    before, after = curve[len(small) - 1], curve[len(small)]
    slope = Fraction(after.duration_ns - before.duration_ns, after.num_bytes - before.num_bytes)
    num_bytes = ceil((before.duration_ns - slope * before.num_bytes) / (edge - slope))
    longest = max(_USUAL_BYTES, after.num_bytes)
    waits = _WAITED * [point.duration_ns for point in curve if point.num_bytes <= longest][-1]
    usual = median(point.duration_ns for point in small)
    return num_bytes, round(1 + float(waits) / usual, 4)
