"""The caps that a sweep tries, which are numbers that one would type, and which cap of a sweep to set."""

from collections.abc import Sequence

from sim.nouns.recommendation import Plateau
from sim.nouns.rows import SweepRow
from sim.nouns.workload import Workload
from sim.units import MIB

CAPS_MB = (
    *(0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10),
    *(12.5, 14, 16, 18, 20, 22.5, 25, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100),
    *(112, 128, 150, 175, 200, 225, 256, 300, 350, 400, 450, 512, 600, 700, 800, 900, 1024),
)
# MiB: the caps that people set most often, then others that they set.
ROUNDEST_MB = ((25, 1, 4, 10, 100), (2, 5, 8, 16, 20, 32, 50, 64, 128, 200, 256, 512, 1024, 0.5, 0.25))
TOLERANCE = 0.01  # of the best step, as of a plateau


def default_caps(workload: Workload) -> list[float]:
    """Caps in MiB from 0.25 to what holds everything."""
    largest = float(max(1, -(-workload.total_bytes // MIB) + 1))
    caps = [float(cap) for cap in CAPS_MB]
    while caps[-1] < largest:
        caps.append(caps[-1] * 1.25)
    return [*(cap for cap in caps if cap < largest), largest]


def round_cap(rows: Sequence[SweepRow], plateau: Plateau | None = None) -> SweepRow | None:
    """The row of the cap to set: a round cap whose step is within 1 % of the best cap's; None without caps.

    Of several equally round caps it is the fastest; without a round one it is the fastest cap of all. See
    ``plateau.caps_mb`` for the other caps within 1 %, one of each layout.

    Args:
        rows: a sweep over caps, under what-ifs or switches that are the same in all of them.
        plateau: if given, only caps that cannot be told apart from the recommendation are taken, unless none
            of those within 1 % is such a cap.
    """
    caps = {row.bucket_cap_mb: row for row in rows if row.bucket_cap_mb}
    best_ns = min((row.step_ns for row in caps.values()), default=0)
    near = {cap: row for cap, row in caps.items() if row.step_ns <= best_ns * (1 + TOLERANCE)}
    if plateau is not None:
        alike = plateau.alike_mb
        near = {cap: near[cap] for cap in near if any(low <= cap <= high for low, high in alike)} or near
    for usual in (*ROUNDEST_MB, tuple(near)):
        round_ones = [near[cap] for cap in usual if cap in near]
        if round_ones:
            return min(round_ones, key=lambda row: row.step_ns)
    return None
