"""The Pareto front of a sweep: the rows that no other row beats in one figure without losing in another."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

from sim.errors import InputError
from sim.nouns.rows import SweepRow
from sim.tuner.sweeps.axes import WHAT_IFS

_FIELDS = tuple(field.name for field in fields(SweepRow))
_AXES = ("label", "bucket_cap_mb", *WHAT_IFS)
_FIGURES = tuple(name for name in _FIELDS if name not in _AXES)


def pareto_front(
    rows: Sequence[SweepRow],
    figures: Sequence[str] = ("step_ns", "largest_bucket_bytes"),
    *,
    within: Sequence[str] = WHAT_IFS,
) -> tuple[bool, ...]:
    """For each row, whether it is on the front: no other is as good in all ``figures`` and better in one.

    Args:
        rows: of a sweep.
        figures: fields of ``SweepRow`` that are to be small; ``overlap_ratio`` is to be large.
        within: only rows in which these fields are equal are compared: by default those under the same
            what-ifs, since no cap makes the wire faster. ``()`` compares all.

    Raises:
        InputError: no figure, or a name that is no figure or field.
    """
    if not figures:
        raise InputError(f"figures: an empty list is not legal; give some of {', '.join(_FIGURES)}")
    for what, names, legal in (("figures", figures, _FIGURES), ("within", within, _FIELDS)):
        for name in names:
            if name not in legal:
                raise InputError(f"{what}: {name!r} is not legal; give some of {', '.join(legal)}")
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        together[tuple(getattr(row, name) for name in within)].append(number)
    on_front = [False] * len(rows)
    for numbers in together.values():
        costs = {number: _costs(rows[number], figures) for number in numbers}
        front: list[tuple[float, ...]] = []
        for number in sorted(numbers, key=costs.__getitem__):  # a row that beats another comes before it
            cost = costs[number]
            beaten = any(
                other != cost and all(a <= b for a, b in zip(other, cost, strict=True)) for other in front
            )
            if not beaten:
                on_front[number] = True
                if not front or front[-1] != cost:
                    front.append(cost)
    return tuple(on_front)


def _costs(row: SweepRow, figures: Sequence[str]) -> tuple[float, ...]:
    return tuple(-row.overlap_ratio if name == "overlap_ratio" else getattr(row, name) for name in figures)
