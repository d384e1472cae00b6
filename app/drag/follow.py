"""The part of a page that follows a slider in the browser: ``follow.js``, and what it is given to draw."""

from pathlib import Path
from typing import Any

import streamlit as st

from app.drag.frames import GainCard, part
from app.drag.raster import CELLS, PATTERNS
from app.drag.states import CAP, SLIDERS, State
from app.figures.style import BUCKETS, EXPOSED, LINE, NEUTRAL, PATH, TIME_AXIS
from app.views.tune_step import CARDS, SENTENCE, TIMELINE

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
