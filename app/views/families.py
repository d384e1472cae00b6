"""What each knob can reach: a table, where the time goes under each, and one of them to look at."""

import streamlit as st

from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from app.figures.breakdown import breakdown_data, draw_breakdown
from app.figures.style import CHART
from app.figures.timeline import draw_timeline, timeline_data
from app.words import labels
from app.words.tune import COLUMN_HELP, absent_words
from sim.nouns.recommendation import Recommendation

_NUMBERS = ("step, ms", "regret, ms", "exposed, ms")
_COMPARED = ("default", "bucket_cap_mb", "per-parameter", "single")


def show(inputs: Inputs, shown: Played | None, found: Recommendation, choice: Choice) -> None:
    """Draw the section; ``shown`` stands beside it where the search knows all that it was played under."""
    st.subheader("What each knob can reach")
    rows = [
        {
            "knob": labels.family_words(name),
            "step, ms": family.report.step_ns / 1e6,
            "regret, ms": family.regret_ns / 1e6,
            "exposed, ms": family.report.exposed_comm_ns / 1e6,
            "buckets": len(family.assignment.bucket_indices),
            "set": labels.setting_words(family.assignment),
            "tried": family.how,
        }
        for name, family in sorted(found.families.items(), key=lambda item: item[1].regret_ns)
    ]
    st.dataframe(
        rows,
        hide_index=True,
        column_config={
            name: st.column_config.NumberColumn(format="%.2f", help=COLUMN_HELP[name])
            if name in _NUMBERS
            else st.column_config.Column(help=COLUMN_HELP[name])
            for name in rows[0]
        },
    )
    if found.absent:
        st.caption(labels.plain(absent_words(found.absent)))
    reports = {}
    if shown is not None and choice.pick == "cap":
        reports[f"shown: {choice.words}"] = shown.report
    reports[labels.PICK_WORDS["recommended"]] = found.report
    reports |= {
        labels.family_words(name): found.families[name].report for name in _COMPARED if name in found.families
    }
    st.plotly_chart(
        draw_breakdown(breakdown_data(reports)),
        key="breakdown",
        config=CHART,
        alt="Where a step's time goes, by assignment",
    )
    _one(inputs.alike, found)


@st.fragment
def _one(inputs: Inputs, found: Recommendation) -> None:
    """The timeline of one knob's best, once one is chosen."""
    names = list(found.families)
    if st.session_state.get("family") not in (None, *names):
        del st.session_state["family"]  # chosen of other inputs
    name = st.selectbox(
        "See the timeline of",
        names,
        index=None,
        key="family",
        format_func=labels.family_words,
        placeholder="a knob of the table",
        help="Draws the best of that knob, below.",
    )
    if name is None:
        return
    played = cached.play_assignment(inputs, found.families[name].assignment)
    data = timeline_data(played.timeline)
    st.plotly_chart(
        draw_timeline(data),
        key="family_timeline",
        config=CHART,
        alt="Timeline of the best of one knob",
    )
    if data.note:
        st.info(data.note)
