"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first. Places are held in the order in which one reads them; what has to be searched
for fills its own last, and a knob that is turned meanwhile does not wait for it.
"""

from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from app.figures.band import band_data
from app.figures.sweep import draw_sweep, sweep_data
from app.library import Library
from app.views import export, families, headline, knobs, reasons, records_table, sources, truth
from app.views.errors import told
from app.views.sources import Asked, Given
from app.views.step_timeline import step_timeline
from app.views.waiting import Progress, wait_for
from app.words import labels
from app.words import tune as words
from sim.errors import SimError
from sim.nouns.recommendation import Recommendation

_CHART = {"displaylogo": False}
_SWEEP_KEY = "sweep_chart"


def show(library: Library, source: Asked, validate: st.Page) -> None:
    """Draw the page, from the most urgent question down; ``validate`` is the page that tells more of it."""
    turned = knobs.show(source)
    st.title("Tune")
    given = sources.read(library, turned.source)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = cached.scale(given.inputs, turned.what_if)
    choice = turned.choice.with_given(given.assignment)
    named = f"{inputs.workload.name} on {inputs.hardware.name}"
    st.caption(labels.plain(" · ".join(filter(None, [named, turned.source.words]))))
    if given.is_carried:
        st.caption(words.CARRIED)
    shown = _play(inputs, choice)
    warning = st.empty()
    gain_card = headline.show(shown)
    step_timeline(inputs, choice, shown)
    default = cached.play(inputs, choice.baseline(inputs.workload))
    _gain(gain_card, inputs, choice, shown, default)

    search_place = st.container()
    measured = truth.show(
        library,
        sources.measured_run(library, given),
        inputs,
        shown,
        is_scaled=not turned.what_if.is_none,
        warning=warning,
    )
    st.page_link(validate, label=words.VALIDATE, query_params=_same_record(library, given))
    export.show(inputs, turned, shown, measured)

    with search_place, told():
        st.subheader("What would another cap do?")
        found = wait_for(lambda progress: _search(inputs, choice, progress))
        _gain(gain_card, inputs, choice, shown, default)
        _searched(inputs, choice, shown, default, found)


def _gain(card: DeltaGenerator, inputs: Inputs, choice: Choice, shown: Played, default: Played) -> None:
    """The gain, and what could be gained, once that is known."""
    found = cached.tuned(inputs)
    under = _under(inputs, choice)
    possible = None if found is None else _possible(inputs, choice)
    significant = found.gain.significant if found is not None and not under else None
    headline.gain(card, shown, default, possible, significant=significant)


def _possible(inputs: Inputs, choice: Choice) -> Played | None:
    """The recommended buckets under the switches of the choice; None where they cannot be had under these."""
    try:
        return cached.play(inputs, choice.possible)
    except SimError:
        return None


def _under(inputs: Inputs, choice: Choice) -> str:
    """What is in force that the search does not know; empty: nothing."""
    return words.under_words(choice.comparable, is_late=inputs.slowest is not None)


def _searched(inputs: Inputs, choice: Choice, shown: Played, default: Played, found: Recommendation) -> None:
    """What the search and the sweep found."""
    under, possible = _under(inputs, choice), _possible(inputs, choice)
    _sweep(inputs, choice, shown, found, possible)
    if under:
        st.info(labels.plain(words.searched_without(under)), icon=":material/info:")
    with st.container(border=True):
        _recommendation(inputs, found, possible, default, under)
    families.show(inputs, None if under else shown, found, choice)


def _same_record(library: Library, given: Given) -> dict[str, str] | None:
    """The address of the Validate page at the record that this page starts from."""
    path = None if given.record is None else library.records[given.record]
    name = next((name for name, other in library.all_records.items() if other == path), None)
    return None if name is None else {records_table.CHOSEN: name}


def _play(inputs: Inputs, choice: Choice) -> Played:
    if choice.pick == "recommended":  # which has to be found first
        wait_for(lambda progress: cached.best(inputs, progress))
    return cached.play(inputs, choice)


def _search(inputs: Inputs, choice: Choice, progress: Progress) -> Recommendation:
    """All that takes long: what is found here is remembered, and asked for again where it is drawn."""
    cached.sweep(inputs, choice.comparable, progress)
    if not _under(inputs, choice):
        cached.band(inputs, progress)
    return cached.tune(inputs, progress)


def _sweep(
    inputs: Inputs, choice: Choice, shown: Played, found: Recommendation, possible: Played | None
) -> None:
    """The curve under the switches of what is shown; its plateau and its band are known without any only."""
    under = _under(inputs, choice)
    data = sweep_data(
        cached.sweep(inputs, choice.comparable),
        None if under else found.plateau,
        chosen_cap_mb=choice.cap_mb,
        chosen_step_ns=shown.report.step_ns,
        optimum_step_ns=None if possible is None else possible.report.step_ns,
    )
    points = () if under else cached.band(inputs)
    band = band_data(points)
    st.plotly_chart(
        draw_sweep(data, band),
        key=_SWEEP_KEY,
        on_select=_take_click,
        selection_mode="points",
        config=_CHART,
        alt="Step time over bucket_cap_mb, with DDP's default beside it",
    )
    told_under = labels.SWEEP_UNDER.format(under=under) if under else ""
    shade = "" if under else labels.SWEEP_SHADE.format(tolerance=found.plateau.tolerance)
    st.caption(labels.plain(f"{labels.SWEEP_CAPTION} {told_under}{shade}"))
    if under:
        st.caption(words.NO_BAND_UNDER)
        return
    st.caption(words.NO_BAND if band is None else words.band_caption(points))
    unsure = words.significance_words(found)
    if unsure is not None:
        st.info(labels.plain(unsure), icon=":material/balance:")


def _take_click() -> None:
    """A click on a point of the sweep sets the knobs to it; a second click changes nothing."""
    points: list[dict[str, Any]] = st.session_state[_SWEEP_KEY]["selection"]["points"]
    if not points:
        return
    cap = points[0]["customdata"][1]
    if cap is None:
        knobs.show_default()
    else:
        knobs.show_cap(cap)


def _recommendation(
    inputs: Inputs, found: Recommendation, possible: Played | None, default: Played, under: str
) -> None:
    st.subheader("Recommended")
    st.markdown(f"**{labels.sentence(found.gain.sentence)}**")
    if under and possible is not None:
        saved_ns = default.report.step_ns - possible.report.step_ns
        st.markdown(labels.plain(words.possible_sentence(possible.report.step_ns, saved_ns, under)))
    simplest = labels.simplest_sentence(found)
    if simplest is not None:
        st.markdown(labels.plain(simplest))
    st.markdown(labels.plain(found.plateau.sentence))
    if not found.proved_optimal:
        st.badge(words.NOT_PROVED, color="orange")
    elif inputs.workload.is_of_whole_buckets:
        st.badge(words.PROVED_OVER_MERGES, color="orange")
    else:
        st.badge(words.PROVED, icon=":material/verified:", color="green")
    st.markdown(labels.sentence(found.proof))
    for note in found.notes:
        st.info(labels.sentence(note), icon=":material/info:")
    if found.gain.significant is False and not under:
        st.caption(words.NOTHING_TO_PASTE)
    try:
        assignment = found.assignment if possible is None else possible.assignment
        lines = sim.snippet(assignment, inputs.workload, torch=export.torch_asked())
        st.code(lines, language="python", wrap_lines=True)
    except SimError as error:
        st.info(labels.plain(str(error)))
    reasons.show(inputs, found)
