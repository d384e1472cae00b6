"""A first minute that teaches: what the Tune page shows, what to turn, and what to take home."""

import streamlit as st

from app.words import tune as words

_KEY = "guide"


def show() -> None:
    """Draw the look where one came by the bare address, until it is dismissed; the address says so."""
    if _KEY not in st.session_state and _KEY not in st.query_params:
        st.session_state[_KEY] = not st.query_params
    with st.sidebar:
        is_wanted = st.toggle(words.LOOK, key=_KEY, bind="query-params", help=words.LOOK_HELP)
    if not is_wanted:
        return
    with st.container(border=True):
        st.markdown(words.LOOK_STEPS)
        st.button("Got it", key="guide_done", on_click=_dismiss, icon=":material/check:")


def _dismiss() -> None:
    st.session_state[_KEY] = False
