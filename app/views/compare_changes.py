"""What changed: one candidate's step against A's, in parts that add up."""

from collections.abc import Sequence

import streamlit as st

from app import cached_compare
from app.cached_compare import Result
from app.figures.compare_parts import draw_bars, parts_data
from app.figures.style import CHART
from app.views.errors import told
from app.words import compare as words
from app.words import labels
from sim.nouns.difference import Difference


def show(results: Sequence[Result]) -> None:
    """Draw the section; ``results`` begin with A's."""
    st.subheader("What changed?")
    others = {one.letter: one for one in results[1:]}
    letter = st.selectbox(
        "A against",
        list(others),
        key="against",
        bind="query-params",
        help=words.HELP["against"],
    )
    before, after = results[0], others[letter]
    with told():
        _tell(cached_compare.difference(before, after))


def _tell(found: Difference) -> None:
    if not found.changes:
        st.info("Nothing: both are the same buckets on the same machine.")
        return
    heads = " and ".join(words.change_words(change) for change in found.changes)
    st.markdown(f"**{labels.plain(heads)}**")
    if found.order:
        st.caption(found.order)
    st.plotly_chart(
        draw_bars(
            parts_data(
                [
                    (change.cause, [(words.PART_WORDS[part.name], part.change_ns) for part in change.parts])
                    for change in found.changes
                ]
            ),
            "change of the step, ms (left: shorter)",
        ),
        key="parts",
        config=CHART,
        alt="The parts of the difference, which add up to it",
    )
    st.caption(words.PARTS_CAPTION)
    left, right = st.columns(2)
    for change in found.changes:
        if len(found.changes) > 1:
            left.markdown(f"**{labels.plain(words.change_words(change))}**")
        left.markdown("\n".join(f"- {labels.plain(part.sentence)}" for part in change.parts))
    right.markdown("\n".join(f"- {labels.plain(fact)}" for fact in found.facts))
