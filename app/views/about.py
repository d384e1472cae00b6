"""The About page: ``about.md``, with the version in it."""

from functools import cache
from pathlib import Path

import streamlit as st

from app.provenance import tool_version
from app.words import labels


@cache
def words() -> str:
    """The page's text, in markdown."""
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return text.replace("VERSION", tool_version())


def show() -> None:
    """Draw the page."""
    st.title("About")
    st.write("How gradient buckets overlap backward, which assignment is best, and whether it is true.")
    st.markdown(words())
    st.caption(labels.plain(f"bucketsim {tool_version()}"))
