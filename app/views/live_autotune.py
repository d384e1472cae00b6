"""A job that tunes its own buckets, while it does: a part of the live view."""

from pathlib import Path

import streamlit as st

from app.figures.autotune import trial_figure
from app.figures.style import CHART
from app.words import labels
from app.words import live as words
from sim.formats.recordings import find_autotunes
from sim.nouns.autotune import AutotuneProgress


def show(watch: Path) -> bool:
    """Each tuning that is told in ``watch``: phase, prediction, trial, verdict. Whether there is one."""
    found = find_autotunes(watch)
    for name, told in found.items():
        _show_one(name, told)
    return bool(found)


def _show_one(name: str, told: AutotuneProgress) -> None:
    st.subheader(labels.plain(words.autotune_title(name, told)))
    sentence = labels.plain(words.autotune_sentence(told))
    if told.outcome == "kept":
        st.success(sentence, icon=":material/check:")
    elif told.outcome is not None:
        st.info(sentence, icon=":material/undo:")
    else:
        st.markdown(sentence)
    if (predicted := words.autotune_prediction(told)) is not None:
        st.caption(labels.plain(predicted))
    if told.looks:
        st.plotly_chart(trial_figure(told), key=f"autotune {name}", config=CHART)
