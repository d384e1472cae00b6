"""What headline and timeline say at each stop of a slider, played before anybody moves it."""

import json
import time
from collections.abc import Callable
from typing import Any

from app import playing
from app.drag.raster import lane_runs, mark_runs
from app.drag.states import Slider, State
from app.figures.style import ms
from app.figures.timeline import are_few, path_marks, timeline_data
from app.memo import memo
from app.playing import Inputs, Played
from app.views.tune_step import step_cards
from app.widgets import Card
from app.words import capital
from sim.errors import SimError

GainCard = Callable[[Played, Played], Card]
Notes = tuple[str, ...]
_PART_S, _FIRST_PART_S = 0.05, 0.25  # what a knob that is turned meanwhile, or the search, may have to wait
_CHARACTERS = 8_000_000  # of all frames that are kept: two sliders' for 160 jobs of 161 tensors, 50 of 1,000


def part(state: State, slider: Slider, gain: GainCard, has: dict[str, Any] | None = None) -> dict[str, Any]:
    """The next few stops that ``slider`` leads to, as the browser draws them: as many as are made soon.

    They come outwards from ``start``, where the slider stood at first: those from ``first`` up to ``next``
    of them. ``stops`` has, by the words of a stop, the number of its frame; stops that cut the same buckets
    share one. A stop that only the server can tell of is left out. ``isLast``: no other is to come.

    Args:
        state: what the page shows.
        slider: the slider.
        gain: makes the card of the gain, of what is shown and DDP's default.
        has: ``group``, ``start``, ``isSearched`` and ``next`` of what the browser has; of another group it is
            of no use. Its ``number`` comes back as ``answers``: else two answers on their way undo each other
            for ever.

    What could be gained is left empty where ``state`` is not searched, and on any other machine. Once it is
    searched, all frames come again, one by one in place of those without it.
    """
    group, start, first = slider.group(state), slider.standing(state), 0
    if has is not None and has.get("group") == group:
        start = str(has["start"])
        first = int(has["next"]) if has["isSearched"] == state.is_searched else 0
    order = slider.outwards(start) if slider.is_known(state) else ()
    # While a search runs, the browser cannot ask for more.
    enough_s = _PART_S if state.is_searched else _FIRST_PART_S
    frames: dict[str, int] = {}
    stops: dict[str, int] = {}
    done, began = first, time.monotonic()
    for stop in order[first:]:
        if done > first and time.monotonic() - began > enough_s:
            break
        done += 1
        text = _text(state, slider, stop, gain)
        if text is not None:
            stops[slider.words(stop)] = frames.setdefault(text, len(frames))
    return {
        "answers": has and has.get("number"),
        "slider": slider.key,
        "group": group,
        "start": start,
        "isSearched": state.is_searched,
        "first": first,
        "next": done,
        "isLast": done >= len(order),
        "stops": stops,
        "frames": list(frames),
    }


def _text(state: State, slider: Slider, stop: float, gain: GainCard) -> str | None:
    """The frame of one stop as JSON; None: only the server can tell of it."""
    moved = slider.at(state, stop)
    is_searched = state.is_searched and slider.field is None
    try:
        assignment = moved.assignment()
        # In another precision caps that cut alike may cut what was measured otherwise: no frame is shared.
        own = stop if moved.what_if.precision else None

        def make() -> tuple[str, Notes]:
            shown = playing.play(moved.inputs, moved.choice)
            made = frame(moved, shown, gain, is_searched=is_searched)
            return json.dumps(made, separators=(",", ":")), shown.report.notes

        of = slider.group(state), is_searched, own
        text, notes = _made(moved.inputs, assignment.bucket_indices, of, make)
    except SimError:
        return None  # which the server tells when it is asked for
    # Notes stand beneath the cards, and are not drawn here.
    return text if notes == playing.play(state.inputs, state.choice).report.notes else None


@memo(_CHARACTERS, lambda made, *_: len(made[0]))
def _made(
    inputs: Inputs,
    buckets: tuple[tuple[int, ...], ...],
    of: tuple[object, ...],
    make: Callable[[], tuple[str, Notes]],
) -> tuple[str, Notes]:
    return make()  # as JSON, with the step's notes


def frame(state: State, shown: Played, gain: GainCard, *, is_searched: bool) -> dict[str, Any]:
    """The cards, the sentence and the lanes of one step; times in ms.

    ``is_searched`` False: what could be gained there is not known yet, so that line is left empty.
    """
    timeline = shown.timeline
    data = timeline_data(timeline)
    until_ns = data.sync_end_ns
    default = playing.play(state.inputs, state.choice.default_for(state.inputs.workload))
    last = gain(shown, default)
    as_measured = None if state.what_if.is_none else playing.play(state.measured, state.choice)
    marks = path_marks(timeline, shown.path)
    return {
        "cards": [(card.value, card.below) for card in step_cards(shown, as_measured)]
        + [(last.value, last.below if is_searched else "")],
        "sentence": capital(shown.report.verdict),
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
