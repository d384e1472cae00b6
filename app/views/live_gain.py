"""What other buckets would save a running job: a part of the live view."""

import streamlit as st

from app.words import labels
from app.words import live as words
from sim.nouns.live import LiveGain
from sim.units import format_ms

_DAY_H = 24
_NS_PER_H = 3_600 * 10**9


def show(gain: LiveGain, *, is_own_machine: bool, samples: int, to_go: int) -> None:
    """The gain a step and what it is worth, and what to paste; ``samples``, ``to_go``: 0 is unknown."""
    if is_own_machine:
        st.caption(
            "A first guess: the machine is known only between the sizes of the buckets in use. "
            + words.HOW_TO_GAIN.format(gain.world_size)
        )
    st.markdown(f"**{labels.plain(words.gain_sentence(gain))}**")
    if gain.gain_ns <= 0:
        return
    cards = [
        ("Gain a step", format_ms(gain.gain_ns), words.HELP["gain"]),
        ("GPU-hours a day", f"{gain.gpu_hours(_DAY_H):,.2f}", words.HELP["gpu_hours"]),
    ]
    if samples:
        now, then = gain.samples_per_s(samples)
        cards.append(("Samples a second", f"{now:,.1f} → {then:,.1f}", words.HELP["samples"]))
    if to_go:
        hours = to_go * gain.in_use_ns / _NS_PER_H
        cards.append(("GPU-hours to the end", f"{gain.gpu_hours(hours):,.2f}", words.HELP["to_go"]))
    for column, (label, value, help_) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value, help=help_)
    if gain.significant is False:
        return
    with st.expander("Take it home", icon=":material/content_copy:"):
        if gain.setting:
            st.markdown(f"Simplest: {labels.plain(gain.setting)}")
        st.code(gain.snippet, language="python")
        st.download_button(
            "Assignment JSON",
            gain.assignment_json,
            file_name="assignment.json",
            mime="application/json",
            key="live_assignment",
            on_click="ignore",
            help="For `sim.apply`, and for `bucketsim validate --ab`, which measures this gain.",
        )
