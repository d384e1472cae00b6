"""Where is it: the timeline of what is shown, with the critical path marked."""

import streamlit as st

from app.cached import Played
from app.drag.states import State, mark
from app.figures.critical import path_marks
from app.figures.style import CHART
from app.figures.timeline import draw_timeline, timeline_data
from app.words import labels
from app.words import tune as words
from sim.units import NS_PER_MS

# The key of the place in which the browser draws while a slider moves.
TIMELINE = "timeline"


@st.fragment
def step_timeline(state: State, shown: Played, as_measured: Played | None = None) -> None:
    """The figure, with the switch of the path above it; turning that draws nothing else anew.

    ``as_measured`` is the same assignment on the machine that was measured, drawn beneath.
    """
    marked = st.toggle(
        "Mark the critical path", value=True, key="path", bind="query-params", help=words.PATH_HELP
    )
    data = timeline_data(shown.timeline)
    marks = path_marks(shown.timeline, shown.path) if marked else ()
    figure = draw_timeline(data, marks, meta=mark(state))
    before = None if as_measured is None else draw_timeline(timeline_data(as_measured.timeline))
    if before is not None and as_measured is not None:  # one scale for both
        last_ms = max(shown.timeline.sync_end_ns, as_measured.timeline.sync_end_ns) / NS_PER_MS
        for each in (figure, before):
            each.update_xaxes(range=[0, 1.01 * last_ms])
        before.update_layout(height=before.layout.height - 80, showlegend=False, margin={"t": 0})
        before.update_xaxes(title=None)  # as above: so the sweep stays near the timeline
    st.plotly_chart(
        figure,
        key=TIMELINE,
        config=CHART,
        alt="Timeline of compute, communication and copies",
    )
    st.caption(labels.TIMELINE_CAPTION)
    if data.note:
        st.info(data.note)
    if before is not None:
        st.markdown(f"**{words.AS_MEASURED}**")
        st.plotly_chart(
            before,
            key="timeline_as_measured",
            config=CHART,
            alt="The same timeline on the machine as it was measured",
        )
