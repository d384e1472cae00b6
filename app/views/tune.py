"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first; the sidebar is sent after the headline. Places are held in the order in which
one reads; what has to be searched for fills its own last, and a knob that is turned does not wait for it.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from time import sleep
from typing import Any

import streamlit as st

import sim
from app import playing, sources
from app.figures.compare import draw_breakdown, draw_sweep
from app.playing import Choice, Inputs, Options, Played, WhatIf
from app.sources import Asked, Library, Source, open_record
from app.views import tune_knobs, validate
from app.views.tune_knobs import CAP_SLIDER
from app.views.tune_step import State, follow, gain_card, headline, step_timeline
from app.views.validate import CHOSEN, row_of
from app.widgets import (
    chart,
    downloads,
    draw_card,
    folded,
    provenance,
    signed,
    signed_csv,
    signed_snippet,
    table,
    told,
    wait_for,
)
from app.words import (
    PICK_WORDS,
    capital,
    device_sentence,
    file_safe,
    interval_words,
    is_computed,
    option_words,
    plain,
    sentence,
    what_if_words,
)
from sim.columns import FAMILIES
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.tuner.setting import TOLERANCE, tell_setting
from sim.units import format_ms, format_number, format_percent

_SWEEP_KEY = "sweep_chart"
_KNOB_HELP = {
    "knob": "What may be set. Each row is the best that this knob alone can reach.",
    "step, ms": "Step time under the best setting of this knob.",
    "regret, ms": "How much longer its step is than under the recommended buckets. Below 0: shorter as "
    "recorded, by what the recommendation does not rely on.",
    "exposed, ms": "End of synchronisation minus a plain backward: all that synchronising adds to a step.",
    "buckets": "Number of buckets, each one collective.",
    "tried": "How the best was found: of all settings, or of a grid.",
}
FAMILY_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "bucket_cap_mb": "bucket_cap_mb, one number",
    "bucket_cap_mb_list": "bucket_cap_mb_list, one a bucket",
    "bucket_indices": "any buckets in ready order",
}


def show(library: Library, source: Asked, validation: st.Page) -> None:
    """Draw the page, from the most urgent question down; ``validation`` is the page that tells more of it."""
    given, trouble = None, None
    try:
        given = sources.read(library, source)
    except SimError as error:  # told below the title: it leaves the sidebar as it is
        trouble = error
    choice, what_if = tune_knobs.show(given)
    st.title("Tune")
    if trouble is not None:
        raise trouble
    if given is None:
        sources.nothing_to_show(library)
        return
    as_given = given.inputs
    what_if = what_if.beside(as_given.workload, as_given.hardware)
    inputs, choice = playing.scale(as_given, what_if), choice.with_given(given.assignment)
    # Names of machines say only what was measured. There without any, too: what is below keeps its place.
    with st.container(horizontal=True, gap="small"):
        for name, value in what_if.told().items():
            st.badge(what_if_words(name, value), icon=":material/tune:", color="orange")
    unlike = device_sentence(inputs.workload) if is_computed(inputs.hardware) else None
    if unlike is not None:
        st.warning(plain(unlike))
    sources.tell_inputs(given, source)
    options = choice.switches(inputs.workload)
    job = playing.under(inputs, options)
    if choice.pick == "recommended":  # which has to be found first
        wait_for(partial(playing.best, job))
    shown = playing.play(inputs, choice)
    cap_stop, first_mb = float(st.session_state[CAP_SLIDER]), st.session_state["first"]
    state = State(measured=as_given, what_if=what_if, choice=choice, cap_stop=cap_stop, first_mb=first_mb)
    gain_place, strip = headline(state, shown)
    default = playing.default(inputs, choice)
    draw_card(gain_place, gain_card(shown, default))
    if "has_painted" not in st.session_state and st.context.headers:  # no test's headers: a browser's
        st.session_state["has_painted"] = True
        sleep(0.6)  # or the headline waits for figures: loading plotly blocks a browser for a second
    step_timeline(state, shown)

    search_place = st.container()
    run = sources.measured_run(library, given)
    agreement = _is_it_true(library, run, inputs, shown, default, is_scaled=not what_if.is_none)
    recorded = library.name_among_all(given.record)
    words, named = "All measured runs, and how predictions are judged", {CHOSEN: recorded or ""}
    st.page_link(validation, label=words, query_params=None if recorded is None else named)
    _take_home(inputs, choice, what_if, shown, None if agreement is None else row_of(agreement, shown))
    follow(state)  # a hand does not wait for the search
    with strip, told():
        found = playing.tune.known(job) or wait_for(partial(playing.tune, job))
        answer = playing.recommended(inputs, choice, found)
        _strip(found, choice, options)
        draw_card(gain_place, gain_card(shown, default, answer))
        with search_place:
            st.subheader("What would another cap do?")
            sweep_place = st.container()
            measured = measured_words(agreement, answer, default)
            _show_answer(inputs, found, answer, under_words(options), measured)
            _families(shown, found, choice)
            with sweep_place:  # last, as its band takes longer than all else
                _sweep(job, choice, shown, found, under_words(options))


def under_words(options: Options) -> str:
    """The switches that an answer is found under; empty: none is set."""
    under = [*map(option_words, options)]
    return " and ".join([", ".join(under[:-1]), under[-1]] if len(under) > 1 else under)


def _strip(found: Recommendation, choice: Choice, options: Options) -> None:
    """The answer in a line, with the button that shows it; before any figure."""
    pick, cap_mb = playing.pick_of(found), found.setting.cap_mb
    is_cap_shown = choice.pick == "cap" and choice.cap_mb == cap_mb and choice.first_mb is None
    is_shown = is_cap_shown if pick == "cap" else choice.pick == pick
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"**{plain(answer_sentence(found, under_words(options)))}**", width="stretch")
        st.button(
            "Shown" if is_shown else "Show it",
            key="apply",
            on_click=partial(tune_knobs.show_answer, pick, cap_mb if pick == "cap" else None, options),
            disabled=is_shown,
            type="primary",
            icon=":material/check:",
        )
        if pick == "recommended" and cap_mb is not None:
            label = f"Show bucket_cap_mb={format_number(cap_mb, 6)}".replace("_", "\\_")
            turn = partial(tune_knobs.show_answer, "cap", cap_mb, options)
            st.button(label, key="apply_cap", on_click=turn, disabled=is_cap_shown)


def answer_sentence(found: Recommendation, under: str = "") -> str:
    """What to set, what it saves, and what one round cap loses against the best buckets that were found."""
    set_it = f"set: {tell_setting(found.setting, found.against)}"
    words = found.gain.sentence if found.gain.refuted else set_it
    return capital(f"under {under}, {words}." if under else f"{words}.")


def _sweep(job: Inputs, choice: Choice, shown: Played, found: Recommendation, under: str) -> None:
    setting, points = found.setting, playing.band.known(job)
    if points is None:
        points = wait_for(partial(playing.band, job))
    # The best of the round caps is not always what is recommended.
    star = "recommended cap" if setting.pick == "cap" else "best round cap"
    figure = draw_sweep(
        playing.sweep(job),
        found.plateau,
        points,
        shown=None if choice.cap_mb is None else (choice.cap_mb, shown.report.step_ns),
        best_ns=found.report.step_ns,
        star_mb=setting.cap_mb,
        star=star,
    )
    words = "Step time over bucket_cap_mb, with DDP's default beside it"
    chart(figure, _SWEEP_KEY, words, on_select=_take_click, selection_mode="points")
    told = ["Left: DDP's default. Dashed: its step. Dotted: of the recommended buckets. Shaded: as good."]
    within = f"within {TOLERANCE:.0%} of the best"
    told += [f"Star: the {star}, a round one of those {within}."] if setting.cap_mb is not None else []
    told.append("Click a point to see its timeline above.")
    told += [f"All of it is played under {under}."] if under else []
    told.append(
        "Blue, and the bar behind DDP's default: where 95 of 100 steps lie, drawn as recorded ones vary."
        if points
        else "No band of how steps vary: neither iterations nor the scatter of all-reduces was recorded."
    )
    st.caption(plain(" ".join(told)))


def _take_click() -> None:
    """A click on a point of the sweep sets the knobs to it; a second click changes nothing."""
    points: list[dict[str, Any]] = st.session_state[_SWEEP_KEY]["selection"]["points"]
    if points:
        cap = points[0]["customdata"][1]
        tune_knobs.show_pick("default" if cap is None else "cap", cap)


def _show_answer(
    inputs: Inputs, found: Recommendation, answer: Played, under: str, measured: str | None
) -> None:
    """The answer whole; ``measured`` is what real ranks took with it, in a sentence."""
    best, count = "The recommended buckets", len(found.assignment.bucket_indices)
    with st.container(border=True):
        st.subheader("What to set")
        st.markdown(f"**{plain(answer_sentence(found, under))}**")
        if found.setting.pick != "default":
            if measured is not None:
                st.markdown(plain(measured))
            _code(answer.assignment, inputs)
        st.markdown(plain(f"{best}: {found.gain.sentence}. {found.plateau.sentence}"))
        for note in found.notes:
            st.info(sentence(note), icon=":material/info:")
        title = f"{best}: {count}, cut anywhere, {format_ms(found.report.step_ns)} a step"
        folded(plain(title), "folded_best", partial(_show_best, inputs, found))


def _show_best(inputs: Inputs, found: Recommendation) -> None:
    """The best buckets that were found, wherever they are cut, and how good they are."""
    proof = "proved optimal" if found.proved_optimal else "best found, not proved optimal"
    over = ", over merges of the recorded buckets" if inputs.workload.is_of_whole_buckets else ""
    st.markdown(plain(f"{capital(proof)}{over}: {found.proof}."))
    _code(found.assignment, inputs)


def _code(assignment: Assignment, inputs: Inputs) -> None:
    with told():
        st.code(sim.snippet(assignment, inputs.workload), language="python", wrap_lines=True)


def _families(shown: Played, found: Recommendation, choice: Choice) -> None:
    st.subheader("What each knob can reach")
    families = found.families
    rows = [
        {
            "knob": FAMILY_WORDS.get(name, name),
            **{column.name: column.get(family) for column in FAMILIES},
            "tried": family.how,
        }
        for name, family in sorted(families.items(), key=lambda item: item[1].regret_ns)
    ]
    table(rows, _KNOB_HELP)
    reports = {}
    if choice.pick == "cap":
        reports[f"shown: {choice.words}"] = shown.report
    reports[PICK_WORDS["recommended"]] = found.report
    reports |= {FAMILY_WORDS[name]: families[name].report for name in ("default", "bucket_cap_mb")}
    chart(draw_breakdown(reports), "breakdown", "Where a step's time goes, by assignment")


def _is_it_true(
    library: Library, run: Source | None, inputs: Inputs, shown: Played, default: Played, *, is_scaled: bool
) -> Agreement | None:
    """Draw the section for the run that belongs to the inputs, if one does; return how it is predicted."""
    st.subheader("Is it true?")
    if run is None:
        how = "Start from a measured run to see one, or measure" if library.records else "Measure"
        words = "No measured run belongs to this workload on this hardware."
        st.info(f"{words} {how} your own with `bucketsim validate`.")
        return None
    if is_scaled:
        st.info(
            "The what-if knobs have moved away from what was measured, so the measurement no "
            "longer applies. Set them back to compare."
        )
        return None
    with told():
        record = open_record(run)
        if playing.as_measured(record) != inputs:
            st.info(
                "The measured run of these files was made in another box or with slow ranks, so it says "
                "nothing of the steps on this page. Start from the measured run to see it."
            )
            return None
        with st.spinner("Comparing with the measurement …"):
            _, agreement = validate.judge(run)
        beside = (
            "The assignment shown, with its switches, is not among those that were measured. What "
            "follows judges the model by others, on the same workload and hardware."
        )
        st.markdown(plain(measured_words(agreement, shown, default) or beside))
        validate.verdict(agreement)
        return agreement
    return None


def measured_words(agreement: Agreement | None, played: Played, default: Played) -> str | None:
    """What real ranks took with an assignment, and what it saved them; None where it was not measured."""
    row = None if agreement is None else row_of(agreement, played)
    if agreement is None or row is None:
        return None
    between, against, base = "", "", row_of(agreement, default)
    if row.has_interval:
        interval = interval_words(row.step_low_ns, row.step_high_ns, told=True)
        between = f" (95 % interval {interval} ms)"
    if base is not None and base is not row:
        saved_ns = base.measured_step_ns - row.measured_step_ns
        how = "less" if saved_ns >= 0 else "more"
        against = f", {format_ms(abs(saved_ns))} {how} than with DDP's default"
    took, off = format_ms(row.measured_step_ns), format_percent(row.step_error, 2, sign=True)
    return f"Measured on real ranks: {took} a step{between}{against}; the prediction is off by {off}."


def _take_home(
    inputs: Inputs, choice: Choice, what_if: WhatIf, shown: Played, measured: CandidateAgreement | None
) -> None:
    """Draw the lines and the buttons. Each file is made when it is asked for.

    ``measured`` is what is shown, as real ranks ran it; None where they did not.
    """
    options, name = choice.switches(inputs.workload), file_safe(f"{inputs.workload.name}-{choice.words}")
    where_from = provenance(inputs, what_if.told(), choice=choice.told())
    searched_from = provenance(inputs, what_if.told(), switches=dict(options))
    job = playing.under(inputs, options)
    makers: dict[str, tuple[str | Callable[[], str], str, str]] = {
        "bucket_indices JSON": (
            lambda: sim.to_text(signed(shown.assignment, where_from)),
            "assignment.json",
            "The buckets, and what makes DDP use them",
        ),
        "Sweep CSV": (
            lambda: signed_csv(map(asdict, playing.sweep(job)), searched_from),
            "sweep.csv",
            "All caps tried, and DDP's default",
        ),
        "Perfetto JSON": (
            lambda: sim.perfetto_json(shown.timeline, measured, provenance=where_from),
            "trace.json",
            "Open it in ui.perfetto.dev or chrome://tracing",
        ),
        "Report JSON": (
            lambda: sim.to_text(signed(shown.report, where_from)),
            "report.json",
            "All figures of the assignment shown",
        ),
        "Recommendation JSON": (
            lambda: sim.to_text(signed(playing.tune(job), searched_from)),
            "recommendation.json",
            "The whole answer of the search: its proof, and what each knob reaches",
        ),
    }
    st.subheader("Take it home")
    st.caption(f"Of the assignment shown: {plain(choice.words)}.")
    try:
        label, ending, language, lines, words = _lines_of(shown.assignment, inputs.workload)
        makers[label] = signed_snippet(lines, where_from) if language == "python" else lines, ending, words
        show_lines = partial(st.code, lines, language=language, wrap_lines=True)
    except SimError as error:
        st.info(plain(str(error)))
        show_lines = None
    downloads(
        {label: (make, f"{name}.{end}", told) for label, (make, end, told) in makers.items()}, where_from
    )
    if show_lines is not None:
        folded("The lines of the assignment shown", "folded_lines", show_lines)


def _lines_of(assignment: Assignment, workload: Workload) -> tuple[str, str, str, str, str]:
    """The button, ending, language, lines and words of what to paste.

    Raises:
        SimError: there are no such lines.
    """
    if assignment.policy in ("zero1", "zero2"):
        lines = sim.deepspeed_config(assignment, workload)
        return "DeepSpeed JSON", "deepspeed.json", "json", lines, "To merge into its configuration"
    if assignment.policy == "megatron":
        lines = sim.megatron_flags(assignment, workload)
        return "Megatron flags", "megatron.txt", "bash", lines, "To add to Megatron-LM's command line"
    return "Python snippet", "py", "python", sim.snippet(assignment, workload), "What to pass to DDP"
