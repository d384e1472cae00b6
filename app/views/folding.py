"""What is folded away is drawn once it is opened; until then it takes nobody's time."""

from collections.abc import Callable

import streamlit as st


@st.fragment
def folded(title: str, key: str, draw: Callable[[], object]) -> None:
    """An expander that ``draw`` fills while it is open; opening it runs nothing else anew."""
    # Streamlit takes one with another title for another one, which is closed.
    st.session_state[key] = st.session_state.get(key, False)
    box = st.expander(title, key=key, on_change="rerun")
    if box.open:
        with box:
            draw()
