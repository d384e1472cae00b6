"""What an upload was taken for: a line, and in an expander what was found, assumed, missing and left out."""

import streamlit as st

from app.words import labels
from app.words import uploads as words
from sim.nouns.imported import Uploaded

MOST_LINES = 20


def show(uploaded: Uploaded) -> None:
    """Draw the line and the expander; sentences quote the files, and nothing in them acts as markup."""
    st.caption(labels.plain(words.summary(uploaded)))
    notes = words.notes(uploaded)
    if not notes:
        return
    with st.expander("What was read", icon=":material/fact_check:"):
        for title, sentences in notes:
            st.markdown(f"**{title}**")
            shown = [f"- {labels.plain(sentence)}" for sentence in sentences[:MOST_LINES]]
            if len(sentences) > MOST_LINES:
                shown.append(f"- and {len(sentences) - MOST_LINES} more")
            st.markdown("\n".join(shown))
