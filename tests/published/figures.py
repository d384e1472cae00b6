"""Figures that are kept of public measurements, in the files here.

Each entry names its source and licence; a curve's points are [bytes, ns]. Where they are a sample of more,
``of`` says of how many.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from sim.nouns.hardware import Curve, CurvePoint

FOLDER = Path(__file__).parent


@cache
def figures(name: str) -> dict[str, dict[str, Any]]:
    """The entries of one file."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def curve(points: list[list[int]]) -> Curve:
    return tuple(CurvePoint(num_bytes=size, duration_ns=duration) for size, duration in points)
