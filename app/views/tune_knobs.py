"""The sidebar of the Tune page: an assignment with every switch of its system, and what-ifs.

It only asks: an error in a file leaves every knob in its place.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import streamlit as st

from app.playing import KEYS, Choice, Options, WhatIf
from app.sources import Given
from app.widgets import MOST, Knob, ask, take_name
from app.words import DDP_PICKS, PICK_WORDS, PICKS, Pick
from sim.nouns.ddp_switches import Switches
from sim.nouns.hardware import MAX_RANKS
from sim.nouns.settings import legal_setting, settings_of
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.textbook import BY_SIZE
from sim.systems.zero import ZeroSettings

_UNSET = {"comm_hook": "none", "optimize_ddp": "eager"}  # the words for None, elsewhere "as it is"


def _switches(cls: type) -> tuple[Knob, ...]:
    """The settings of a system that the page offers, in the words of their fields."""
    found: list[Knob] = []
    for one in settings_of(cls).values():
        words, legal = one.metadata["help"], legal_setting(one)
        choices = legal.words
        default: Any = one.default
        if choices and default is None:
            default = _UNSET.get(one.name, "as it is")
            choices = (default, *choices)
        if words:
            found.append(Knob(one.name, default, words, legal.least, min(legal.most, MOST), choices))
    return tuple(found)


_CLOSED = "`bucket_cap_mb`, in MiB. A bucket is closed by the gradient that reaches the cap."
_FIRST = "A cap for the first bucket alone, in MiB. Empty: none, as where `bucket_cap_mb` is set."
CAP, FIRST = Knob("Cap, MiB", 25.0, _CLOSED, 0, 2**16), Knob("First bucket, MiB", None, _FIRST, 0, 2**16)
_CAP = Knob("bucket_cap_mb", None, "The bucket size of this system, in MiB. Empty: 25.")
CAPPED_PICKS: tuple[Pick, ...] = ("default", "cap", "cap-list")
# By pick, its switches; of DDP's each has a rule of its own when it is offered.
OFFERED: Mapping[Pick, tuple[Knob, ...]] = {
    **dict.fromkeys(DDP_PICKS, _switches(Switches)),
    **dict.fromkeys(("zero1", "zero2"), _switches(ZeroSettings)),
    "megatron": _switches(MegatronSettings),
    "fully_shard": _switches(Fsdp2Settings),
    **dict.fromkeys(BY_SIZE, (_CAP,)),
}


def read(pick: Pick, ask: Callable[[Knob], Any]) -> Options:
    """The switches of ``pick`` that are not at their defaults, asked for one by one with ``ask``."""
    options: dict[str, Any] = {}
    for one in OFFERED.get(pick, ()):
        is_offered = {
            "no_sync": "accumulation_steps" in options,
            "compile_cap_mb": options.get("optimize_ddp") == "ddp_optimizer",
        }
        if is_offered.get(one.name, True) and (value := ask(one)) != one.default:
            options[one.name] = value
    return tuple(sorted(options.items()))


def ask_choice(pick: Pick, prefix: str = "", **capped: Any) -> Choice:
    """Draw what else is asked of ``pick``, a list of caps and its switches, where the caller stands; read it.

    ``prefix`` goes before each key, for a page with several choices; ``capped`` are an explicit cap's MiB.
    """
    choice = Choice(pick=pick, **(capped if pick == "cap" else {}))
    if pick == "cap-list":
        words = "`bucket_cap_mb_list`, one cap a bucket; the last one repeats. DDP has it since torch 2.11."
        caps = ask(st.text_input, "Caps, MiB", f"{prefix}caps", words, "1, 25", 2000)
        choice = replace(choice, caps=caps.strip())
    with st.expander("Switches"):
        if pick == "given":
            st.caption(
                "Where these switches keep keywords from reaching its buckets, sim.apply gives DDP them."
            )
        elif pick not in OFFERED:
            st.caption("This system has no switches.")
        return replace(choice, options=read(pick, lambda switch: switch.draw(prefix + switch.name)))


FACTORS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
INTERFERENCE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
AS_RECORDED = "as recorded"
PRECISIONS = (AS_RECORDED, "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
CUSTOM = "custom"
# Relative to what was measured where the rate of the wire is not known: none of them names one.
PRESETS: dict[str, WhatIf] = {
    "as measured": WhatIf(),
    "twice the bandwidth": WhatIf(bandwidth=2.0),
    "10 times the bandwidth": WhatIf(bandwidth=10.0),
    "half the bandwidth": WhatIf(bandwidth=0.5),
    "backward twice as fast": WhatIf(backward=0.5),
    "bf16 gradients": WhatIf(precision="bfloat16"),
    "64 ranks": WhatIf(world_size=64),
    "1024 ranks": WhatIf(world_size=1024),
    "no interference": WhatIf(interference=0.0),
}


# By field of WhatIf, its slider's label, stops and words.
SLIDERS: Mapping[str, tuple[str, tuple[float, ...], str]] = {
    "bandwidth": (
        "Bandwidth ×",
        FACTORS,
        "How fast bytes travel, times what was measured: 2 halves what a collective takes beyond latency.",
    ),
    "latency": ("Latency ×", FACTORS, "What a collective of no bytes takes, times what was measured."),
    "backward": (
        "Backward ×",
        FACTORS,
        "Multiplies all times of backward; those of the slowest rank are the job's, as all others wait "
        "for it. Forward, loss and optimizer stay as recorded: of a device that is faster in all of them "
        "the step is shorter than shown.",
    ),
    "interference": (
        "Interference ×",
        INTERFERENCE,
        "How much compute, copies and collectives slow each other down: a slow-down of s becomes "
        "1 + (s - 1) times this. 0 is none at all; without effect where the hardware was "
        "measured without any.",
    ),
}


def _what_ifs() -> WhatIf:
    """Draw the knobs where the caller stands, and read them."""
    with st.expander("What if the machine were another?", expanded=True):
        above = st.container()
        look: dict[str, Any] = {"value": 1.0, "format_func": "{:g}".format}
        found: dict[str, Any] = {
            field: ask(st.select_slider, label, KEYS[field], words, stops, on_change="ignore", **look)
            for field, (label, stops, words) in SLIDERS.items()  # of a move tells hand.js
        }
        words = (
            "As many ranks in a ring of equal wires, in place of those measured: where so many were not "
            "measured, the curve is stretched to them by the law of such a ring. Empty: as measured."
        )
        of = ("Ranks", KEYS["world_size"], words, 2, MAX_RANKS, None, 1)
        found["world_size"] = ask(st.number_input, *of, placeholder="as measured")
        words = "The dtype of all gradients, in buckets and on the wire. Compute stays as recorded."
        precision = ask(st.selectbox, "Gradients are", KEYS["precision"], words, PRECISIONS)
        what_if = WhatIf(**found, precision=None if precision == AS_RECORDED else precision)
        # The preset follows the knobs, and the knobs the preset: it names where they stand.
        st.session_state["preset"] = next((name for name, one in PRESETS.items() if one == what_if), CUSTOM)
        words = "Sets all knobs below at once. Moving one of them afterwards makes it your own."
        above.selectbox("Preset", [*PRESETS, CUSTOM], key="preset", on_change=_take_preset, help=words)
    return what_if


def _take_preset() -> None:
    if (what_if := PRESETS.get(st.session_state["preset"])) is not None:
        found = {KEYS[field.name]: getattr(what_if, field.name) for field in fields(WhatIf)}
        st.session_state.update(found | {KEYS["precision"]: what_if.precision or AS_RECORDED})


CAP_STOPS = (
    *(0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12.5, 16, 20),
    *(25, 32, 40, 50, 64, 100, 128, 200, 256, 512),
)
CAP_SLIDER, _SHOWN = "cap_slider", "cap_slider_shown"


def script(name: str) -> str:
    """A component's own script, behind what all of them have."""
    home = Path(__file__).parents[1] / "js"
    return "".join((home / file).read_text(encoding="utf-8") for file in ("sliders.js", name))


_HAND = st.components.v2.component(
    "bucketsim_hand", js=script("hand.js"), css=".st-key-hand { display: none; }", isolate_styles=False
)


def show(given: Given | None) -> tuple[Choice, WhatIf]:
    """Draw the sidebar and read it, below what is looked at; ``given`` None could not be read."""
    take_name("pick", PICK_WORDS)
    with st.sidebar:
        choice = _choice(given)
        what_if = _what_ifs()
        # The page is run anew once the hand has let go of a slider, which is drawn with on_change="ignore".
        sliders = [CAP_SLIDER, *(KEYS[field] for field in SLIDERS)]
        at = {slider: f"{st.session_state[slider]:g}" for slider in sliders}
        _HAND(key="hand", data={"at": at}, on_moved_change=lambda: None)
    return choice, what_if


def take_slider() -> None:
    """Let the number follow the slider of the cap where a hand moved that; before any knob is drawn."""
    stop = st.session_state.get(CAP_SLIDER)
    if stop in (None, st.session_state.get(_SHOWN, stop)):
        return
    st.session_state[_SHOWN] = stop
    st.session_state["cap"] = float(stop)
    _pick_cap()


def show_pick(pick: Pick, cap_mb: float | None = None) -> None:
    """Turn the knobs to an assignment, or to a cap alone, without one for the first bucket; for callbacks."""
    st.session_state["pick"] = pick
    if cap_mb is not None:
        st.session_state["cap"], st.session_state["first"] = float(cap_mb), None


def show_answer(pick: Pick, cap_mb: float | None, options: Options) -> None:
    """Turn the knobs to an answer, and DDP's switches to those that it was found under; for callbacks."""
    found = dict(options)
    st.session_state.update({one.name: found.get(one.name, one.default) for one in OFFERED["default"]})
    show_pick(pick, cap_mb)


def _choice(given: Given | None) -> Choice:
    job = given and given.inputs.workload.job
    has = {"given": given and given.assignment, "as-run": job and job.bucket_indices}
    picks = [pick for pick in PICKS if given is None or has.get(pick, True)]
    words = (
        "Which assignment the page shows. DDP's default is not `bucket_cap_mb=25`: it has a "
        "small first bucket of 1 MiB, which `bucket_cap_mb` set to any number has not."
    )
    pick: Pick = ask(st.selectbox, "Assignment", "pick", words, picks, format_func=PICK_WORDS.__getitem__)
    cap = CAP.draw("cap", on_change=_pick_cap) or 0.0
    # The slider follows the number, and the number the slider: one knob, exact and quick. In ratio.
    nearest = min(CAP_STOPS, key=lambda stop: max(stop, cap) / max(min(stop, cap), 1e-9))
    st.session_state[_SHOWN] = nearest
    if st.session_state.get(CAP_SLIDER) != nearest:  # else it would be drawn over a hand's move
        st.session_state[CAP_SLIDER] = nearest
    look: dict[str, Any] = {"label_visibility": "collapsed", "on_change": "ignore"}  # of it tells hand.js
    st.select_slider("Cap, MiB (slider)", CAP_STOPS, format_func="{:g}".format, key=CAP_SLIDER, **look)
    first = FIRST.draw("first", on_change=_pick_cap)
    if pick != "cap":
        st.caption("The assignment above does not use these two. Change one to see `bucket_cap_mb` with it.")
    return ask_choice(pick, cap_mb=cap, first_mb=first)


def _pick_cap() -> None:
    st.session_state["pick"] = "cap"
