"""The part of a page that follows a slider in the browser: ``follow.js``, and what it is given to draw."""

from pathlib import Path
from typing import Any

import streamlit as st

from app.drag.frames import GainCard, find, payload
from app.drag.raster import CELLS, PATTERNS
from app.drag.states import CAP, SLIDERS, Slider, State
from app.figures.style import BUCKETS, NEUTRAL, PATH
from app.views.headline import CARDS, SENTENCE
from app.views.step_timeline import TIMELINE
from app.views.waiting import wait_for

_KEY = "follow"
_HERE = Path(__file__).parent
_PLACES = {"cards": CARDS, "sentence": SENTENCE, "timeline": TIMELINE}
_STYLE = {"cells": CELLS, "patterns": PATTERNS, "colours": BUCKETS, "neutral": NEUTRAL, "path": PATH}
_FOLLOW = st.components.v2.component(
    "bucketsim_follow",
    js="".join((_HERE / name).read_text(encoding="utf-8") for name in ("follow.js", "draw.js")),
    css=(_HERE / "follow.css").read_text(encoding="utf-8"),
    isolate_styles=False,  # it draws in the page's own place
)


@st.fragment
def follow(state: State, gain: GainCard, *, is_searched: bool) -> None:
    """Give the browser what the slider leads to that the hand came near last; at first the cap's.

    ``gain`` makes the gain's card from a step and the default's. ``is_searched``: whether it knows the best
    that can be gained on this machine.
    """
    near = st.session_state.get(_KEY, {}).get("near") or CAP
    made = _made(state, SLIDERS.get(str(near), SLIDERS[CAP]), gain, is_searched)
    _FOLLOW(
        key=_KEY,
        data={"sliders": list(SLIDERS), "places": _PLACES, "style": _STYLE, "payload": made},
        default={"near": CAP},
        on_near_change=lambda: None,
    )


def _made(state: State, slider: Slider, gain: GainCard, is_searched: bool) -> dict[str, Any]:
    """The payload; a knob that is turned while it is made does not wait for it."""
    found = find(state, slider, is_searched)
    if found is not None:
        return found
    return wait_for(lambda told: payload(state, slider, gain, told, is_searched=is_searched))
