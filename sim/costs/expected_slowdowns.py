"""How computing and communication slow each other down in a step, by measurements apart from the step."""

from statistics import median

import numpy as np

from sim.nouns.hardware import Hardware

_SIGMA = 0.1  # of a slow-down's logarithm, where it was measured apart from the step
_MOST_SHARE = 0.75  # of a core, that communication takes from a rank that computes on it


def expected_slowdowns(hardware: Hardware, *, computes_on_host: bool) -> dict[str, tuple[float, float]]:
    """The expected ``comm_slowdown`` and ``compute_slowdown`` of a step: by name, logarithm and its sigma.

    A rank that computes on its host shares cores with its all-reduces (``spread.host_share``,
    ``spread.comm_beside_compute``; medians over sizes). A job that trains measures only the processor's time
    (``spread.processor_share``): all-reduces are then taken to slow down as much as computing does.
    """
    spread = hardware.spread
    measured = spread.get("host_share", spread.get("processor_share")), spread.get("comm_beside_compute")
    shares, slowdowns = (
        [one for one in known.values() if isinstance(one, float)] if isinstance(known, dict) else []
        for known in measured
    )
    found = {"comm_slowdown": hardware.comm_slowdown, "compute_slowdown": hardware.compute_slowdown}
    if not shares or not computes_on_host:
        return {name: (float(np.log(value)), _SIGMA) for name, value in found.items()}
    compute = 1 / (1 - min(_MOST_SHARE, max(0.0, median(shares))))
    found["compute_slowdown"] *= compute
    found["comm_slowdown"] *= max(1.0, median(slowdowns)) if slowdowns else compute
    return {name: (log := float(np.log(value)), max(_SIGMA, log / 2)) for name, value in found.items()}
