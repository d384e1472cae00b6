"""The knobs that make the machine another one, and presets that set them all at once."""

from dataclasses import fields
from typing import Any

import streamlit as st

from app.choosing import WhatIf
from app.words import labels
from sim.nouns.hardware import MAX_RANKS

FACTORS = (0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0)
INTERFERENCE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
SLOWEST = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0)
AS_RECORDED = "as recorded"
PRECISIONS = (AS_RECORDED, "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
CUSTOM = "custom"
# By field of WhatIf, the stops of its slider.
SLIDERS = {
    **dict.fromkeys(("bandwidth", "latency", "backward"), FACTORS),
    "slowest_rank": SLOWEST,
    "interference": INTERFERENCE,
}

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
    "slowest rank × 1.3": WhatIf(slowest_rank=1.3),
}
# By field of WhatIf, the key of its knob in the session and in the address.
KEYS = {
    "bandwidth": "bw",
    "latency": "lat",
    "backward": "bwd",
    "world_size": "ranks",
    "precision": "precision",
    "slowest_rank": "slowest",
    "interference": "interference",
}


def show() -> WhatIf:
    """Draw the knobs where the caller stands, and read them."""
    with st.expander("What if the machine were another?", expanded=True):
        above = st.container()
        bandwidth = _factor("Bandwidth ×", "bandwidth")
        latency = _factor("Latency ×", "latency")
        backward = _factor("Backward ×", "backward")
        world_size = st.number_input(
            "Ranks",
            min_value=2,
            max_value=MAX_RANKS,
            value=None,
            step=1,
            key=KEYS["world_size"],
            bind="query-params",
            placeholder="as measured",
            help=labels.HELP["world_size"],
        )
        if world_size is not None:
            st.caption(labels.RANKS_NOTE)
        precision = st.selectbox(
            "Gradients are",
            PRECISIONS,
            key=KEYS["precision"],
            bind="query-params",
            help=labels.HELP["precision"],
        )
        slowest_rank = _factor("Slowest rank ×", "slowest_rank")
        if slowest_rank != 1.0:
            st.caption(labels.STRAGGLER_NOTE)
        interference = _factor("Interference ×", "interference")
        what_if = WhatIf(
            bandwidth=bandwidth,
            latency=latency,
            backward=backward,
            interference=interference,
            world_size=world_size,
            precision=None if precision == AS_RECORDED else precision,
            slowest_rank=slowest_rank,
        )
        # The preset follows the knobs, and the knobs the preset: it names where they stand.
        st.session_state["preset"] = preset_of(what_if)
        above.selectbox(
            "Preset", [*PRESETS, CUSTOM], key="preset", on_change=_take_preset, help=labels.HELP["preset"]
        )
    return what_if


def standing() -> WhatIf:
    """Where the knobs stand on the page that has them, as another page sees it."""
    found = {name: st.session_state.get(key) for name, key in KEYS.items()}
    found["precision"] = None if found["precision"] == AS_RECORDED else found["precision"]
    return WhatIf(**{name: value for name, value in found.items() if value is not None})


def preset_of(what_if: WhatIf) -> str:
    """The name of the preset at which the knobs stand; ``custom`` where they stand at none."""
    return next((name for name, preset in PRESETS.items() if preset == what_if), CUSTOM)


def positions(what_if: WhatIf) -> dict[str, Any]:
    """By key, where the knobs stand for ``what_if``."""
    found = {KEYS[field.name]: getattr(what_if, field.name) for field in fields(WhatIf)}
    return found | {KEYS["precision"]: what_if.precision or AS_RECORDED}


def _take_preset() -> None:
    name = st.session_state["preset"]
    if name in PRESETS:
        for key, value in positions(PRESETS[name]).items():
            st.session_state[key] = value


def _factor(label: str, field: str) -> float:
    return st.select_slider(
        label,
        SLIDERS[field],
        value=1.0,
        format_func=lambda factor: f"{factor:g}",
        key=KEYS[field],
        bind="query-params",
        on_change="ignore",  # of it tells app.drag.hand
        help=labels.HELP[field],
    )
