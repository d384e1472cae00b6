"""What headline and timeline say at each stop of a slider, played before anybody moves it.

The browser draws it while a hand moves the slider (``follow.js``), before the server has answered: a timeline
as far as pixels tell apart, each lane a row of cells, neighbours alike told once.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import streamlit as st

from app import playing
from app.drag.states import CAP, SLIDERS, Slider, State
from app.figures.style import BUCKETS, EXPOSED, LINE, NEUTRAL, PATH, TIME_AXIS, ms
from app.figures.timeline import Mark, Span, path_marks, timeline_data
from app.memo import memo
from app.playing import Inputs, Played
from app.views.tune_step import CARDS, SENTENCE, TIMELINE, step_cards
from app.widgets import Card
from app.words import capital
from sim.errors import SimError

GainCard = Callable[[Played, Played], Card]
Notes = tuple[str, ...]
_PART_S, _FIRST_PART_S = 0.05, 0.25  # what a knob that is turned meanwhile, or the search, may have to wait
_CHARACTERS = 8_000_000  # of all frames that are kept: two sliders' for 160 jobs of 161 tensors, 50 of 1,000
CELLS = 2048  # across the step: finer than the pixels of a figure that is less than 2,000 wide
PATTERNS = ("", "/", ".", "|", "x", "-")
_NOTHING = -1
_KEY = "follow"
_HERE = Path(__file__).parent
_PLACES = {"cards": CARDS, "sentence": SENTENCE, "timeline": TIMELINE}
_STYLE = {
    "cells": CELLS,
    "patterns": PATTERNS,
    "colours": BUCKETS,
    "neutral": NEUTRAL,
    "path": PATH,
    "exposed": EXPOSED,
    "instant": LINE,
    "axis": TIME_AXIS,
}
_FOLLOW = st.components.v2.component(
    "bucketsim_follow",
    js="".join((_HERE / name).read_text(encoding="utf-8") for name in ("follow.js", "draw.js", "sliders.js")),
    css=(_HERE / "follow.css").read_text(encoding="utf-8"),
    isolate_styles=False,  # it draws in the page's own place
)


@st.fragment
def follow(state: State, gain: GainCard) -> None:
    """Give the browser what the slider leads to that the hand came near last; at first the cap's.

    It travels in parts: the browser says what it has, which runs this fragment alone, until it has all.
    ``gain`` makes the gain's card from a step and the default's; where ``state`` is searched, it knows the
    best that can be gained on this machine.
    """
    has: dict[str, Any] = st.session_state.get(_KEY, {}).get("has") or {}
    slider = SLIDERS.get(str(has.get("slider")), SLIDERS[CAP])
    _FOLLOW(
        key=_KEY,
        data={
            "sliders": list(SLIDERS),
            "places": _PLACES,
            "style": _STYLE,
            "part": part(state, slider, gain, has),
        },
        default={"has": None},
        on_has_change=lambda: None,
    )


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
        "few": data.are_few,
        "marks": mark_runs(marks, data.lanes, until_ns),
        "end": ms(data.backward_end_ns),
        "sync": ms(until_ns),
        "until": 1.01 * ms(max(until_ns, as_measured.timeline.sync_end_ns if as_measured else 0)),
    }


def lane_runs(spans: Iterable[Span], until_ns: int) -> list[int]:
    """One lane as [style, cells, style, cells, ...], from 0 to ``until_ns`` in ``CELLS`` cells.

    A style is ``-1`` where nothing is, else the number of the bucket plus 1 (0: of none) times the number of
    patterns plus the pattern's. What is shorter than a cell shows where nothing longer does; neighbours are
    told apart by bucket and pattern, so that there are never more runs than cells.
    """
    cells = [_NOTHING] * CELLS
    for span in sorted(spans, key=lambda span: span.end_ns - span.start_ns):
        first, last = _cell(span.start_ns, until_ns), _cell(span.end_ns, until_ns)
        first = min(first, CELLS - 1)
        length = max(1, last - first)
        bucket = 0 if span.bucket is None else span.bucket + 1
        style = bucket * len(PATTERNS) + PATTERNS.index(span.pattern)
        cells[first : first + length] = [style] * length
    runs = []
    for style, run in groupby(cells):
        runs += [style, len(list(run))]
    return runs


def mark_runs(marks: Sequence[Mark], lanes: Sequence[str], until_ns: int) -> list[list[int]]:
    """The critical path as [lane, first cell, cells], without what is shorter than half a cell."""
    found = []
    for mark in marks:
        first, last = _cell(mark.start_ns, until_ns), _cell(mark.end_ns, until_ns)
        if last > first and mark.lane in lanes:
            found.append([lanes.index(mark.lane), first, last - first])
    return found


def _cell(at_ns: int, until_ns: int) -> int:
    return round(at_ns * CELLS / until_ns) if until_ns else 0
