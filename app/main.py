"""The dashboard's door: ``streamlit run app/main.py``, or ``bucketsim dash``."""

import sys
from collections.abc import Callable
from pathlib import Path

import pandas  # noqa: F401 - plotly takes a pandas that another visitor is still importing for a whole one
import streamlit as st
from streamlit.navigation.page import StreamlitPage

import sim
from app import launch, sources
from app.views import cluster, compare, live, manual, tune, tune_knobs, validate
from app.widgets import told

_LOOKS_EVERY_S = 5.0  # for what ranks measured: seldom enough to disturb none that still measure

# streamlit draws words on axes in one grey, too pale on white: they take the page's own colour of text.
_STYLE = """<style>
.js-plotly-plot :is([class$=tick], [class^="g-"][class$=title]) text {
  fill: currentColor !important; opacity: 0.85; }
/* Cards go into a second row rather than cut their figures. */
[data-testid=stColumn]:has(> [data-testid=stVerticalBlock] > * [data-testid=stMetric]) {
  min-width: 11rem !important; flex: 1 1 11rem !important; }
[data-testid=stMetric]
  :is([data-testid=stMetricLabel], [data-testid=stMetricValue], [data-testid=stMetricDelta]) * {
  white-space: normal !important; overflow: visible !important; }
/* Without a mouse plotly's buttons would stand on the legend for good: two fingers and a double tap zoom. */
@media (hover: none) { .js-plotly-plot .modebar-container { display: none; } }
[data-testid=stSidebar] [data-testid=stWidgetLabel] p { overflow-wrap: anywhere; }
/* What streamlit shows to a mouse alone, Tab reaches, too. */
[data-testid=stSidebarCollapseButton], [data-testid=stCode] :has(button) { visibility: visible !important; }
[data-testid=stCode] :has(> * button:focus-visible) { opacity: 1 !important; }
/* Streamlit takes the outline from links of the menu. */
[data-testid=stSidebarNavLink]:focus-visible {
  outline: 2px solid currentColor !important; outline-offset: -2px; }
</style>"""


def main() -> None:
    """Choose the page and show it; an error of ours becomes one line."""
    st.set_page_config(page_title="bucketsim", page_icon="🪣", layout="wide")
    st.html(_STYLE)
    settings = launch.settings(sys.argv[1:])
    found, asked = sources.find(settings), sources.Asked()

    def go_to_tune() -> None:
        st.switch_page(first, query_params=st.query_params.to_dict())

    def page_of(title: str, icon: str, draw: Callable[[], None]) -> StreamlitPage:
        return st.Page(draw, title=title, icon=f":material/{icon}:", url_path=title.lower())

    def tune_page() -> None:
        tune.show(found, asked, validated)

    first = st.Page(tune_page, title="Tune", icon=":material/tune:", default=True)
    compared = page_of("Compare", "compare_arrows", lambda: compare.show(found, asked))
    validated = page_of("Validate", "fact_check", lambda: validate.show(found, settings.watch))
    page = st.navigation(
        [
            first,
            # The first page's address is the bare one; a link to /tune leads there, with all its knobs.
            st.Page(go_to_tune, url_path="tune", visibility="hidden"),
            compared,
            validated,
            page_of("Cluster", "hub", lambda: cluster.show(found, first)),
            page_of("Manual", "menu_book", manual.show),
            page_of("About", "help", manual.about),
        ]
    )
    # A visit begins with the job that is watched, at its first run, where no address says else.
    is_new = not st.session_state.get("has_begun")
    st.session_state["has_begun"] = True
    if page is first and is_new and not st.query_params and live.is_first(settings.watch, found):
        st.switch_page(validated)
    tune_knobs.take_slider()
    if page in (first, compared):
        # Drawn here, they are the same widgets on both pages: what one page shows, the other shows.
        with st.sidebar:
            asked = sources.ask(found)
            st.divider()
    with told():
        page.run()
    if settings.watch is not None:
        st.fragment(_look, run_every=_LOOKS_EVERY_S)(settings.watch, tuple(sim.find_records(settings.watch)))


def _look(watch: Path, known: tuple[Path, ...]) -> None:
    """Show the page anew, with a word, once there are other records in ``watch`` than are ``known``."""
    if tuple(sim.find_records(watch)) != known:
        st.session_state["has_news"] = True
        st.rerun()
    if st.session_state.pop("has_news", False):
        st.toast("What ranks measured is here: see Validate.", icon=":material/fact_check:")


if __name__ == "__main__":
    main()
