"""A step on the Tune page: its cards, the sentence that names what limits it, its timeline.

And what the browser draws of them by itself while a hand moves a slider, before the server has answered
(``follow.js``): each stop's step, played beforehand.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import playing
from app.figures import style
from app.figures.style import ms
from app.figures.timeline import Bar, Mark, draw_timeline, path_marks, timeline_data
from app.memo import digest, memo
from app.playing import KEYS, Choice, Inputs, Played, WhatIf
from app.views.tune_knobs import CAP_SLIDER, CAP_STOPS, CAPPED_PICKS, SLIDERS, script
from app.widgets import Card, ask, chart, draw_card
from app.words import capital, estimated_sentence, plain, sentence, share
from sim.errors import SimError
from sim.units import format_ms, format_percent

# Keys of the places in which the browser draws while a slider moves.
_PLACES = {"cards": "cards", "sentence": "sentence", "timeline": "timeline"}
# By key of the widget: what it sets in a ``WhatIf`` (None: the cap), and its stops.
FOLLOWED: dict[str, tuple[str | None, tuple[float, ...]]] = {
    CAP_SLIDER: (None, tuple(map(float, CAP_STOPS))),
    **{KEYS[field]: (field, stops) for field, (_, stops, _) in SLIDERS.items()},
}
_MOST_GRADIENTS = 4_000  # beyond it the stops of a slider take longer than a hand waits
_FIRST_S = 0.25  # what the search has to wait for the first stops
_CHARACTERS = 8_000_000  # of all frames that are kept: two sliders' for 35 jobs of 161 tensors, 17 of 1,000
_STYLE = {
    "colours": style.BUCKETS,
    "neutral": style.NEUTRAL,
    "path": style.PATH,
    "exposed": style.EXPOSED,
    "instant": style.LINE,
    "axis": style.TIME_AXIS,
}
_FOLLOW = st.components.v2.component(
    "bucketsim_follow",
    js=script("follow.js"),
    css="""
    [data-drawn] > * { display: none !important; }
    [data-drawn]::after { content: attr(data-drawn); }
    p[data-drawn]::after { font-weight: 600; }
    .bucketsim-drawn { position: absolute; }
    """,
    isolate_styles=False,  # it draws in the page's own place
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the page shows: ``measured`` is before the what-ifs.

    ``cap_stop`` is where the slider of the cap stands and ``first_mb`` the first bucket's cap, whether or not
    a cap is what was picked.
    """

    measured: Inputs
    what_if: WhatIf
    choice: Choice
    cap_stop: float
    first_mb: float | None = None

    @property
    def inputs(self) -> Inputs:
        """Workload and machine with the what-ifs applied."""
        return playing.scale(self.measured, self.what_if)

    @property
    def as_measured(self) -> Played | None:
        """The same assignment on the machine that was measured; None where it is that one."""
        return None if self.what_if.is_none else playing.play(self.measured, self.choice)

    def at(self, slider: str, stop: float) -> "State":
        """The state once a slider stands at ``stop``."""
        field = FOLLOWED[slider][0]
        if field is not None:
            changed: dict[str, Any] = {field: stop}
            return replace(self, what_if=replace(self.what_if, **changed))
        choice = Choice(pick="cap", cap_mb=stop, first_mb=self.first_mb, options=self.choice.options)
        return replace(self, choice=choice, cap_stop=stop)

    def standing(self, slider: str) -> float:
        """Where a slider stands."""
        field = FOLLOWED[slider][0]
        return self.cap_stop if field is None else getattr(self.what_if, field)

    def short(self, slider: str = "") -> str:
        """A short name of all that it says, but for where ``slider`` stands."""
        files = digest(self.measured.workload), digest(self.measured.hardware)
        said = slider, *files, self.what_if.told(), self.choice.told()
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def group(self, slider: str) -> str:
        """A short name of all states that a slider leads to from here.

        "" where a stop needs a search, or brings back switches that are not on the page now.
        """
        field, stops = FOLLOWED[slider]
        is_ready = self.choice.pick in CAPPED_PICKS if field is None else self.choice.pick != "recommended"
        if not is_ready or len(self.measured.workload.gradients) > _MOST_GRADIENTS:
            return ""
        return self.at(slider, stops[0]).short(slider)

    def mark(self) -> dict[str, Any]:
        """What the figure carries: the name of what it shows, where sliders stand, what each leads to."""
        return {
            "id": self.short(),
            "at": {slider: f"{self.standing(slider):g}" for slider in FOLLOWED},
            "groups": {slider: self.group(slider) for slider in FOLLOWED},
        }


STEP_WORDS = "Forward + loss + backward with synchronisation + optimizer, and what comes before forward."
EXPOSED_WORDS = (
    "End of synchronisation minus a plain backward: all that synchronising gradients adds, be it waiting, "
    "copies, launches or interference. Of several micro-batches it is that of the last."
)
OVERLAP_WORDS = (
    "Time in which the compute lane and at least one collective are busy, over the time in which at least "
    "one collective is busy; of several micro-batches, in the last."
)
_GAIN = (
    "Step under DDP's default minus step under the assignment shown, both with the switches that are set; of "
    "a system of its own, with as many micro-batches. Possible: with what is recommended."
)


def step_cards(shown: Played, as_measured: Played | None = None) -> tuple[Card, Card, Card]:
    """The cards of a step, but for its gain; ``as_measured`` is the same on the measured machine."""
    report, before = shown.report, None
    if as_measured is not None:
        before = f"on the measured machine: {format_ms(as_measured.report.step_ns)}"
    exposed = f"{share(report.exposed_comm_ns, report.step_ns)} of the step"
    batches = len(report.exposed_by_micro_batch_ns)  # in how many of them something is reduced
    exposed += "" if batches <= 1 else f", in {batches} micro-batches"
    exposed_ms, overlap = format_ms(report.exposed_comm_ns), format_percent(report.overlap_ratio)
    return (
        Card(label="Step time", value=format_ms(report.step_ns), told=STEP_WORDS, below=before),
        Card(label="Exposed communication", value=exposed_ms, told=EXPOSED_WORDS, below=exposed),
        Card(label="Overlap", value=overlap, told=OVERLAP_WORDS),
    )


def gain_card(shown: Played, default: Played | None, possible: Played | None = None) -> Card:
    """The gain of what is shown and, below it, what could be gained, where that was searched for.

    ``default`` None is not played yet. ``possible`` is what is recommended, played for the same job under the
    same switches.
    """
    value, words = "…", "of its step"
    if default is not None:
        base, step = default.report.step_ns, shown.report.step_ns
        value, words = format_ms(base - step), f"{share(base - step, base)} of its step"
        if possible is not None and possible.report.step_ns < step:
            words = f"possible: {format_ms(base - possible.report.step_ns)}"
    return Card(label="Gain against DDP's default", value=value, told=_GAIN, below=words)


def headline(state: State, shown: Played) -> tuple[DeltaGenerator, DeltaGenerator]:
    """The cards and the sentence.

    Returns the gain's place, for ``draw_card`` once the default is played, and one right under the cards.
    """
    with st.container(key=_PLACES["cards"]):
        *columns, gain_column = st.columns(4)
    for column, card in zip(columns, step_cards(shown, state.as_measured), strict=True):
        draw_card(column, card)
    place = gain_column.empty()
    draw_card(place, gain_card(shown, None))
    below = st.container()
    with st.container(key=_PLACES["sentence"]):
        st.markdown(f"**{sentence(shown.report.verdict)}**")
    if (estimated := estimated_sentence(shown.timeline.workload)) is not None:
        st.warning(plain(estimated))
    draw = st.warning if shown.untimed_bytes else st.caption
    for note in shown.report.notes:
        draw(sentence(note))
    return place, below


@st.fragment
def step_timeline(state: State, shown: Played) -> None:
    """The figure, with the switch of the path above it; turning that draws nothing else anew.

    Beneath it the same assignment on the machine that was measured, where that is another.
    """
    words = (
        "The chain of work, transfers and copies that decides when the last gradient is "
        "available: shortening anything else would not shorten the step. It runs as a thin "
        "band above the bars of a lane."
    )
    marked = ask(st.toggle, "Mark the critical path", "path", words, value=True)
    data, as_measured = timeline_data(shown.timeline), state.as_measured
    marks = path_marks(shown.timeline, shown.path) if marked else ()
    figure = draw_timeline(data, marks, meta=state.mark())
    before = None if as_measured is None else draw_timeline(timeline_data(as_measured.timeline))
    if before is not None and as_measured is not None:  # one scale for both
        last_ms = ms(max(shown.timeline.sync_end_ns, as_measured.timeline.sync_end_ns))
        for each in (figure, before):
            each.update_xaxes(range=[0, 1.01 * last_ms])
        before.update_layout(height=before.layout.height - 80, showlegend=False, margin={"t": 0})
        before.update_xaxes(title=None)  # as above: so the sweep stays near the timeline
    chart(figure, _PLACES["timeline"], "Timeline of compute, communication and copies")
    st.caption(
        "The same colour is the same bucket on every figure. Hatched: exposed, after "
        "backward has ended. Dotted: copies into a bucket. Hover for a bucket's life; drag "
        "to zoom, double-click to go back."
    )
    if data.note:
        st.info(data.note)
    if before is not None:
        st.markdown("**The same on the machine as it was measured**")
        chart(before, "timeline_as_measured", "The same timeline on the machine as it was measured")


@st.fragment
def follow(state: State) -> None:
    """Give the browser what the slider leads to that the hand came near last; at first the cap's.

    At first as many stops as are made soon; the others, too, once the browser asks for all that this very
    group leads to, which runs this fragment alone.
    """
    slider, _, wanted = str(st.session_state.get("follow", {}).get("near") or "").partition(" ")
    slider = slider if slider in FOLLOWED else CAP_SLIDER
    group, stops = state.group(slider), dict[float, str | None]()
    if group:
        of = group, playing.play(state.inputs, state.choice).report.notes
        known = _whole(*of, lambda: frames(state, slider)) if wanted == group else _whole.known(*of, dict)
        stops = frames(state, slider, _FIRST_S) if known is None else known
    texts = list(dict.fromkeys(text for text in stops.values() if text is not None))
    numbers = {text: number for number, text in enumerate(texts)}
    _FOLLOW(
        key="follow",
        data={
            "sliders": list(FOLLOWED),
            "places": _PLACES,
            "style": _STYLE,
            "slider": slider,
            "group": group,
            "stops": {f"{stop:g}": numbers[text] for stop, text in stops.items() if text is not None},
            "frames": texts,
            "isWhole": not group or len(stops) == len(FOLLOWED[slider][1]),
        },
        default={"near": None},
        on_near_change=lambda: None,
    )


@memo(_CHARACTERS, lambda made, *_: sum(len(text or "") for text in set(made.values())))
def _whole(
    group: str, notes: tuple[str, ...], make: Callable[[], dict[float, str | None]]
) -> dict[float, str | None]:
    """All frames of a group, beside a step with these notes."""
    return make()


def frames(state: State, slider: str, enough_s: float = inf) -> dict[float, str | None]:
    """By stop its frame as JSON, those nearest to where the slider stands first, as many as are made soon.

    None: only the server can tell of it. Stops that cut the same buckets share one.
    """
    stops = FOLLOWED[slider][1]
    at = stops.index(state.standing(slider))
    made: dict[float, str | None] = {}
    began = time.monotonic()
    for place in sorted(range(len(stops)), key=lambda place: abs(place - at)):
        if made and time.monotonic() - began > enough_s:
            break
        st.session_state.get("follow")  # looks: a knob that was turned meanwhile does not wait
        made[stops[place]] = _frame_at(state, slider, stops[place])
    return made


def _frame_at(state: State, slider: str, stop: float) -> str | None:
    moved = state.at(slider, stop)
    try:
        best = partial(playing.best, playing.under(moved.inputs, moved.choice.options))
        assignment = moved.choice.assignment(moved.inputs.workload, best)
        # In another precision caps that cut alike may cut what was measured otherwise: no frame is shared.
        own = stop if moved.what_if.precision else None

        def make() -> tuple[str, tuple[str, ...]]:
            shown = playing.play(moved.inputs, moved.choice)
            return json.dumps(frame(moved, shown), separators=(",", ":")), shown.report.notes

        of = state.group(slider), own
        text, notes = _made(moved.inputs, assignment.bucket_indices, of, make)
    except SimError:
        return None  # which the server tells when it is asked for
    # Notes stand beneath the cards, and are not drawn in the browser.
    return text if notes == playing.play(state.inputs, state.choice).report.notes else None


@memo(_CHARACTERS, lambda made, *_: len(made[0]))
def _made(
    inputs: Inputs,
    buckets: tuple[tuple[int, ...], ...],
    of: tuple[object, ...],
    make: Callable[[], tuple[str, tuple[str, ...]]],
) -> tuple[str, tuple[str, ...]]:
    return make()  # as JSON, with the step's notes


def frame(state: State, shown: Played) -> dict[str, Any]:
    """The cards, the sentence and the lanes of one step; times in ms.

    What could be gained is not known beforehand: below the gain stands its share.
    """
    data, as_measured = timeline_data(shown.timeline), state.as_measured
    until_ns, marks = data.sync_end_ns, path_marks(shown.timeline, shown.path)
    default = playing.default(state.inputs, state.choice)
    longest_ns = max(until_ns, as_measured.timeline.sync_end_ns if as_measured else 0)
    cards = (*step_cards(shown, as_measured), gain_card(shown, default))
    return {
        "cards": [(card.value, card.below) for card in cards],
        "sentence": capital(shown.report.verdict),
        "lanes": data.lanes,
        "bars": [[_bar(span) for span in data.of_lane(lane)] for lane in data.lanes],
        "few": data.are_few,
        "marks": [[data.lanes.index(mark.lane), *_ends(mark)] for mark in marks if mark.lane in data.lanes],
        "end": ms(data.backward_end_ns),
        "sync": ms(until_ns),
        "until": 1.01 * ms(longest_ns),
    }


def _bar(span: Bar) -> list[float | str]:
    """From, until, the number of its bucket (-1: of none), and its pattern."""
    return [*_ends(span), -1 if span.bucket is None else span.bucket, span.pattern]


def _ends(mark: Mark) -> list[float]:
    return [round(ms(mark.start_ns), 4), round(ms(mark.end_ns), 4)]
