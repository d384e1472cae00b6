"""What becomes of a job that tunes its own buckets, and the file in which it tells."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from sim.errors import InputError
from sim.formats.documents import load
from sim.nouns.assignment import Assignment
from sim.truth.turns import AbTest

AUTOTUNE = "autotune.json"
Outcome = Literal["kept", "reverted", "refused"]
Phase = Literal["settling", "recording", "link", "prediction", "trial", "ended"]

_MEANWHILE: dict[Phase, str] = {
    "settling": "DDP had yet to rebuild its buckets",
    "recording": "steps were being recorded",
    "link": "the link was being measured",
    "prediction": "the best buckets were being predicted",
    "trial": "the new buckets were being tried",
    "ended": "it had ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLook:
    """What a trial said after ``steps`` of it: the gain as a share of the step, with its 95 % interval."""

    steps: int
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AutotuneProgress:
    """Where a job is that tunes its own buckets, as it keeps telling a directory.

    ``name`` is the model's class, ``steps`` counts from the first call of ``step``. ``in_use_ns`` and
    ``best_ns`` are predicted steps: of the buckets in use, and of the recommended ones. ``looks`` are those
    of the latest trial, of ``most_steps`` at most. ``outcome``, ``why`` and ``seconds``: once it ended.
    """

    KIND: ClassVar[str] = "autotune"
    name: str
    world_size: int
    phase: Phase = "settling"
    steps: int = 0
    buckets_in_use: int | None = None
    buckets_tried: int | None = None
    in_use_ns: int | None = None
    best_ns: int | None = None
    most_steps: int | None = None
    looks: tuple[TrialLook, ...] = ()
    outcome: Outcome | None = None
    why: str | None = None
    seconds: float | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """What is known of a tuning that has no outcome, and what it takes to have one."""
        return f"not decided: after {self.steps} steps {_MEANWHILE[self.phase]}; let it train for more steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuned:
    """How ``sim.autotune`` ended.

    ``kept``: the job trains with the buckets of ``assignment``. ``reverted``: with its own, as no gain was
    shown or none was to be expected. ``refused``: with its own, as it could not be tried. ``ab`` is the
    trial, where there was one; its interval holds 95 % of the time though it was looked at several times.
    ``predicted_gain_ns`` is what the simulator said of ``assignment``, ``predicted_low_ns`` to
    ``predicted_high_ns`` its 95 % interval (None where the job did not begin with DDP's default). ``steps``
    and ``seconds`` count from the first call of ``step``.
    """

    outcome: Outcome
    why: str
    steps: int
    seconds: float
    assignment: Assignment | None = None
    predicted_gain_ns: int | None = None
    predicted_low_ns: int | None = None
    predicted_high_ns: int | None = None
    ab: AbTest | None = None

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why} ({self.steps} steps, {self.seconds:.1f} s)"


def find_autotunes(directory: str | os.PathLike[str]) -> dict[str, AutotuneProgress]:
    """What tunings tell in ``directory`` and those in it, by their names; what cannot be read is left out."""
    found: dict[str, AutotuneProgress] = {}
    place = Path(directory)
    for path in (place / AUTOTUNE, *sorted(place.glob(f"*/{AUTOTUNE}"))):
        try:
            found[path.parent.name] = load(path, AutotuneProgress)
        except InputError:
            continue  # not there, or not ours
    return found
