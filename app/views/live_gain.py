"""What other buckets would save a running job: a part of the live view."""

import streamlit as st

from app.words import labels
from app.words import live as words
from sim.nouns.live import LiveGain, LiveReport
from sim.tuner.setting import tell_setting
from sim.units import format_ms


def show(
    gain: LiveGain, report: LiveReport, *, is_own_machine: bool, is_gpu: bool, samples: int, to_go: int
) -> None:
    """The gain a step and what it is worth, and what to paste; ``samples``, ``to_go``: 0 is unknown."""
    if is_own_machine:
        st.caption(
            "A first guess: the machine is known only between the sizes of the buckets in use. "
            + words.HOW_TO_GAIN.format(gain.world_size)
        )
    doubt = words.doubt_sentence(gain, report)
    sentence = labels.plain(words.gain_sentence(gain))
    st.markdown(sentence if doubt else f"**{sentence}**")
    if doubt:
        st.warning(labels.plain(doubt), icon=":material/warning:")
    if gain.setting is None or gain.setting.pick == "default":
        return
    st.markdown(f"Set: {labels.plain(tell_setting(gain.setting, gain.against))}.")
    hours = "GPU-hours" if is_gpu else "Rank-hours"
    cards = [("Gain a step, predicted", format_ms(gain.gain_ns), words.HELP["gain"])]
    if report.period_ns is not None and report.period_ns > gain.gain_ns:
        saved = gain.gpu_hours_a_day(report.period_ns)
        cards.append((f"{hours} a day, less", f"{saved:,.2f}", words.HELP["hours"]))
        if samples:
            now, then = gain.samples_per_s(samples, report.period_ns)
            cards.append(("Samples a second", f"{now:,.1f} → {then:,.1f}", words.HELP["a_second"]))
    if to_go:
        less = f"{gain.gpu_hours(to_go):,.2f}"
        cards.append((f"{hours} to the end, less", less, words.HELP["hours_to_go"]))
    for column, (label, value, help_) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value, help=help_)
    with st.expander("Take it home", icon=":material/content_copy:"):
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
