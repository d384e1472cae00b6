"""Max-min fair shares of flows on links, by progressive filling."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

LinkName = TypeVar("LinkName", bound=Hashable)

# Links this close to full are full: rates are sums of a few floats, each to about 1e-16.
_FULL = 1e-9


def max_min_shares(
    flows: Sequence[Mapping[LinkName, float]], capacity: Mapping[LinkName, float]
) -> list[float]:
    """The max-min fair rate of each flow, in bytes/s.

    A flow is what it takes of each link for each byte/s of its rate: 1 where it crosses the link once, 2
    where a ring passes it twice. All rates grow together; where a link is full, the flows on it stop
    (Bertsekas and Gallager, Data Networks, 6.5.2). So no link is over its capacity, and every flow crosses a
    full link on which no other flow has a higher rate. A flow that crosses nothing is unbounded (``inf``);
    one that crosses a link of no bandwidth gets 0. Links that are used alike count as one, so that a hundred
    thousand links cost no more than the few ways in which they are used.

    Args:
        flows: for each flow, its use of each link.
        capacity: bytes/s of each link, in the direction that is used.
    """
    uses: dict[LinkName, list[tuple[int, float]]] = {}
    for number, flow in enumerate(flows):
        for link, times in flow.items():
            if times:
                uses.setdefault(link, []).append((number, times))
    least: dict[tuple[tuple[int, float], ...], float] = {}
    for link, use in uses.items():
        row = tuple(use)
        least[row] = min(least.get(row, math.inf), capacity[link])
    rates = [math.inf] * len(flows)
    growing = {number for row in least for number, _ in row}
    level = 0.0
    while growing:
        levels = {
            row: (total - _taken(row, rates, growing))
            / sum(times for number, times in row if number in growing)
            for row, total in least.items()
            if any(number in growing for number, _ in row)
        }
        level = max(level, min(levels.values()))
        stopped = {
            number
            for row, full_at in levels.items()
            if full_at <= level * (1 + _FULL)
            for number, _ in row
            if number in growing
        }
        for number in stopped:
            rates[number] = level
        growing -= stopped
    return rates


def _taken(row: tuple[tuple[int, float], ...], rates: list[float], growing: set[int]) -> float:
    """Bytes/s of a link that flows which no longer grow have taken."""
    return sum(times * rates[number] for number, times in row if number not in growing)
