"""Sliders of which the server hears when the hand rests: ``hand.js``."""

from collections.abc import Iterable
from pathlib import Path

import streamlit as st

KEY = "hand"
_HERE = Path(__file__).parent
_HAND = st.components.v2.component(
    "bucketsim_hand",
    js="".join((_HERE / name).read_text(encoding="utf-8") for name in ("hand.js", "sliders.js")),
    css=f".st-key-{KEY} {{ display: none; }}",
    isolate_styles=False,
)


def listen(sliders: Iterable[str]) -> None:
    """Run the page anew once the hand has let go of one of the ``sliders``.

    They are keys of select sliders that were drawn in this run with ``on_change="ignore"``.
    """
    _HAND(
        key=KEY,
        data={"at": {slider: f"{st.session_state[slider]:g}" for slider in sliders}},
        on_moved_change=lambda: None,
    )
