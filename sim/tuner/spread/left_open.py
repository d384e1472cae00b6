"""What an anchor left open: machines that the recorded step allows as well as the one it was fitted to."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.clock.arrays import Floats
from sim.costs.in_step import tilt_ratio
from sim.errors import InputError
from sim.nouns.hardware import Hardware
from sim.nouns.own_step import FACTORS
from sim.tuner.search.problem import Machine, Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeftOpen:
    """Names of factors, and the covariance of their logarithms [factors, factors].

    ``about_bytes`` is the size of message around which the curve may be tilted.
    """

    factors: tuple[str, ...]
    covariance: Floats
    about_bytes: int

    def draw(
        self, problem: Problem, machines: int, generator: np.random.Generator
    ) -> tuple[Floats, tuple[Machine, ...]]:
        """Factors of the curve's points [machines, points], and each machine with its slow-downs."""
        logs = generator.multivariate_normal(np.zeros(len(self.factors)), self.covariance, machines)
        by_name = dict(zip(self.factors, np.exp(logs).T, strict=True))
        ones = np.ones(machines)
        ratios = np.array(
            [
                [tilt_ratio(link, tilt, size, self.about_bytes) for size in problem.curve_bytes.tolist()]
                for link, tilt in zip(by_name.get("link", ones), by_name.get("tilt", ones), strict=True)
            ]
        )
        factors = problem.machine.factors
        slowed = tuple(
            problem.machine._replace(
                factors=factors._replace(
                    compute=max(1.0, factors.compute * compute), comm=max(1.0, factors.comm * comm)
                )
            )
            for compute, comm in zip(
                by_name.get("compute_slowdown", ones).tolist(),
                by_name.get("comm_slowdown", ones).tolist(),
                strict=True,
            )
        )
        return ratios, slowed


def read_left_open(hardware: Hardware) -> LeftOpen | None:
    """What ``sim.own_step`` wrote into ``spread``; None where nothing was anchored.

    Raises:
        InputError: ``spread.own_step`` is not legal.
    """
    said: Any = hardware.spread.get("own_step")
    if said is None or hardware.world_size == 1:
        return None
    try:
        factors, about = tuple(said["factors"]), int(said["about_bytes"])
        covariance = np.array(said["covariance"], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"spread.own_step: {str(said)[:60]!r} is not legal; give factors, covariance and about_bytes"
        ) from None
    fits = covariance.shape == (len(factors), len(factors)) and about > 0
    if not fits or not set(factors) <= set(FACTORS) or not np.isfinite(covariance).all():
        raise InputError(
            f"spread.own_step: {str(said)[:60]!r} is not legal; give factors of {', '.join(FACTORS)}, and a "
            f"row and a column of finite numbers for each"
        )
    return LeftOpen(factors=factors, covariance=covariance, about_bytes=about)
