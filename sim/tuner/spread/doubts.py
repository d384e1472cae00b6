"""What the inputs say of themselves that cannot be relied on, and what an answer made of them is worth."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.units import format_size


def doubts_about(workload: Workload, hardware: Hardware) -> tuple[str, ...]:
    """What a recording found that cannot be true of it, and a calibration of its curve; sentences."""
    return (
        *(f"doubtful recording: {line}" for line in _listed(workload.provenance) if isinstance(line, str)),
        *(
            f"doubtful calibration: {format_size(one['num_bytes'])} {one['why']}; calibrate --again measures "
            f"it anew"
            for one in _listed(hardware.provenance)
            if isinstance(one, dict)
            and isinstance(one.get("num_bytes"), int)
            and isinstance(one.get("why"), str)
        ),
    )


def _listed(provenance: dict[str, Any]) -> list[Any]:
    """``doubtful`` of a file's provenance, which may hold anything."""
    found = provenance.get("doubtful")
    return found if isinstance(found, list) else []


def doubted(gain: Gain, doubts: Sequence[str]) -> Gain:
    """``gain``; where it counted, no longer said to be significant for certain."""
    if not doubts or gain.significant is not True:
        return gain
    return replace(
        gain, significant=None, sentence=f"{gain.sentence}; what it rests on is doubtful, see the notes"
    )
