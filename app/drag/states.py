"""What a slider can be moved to: the states of the page beside the one that it shows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app import playing
from app.choosing import KEYS, Choice, WhatIf
from app.memo import digest
from app.playing import Inputs
from app.views.tune_knobs import CAP_STOPS, CAPPED_PICKS
from app.views.tune_knobs import SLIDERS as STOPS
from sim.nouns.assignment import Assignment

CAP = "cap_slider"
_MOST_GRADIENTS = 4_000  # beyond it the stops of a slider take longer than a hand waits


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the page shows: ``measured`` is before the what-ifs.

    ``cap_stop`` is where the slider of the cap stands and ``first_mb`` the first bucket's cap, whether or not
    a cap is what was picked. ``is_searched``: what could be gained is known.
    """

    measured: Inputs
    what_if: WhatIf
    choice: Choice
    cap_stop: float
    first_mb: float | None = None
    is_searched: bool = False

    @property
    def inputs(self) -> Inputs:
        """Workload and machine with the what-ifs applied."""
        return playing.scale(self.measured, self.what_if)

    @property
    def id(self) -> str:
        """A short name of what is shown, by which the browser knows that the server has caught up."""
        return self.short()

    def short(self, slider: str = "") -> str:
        """A short name of all that it says but for where the sliders stand, as ``slider`` sees it."""
        files = digest(self.measured.workload), digest(self.measured.hardware)
        told = slider, *files, self.what_if.told(), self.choice.told(), self.choice.unreadable
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def assignment(self) -> Assignment:
        """Its buckets. Raises ``SimError`` as ``Choice.assignment``."""
        return self.choice.assignment(self.inputs.workload, lambda: playing.best(self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A slider by the key of its widget, what it sets in a ``WhatIf`` (None: the cap), and its stops."""

    key: str
    field: str | None
    stops: tuple[float, ...]

    def is_known(self, state: State) -> bool:
        """False where a stop needs a search, or brings back switches that are not on the page now."""
        if state.choice.unreadable or len(state.measured.workload.gradients) > _MOST_GRADIENTS:
            return False
        if self.field is None:
            return state.choice.pick in CAPPED_PICKS
        return state.choice.pick != "recommended"

    def at(self, state: State, stop: float) -> State:
        """The state once the slider stands at ``stop``."""
        if self.field is not None:
            return replace(state, what_if=_with_factor(state.what_if, self.field, stop))
        choice = Choice(pick="cap", cap_mb=float(stop), first_mb=state.first_mb, options=state.choice.options)
        return replace(state, choice=choice, cap_stop=float(stop))

    def words(self, stop: float) -> str:
        """The stop as the slider tells it."""
        return f"{stop:g}"

    def outwards(self, start: str) -> tuple[float, ...]:
        """Its stops, those nearest to the words of one of them first."""
        at = [self.words(stop) for stop in self.stops].index(start)
        order = sorted(range(len(self.stops)), key=lambda number: abs(number - at))
        return tuple(self.stops[number] for number in order)

    def standing(self, state: State) -> str:
        """Where it stands."""
        return self.words(state.cap_stop if self.field is None else getattr(state.what_if, self.field))

    def group(self, state: State) -> str:
        """A short name of all states that this slider leads to from ``state``; "" where none is known."""
        if not self.is_known(state):
            return ""
        if self.field is None:
            return self.at(state, 0.0).short(self.key)
        return self.at(state, 1.0).short(self.key)


SLIDERS: Mapping[str, Slider] = {
    CAP: Slider(key=CAP, field=None, stops=tuple(map(float, CAP_STOPS))),
    **{KEYS[field]: Slider(key=KEYS[field], field=field, stops=stops) for field, stops in STOPS.items()},
}


def mark(state: State) -> dict[str, Any]:
    """What the figure carries: the name of what it shows, where the sliders stand, what each leads to."""
    return {
        "id": state.id,
        "at": {key: slider.standing(state) for key, slider in SLIDERS.items()},
        "groups": {key: slider.group(state) for key, slider in SLIDERS.items()},
    }


def _with_factor(what_if: WhatIf, field: str, factor: float) -> WhatIf:
    changed: dict[str, Any] = {field: factor}
    return replace(what_if, **changed)
