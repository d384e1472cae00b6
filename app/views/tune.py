"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first; the sidebar is sent after the headline. Places are held in the order in
which one reads them; what has to be searched for fills its own last, and a knob that is turned meanwhile does
not wait for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from app import cached
from app.answering import Answer, find_answer
from app.cached import Inputs, Played
from app.choosing import Choice, WhatIf
from app.drag.follow import follow
from app.drag.states import State
from app.figures.band import band_data
from app.figures.style import CHART
from app.figures.sweep import draw_sweep, sweep_data
from app.library import Library
from app.views import (
    answers,
    export,
    families,
    first_look,
    headline,
    knobs,
    records_table,
    sidebar_last,
    sources,
    truth,
)
from app.views.errors import told
from app.views.sources import Asked, Given
from app.views.step_timeline import step_timeline
from app.views.waiting import Progress, wait_for
from app.words import labels
from app.words import tune as words
from app.words.cluster import device_sentence, is_computed
from app.words.switches import as_it_ran
from sim.nouns.band import BandPoint
from sim.nouns.recommendation import Recommendation

_SWEEP_KEY = "sweep_chart"


def show(library: Library, source: Asked, validate: st.Page) -> None:
    """Draw the page, from the most urgent question down; ``validate`` is the page that tells more of it."""
    turned = knobs.show(source)
    st.title("Tune")
    first_look.show()
    given = sources.read(library, turned.source)
    if given is None:
        sources.nothing_to_show(library)
        return
    as_given = given.inputs
    turned = replace(turned, what_if=turned.what_if.beside(as_given.workload, as_given.hardware))
    inputs = cached.scale(as_given, turned.what_if)
    choice = turned.choice.with_given(given.assignment)
    st.caption(labels.plain(sources.inputs_words(given, turned.source)))
    sources.tell_chosen(turned.source)
    _what_ifs(turned.what_if)
    unlike = device_sentence(inputs.workload, None) if is_computed(inputs.hardware) else None
    if unlike is not None:
        st.warning(labels.plain(unlike))
    if given.is_carried:
        st.caption(words.CARRIED)
    if inputs.workload.switches:
        st.caption(labels.plain(as_it_ran(inputs.workload.switches)))
    shown = _play(inputs, choice)
    warning = st.empty()
    measured_as = None if turned.what_if.is_none else cached.play(as_given, choice)
    state = State(
        measured=as_given,
        what_if=turned.what_if,
        choice=choice,
        cap_stop=st.session_state["cap_slider"],
        first_mb=st.session_state["first"],
        is_searched=cached.is_searched(inputs, choice.options_under_ddp),
    )
    gain_place, strip = headline.show(shown, measured_as)
    default = cached.play(inputs, choice.default_for(inputs.workload))
    possible = None
    headline.draw(gain_place, headline.gain_card(shown, default, possible))
    sidebar_last.headline_is_there()
    step_timeline(state, shown, measured_as)
    sidebar_last.send()

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

    frames = st.container()
    if not state.is_searched:  # a hand does not wait for the search
        with frames:
            follow(state, partial(headline.gain_card, possible=None))
    with strip, told():
        if state.is_searched:
            found = _search(inputs, choice, lambda words: None)
        else:
            found = wait_for(lambda progress: _search(inputs, choice, progress))
        under = _under(inputs, choice)
        answer = find_answer(inputs, choice, found, default, is_plain=not under)
        answers.strip(answer, choice, under)
        possible = answer.played
        headline.draw(gain_place, headline.gain_card(shown, default, possible))
        if state.is_searched:
            with frames:
                follow(state, partial(headline.gain_card, possible=possible))
        with search_place:
            st.subheader("What would another cap do?")
            sweep_place = st.container()
            if under:
                st.info(labels.plain(words.searched_without(under)), icon=":material/info:")
            run = sources.measured_run(library, given)
            answers.show(inputs, found, answer, under, truth.of_answer(run, inputs, answer))
            families.show(inputs, None if under else shown, found, choice)
            with sweep_place:  # last, as its band takes longer than all else
                _sweep(inputs, choice, shown, found, answer)


def _what_ifs(what_if: WhatIf) -> None:
    """What is not as it was measured, as chips: names of machines say only what was."""
    with st.container(horizontal=True, gap="small"):  # there without any, too: what is below keeps its place
        for name, value in what_if.told().items():
            st.badge(labels.what_if_words(name, value), icon=":material/tune:", color="orange")


def _under(inputs: Inputs, choice: Choice) -> str:
    """What is in force that the search does not know; empty: nothing."""
    return words.under_words(choice.options_under_ddp, is_late=inputs.slowest is not None)


def _same_record(library: Library, given: Given) -> dict[str, str] | None:
    """The address of the Validate page at the record that this page starts from."""
    name = library.name_among_all(given.record)
    return None if name is None else {records_table.CHOSEN: name}


def _play(inputs: Inputs, choice: Choice) -> Played:
    if choice.pick == "recommended":  # which has to be found first
        wait_for(lambda progress: cached.best(inputs, progress))
    return cached.play(inputs, choice)


def _search(inputs: Inputs, choice: Choice, progress: Progress) -> Recommendation:
    """What the answer needs: found here it is remembered, and asked for again where it is drawn."""
    cached.sweep(inputs, choice.options_under_ddp, progress)
    return cached.tune(inputs, progress)


def _band(inputs: Inputs) -> Sequence[BandPoint]:
    known = cached.banded(inputs)
    return wait_for(partial(cached.band, inputs)) if known is None else known


def _sweep(inputs: Inputs, choice: Choice, shown: Played, found: Recommendation, answer: Answer) -> None:
    """The curve under the switches of what is shown; its plateau and its band are known without any only."""
    under = _under(inputs, choice)
    data = sweep_data(
        cached.sweep(inputs, choice.options_under_ddp),
        None if under else found.plateau,
        chosen_cap_mb=choice.cap_mb,
        chosen_step_ns=shown.report.step_ns,
        optimum_step_ns=None if answer.best is None else answer.best.report.step_ns,
        recommended_cap_mb=answer.cap_mb,
    )
    points = () if under else _band(inputs)
    band = band_data(points)
    st.plotly_chart(
        draw_sweep(data, band, words.star_words(answer)),
        key=_SWEEP_KEY,
        on_select=_take_click,
        selection_mode="points",
        config=CHART,
        alt="Step time over bucket_cap_mb, with DDP's default beside it",
    )
    st.caption(labels.plain(words.sweep_caption(answer, found.plateau.tolerance, under)))
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
    knobs.show_pick("default" if cap is None else "cap", cap)
