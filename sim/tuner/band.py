"""How far steps range at each cap: the same draws for all of them, so that they differ by what they are."""

from collections.abc import Sequence

import numpy as np

from sim.engine.run import run
from sim.engine.systems import assign
from sim.nouns.band import BandPoint
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.draws import draw
from sim.tuner.partitions import Buckets
from sim.tuner.problem import Problem
from sim.tuner.robust import LEVELS
from sim.tuner.telling import tell
from sim.verdict.metrics import step_ns


def step_band(
    workload: Workload, hardware: Hardware, caps_mb: Sequence[float | None], *, draws: int, seed: int
) -> tuple[BandPoint, ...]:
    """The 95 % range of single steps at each cap: see ``sim.step_band``."""
    drawn = draw(Problem(workload, hardware), draws, seed)
    if len(drawn) == 1:
        return ()
    played = run(workload, hardware, assign(workload), "analytic")
    rest = drawn.paces * (step_ns(played) - played.sync_end_ns)
    known: dict[Buckets, tuple[int, int]] = {}
    points = []
    for cap in caps_mb:
        buckets = assign(workload, bucket_cap_mb=cap).bucket_indices
        if buckets not in known:
            tell("playing steps as they vary")
            low, high = np.quantile(drawn.sync_ends(buckets).ravel() + rest, LEVELS).tolist()
            known[buckets] = round(low), round(high)
        points.append(BandPoint(cap_mb=cap, low_ns=known[buckets][0], high_ns=known[buckets][1]))
    return tuple(points)
