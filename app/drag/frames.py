"""What headline and timeline say at each stop of a slider, played before anybody moves it."""

import json
from collections.abc import Callable
from typing import Any

from app import cached
from app.cached import Played
from app.drag.raster import lane_runs, mark_runs
from app.drag.states import Slider, State
from app.figures.critical import path_marks
from app.figures.style import ms
from app.figures.timeline import are_few, timeline_data
from app.remembering import Remembered
from app.views.headline import Card, step_cards
from app.words import labels
from sim.errors import SimError
from sim.metrics.critical_path import critical_path

Told = Callable[[str], None]
GainCard = Callable[[Played, Played], Card]
_CHARACTERS = 32_000_000  # of all payloads that are kept
_PAYLOADS: Remembered[dict[str, Any]] = Remembered(_CHARACTERS)


def payload(
    state: State, slider: Slider, gain: GainCard, told: Told, *, is_searched: bool = False
) -> dict[str, Any]:
    """What the browser draws while ``slider`` moves.

    ``stops`` has, by the words of a stop, the number of its frame. Stops that cut the same buckets share one.
    A stop that only the server can tell of is left out.

    Args:
        state: what the page shows.
        slider: the slider.
        gain: makes the card of the gain, of what is shown and DDP's default.
        told: hears how far it is made.
        is_searched: whether ``gain`` knows what could be gained on the machine of ``state``. That line is
            left empty where it does not, and on any other machine.
    """
    found = find(state, slider, is_searched)
    if found is not None:
        return found
    made = _make(state, slider, gain, told, is_searched and slider.field is None)
    return _PAYLOADS.get(_key(state, slider, is_searched), lambda: made, len(json.dumps(made)))


def find(state: State, slider: Slider, is_searched: bool = False) -> dict[str, Any] | None:
    """The payload, if it was made before."""
    return _PAYLOADS.find(_key(state, slider, is_searched))


def _key(state: State, slider: Slider, is_searched: bool) -> tuple[str, str, bool]:
    return slider.key, slider.group(state), is_searched


def _make(state: State, slider: Slider, gain: GainCard, told: Told, is_searched: bool) -> dict[str, Any]:
    frames: list[dict[str, Any]] = []
    stops: dict[str, int] = {}
    known: dict[object, int] = {}  # by machine and buckets
    notes = cached.play(state.inputs, state.choice).report.notes
    for stop in slider.stops if slider.is_known(state) else ():
        told(f"playing what a slider leads to, {len(stops)} of {len(slider.stops)}")
        moved = slider.at(state, stop)
        try:
            assignment = moved.assignment()
            # In another precision caps that cut alike may cut what was measured otherwise.
            same = moved.inputs.key, assignment.bucket_indices, moved.what_if.precision and stop
            if same not in known:
                shown = cached.play_assignment(moved.inputs, assignment)
                if shown.report.notes != notes:
                    continue  # they stand beneath the cards, and are not drawn here
                known[same] = len(frames)
                frames.append(frame(moved, shown, gain, is_searched=is_searched))
        except SimError:
            continue  # which the server tells when it is asked for
        stops[slider.words(stop)] = known[same]
    return {"slider": slider.key, "group": slider.group(state), "stops": stops, "frames": frames}


def frame(state: State, shown: Played, gain: GainCard, *, is_searched: bool) -> dict[str, Any]:
    """The cards, the sentence and the lanes of one step; times in ms.

    ``is_searched`` False: what could be gained there is not known yet, so that line is left empty.
    """
    timeline = shown.timeline
    data = timeline_data(timeline)
    until_ns = data.sync_end_ns
    default = cached.play(state.inputs, state.choice.baseline(state.inputs.workload))
    last = gain(shown, default)
    as_measured = None if state.what_if.is_none else cached.play(state.measured, state.choice)
    marks = path_marks(timeline, critical_path(timeline))
    return {
        "cards": [(card.value, card.below) for card in step_cards(shown, as_measured)]
        + [(last.value, last.below if is_searched else "")],
        "sentence": labels.capital(shown.report.verdict),
        "lanes": data.lanes,
        "runs": [
            lane_runs((span for span in data.spans if span.lane == lane), until_ns) for lane in data.lanes
        ],
        "few": are_few(data),
        "marks": mark_runs(marks, data.lanes, until_ns),
        "end": ms(data.backward_end_ns),
        "sync": ms(until_ns),
        "until": 1.01 * ms(max(until_ns, as_measured.timeline.sync_end_ns if as_measured else 0)),
    }
