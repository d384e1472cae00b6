"""The Tune page: how bad is it, where, what if, is it true, take it home."""

from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import cached
from app.cached import Inputs, Played
from app.choosing import Choice
from app.figures.breakdown import breakdown_data, draw_breakdown
from app.figures.sweep import draw_sweep, sweep_data
from app.figures.timeline import draw_timeline, timeline_data
from app.library import Library
from app.views import export, knobs, reasons, sources, truth
from app.words import labels
from sim.errors import NotModelledError
from sim.nouns.recommendation import Recommendation
from sim.units import format_ms

_CHART = {"displaylogo": False}
_SWEEP_KEY = "sweep_chart"


def show(library: Library) -> None:
    """Draw the page, from the most urgent question down."""
    turned = knobs.show(library)
    st.title("Tune")
    given = sources.read(library, turned.source)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = cached.scale(given.inputs, turned.what_if)
    st.caption(labels.plain(f"{inputs.workload.name} on {inputs.hardware.name}"))
    default = cached.play(inputs, Choice(pick="default"))
    shown = cached.play(inputs, turned.choice)
    gain_card = _headline(shown, default)
    _timeline(shown)
    st.subheader("What would another cap do?")
    found = cached.tune(inputs)
    _gain(gain_card, shown, default, found)
    _sweep(inputs, turned.choice, shown, found)
    _recommendation(inputs, found)
    _families(shown, found, turned.choice)
    record = None if given.record is None else library.records[given.record]
    agreement = truth.show(library, record, shown, is_scaled=not turned.what_if.is_none)
    export.show(inputs, turned, shown, agreement)


def _headline(shown: Played, default: Played) -> DeltaGenerator:
    """The cards and the sentence. Returns the gain's place: it is told in full once the search is done."""
    report = shown.report
    step, exposed, overlap, gain = st.columns(4)
    step.metric(
        "Step time", format_ms(report.step_ns), help=labels.HELP["step"], border=True, height="stretch"
    )
    exposed.metric(
        "Exposed communication",
        format_ms(report.exposed_comm_ns),
        f"{labels.share(report.exposed_comm_ns, report.step_ns)} of the step",
        delta_color="off",
        delta_arrow="off",
        help=labels.HELP["exposed"],
        border=True,
        height="stretch",
    )
    overlap.metric(
        "Overlap", f"{report.overlap_ratio:.1%}", help=labels.HELP["overlap"], border=True, height="stretch"
    )
    place = gain.empty()
    _gain(place, shown, default, None)
    st.markdown(f"**{labels.plain(report.verdict)}**")
    estimated = labels.estimated_sentence(shown.timeline.workload)
    if estimated is not None:
        st.warning(labels.plain(estimated))
    for note in report.notes:
        st.caption(labels.plain(note))
    return place


def _gain(place: DeltaGenerator, shown: Played, default: Played, found: Recommendation | None) -> None:
    """The gain of what is shown and, below it, what could be gained."""
    base = default.report.step_ns
    gain = base - shown.report.step_ns
    words = f"{labels.share(gain, base)} of its step"
    if found is not None and found.report.step_ns < shown.report.step_ns:
        possible = base - found.report.step_ns
        words = f"recommended: {format_ms(possible)}, {labels.share(possible, base)}"
    place.metric(
        "Gain against DDP's default",
        format_ms(gain),
        words,
        delta_color="off",
        delta_arrow="off",
        help=labels.HELP["gain"],
        border=True,
        height="stretch",
    )


def _timeline(shown: Played) -> None:
    data = timeline_data(shown.timeline)
    st.plotly_chart(
        draw_timeline(data),
        key="timeline",
        config=_CHART,
        alt="Timeline of compute, communication and copies",
    )
    st.caption(labels.TIMELINE_CAPTION)
    if data.note:
        st.info(data.note)


def _sweep(inputs: Inputs, choice: Choice, shown: Played, found: Recommendation) -> None:
    data = sweep_data(
        cached.sweep(inputs),
        found.plateau,
        chosen_cap_mb=choice.cap_mb,
        chosen_step_ns=shown.report.step_ns,
        optimum_step_ns=found.report.step_ns,
    )
    st.plotly_chart(
        draw_sweep(data),
        key=_SWEEP_KEY,
        on_select=_take_click,
        selection_mode="points",
        config=_CHART,
        alt="Step time over bucket_cap_mb, with DDP's default beside it",
    )
    st.caption(labels.SWEEP_CAPTION.format(tolerance=found.plateau.tolerance))


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
    with st.container(border=True):
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
            st.code(sim.snippet(found.assignment, inputs.workload), language="python", wrap_lines=True)
        except NotModelledError as error:
            st.info(labels.plain(str(error)))
        reasons.show(inputs, found)


def _families(shown: Played, found: Recommendation, choice: Choice) -> None:
    st.subheader("What each knob can reach")
    rows = [
        {
            "knob": labels.FAMILY_WORDS.get(name, name),
            "step, ms": family.report.step_ns / 1e6,
            "regret, ms": family.regret_ns / 1e6,
            "exposed, ms": family.report.exposed_comm_ns / 1e6,
            "buckets": len(family.assignment.bucket_indices),
            "set": labels.setting_words(family.assignment),
            "tried": family.how,
        }
        for name, family in sorted(found.families.items(), key=lambda item: item[1].regret_ns)
    ]
    number = st.column_config.NumberColumn(format="%.2f")
    st.dataframe(
        rows,
        hide_index=True,
        column_config=dict.fromkeys(("step, ms", "regret, ms", "exposed, ms"), number),
    )
    for name, why in found.absent.items():
        st.caption(labels.plain(f"Not among them: {labels.FAMILY_WORDS.get(name, name)}: {why}"))
    reports = {f"shown: {choice.words}": shown.report} if choice.pick == "cap" else {}
    reports["recommended"] = found.report
    reports |= {
        labels.FAMILY_WORDS.get(name, name): found.families[name].report
        for name in ("default", "bucket_cap_mb", "mg-wfbp", "horovod", "per-parameter", "single")
        if name in found.families
    }
    st.plotly_chart(
        draw_breakdown(breakdown_data(reports)),
        key="breakdown",
        config=_CHART,
        alt="Where a step's time goes, by assignment",
    )
