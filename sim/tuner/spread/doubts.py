"""Which inputs are marked as doubtful, and what that does to a gain."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.units import format_size


def doubts_about(workload: Workload, hardware: Hardware) -> tuple[str, ...]:
    """Sentences about the inputs: recorded times that cannot be true, doubtful points of the curve."""
    return (
        *(f"doubtful recording: {line}" for line in _listed(workload.provenance) if isinstance(line, str)),
        *_about_curve(hardware),
    )


def _about_curve(hardware: Hardware) -> tuple[str, ...]:
    """One sentence on all doubtful sizes of the curve; if there is one only, it says why."""
    points = [
        (one["num_bytes"], one["why"])
        for one in _listed(hardware.provenance)
        if isinstance(one, dict) and isinstance(one.get("num_bytes"), int) and isinstance(one.get("why"), str)
    ]
    if not points:
        return ()
    if len(points) == 1:
        ((size, why),) = points
        what, them = f"{format_size(size)} {why}", "it"
    else:
        least, most = (format_size(end(size for size, _ in points)) for end in (min, max))
        what, them = f"{len(points)} of {len(hardware.all_reduce)} sizes, {least} to {most}", "them"
    return (f"doubtful calibration: {what}; calibrate --again measures {them} anew",)


def _listed(provenance: dict[str, Any]) -> list[Any]:
    """The entries of ``doubtful`` in a file's provenance, which may hold anything."""
    found = provenance.get("doubtful")
    return found if isinstance(found, list) else []


def doubted(gain: Gain, doubts: Sequence[str]) -> Gain:
    """``gain``; if it is significant and there are ``doubts``, it no longer is for certain and says so."""
    if not doubts or gain.significant is not True:
        return gain
    return replace(
        gain, significant=None, sentence=f"{gain.sentence}; what it rests on is doubtful, see the notes"
    )
