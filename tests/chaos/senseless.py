"""What no document that is accepted may say, property by property: told from its JSON, not by our nouns."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from sim.nouns.workload import DTYPE_BYTES

Document = Mapping[str, Any]
_FREE = ("provenance", "extensions", "spread", "environment", "requires", "settings", "ddp_kwargs")
_CURVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
_RISING = (("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns"), ("low_ns", "high_ns"))


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number with the key that it is under; what is free text to us is left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _FREE:
                yield from _numbers(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _falls(values: list[float]) -> bool:
    return any(before > after for before, after in pairwise(values))


def _late(document: Document) -> bool:
    ready = [gradient["ready_ns"] for gradient in document["gradients"]]
    return any(time is not None and time > document["backward_ns"] for time in ready)


def _order_falls(document: Document) -> bool:
    times = {gradient["index"]: gradient["ready_ns"] for gradient in document["gradients"]}
    order = document["ready_order"]
    return order is not None and _falls([times[index] for index in order])


def _other_size(document: Document) -> bool:
    return any(
        gradient["shape"]
        and math.prod(gradient["shape"]) * DTYPE_BYTES[gradient["dtype"]] != gradient["num_bytes"]
        for gradient in document["gradients"]
    )


def _scatter_falls(document: Document) -> bool:
    points = [point for curve in _CURVES for point in document["spread"].get(curve, {}).values()]
    told = [[point[name] for name in names if name in point] for point in points for names in _RISING]
    return any(_falls(values) or min(values, default=0) < 0 for values in told)


def _twice(values: list[Any]) -> bool:
    return len(set(values)) < len(values)


PROPERTIES: dict[str, dict[str, Callable[[Document], bool]]] = {
    "any": {
        "a number that is not finite": lambda d: not all(math.isfinite(value) for _, value in _numbers(d)),
        "a negative size": lambda d: any(n.endswith("_bytes") and v < 0 for n, v in _numbers(d)),
    },
    "workload": {
        "a negative time": lambda d: any(n.endswith("_ns") and v < 0 for n, v in _numbers(d)),
        "no gradient": lambda d: not d["gradients"],
        "indices with a gap or twice": lambda d: (
            sorted(one["index"] for one in d["gradients"]) != list(range(len(d["gradients"])))
        ),
        "a gradient that is ready after backward": _late,
        "an order that goes back in time": _order_falls,
        "a shape of another size": _other_size,
        "a sample of other gradients": lambda d: any(len(s) != len(d["gradients"]) for s in d["samples"]),
        "a band upside down": lambda d: d["band"] is not None and _falls(d["band"]),
    },
    "hardware": {
        "a negative time": lambda d: any(n.endswith("_ns") and v < 0 for n, v in _numbers(d)),
        "no rank, or more than a million": lambda d: not 1 <= d["world_size"] <= 10**6,
        "a slow-down that speeds up": lambda d: any(n.endswith("slowdown") and v < 1 for n, v in _numbers(d)),
        "a rate of 0": lambda d: any(n.endswith("_per_s") and v <= 0 for n, v in _numbers(d)),
        "a curve without sizes that rise": lambda d: any(
            d[name] is not None and (not d[name] or _falls([point["num_bytes"] for point in d[name]]))
            for name in _CURVES
        ),
        "scatter that falls or is negative": _scatter_falls,
    },
    "assignment": {
        "an empty bucket": lambda d: not d["bucket_indices"] or not all(d["bucket_indices"]),
        "an index twice": lambda d: _twice([index for bucket in d["bucket_indices"] for index in bucket]),
        "a negative index": lambda d: any(index < 0 for bucket in d["bucket_indices"] for index in bucket),
    },
    "measurement": {
        "no rank": lambda d: d["world_size"] < 1,
        "a complete one without a step": lambda d: d["complete"] and not d["iterations"],
    },
    "cluster": {"a rate of 0": lambda d: any(n.endswith("_per_s") and v <= 0 for n, v in _numbers(d))},
    "ranks": {
        "a pace of 0": lambda d: any(n == "pace" and v <= 0 for n, v in _numbers(d)),
        "a probability beyond 1": lambda d: any(
            n.endswith("probability") and not 0 <= v <= 1 for n, v in _numbers(d)
        ),
    },
}


def senseless(kind: str, document: Document) -> list[str]:
    """The names of the properties that an accepted document of ``kind`` has and must not have.

    Of what commands print and nothing reads again (reports, explanations) nothing is asked.
    """
    checks = {**PROPERTIES["any"], **PROPERTIES[kind]} if kind in PROPERTIES else {}
    return [name for name, is_so in checks.items() if is_so(document)]


def table() -> str:
    """All properties, as the manual's table has them: ``python -m tests.chaos.senseless`` prints it."""
    rows = [f"| {kind} | {'; '.join(checks)} |" for kind, checks in PROPERTIES.items()]
    return "\n".join(("| document | refused |", "|---|---|", *rows))


if __name__ == "__main__":
    print(table())
