"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first. Places are held in the order in which one reads them; what has to be searched
for fills its own last, and a knob that is turned meanwhile does not wait for it.
"""

from typing import Any

import streamlit as st

import sim
from app import cached
from app.cached import Inputs, Played
from app.cached_records import Opened, Source
from app.choosing import Choice
from app.figures.band import band_data
from app.figures.sweep import draw_sweep, sweep_data
from app.library import Library
from app.views import export, families, headline, knobs, reasons, sources, truth
from app.views.sources import Given
from app.views.step_timeline import step_timeline
from app.views.waiting import Progress, wait_for
from app.words import labels
from app.words import tune as words
from sim.errors import SimError
from sim.nouns.recommendation import Recommendation

_CHART = {"displaylogo": False}
_SWEEP_KEY = "sweep_chart"


def show(library: Library, validate: st.Page) -> None:
    """Draw the page, from the most urgent question down; ``validate`` is the page that tells more of it."""
    turned = knobs.show(library)
    st.title("Tune")
    given = sources.read(library, turned.source)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = cached.scale(given.inputs, turned.what_if)
    choice = turned.choice.with_given(given.assignment)
    st.caption(labels.plain(f"{inputs.workload.name} on {inputs.hardware.name}"))
    shown = _play(inputs, choice)
    gain_card = headline.show(shown)
    step_timeline(inputs, choice, shown)
    default = cached.play(inputs, choice.baseline)
    headline.gain(gain_card, shown, default, cached.tuned(inputs))

    sweep_place, found_place, families_place = st.container(), st.container(), st.container()
    measured = _measured(library, given)
    agreement = truth.show(library, measured, shown, is_scaled=not turned.what_if.is_none)
    st.page_link(validate, label=words.VALIDATE)
    export.show(inputs, turned, shown, agreement)

    with sweep_place:
        st.subheader("What would another cap do?")
        if inputs.slowest is not None:
            st.info(words.STRAGGLER, icon=":material/info:")
        found = wait_for(lambda progress: _search(inputs, progress))
        _sweep(inputs, choice, shown, found)
    headline.gain(gain_card, shown, default, found)
    with found_place.container(border=True):
        _recommendation(inputs, found)
    with families_place:
        families.show(inputs, shown, found, choice)


def _measured(library: Library, given: Given) -> Source | None:
    """The measured run that belongs to the inputs: what was uploaded with them, else one in the library."""
    if given.measured is not None:
        return Opened(record=given.measured, key=f"upload {given.measured_digest}")
    return None if given.record is None else library.records[given.record]


def _play(inputs: Inputs, choice: Choice) -> Played:
    if choice.pick == "recommended":  # which has to be found first
        wait_for(lambda progress: cached.best(inputs, progress))
    return cached.play(inputs, choice)


def _search(inputs: Inputs, progress: Progress) -> Recommendation:
    """All that takes long: what is found here is remembered, and asked for again where it is drawn."""
    cached.sweep(inputs, progress)
    cached.band(inputs, progress)
    return cached.tune(inputs, progress)


def _sweep(inputs: Inputs, choice: Choice, shown: Played, found: Recommendation) -> None:
    is_alone = inputs.slowest is None  # the sweep knows no slowest rank, so what is shown is not on its curve
    data = sweep_data(
        cached.sweep(inputs),
        found.plateau,
        chosen_cap_mb=choice.cap_mb if is_alone else None,
        chosen_step_ns=shown.report.step_ns,
        optimum_step_ns=found.report.step_ns,
    )
    band = band_data(cached.band(inputs))
    st.plotly_chart(
        draw_sweep(data, band),
        key=_SWEEP_KEY,
        on_select=_take_click,
        selection_mode="points",
        config=_CHART,
        alt="Step time over bucket_cap_mb, with DDP's default beside it",
    )
    st.caption(labels.SWEEP_CAPTION.format(tolerance=found.plateau.tolerance))
    st.caption(words.NO_BAND if band is None else words.BAND_CAPTION)
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


def _recommendation(inputs: Inputs, found: Recommendation) -> None:
    st.subheader("Recommended")
    st.markdown(f"**{labels.plain(found.gain.sentence)}**")
    simplest = labels.simplest_sentence(found)
    if simplest is not None:
        st.markdown(labels.plain(simplest))
    st.markdown(labels.plain(found.plateau.sentence))
    if found.proved_optimal:
        st.badge("proved optimal", icon=":material/verified:", color="green")
    else:
        st.badge("best found, not proved optimal", color="orange")
    st.markdown(labels.plain(found.proof))
    try:
        lines = sim.snippet(found.assignment, inputs.workload, torch=export.torch_asked())
        st.code(lines, language="python", wrap_lines=True)
    except SimError as error:
        st.info(labels.plain(str(error)))
    reasons.show(inputs, found)
