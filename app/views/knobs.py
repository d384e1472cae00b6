"""The sidebar: what to look at. It only asks; reading files comes after, so that an error in one
leaves every knob in its place."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from app.choosing import Choice, WhatIf
from app.library import Library
from app.views import sources
from app.views.sources import Asked
from app.words import labels

CAP_STOPS = (
    0.25,
    0.5,
    1,
    1.5,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12.5,
    16,
    20,
    25,
    32,
    40,
    50,
    64,
    100,
    128,
    200,
    256,
    512,
)
FACTORS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
_MAX_CAP_MB = 65536.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Where all knobs stand."""

    source: Asked
    choice: Choice
    what_if: WhatIf


def show(library: Library) -> Knobs:
    """Draw the sidebar and read it."""
    with st.sidebar:
        source = sources.ask(library)
        st.divider()
        choice = _choice()
        st.divider()
        st.caption("What if the machine were another?")
        bandwidth = _factor("Bandwidth ×", "bw", "bandwidth")
        latency = _factor("Latency ×", "lat", "latency")
        backward = _factor("Backward ×", "bwd", "backward")
        st.caption("The address of this page holds every knob; uploads are not in it.")
    return Knobs(
        source=source,
        choice=choice,
        what_if=WhatIf(bandwidth=bandwidth, latency=latency, backward=backward),
    )


def show_cap(cap_mb: float) -> None:
    """Turn the knobs to an explicit cap; for callbacks."""
    st.session_state["cap"] = float(cap_mb)
    st.session_state["pick"] = "cap"


def show_default() -> None:
    """Turn the knobs to DDP's default; for callbacks."""
    st.session_state["pick"] = "default"


def _choice() -> Choice:
    pick: labels.Pick = st.selectbox(
        "Assignment",
        labels.PICKS,
        format_func=labels.PICK_WORDS.__getitem__,
        key="pick",
        bind="query-params",
        help=labels.HELP["pick"],
    )
    cap = st.number_input(
        "Cap, MiB",
        min_value=0.0,
        max_value=_MAX_CAP_MB,
        value=25.0,
        step=1.0,
        format="%.6g",
        key="cap",
        bind="query-params",
        on_change=_pick_cap,
        help=labels.HELP["cap"],
    )
    # The slider follows the number, and the number the slider: one knob, exact and quick.
    st.session_state["cap_slider"] = _nearest(cap, CAP_STOPS)
    st.select_slider(
        "Cap, MiB (slider)",
        CAP_STOPS,
        format_func=lambda stop: f"{stop:g}",
        key="cap_slider",
        on_change=_take_slider,
        label_visibility="collapsed",
    )
    first = st.number_input(
        "First bucket, MiB",
        min_value=0.0,
        max_value=_MAX_CAP_MB,
        value=None,
        step=1.0,
        format="%.6g",
        key="first",
        bind="query-params",
        on_change=_pick_cap,
        placeholder="none",
        help=labels.HELP["first"],
    )
    if pick != "cap":
        return Choice(pick=pick)
    return Choice(pick=pick, cap_mb=cap, first_mb=first)


def _pick_cap() -> None:
    st.session_state["pick"] = "cap"


def _take_slider() -> None:
    show_cap(st.session_state["cap_slider"])


def _nearest(value: float, stops: Sequence[float]) -> float:
    """The stop nearest in ratio, as one sees it on a slider of ratios."""
    return min(stops, key=lambda stop: max(stop, value) / max(min(stop, value), 1e-9))


def _factor(label: str, key: str, word: str) -> float:
    return st.select_slider(
        label,
        FACTORS,
        value=1.0,
        format_func=lambda factor: f"{factor:g}",
        key=key,
        bind="query-params",
        help=labels.HELP[word],
    )
