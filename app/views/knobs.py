"""The sidebar: what to look at. It only asks; reading files comes after, so that an error in one
leaves every knob in its place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.choosing import Choice, WhatIf
from app.drag import hand
from app.views import addresses, switches, what_ifs
from app.views.sources import Asked
from app.words import labels
from sim.errors import InputError

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
_MAX_CAP_MB = 65536.0
_SLIDER, _SHOWN = "cap_slider", "cap_slider_shown"
# By key, where every knob of the sidebar stands at first; what is looked at is no knob.
DEFAULTS: dict[str, Any] = {
    "pick": "default",
    "cap": 25.0,
    "first": None,
    "caps": "1, 25",
    **{name: switch.default for name, switch in switches.ALL.items()},
    **what_ifs.positions(WhatIf()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Where all knobs stand."""

    source: Asked
    choice: Choice
    what_if: WhatIf


def show(source: Asked) -> Knobs:
    """Draw the sidebar and read it, below what is looked at."""
    addresses.take_name("pick", labels.PICK_WORDS)
    with st.sidebar:
        choice = _choice(source)
        what_if = what_ifs.show()
        hand.listen([_SLIDER, *(what_ifs.KEYS[field] for field in what_ifs.SLIDERS)])
        st.button(
            "Reset all knobs",
            key="reset",
            on_click=_reset,
            icon=":material/restart_alt:",
            disabled=all(st.session_state.get(key, first) == first for key, first in DEFAULTS.items()),
            help="Back to DDP's default on the machine as measured.",
        )
    return Knobs(source=source, choice=choice, what_if=what_if)


def take_slider() -> None:
    """Let the number follow the slider of the cap where a hand moved that; before any knob is drawn."""
    stop = st.session_state.get(_SLIDER)
    if stop in (None, st.session_state.get(_SHOWN, stop)):
        return
    st.session_state[_SHOWN] = stop
    st.session_state["cap"] = float(stop)
    _pick_cap()


def show_pick(pick: labels.Pick, cap_mb: float | None = None) -> None:
    """Turn the knobs to an assignment, or to a cap alone, without one for the first bucket; for callbacks."""
    st.session_state["pick"] = pick
    if cap_mb is not None:
        st.session_state["cap"], st.session_state["first"] = float(cap_mb), None


def show_answer(pick: labels.Pick, cap_mb: float | None, choice: Choice) -> None:
    """Turn the knobs to the answer to ``choice``, under the switches that it was found under; for callbacks.

    DDP's switches that ``choice`` does not show were turned for another assignment: they stay off.
    """
    shown: set[str] = set()

    def ask(switch: switches.Switch) -> Any:
        shown.add(switch.name)
        return st.session_state.get(switch.name, switch.default)

    switches.read(choice.pick, ask)
    found_under = dict(choice.options_under_ddp)
    for switch in switches.DDP:
        if switch.name not in shown:
            st.session_state[switch.name] = found_under.get(switch.name, switch.default)
    show_pick(pick, cap_mb)


def _choice(source: Asked) -> Choice:
    pick: labels.Pick = st.selectbox(
        "Assignment",
        [pick for pick in labels.PICKS if pick != "given" or source.has_assignment],
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
    st.session_state[_SHOWN] = _nearest(cap, CAP_STOPS)
    if st.session_state.get(_SLIDER) != st.session_state[_SHOWN]:  # else it would be drawn over a hand's move
        st.session_state[_SLIDER] = st.session_state[_SHOWN]
    st.select_slider(
        "Cap, MiB (slider)",
        CAP_STOPS,
        format_func=lambda stop: f"{stop:g}",
        key=_SLIDER,
        on_change="ignore",  # of it tells app.drag.hand
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
        st.caption(labels.CAP_UNUSED)
    choice = Choice(pick=pick)
    if pick == "cap":
        choice = replace(choice, cap_mb=cap, first_mb=first)
    if pick == "cap-list":
        choice = _cap_list(choice)
    with st.expander("Switches"):
        try:
            choice = replace(choice, options=switches.show(pick))
        except InputError as error:
            choice = _unreadable(choice, error)
    return choice


def _cap_list(choice: Choice) -> Choice:
    """The choice with the list of caps that is typed in."""
    text = st.text_input(
        "Caps, MiB",
        value=DEFAULTS["caps"],
        key="caps",
        bind="query-params",
        max_chars=2000,
        help=labels.HELP["caps"],
    )
    try:
        return replace(choice, caps_mb=switches.caps(text))
    except InputError as error:
        return _unreadable(choice, error)


def _unreadable(choice: Choice, error: InputError) -> Choice:
    """Tell the error beside its field, and on the page that cannot show such a choice."""
    st.error(labels.plain(str(error)), icon=":material/error:")
    return replace(choice, unreadable=choice.unreadable or str(error))


def _reset() -> None:
    for key, value in DEFAULTS.items():
        if key in st.session_state:
            st.session_state[key] = value


def _pick_cap() -> None:
    st.session_state["pick"] = "cap"


def _nearest(value: float, stops: Sequence[float]) -> float:
    """The stop nearest in ratio, as one sees it on a slider of ratios."""
    return min(stops, key=lambda stop: max(stop, value) / max(min(stop, value), 1e-9))
