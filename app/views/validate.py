"""The Validate page: is the prediction true? Measured records, and a job that is running now."""

from pathlib import Path

import streamlit as st

from app.library import Library


def show(library: Library, watch: Path | None) -> None:
    """Draw the page; ``watch`` is the directory that a running job writes to."""
    st.title("Validate")
