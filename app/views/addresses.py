"""The address of a page: what one may write by hand in it."""

from collections.abc import Mapping

import streamlit as st


def take_name(key: str, words: Mapping[str, str]) -> None:
    """Let the address name an option of a select box by its bare name, before that box is drawn.

    ``bind="query-params"`` writes the words that a select box shows (``?pick=DeepSpeed+ZeRO-1``), and reads
    nothing else. A bare name (``?pick=zero1``) is put into words here, and the page starts again with them.
    """
    named = st.query_params.get(key)
    if named is None or named not in words or named in words.values():
        return
    if key in st.session_state:  # drawn before, as after "back" in the browser: the box owns its parameter
        st.session_state[key] = named
        return
    st.query_params[key] = words[named]
    st.rerun()
