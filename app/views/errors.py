"""An error of ours is one line on the page, never a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from app.words import labels
from sim.errors import SimError


@contextmanager
def told() -> Iterator[None]:
    """Show a ``SimError`` of the block where the block would have drawn; anything else is a bug."""
    try:
        yield
    except SimError as error:
        st.error(labels.plain(str(error)), icon=":material/error:")
