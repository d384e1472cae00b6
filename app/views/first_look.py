"""A first minute that teaches: what the Tune page shows, what to turn, and what to take home."""

import streamlit as st

from app.words import tune as words

_KEY, _WAS_DRAWN, _DISMISSED = "guide", "look_was_drawn", "bucketsim_look_dismissed"
_REMEMBER = f"<script>document.cookie = '{_DISMISSED}=1; path=/; max-age=31536000; SameSite=Strict';</script>"


def show() -> None:
    """Draw the look where one came by the bare address, until it is dismissed; the browser remembers that."""
    if _KEY not in st.session_state and _KEY not in st.query_params:
        was_seen = _WAS_DRAWN in st.session_state or _DISMISSED in st.context.cookies
        st.session_state[_KEY] = not st.query_params and not was_seen
    with st.sidebar:
        is_wanted = st.toggle(words.LOOK, key=_KEY, bind="query-params", help=words.LOOK_HELP)
    if not is_wanted:
        if _WAS_DRAWN in st.session_state:
            st.html(_REMEMBER, unsafe_allow_javascript=True)
        return
    st.session_state[_WAS_DRAWN] = True
    with st.container(border=True):
        st.markdown(words.LOOK_STEPS)
        st.button("Got it", key="guide_done", on_click=_dismiss, icon=":material/check:")


def _dismiss() -> None:
    st.session_state[_KEY] = False
