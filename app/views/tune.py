"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first; the sidebar is sent after the headline. Places are held in the order in
which one reads them; what has to be searched for fills its own last, and a knob that is turned meanwhile does
not wait for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import playing, sources
from app.choosing import Choice
from app.figures.compare import draw_breakdown
from app.figures.records import attribution_data
from app.figures.sweep import draw_sweep
from app.figures.timeline import draw_timeline, timeline_data
from app.library import Library
from app.playing import Answer, Inputs, Played, Progress, find_answer
from app.provenance import origin_words, provenance, signed, signed_csv, signed_html, signed_snippet
from app.sources import Asked, Source, open_record
from app.views import tune_knobs, validate
from app.views.tune_knobs import CAP_SLIDER, Knobs
from app.views.tune_step import State, follow, gain_card, headline, step_timeline
from app.views.validate import CHOSEN, row_of
from app.widgets import ask, chart, download, draw_card, folded, keep_among, table, told, wait_for
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
    share,
    switches_beyond,
    what_if_words,
)
from sim.columns import FAMILIES
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Gain, Recommendation
from sim.nouns.timeline import PathKind, PathSpan
from sim.truth.scoring import CandidateAgreement
from sim.tuner.gain import BandPoint
from sim.tuner.setting import TOLERANCE
from sim.units import format_ms, format_number

_SWEEP_KEY = "sweep_chart"
_LOOK, _WAS_DRAWN, _DISMISSED = "guide", "look_was_drawn", "bucketsim_look_dismissed"
_REMEMBER = f"<script>document.cookie = '{_DISMISSED}=1; path=/; max-age=31536000; SameSite=Strict';</script>"
LOOK_STEPS = """
**One training step, predicted.** Gradients are cut into buckets; each is sent as soon as it is complete.

1. **Three lanes.** *compute* is backward, *communication* the all-reduce of each bucket, *copy back* what
   follows it. One colour is one bucket.
2. **Hatched is what costs you**: communication after backward has ended. The red line is the critical path.
3. **Turn the cap** on the left, or click a point of the curve below. *What if* makes the machine another one.
4. **Apply the recommended** shows the one number to set, what it saves, and what it loses.
5. **Take it home**: the lines to paste into your script, at the end of the page.
"""
_KNOB_HELP = {
    "knob": "What may be set. Each row is the best that this knob alone can reach.",
    "step, ms": "Step time under the best setting of this knob.",
    "regret, ms": "How much longer its step is than under the best buckets found. Below 0: another system "
    "that DDP's buckets do not reach.",
    "exposed, ms": "End of synchronisation minus a plain backward: all that synchronising adds to a step.",
    "buckets": "Number of buckets, each one collective.",
    "set": "What to set to get there.",
    "tried": "How the best was found: of all settings, or of a grid.",
}
_PATH_HELP = {
    "what": "The link of the chain.",
    "bucket": "The bucket that it belongs to.",
    "from, ms": "From the start of backward.",
    "to, ms": "From the start of backward.",
    "takes, ms": "Its length.",
}
FAMILY_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "bucket_cap_mb": "bucket_cap_mb, one number",
    "bucket_cap_mb_list": "bucket_cap_mb_list, one a bucket",
    "bucket_indices": "any buckets in ready order",
}
PATH_WORDS: dict[str, str] = {
    "backward": "backward",
    "copy_in": "copy into a bucket",
    "launch": "launch",
    "hook": "hook",
    "copy_out": "copy back",
    "settle": "what a hook computes",
    "straggler": "waits for the slowest rank",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "broadcast": "broadcast",
}
_LANE: tuple[PathKind, ...] = ("backward", "copy_in", "launch", "hook")
_PLURALS: dict[str, str] = {"copy_in": "copies into buckets", "launch": "launches", "hook": "hooks"}
_NEWEST = "newest"
TORCH_VERSIONS = (_NEWEST, *(f"2.{minor}" for minor in range(13, -1, -1)))


def show(library: Library, source: Asked, validation: st.Page) -> None:
    """Draw the page, from the most urgent question down; ``validation`` is the page that tells more of it."""
    turned = tune_knobs.show(source)
    st.title("Tune")
    _first_look()
    given = sources.read(library, turned.source)
    if given is None:
        sources.nothing_to_show(library)
        return
    as_given = given.inputs
    turned = replace(turned, what_if=turned.what_if.beside(as_given.workload, as_given.hardware))
    inputs = playing.scale(as_given, turned.what_if)
    choice = turned.choice.with_given(given.assignment)
    sources.tell_inputs(given, turned.source)
    # Names of machines say only what was measured. There without any, too: what is below keeps its place.
    with st.container(horizontal=True, gap="small"):
        for name, value in turned.what_if.told().items():
            st.badge(what_if_words(name, value), icon=":material/tune:", color="orange")
    unlike = device_sentence(inputs.workload, None) if is_computed(inputs.hardware) else None
    if unlike is not None:
        st.warning(plain(unlike))
    sources.tell_as_run(given)
    if choice.pick == "recommended":  # which has to be found first
        wait_for(partial(playing.best, inputs))
    shown = playing.play(inputs, choice)
    warning = st.empty()
    measured_as = None if turned.what_if.is_none else playing.play(as_given, choice)
    state = State(
        measured=as_given,
        what_if=turned.what_if,
        choice=choice,
        cap_stop=float(st.session_state[CAP_SLIDER]),
        first_mb=st.session_state["first"],
    )
    gain_place, strip = headline(shown, measured_as)
    default = playing.play(inputs, choice.default_for(inputs.workload))
    draw_card(gain_place, gain_card(shown, default))
    step_timeline(state, shown, measured_as)

    search_place = st.container()
    run = sources.measured_run(library, given)
    measured = _is_it_true(library, run, inputs, shown, is_scaled=not turned.what_if.is_none, warning=warning)
    recorded = library.name_among_all(given.record)
    st.page_link(
        validation,
        label="All measured runs, and how predictions are judged",
        query_params=None if recorded is None else {CHOSEN: recorded},
    )
    _take_home(inputs, turned, shown, measured)
    follow(state)  # a hand does not wait for the search
    with strip, told():
        search = partial(_search, inputs, choice)
        is_searched = playing.is_searched(inputs, choice.options_under_ddp)
        found = search(None) if is_searched else wait_for(search)
        under = under_words(choice.options_under_ddp, is_late=inputs.slowest is not None)
        answer = find_answer(inputs, choice, found, default, is_plain=not under)
        _strip(answer, choice, under)
        draw_card(gain_place, gain_card(shown, default, answer.played))
        with search_place:
            st.subheader("What would another cap do?")
            sweep_place = st.container()
            if under:
                words = (
                    f"The sweep and the cap that is recommended are found under {under}. The search for "
                    "buckets that may be cut anywhere knows nothing of it: the best buckets and what each "
                    "knob can reach are told without."
                )
                st.info(plain(words), icon=":material/info:")
            _show_answer(inputs, found, answer, under, of_answer(run, inputs, answer))
            _families(inputs, None if under else shown, found, choice)
            with sweep_place:  # last, as its band takes longer than all else
                _sweep(inputs, choice, shown, found, answer, under)


def _first_look() -> None:
    """Draw the look where one came by the bare address, until it is dismissed; the browser remembers that."""
    if _LOOK not in st.session_state and _LOOK not in st.query_params:
        was_seen = _WAS_DRAWN in st.session_state or _DISMISSED in st.context.cookies
        st.session_state[_LOOK] = not st.query_params and not was_seen
    with st.sidebar:
        is_wanted = ask(st.toggle, "Guided look", _LOOK, "How to read this page, in five lines.")
    if not is_wanted:
        if _WAS_DRAWN in st.session_state:
            st.html(_REMEMBER, unsafe_allow_javascript=True)
        return
    st.session_state[_WAS_DRAWN] = True
    with st.container(border=True):
        st.markdown(LOOK_STEPS)
        dismiss = partial(st.session_state.update, {_LOOK: False})
        st.button("Got it", key="guide_done", on_click=dismiss, icon=":material/check:")


def _search(inputs: Inputs, choice: Choice, progress: Progress | None) -> Recommendation:
    """What the answer needs: found here it is remembered, and asked for again where it is drawn."""
    playing.sweep(inputs, choice.options_under_ddp, progress)
    return playing.tune(inputs, progress)


def under_words(options: Sequence[tuple[str, Any]], *, is_late: bool) -> str:
    """What is in force on the page: the switches that are set, the slowest rank; empty: neither."""
    under = [*map(option_words, options), *(["the slowest rank"] if is_late else [])]
    return " and ".join([", ".join(under[:-1]), under[-1]] if len(under) > 1 else under)


def _strip(answer: Answer, choice: Choice, under: str) -> None:
    """The answer in a line, with the button that shows it; before any figure."""
    is_cap_shown = choice.pick == "cap" and choice.cap_mb == answer.cap_mb and choice.first_mb is None
    is_shown = is_cap_shown if answer.pick == "cap" else choice.pick == answer.pick
    cap_mb = answer.cap_mb if answer.pick == "cap" else None
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"**{plain(answer_sentence(answer, under))}**", width="stretch")
        st.button(
            "Shown" if is_shown else "Apply the recommended",
            key="apply",
            on_click=partial(tune_knobs.show_answer, answer.pick, cap_mb, choice),
            disabled=is_shown,
            type="primary",
            icon=":material/check:",
        )
        if answer.pick == "recommended" and answer.cap_mb is not None:
            st.button(
                f"Show bucket_cap_mb={format_number(answer.cap_mb, 6)}".replace("_", "\\_"),
                key="apply_cap",
                on_click=partial(tune_knobs.show_answer, "cap", answer.cap_mb, choice),
                disabled=is_cap_shown,
            )


def answer_sentence(answer: Answer, under: str) -> str:
    """What to set, what it saves, and what one round cap loses against the best buckets that were found."""
    words = _answer_words(answer, is_plain=not under)
    return capital(f"under {under}, {words}" if under else words)


def _answer_words(answer: Answer, *, is_plain: bool) -> str:
    if answer.why_none:
        return f"{answer.why_none}."
    if answer.pick == "default":
        more = " by more than steps vary" if is_plain else ""
        return f"keep {answer.against}: nothing that was found is faster{more}."
    missing = " and ".join(switches_beyond(answer.played.assignment, answer.default.assignment))
    saves = (
        f"{format_ms(answer.played.report.step_ns)} a step, {format_ms(answer.saved_ns)} "
        f"({share(answer.saved_ns, answer.default.report.step_ns)}) less than {answer.against}"
        f"{f' without {missing}' if missing else ''}"
    )
    if answer.capped is None or answer.cap_mb is None:
        return f"take the best buckets found: {saves}; no one cap is faster than that."
    cap, step_ns = f"bucket_cap_mb={format_number(answer.cap_mb, 6)}", answer.capped.report.step_ns
    behind_ns = answer.behind_ns or 0
    behind = f"{format_ms(behind_ns)} ({share(behind_ns, step_ns)}) more"
    if answer.pick == "recommended":
        return (
            "no one cap comes near the best buckets found: take those, with the lines under Recommended. "
            f"They take {saves}. The best round cap, {cap}, takes {format_ms(step_ns)}, {behind}."
        )
    if behind_ns <= 0:
        return f"set {cap}: {saves}; no buckets that were found are better."
    alike = "; over steps as they vary the two cannot be told apart" if answer.is_alike else ""
    return f"set {cap}: {saves}, {behind} than the best buckets found{alike}."


def _sweep(
    inputs: Inputs, choice: Choice, shown: Played, found: Recommendation, answer: Answer, under: str
) -> None:
    """The curve under the switches of what is shown; its plateau and its band are known without any only."""
    points = () if under else playing.banded(inputs)
    if points is None:
        points = wait_for(partial(playing.band, inputs))
    # The best of the round caps is not always what is recommended.
    star = "recommended cap" if answer.pick == "cap" else "best round cap"
    figure = draw_sweep(
        playing.sweep(inputs, choice.options_under_ddp),
        None if under else found.plateau,
        points,
        shown=None if choice.cap_mb is None else (choice.cap_mb, shown.report.step_ns),
        best_ns=None if answer.best is None else answer.best.report.step_ns,
        star_mb=answer.cap_mb,
        star=star,
    )
    words = "Step time over bucket_cap_mb, with DDP's default beside it"
    chart(figure, _SWEEP_KEY, words, on_select=_take_click, selection_mode="points")
    within = f"within {TOLERANCE:.0%} of the best"
    told = ["Left: DDP's default, a point of its own. Dashed: its step."]
    told += ["Dotted: the step of the best buckets found."] if answer.best is not None else []
    told += [f"Star: the {star}, a round one of those {within}."] if answer.cap_mb is not None else []
    told.append("Click a point to see its timeline above.")
    shaded = "Shaded: caps that do as well as the best buckets."
    told.append(f"All of it is played under {under}." if under else shaded)
    st.caption(plain(" ".join(told)))
    if under:
        st.caption(
            "No band of how steps vary: it is known without switches and on ranks that are alike only."
        )
        return
    st.caption(band_caption(points))
    unsure = significance_words(found.gain)
    if unsure is not None:
        st.info(plain(unsure), icon=":material/balance:")


def _take_click() -> None:
    """A click on a point of the sweep sets the knobs to it; a second click changes nothing."""
    points: list[dict[str, Any]] = st.session_state[_SWEEP_KEY]["selection"]["points"]
    if points:
        cap = points[0]["customdata"][1]
        tune_knobs.show_pick("default" if cap is None else "cap", cap)


def band_caption(points: Sequence[BandPoint]) -> str:
    """What the band shows, and what it was read from."""
    if not points:
        return "No band of how steps vary: neither iterations nor the scatter of all-reduces was recorded."
    draws, iterations = max(point.draws for point in points), max(point.iterations for point in points)
    behind = f"{iterations} recorded iterations" if iterations else "no recorded iteration"
    return (
        "Blue band, and the bar behind DDP's default: where 95 of 100 single steps lie, read from "
        f"{draws} drawn steps a cap, the same for all caps, with {behind} and the scatter of all-reduces "
        "behind them."
    )


def significance_words(gain: Gain) -> str | None:
    """Why the optimum may not matter; None where it does, or where there is nothing to gain."""
    if gain.refuted or gain.significant is False:
        return f"{capital(gain.sentence)}."
    if gain.significant is None and gain.gain_ns:
        missing = " and ".join(gain.not_known)
        why = f"{missing} was not recorded" if missing else "what it rests on is doubtful, see the notes"
        return f"Whether the optimum is significant is not known: {why}."
    return None


def _show_answer(
    inputs: Inputs, found: Recommendation, answer: Answer, under: str, measured: str | None = None
) -> None:
    """The answer whole; ``found`` is what the search found, which knows nothing of ``under``.

    ``measured`` is what real ranks took with it, in a sentence. Paths are those of what the page plays, under
    its switches and beside its ranks; how steps vary is known without them.
    """
    without = f", without {under}" if under else ""
    best: Played | Recommendation = answer.best or found
    count, step = len(best.assignment.bucket_indices), format_ms(best.report.step_ns)
    title = f"The best buckets found{without if answer.best is None else ''}: {count}, cut anywhere"
    with st.container(border=True):
        st.subheader("Recommended")
        st.markdown(f"**{plain(answer_sentence(answer, under))}**")
        if measured is not None:
            st.markdown(plain(measured))
        if answer.pick != "default":
            _code(answer.played.assignment, inputs)
        if not under:
            st.markdown(plain(found.plateau.sentence))
        for note in found.notes:
            st.info(sentence(note), icon=":material/info:")
        show_best = partial(_show_best, inputs, found, answer, under)
        folded(plain(f"{title}, {step} a step"), "folded_best", show_best)
        folded("Why: the critical path", "folded_why", partial(_why, answer))
        varies = partial(st.caption, plain(varies_sentence(found.gain)))
        folded(plain(f"Does it show? Steps as they vary{without}"), "folded_varies", varies)


def _show_best(inputs: Inputs, found: Recommendation, answer: Answer, under: str) -> None:
    """The best buckets that were found, wherever they are cut, and how good they are."""
    if under and answer.best is not None:
        step_ns, default_ns = answer.best.report.step_ns, answer.default.report.step_ns
        less = f"{format_ms(abs(default_ns - step_ns))} {'more' if step_ns > default_ns else 'less'}"
        words = f"Under {under} these take {format_ms(step_ns)} a step, {less} than DDP's default."
        st.markdown(f"**{plain(words)}**")
    if under:
        st.caption(plain(f"What follows is told without {under}, as the search knows nothing of it."))
    if not under or answer.best is None:  # else it may say the contrary of caps that are better under it
        st.markdown(f"**{sentence(found.gain.sentence)}**")
    if not found.proved_optimal:
        st.badge("best found, not proved optimal", color="orange")
    elif inputs.workload.is_of_whole_buckets:
        st.badge("optimal over merges of the recorded buckets", color="orange")
    else:
        st.badge("proved optimal", icon=":material/verified:", color="green")
    st.markdown(sentence(found.proof))
    _code(found.assignment if answer.best is None else answer.best.assignment, inputs)


def _code(assignment: Assignment, inputs: Inputs) -> None:
    try:  # for the version that is chosen below
        lines = sim.snippet(assignment, inputs.workload, torch=_version(st.session_state.get("torch")))
    except SimError as error:
        st.info(plain(str(error)))
        return
    st.code(lines, language="python", wrap_lines=True)


def _why(answer: Answer) -> None:
    for title, played in reasoned(answer).items():
        st.markdown(f"**{plain(title)}**: {sentence(played.report.verdict)}")
        rows = [
            {
                "what": what,
                "bucket": bucket,
                "from, ms": start_ns / 1e6,
                "to, ms": end_ns / 1e6,
                "takes, ms": (end_ns - start_ns) / 1e6,
            }
            for what, bucket, start_ns, end_ns in path_rows(played.path)
        ]
        table(rows, _PATH_HELP, placeholder="")


def reasoned(answer: Answer) -> dict[str, Played]:
    """By name, the assignments whose critical path is told: first what is recommended, last what it is held
    against."""
    named: dict[str, Played] = {}
    if answer.pick == "cap" and answer.cap_mb is not None:
        named[f"Recommended: bucket_cap_mb={format_number(answer.cap_mb, 6)}"] = answer.played
    if answer.best is not None:
        is_it = answer.pick == "recommended"
        named["Recommended: the best buckets found" if is_it else "The best buckets found"] = answer.best
    against = capital(answer.against)
    named[f"{against}, which is recommended" if answer.pick == "default" else against] = answer.default
    return named


def path_rows(path: Sequence[PathSpan]) -> list[tuple[str, int | None, int, int]]:
    """A path in rows (what, bucket, start, end): what the lane does without a gap is one, its copies and
    launches counted.
    """
    rows: list[tuple[str, int | None, int, int]] = []
    for on_lane, spans in groupby(path, key=lambda span: span.kind in _LANE):
        members = list(spans)
        if on_lane:
            rows.append((_lane_words(members), None, members[0].start_ns, members[-1].end_ns))
        else:
            rows += [(PATH_WORDS[one.kind], one.bucket, one.start_ns, one.end_ns) for one in members]
    return rows


def _lane_words(spans: Sequence[PathSpan]) -> str:
    """``backward; 77 copies into buckets 5.75 ms; 1 launch 0.03 ms``: with what each kind takes together."""
    words = []
    for kind in _LANE:
        lengths = [span.end_ns - span.start_ns for span in spans if span.kind == kind]
        if lengths and kind == "backward":
            words.append(PATH_WORDS[kind])
        elif lengths:
            what = _PLURALS[kind] if len(lengths) > 1 else PATH_WORDS[kind]
            words.append(f"{len(lengths)} {what} {format_ms(sum(lengths))}")
    return "; ".join(words)


def varies_sentence(gain: Gain) -> str:
    """What the gain is over steps as they vary, by how much they do, and what was not known."""
    words = "One step, as given: nothing that varies was recorded."
    if gain.low_ns is not None and gain.high_ns is not None and gain.mean_ns is not None:
        words = (
            f"Over steps as they vary, the same for both, it saves {format_ms(gain.mean_ns)} "
            f"in the mean, {format_ms(gain.low_ns)} to {format_ms(gain.high_ns)}."
        )
    if gain.noise_ns is not None:
        words += f" One step of DDP's default varies by {format_ms(gain.noise_ns)}."
    if gain.not_known:
        words += f" Not known, and taken as exact: {'; '.join(gain.not_known)}."
    return words


def _families(inputs: Inputs, shown: Played | None, found: Recommendation, choice: Choice) -> None:
    """Draw the section; ``shown`` stands beside it where the search knows all that it was played under."""
    st.subheader("What each knob can reach")
    families = found.families
    rows = [
        {
            "knob": family_words(name),
            **{column.name: column.get(family) for column in FAMILIES},
            "set": setting_words(family.assignment),
            "tried": family.how,
        }
        for name, family in sorted(families.items(), key=lambda item: item[1].regret_ns)
    ]
    table(rows, _KNOB_HELP)
    reports = {}
    if shown is not None and choice.pick == "cap":
        reports[f"shown: {choice.words}"] = shown.report
    reports[PICK_WORDS["recommended"]] = found.report
    compared = [name for name in ("default", "bucket_cap_mb") if name in families]
    reports |= {family_words(name): families[name].report for name in compared}
    chart(draw_breakdown(reports), "breakdown", "Where a step's time goes, by assignment")
    _one_family(inputs.alike, found)


def family_words(family: str) -> str:
    """What a knob of the search is called on pages."""
    return FAMILY_WORDS.get(family, family)


def setting_words(assignment: Assignment) -> str:
    """All that has to be set for an assignment: environment, DDP's arguments, settings of other systems."""
    environment = assignment.requires.get("environment", {})
    words = [f"{name}={value}" for name, value in environment.items()]
    knobs = {**assignment.ddp_kwargs, **assignment.settings}
    if assignment.policy == "explicit" and not knobs:
        return "sim.apply gives DDP these buckets"
    told = ", ".join(f"{name}={_short(value)}" for name, value in knobs.items())
    return ", ".join([*words, told or "nothing to set"] if knobs or not words else words)


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        head = (format_number(item, 4) if isinstance(item, float) else str(item) for item in value[:3])
        return f"[{', '.join(head)}, … {len(value)} in all]"
    return format_number(value, 6) if isinstance(value, float) else repr(value)


@st.fragment
def _one_family(inputs: Inputs, found: Recommendation) -> None:
    """The timeline of one knob's best, once one is chosen."""
    keep_among("family", found.families)  # chosen of other inputs
    name = st.selectbox(
        "See the timeline of",
        list(found.families),
        index=None,
        key="family",
        format_func=family_words,
        placeholder="a knob of the table",
        help="Draws the best of that knob, below.",
    )
    if name is not None:
        played = playing.play_assignment(inputs, found.families[name].assignment)
        data = timeline_data(played.timeline)
        chart(draw_timeline(data), "family_timeline", "Timeline of the best of one knob")
        if data.note:
            st.info(data.note)


def _is_it_true(
    library: Library,
    record: Source | None,
    inputs: Inputs,
    shown: Played,
    *,
    is_scaled: bool,
    warning: DeltaGenerator,
) -> CandidateAgreement | None:
    """Draw the section for the record that belongs to the inputs, if one does.

    ``warning`` is where a reader of the figures above is told that the comparison is an ablation. Returns the
    measured candidate that is what the page shows, None where none is.
    """
    st.subheader("Is it true?")
    if record is None:
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
        run = open_record(record)
        if playing.as_measured(run) != inputs:
            st.info(
                "The measured run of these files was made in another box or with slow ranks, so it says "
                "nothing of the steps on this page. Start from the measured run to see it."
            )
            return None
        copies = validate.ask_copies()
        with st.spinner("Comparing with the measurement …"):
            whole = validate.judge(run)
            agreement = whole if copies else validate.judge(run, copies=False)
        if not copies:
            warning.warning(
                "Copies are switched off in the comparison with the measurement, below; the figures "
                "here have them."
            )
            st.warning(validate.COPIES_NOTE)
        same = row_of(whole, shown)
        if same is None:
            st.info(
                "The assignment shown, with its switches, is not among those that were measured. "
                "What follows judges the model by others, on the same workload and hardware.",
                icon=":material/visibility_off:",
            )
        validate.verdict(agreement)
        if any(row.name == "recommended" for row in agreement.rows):
            st.caption(
                "The candidate `recommended` is the best buckets that were found before the run, "
                "wherever they are cut. It is not what stands above where that is one cap, or DDP's "
                "default."
            )
        validate.candidates(agreement)
        validate.steps(agreement)
        if attribution_data(agreement):
            folded("Where the error comes from", "folded_error", partial(validate.attribution, agreement))
        _overlay({row.name: row for row in agreement.rows}, None if same is None else same.name)
        return same
    return None


@st.fragment
def _overlay(rows: Mapping[str, CandidateAgreement], same: str | None) -> None:
    if same is not None and st.session_state.get("overlay_follows") != same:
        st.session_state["overlay_follows"] = st.session_state["overlay"] = same
    words = "Follows the assignment shown, if it was measured."
    validate.overlay(rows[st.selectbox("Candidate", list(rows), key="overlay", help=words)])


def of_answer(record: Source | None, inputs: Inputs, answer: Answer) -> str | None:
    """What real ranks took with the answer, if the run of these very inputs measured it; None where not."""
    if record is None or answer.pick == "default":
        return None
    try:
        run = open_record(record)
        if playing.as_measured(run) != inputs:
            return None
        agreement = validate.judge(run)
    except SimError:  # told above, where the run is compared
        return None
    row, default = row_of(agreement, answer.played), row_of(agreement, answer.default)
    if row is None:
        return None
    between = against = ""
    if row.has_interval:
        interval = interval_words(row.step_low_ns, row.step_high_ns, told=True)
        between = f" (95 % interval {interval} ms)"
    if default is not None:
        saved_ns = default.measured_step_ns - row.measured_step_ns
        how = "less" if saved_ns >= 0 else "more"
        against = f", {format_ms(abs(saved_ns))} {how} than with DDP's default"
    return f"Measured on real ranks: {format_ms(row.measured_step_ns)} a step{between}{against}."


def _take_home(inputs: Inputs, turned: Knobs, shown: Played, measured: CandidateAgreement | None) -> None:
    """Draw the lines and the buttons. Each file is made when it is asked for.

    ``measured`` is what is shown, as real ranks ran it; None where they did not.
    """
    where_from = provenance(inputs, turned.what_if.told(), turned.choice.told())
    name = file_safe(f"{inputs.workload.name}-{turned.choice.words}")

    def sweep() -> str:
        options = turned.choice.options_under_ddp
        swept_from = provenance(inputs, turned.what_if.told(), switches=dict(options))
        return signed_csv(map(asdict, playing.sweep(inputs, options)), swept_from)

    def recommendation() -> str:
        # The search knows neither the choice, nor its switches, nor a slowest rank.
        alike = replace(turned.what_if, slowest_rank=1.0)
        return sim.to_text(signed(playing.tune(inputs), provenance(inputs, alike.told())))

    def timeline() -> str:
        page = draw_timeline(timeline_data(shown.timeline)).to_html(include_plotlyjs=True)
        return signed_html(str(page), where_from)

    def perfetto() -> str:
        return sim.perfetto_json(shown.timeline, measured, provenance=where_from)

    def assignment() -> str:
        return sim.to_text(signed(shown.assignment, where_from))

    def report() -> str:
        return sim.to_text(signed(shown.report, where_from))

    whole = "The whole answer of the search: its proof, and what each knob reaches"
    files: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        (
            "bucket_indices JSON",
            assignment,
            "assignment.json",
            "The buckets, and what makes DDP use them",
        ),
        ("Sweep CSV", sweep, "sweep.csv", "All caps tried, and DDP's default"),
        ("Perfetto JSON", perfetto, "trace.json", "Open it in ui.perfetto.dev or chrome://tracing"),
        ("Report JSON", report, "report.json", "All figures of the assignment shown"),
        ("Recommendation JSON", recommendation, "recommendation.json", whole),
        ("Timeline HTML", timeline, "timeline.html", "The timeline as a page of its own, some 5 MB"),
    )
    st.subheader("Take it home")
    st.caption(f"Of the assignment shown: {plain(turned.choice.words)}.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, make, ending, words in files:
            download(label, make, f"{name}.{ending}", words)
        words = (
            "The torch where it trains. Older ones lack keywords; the lines then give DDP the "
            "buckets with sim.apply, and say why."
        )
        torch = _version(ask(st.selectbox, "torch version", "torch", words, TORCH_VERSIONS, width=150))
        lines, language, problem = _lines_of(shown.assignment, inputs, torch)
        if language == "json":
            download("DeepSpeed JSON", lines, f"{name}.deepspeed.json", "To merge into its configuration")
        elif language == "bash":
            download("Megatron flags", lines, f"{name}.megatron.txt", "To add to Megatron-LM's command line")
        else:
            words = problem or "What to pass to DistributedDataParallel"
            snippet = signed_snippet(lines, where_from)
            download("Python snippet", snippet, f"{name}.py", words, disabled=bool(problem))
    if problem:
        st.info(problem)
    else:
        show_lines = partial(st.code, lines, language=language, wrap_lines=True)
        folded("The lines of the assignment shown", "folded_lines", show_lines)
    st.caption(plain(origin_words(where_from)))


def _version(chosen: str | None) -> str | None:
    """The torch version that lines are for; None is the newest."""
    return None if chosen in (None, _NEWEST) else chosen


def _lines_of(assignment: Assignment, inputs: Inputs, torch: str | None) -> tuple[str, str, str]:
    """The lines, their language, and why there are none."""
    try:
        if assignment.policy in ("zero1", "zero2"):
            return sim.deepspeed_config(assignment, inputs.workload), "json", ""
        if assignment.policy == "megatron":
            return sim.megatron_flags(assignment, inputs.workload), "bash", ""
        return sim.snippet(assignment, inputs.workload, torch=torch), "python", ""
    except SimError as error:
        return "", "python", plain(str(error))
