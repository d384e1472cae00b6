"""The Compare page: two or more assignments, reducers or machines on one axis."""

import streamlit as st

from app.library import Library


def show(library: Library) -> None:
    """Draw the page."""
    st.title("Compare")
