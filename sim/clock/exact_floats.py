"""Fractions of ns as sums of two floats, right to some 100 bits (Dekker 1971, doi:10.1007/BF01397083).

What remains of stretched work is a fraction in the SimPy clock and such a sum in the compiled one. Each
rounding to the ns is watched: where it comes closer to a half than the sum can tell, it is not sure.
"""

import numpy as np

from sim.clock.machine_code import compiled


@compiled
def exact_product(a: float, b: float) -> tuple[float, float]:
    """``a * b``, exactly, as the sum of two floats."""
    high = a * b
    split = 134217729.0 * a  # 2**27 + 1
    a_high = split - (split - a)
    a_low = a - a_high
    split = 134217729.0 * b
    b_high = split - (split - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@compiled
def exact_sum(a: float, b: float) -> tuple[float, float]:
    """``a + b``, exactly, as the sum of two floats."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


@compiled
def work_left(
    left: float, left_low: float, elapsed: float, rate: float, rate_low: float
) -> tuple[float, float, bool]:
    """What is left after ``elapsed`` ns in which work took ``rate`` times as long, and whether exactly so."""
    done = elapsed / rate
    product, product_low = exact_product(done, rate)
    rest = (elapsed - product) - product_low - done * rate_low
    done_low = rest / rate
    high, low = exact_sum(left, -done)
    high, low = exact_sum(high, low + (left_low - done_low))
    return high, low, rest == 0.0 and rate_low == 0.0


@compiled
def rounded_end(
    elapsed: float, left: float, left_low: float, rate: float, rate_low: float, whole: float, changes: int
) -> tuple[int, bool]:
    """``elapsed + left * rate`` rounded half to even, and whether that is sure.

    ``whole`` is the work in all, ``changes`` how often what is left of it was not exact.
    """
    product, product_low = exact_product(left, rate)
    total, total_low = exact_sum(elapsed, product)
    total_low += product_low + (left * rate_low + left_low * rate)
    floor = np.floor(total)
    above_half = ((total - floor) - 0.5) + total_low
    rounded = int(floor)
    if above_half > 0 or (above_half == 0 and rounded & 1):
        rounded += 1
    if changes == 0 and rate_low == 0.0:
        return rounded, True
    return rounded, abs(above_half) > (changes + 1) * (total + whole * rate) * 2.0**-95
