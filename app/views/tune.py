"""The Tune page: how bad is it, where, what if, is it true, take it home.

What is quick is drawn first; the sidebar is sent after the headline. Places are held in the order in
which one reads them; what has to be searched for fills its own last, and a knob that is turned meanwhile does
not wait for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import playing, sources
from app.choosing import Choice
from app.drag.follow import follow
from app.drag.states import State
from app.figures.compare import draw_breakdown
from app.figures.records import attribution_data
from app.figures.sweep import draw_sweep
from app.figures.timeline import draw_timeline, timeline_data
from app.library import Library
from app.playing import Answer, Inputs, Played, Progress, find_answer
from app.provenance import origin_words, provenance, signed, signed_csv, signed_html, signed_snippet
from app.sources import Asked, Source, open_record
from app.views import tune_knobs, validate
from app.views.tune_knobs import Knobs
from app.views.tune_step import gain_card, headline, step_timeline
from app.views.validate import CHOSEN, row_of
from app.widgets import chart, download, draw_card, folded, told, wait_for
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
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Record
from sim.nouns.recommendation import Gain, Recommendation
from sim.nouns.timeline import PathKind, PathSpan
from sim.nouns.workload import Workload
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.tuner.gain import BandPoint
from sim.units import format_ms, format_number

_SWEEP_KEY = "sweep_chart"


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
        cap_stop=st.session_state["cap_slider"],
        first_mb=st.session_state["first"],
        is_searched=playing.is_searched(inputs, choice.options_under_ddp),
    )
    gain_place, strip = headline(shown, measured_as)
    default = playing.play(inputs, choice.default_for(inputs.workload))
    possible = None
    draw_card(gain_place, gain_card(shown, default, possible))
    step_timeline(state, shown, measured_as)

    search_place = st.container()
    measured = _is_it_true(
        library,
        sources.measured_run(library, given),
        inputs,
        shown,
        is_scaled=not turned.what_if.is_none,
        warning=warning,
    )
    recorded = library.name_among_all(given.record)
    st.page_link(
        validation,
        label="All measured runs, and how predictions are judged",
        query_params=None if recorded is None else {CHOSEN: recorded},
    )
    export(inputs, turned, shown, measured)

    frames = st.container()
    if not state.is_searched:  # a hand does not wait for the search
        with frames:
            follow(state, partial(gain_card, possible=None))
    with strip, told():
        found = (
            _search(inputs, choice, None) if state.is_searched else wait_for(partial(_search, inputs, choice))
        )
        under = under_words(choice.options_under_ddp, is_late=inputs.slowest is not None)
        answer = find_answer(inputs, choice, found, default, is_plain=not under)
        _strip(answer, choice, under)
        possible = answer.played
        draw_card(gain_place, gain_card(shown, default, possible))
        if state.is_searched:
            with frames:
                follow(state, partial(gain_card, possible=possible))
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
            run = sources.measured_run(library, given)
            _show_answer(inputs, found, answer, under, of_answer(run, inputs, answer))
            _families(inputs, None if under else shown, found, choice)
            with sweep_place:  # last, as its band takes longer than all else
                _sweep(inputs, choice, shown, found, answer, under)


def _search(inputs: Inputs, choice: Choice, progress: Progress | None) -> Recommendation:
    """What the answer needs: found here it is remembered, and asked for again where it is drawn."""
    playing.sweep(inputs, choice.options_under_ddp, progress)
    return playing.tune(inputs, progress)


def _sweep(
    inputs: Inputs, choice: Choice, shown: Played, found: Recommendation, answer: Answer, under: str
) -> None:
    """The curve under the switches of what is shown; its plateau and its band are known without any only."""
    points = () if under else playing.banded(inputs)
    if points is None:
        points = wait_for(partial(playing.band, inputs))
    chart(
        draw_sweep(
            playing.sweep(inputs, choice.options_under_ddp),
            None if under else found.plateau,
            points,
            shown=None if choice.cap_mb is None else (choice.cap_mb, shown.report.step_ns),
            best_ns=None if answer.best is None else answer.best.report.step_ns,
            star_mb=answer.cap_mb,
            star=star_words(answer),
        ),
        _SWEEP_KEY,
        "Step time over bucket_cap_mb, with DDP's default beside it",
        on_select=_take_click,
        selection_mode="points",
    )
    st.caption(plain(sweep_caption(answer, found.plateau.tolerance, under)))
    if under:
        st.caption(
            "No band of how steps vary: it is known without switches and on ranks that are alike only."
        )
        return
    st.caption(
        "No band of how steps vary: neither iterations nor the scatter of all-reduces was recorded."
        if not points
        else band_caption(points)
    )
    unsure = significance_words(found)
    if unsure is not None:
        st.info(plain(unsure), icon=":material/balance:")


def _take_click() -> None:
    """A click on a point of the sweep sets the knobs to it; a second click changes nothing."""
    points: list[dict[str, Any]] = st.session_state[_SWEEP_KEY]["selection"]["points"]
    if not points:
        return
    cap = points[0]["customdata"][1]
    tune_knobs.show_pick("default" if cap is None else "cap", cap)


def _strip(answer: Answer, choice: Choice, under: str) -> None:
    """The answer in a line, with the button that shows it; before any figure."""
    is_cap_shown = choice.pick == "cap" and choice.cap_mb == answer.cap_mb and choice.first_mb is None
    is_shown = is_cap_shown if answer.pick == "cap" else choice.pick == answer.pick
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"**{plain(answer_sentence(answer, under))}**", width="stretch")
        st.button(
            "Shown" if is_shown else "Apply the recommended",
            key="apply",
            on_click=tune_knobs.show_answer,
            args=(answer.pick, answer.cap_mb if answer.pick == "cap" else None, choice),
            disabled=is_shown,
            type="primary",
            icon=":material/check:",
        )
        if answer.pick == "recommended" and answer.cap_mb is not None:
            st.button(
                f"Show bucket_cap_mb={format_number(answer.cap_mb, 6)}".replace("_", "\\_"),
                key="apply_cap",
                on_click=tune_knobs.show_answer,
                args=("cap", answer.cap_mb, choice),
                disabled=is_cap_shown,
            )


def _show_answer(
    inputs: Inputs, found: Recommendation, answer: Answer, under: str, measured: str | None = None
) -> None:
    """The answer whole; ``found`` is what the search found, which knows nothing of ``under``.

    ``measured`` is what real ranks took with it, in a sentence.
    """
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
        title = plain(best_title(found, answer.best, under))
        folded(title, "folded_best", partial(_show_best, inputs, found, answer, under))
        _reasons(found, answer, under)


def _show_best(inputs: Inputs, found: Recommendation, answer: Answer, under: str) -> None:
    """The best buckets that were found, wherever they are cut, and how good they are."""
    if under and answer.best is not None:
        step_ns, default_ns = answer.best.report.step_ns, answer.default.report.step_ns
        less = f"{format_ms(abs(default_ns - step_ns))} {'more' if step_ns > default_ns else 'less'}"
        words = f"Under {under} these take {format_ms(step_ns)} a step, {less} than DDP's default."
        st.markdown(f"**{plain(words)}**")
    if under:
        told = f"What follows is told without {under}, as the search knows nothing of it."
        st.caption(plain(told))
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
    try:
        lines = sim.snippet(assignment, inputs.workload, torch=torch_asked())
    except SimError as error:
        st.info(plain(str(error)))
        return
    st.code(lines, language="python", wrap_lines=True)


_COMPARED = ("default", "bucket_cap_mb")


def _families(inputs: Inputs, shown: Played | None, found: Recommendation, choice: Choice) -> None:
    """Draw the section; ``shown`` stands beside it where the search knows all that it was played under."""
    st.subheader("What each knob can reach")
    rows = [
        {
            "knob": family_words(name),
            "step, ms": family.report.step_ns / 1e6,
            "regret, ms": family.regret_ns / 1e6,
            "exposed, ms": family.report.exposed_comm_ns / 1e6,
            "buckets": len(family.assignment.bucket_indices),
            "set": setting_words(family.assignment),
            "tried": family.how,
        }
        for name, family in sorted(found.families.items(), key=lambda item: item[1].regret_ns)
    ]
    st.dataframe(rows, hide_index=True, column_config=_columns(rows[0]))
    reports = {}
    if shown is not None and choice.pick == "cap":
        reports[f"shown: {choice.words}"] = shown.report
    reports[PICK_WORDS["recommended"]] = found.report
    reports |= {
        family_words(name): found.families[name].report for name in _COMPARED if name in found.families
    }
    chart(draw_breakdown(reports), "breakdown", "Where a step's time goes, by assignment")
    _one_family(inputs.alike, found)


@st.fragment
def _one_family(inputs: Inputs, found: Recommendation) -> None:
    """The timeline of one knob's best, once one is chosen."""
    names = list(found.families)
    if st.session_state.get("family") not in (None, *names):
        del st.session_state["family"]  # chosen of other inputs
    name = st.selectbox(
        "See the timeline of",
        names,
        index=None,
        key="family",
        format_func=family_words,
        placeholder="a knob of the table",
        help="Draws the best of that knob, below.",
    )
    if name is None:
        return
    played = playing.play_assignment(inputs, found.families[name].assignment)
    data = timeline_data(played.timeline)
    chart(draw_timeline(data), "family_timeline", "Timeline of the best of one knob")
    if data.note:
        st.info(data.note)


def _reasons(found: Recommendation, answer: Answer, under: str) -> None:
    """Two expanders.

    Paths are those of what the page plays, under its switches and beside its ranks; how steps vary is known
    without them.
    """
    folded("Why: the critical path", "folded_why", partial(_why, answer))
    without = plain(f", without {under}") if under else ""
    folded(
        f"Does it show? Steps as they vary{without}",
        "folded_varies",
        partial(st.caption, plain(varies_sentence(found.gain))),
    )


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
        columns = ("what", "bucket", "from, ms", "to, ms", "takes, ms")
        st.dataframe(rows, hide_index=True, column_config=_columns(columns), placeholder="")


def _columns(names: Iterable[str]) -> dict[str, Any]:
    """Columns with their help; times to two places."""
    return {
        name: st.column_config.NumberColumn(format="%.2f", help=COLUMN_HELP[name])
        if name.endswith(" ms")
        else st.column_config.Column(help=COLUMN_HELP[name])
        for name in names
    }


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
        st.info(
            "No measured run belongs to this workload on this hardware. "
            + ("Start from a measured run to see one, or measure" if library.records else "Measure")
            + " your own with `bucketsim validate`."
        )
        return None
    if is_scaled:
        st.info(
            "The what-if knobs have moved away from what was measured, so the measurement no "
            "longer applies. Set them back to compare."
        )
        return None
    with told():
        run = open_record(record)
        if playing.as_measured(run) == inputs:  # it was of just these
            return _compare(run, shown, warning)
        st.info(
            "The measured run of these files was made in another box or with slow ranks, so it says "
            "nothing of the steps on this page. Start from the measured run to see it."
        )
    return None


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
    row = row_of(agreement, answer.played)
    return None if row is None else measured_sentence(row, row_of(agreement, answer.default))


def _compare(record: Record, shown: Played, warning: DeltaGenerator) -> CandidateAgreement | None:
    copies = validate.ask_copies()
    with st.spinner("Comparing with the measurement …"):
        whole = validate.judge(record)
        agreement = whole if copies else validate.judge(record, copies=False)
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
    _overlay(agreement, None if same is None else same.name)
    return same


@st.fragment
def _overlay(agreement: Agreement, same: str | None) -> None:
    names = [row.name for row in agreement.rows]
    if same is not None and st.session_state.get("overlay_follows") != same:
        st.session_state["overlay_follows"] = st.session_state["overlay"] = same
    name = st.selectbox(
        "Candidate", names, key="overlay", help="Follows the assignment shown, if it was measured."
    )
    validate.overlay(next(row for row in agreement.rows if row.name == name))


NEWEST = "newest"
TORCH_VERSIONS = (NEWEST, *(f"2.{minor}" for minor in range(13, -1, -1)))
_ZERO_PICKS = ("zero1", "zero2")


def export(inputs: Inputs, turned: Knobs, shown: Played, measured: CandidateAgreement | None) -> None:
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

    files: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        (
            "bucket_indices JSON",
            lambda: sim.to_text(signed(shown.assignment, where_from)),
            "assignment.json",
            "The buckets, and what makes DDP use them",
        ),
        ("Sweep CSV", sweep, "sweep.csv", "All caps tried, and DDP's default"),
        (
            "Perfetto JSON",
            lambda: sim.perfetto_json(shown.timeline, measured, provenance=where_from),
            "trace.json",
            "Open it in ui.perfetto.dev or chrome://tracing",
        ),
        (
            "Report JSON",
            lambda: sim.to_text(signed(shown.report, where_from)),
            "report.json",
            "All figures of the assignment shown",
        ),
        (
            "Recommendation JSON",
            recommendation,
            "recommendation.json",
            "The whole answer of the search: its proof, and what each knob reaches",
        ),
        ("Timeline HTML", timeline, "timeline.html", "The timeline as a page of its own, some 5 MB"),
    )
    st.subheader("Take it home")
    st.caption(f"Of the assignment shown: {plain(turned.choice.words)}.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, make, ending, words in files:
            download(label, make, f"{name}.{ending}", words)
        lines, language, problem = _lines_of(shown.assignment, inputs.workload, ask_torch())
        if language == "json":
            download("DeepSpeed JSON", lines, f"{name}.deepspeed.json", "To merge into its configuration")
        elif language == "bash":
            download("Megatron flags", lines, f"{name}.megatron.txt", "To add to Megatron-LM's command line")
        else:
            download(
                "Python snippet",
                signed_snippet(lines, where_from),
                f"{name}.py",
                problem or "What to pass to DistributedDataParallel",
                disabled=bool(problem),
            )
    if problem:
        st.info(problem)
    else:
        show_lines = partial(st.code, lines, language=language, wrap_lines=True)
        folded("The lines of the assignment shown", "folded_lines", show_lines)
    st.caption(plain(origin_words(where_from)))


def ask_torch() -> str | None:
    """The torch version that the lines are for, where the caller stands; None is the newest."""
    version = st.selectbox(
        "torch version",
        TORCH_VERSIONS,
        key="torch",
        bind="query-params",
        help="The torch where it trains. Older ones lack keywords; the lines then give DDP the "
        "buckets with sim.apply, and say why.",
        width=150,
    )
    return None if version == NEWEST else version


def torch_asked() -> str | None:
    """What ``ask_torch`` was answered last, for lines that stand above it."""
    version = st.session_state.get("torch", NEWEST)
    return None if version == NEWEST else str(version)


def _lines_of(assignment: Assignment, workload: Workload, torch: str | None) -> tuple[str, str, str]:
    """The lines, their language, and why there are none."""
    try:
        if assignment.policy in _ZERO_PICKS:
            return sim.deepspeed_config(assignment, workload), "json", ""
        if assignment.policy == "megatron":
            return sim.megatron_flags(assignment, workload), "bash", ""
        return sim.snippet(assignment, workload, torch=torch), "python", ""
    except SimError as error:
        return "", "python", plain(str(error))


_LOOK, _WAS_DRAWN, _DISMISSED = "guide", "look_was_drawn", "bucketsim_look_dismissed"
_REMEMBER = f"<script>document.cookie = '{_DISMISSED}=1; path=/; max-age=31536000; SameSite=Strict';</script>"


def _first_look() -> None:
    """Draw the look where one came by the bare address, until it is dismissed; the browser remembers that."""
    if _LOOK not in st.session_state and _LOOK not in st.query_params:
        was_seen = _WAS_DRAWN in st.session_state or _DISMISSED in st.context.cookies
        st.session_state[_LOOK] = not st.query_params and not was_seen
    with st.sidebar:
        is_wanted = st.toggle(
            "Guided look", key=_LOOK, bind="query-params", help="How to read this page, in five lines."
        )
    if not is_wanted:
        if _WAS_DRAWN in st.session_state:
            st.html(_REMEMBER, unsafe_allow_javascript=True)
        return
    st.session_state[_WAS_DRAWN] = True
    with st.container(border=True):
        st.markdown(LOOK_STEPS)
        st.button(
            "Got it",
            key="guide_done",
            on_click=st.session_state.update,
            args=({_LOOK: False},),
            icon=":material/check:",
        )


LOOK_STEPS = """
**One training step, predicted.** Gradients are cut into buckets; each is sent as soon as it is complete.

1. **Three lanes.** *compute* is backward, *communication* the all-reduce of each bucket, *copy back* what
   follows it. One colour is one bucket.
2. **Hatched is what costs you**: communication after backward has ended. The red line is the critical path.
3. **Turn the cap** on the left, or click a point of the curve below. *What if* makes the machine another one.
4. **Apply the recommended** shows the one number to set, what it saves, and what it loses.
5. **Take it home**: the lines to paste into your script, at the end of the page.
"""
COLUMN_HELP = {
    "knob": "What may be set. Each row is the best that this knob alone can reach.",
    "step, ms": "Step time under the best setting of this knob.",
    "regret, ms": "How much longer its step is than under the best buckets found. Below 0: another system "
    "that DDP's buckets do not reach.",
    "exposed, ms": "End of synchronisation minus a plain backward: all that synchronising adds to a step.",
    "buckets": "Number of buckets, each one collective.",
    "set": "What to set to get there.",
    "tried": "How the best was found: of all settings, or of a grid.",
    "what": "The link of the chain.",
    "bucket": "The bucket that it belongs to.",
    "from, ms": "From the start of backward.",
    "to, ms": "From the start of backward.",
    "takes, ms": "Its length.",
}


def band_caption(points: Sequence[BandPoint]) -> str:
    """What the band shows, and what it was read from."""
    draws, iterations = max(point.draws for point in points), max(point.iterations for point in points)
    behind = f"{iterations} recorded iterations" if iterations else "no recorded iteration"
    return (
        "Blue band, and the bar behind DDP's default: where 95 of 100 single steps lie, read from "
        f"{draws} drawn steps a cap, the same for all caps, with {behind} and the scatter of all-reduces "
        "behind them."
    )


def under_words(options: Sequence[tuple[str, Any]], *, is_late: bool) -> str:
    """What is in force on the page: the switches that are set, the slowest rank; empty: neither."""
    under = [*map(option_words, options), *(["the slowest rank"] if is_late else [])]
    return " and ".join([", ".join(under[:-1]), under[-1]] if len(under) > 1 else under)


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
    saves = (
        f"{format_ms(answer.played.report.step_ns)} a step, {format_ms(answer.saved_ns)} "
        f"({share(answer.saved_ns, answer.default.report.step_ns)}) less than {answer.against}"
        f"{_without(answer)}"
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


def _without(answer: Answer) -> str:
    """Switches of the answer that what it is held against does not have."""
    missing = switches_beyond(answer.played.assignment, answer.default.assignment)
    return f" without {' and '.join(missing)}" if missing else ""


def sweep_caption(answer: Answer, tolerance: float, under: str) -> str:
    """What stands in the sweep, and nothing else."""
    told = ["Left: DDP's default, a point of its own. Dashed: its step."]
    if answer.best is not None:
        told.append("Dotted: the step of the best buckets found.")
    if answer.cap_mb is not None:
        told.append(
            f"Star: the {star_words(answer)}, a round one of those within {tolerance:.0%} of the best."
        )
    told.append("Click a point to see its timeline above.")
    told.append(
        f"All of it is played under {under}."
        if under
        else f"Shaded: caps within {tolerance:.0%} of the best."
    )
    return " ".join(told)


def star_words(answer: Answer) -> str:
    """What the star is: the best of the round caps is not always what is recommended."""
    return "recommended cap" if answer.pick == "cap" else "best round cap"


def best_title(found: Recommendation, best: Played | None, under: str) -> str:
    """What is folded away beneath the answer; ``best`` is as the page plays it, None where it cannot."""
    how = f", without {under}" if under and best is None else ""
    count, step_ns = len((best or found).assignment.bucket_indices), (best or found).report.step_ns
    return f"The best buckets found{how}: {count}, cut anywhere, {format_ms(step_ns)} a step"


def measured_sentence(row: CandidateAgreement, default: CandidateAgreement | None) -> str:
    """What real ranks took with what is recommended, and with DDP's default where that was measured too."""
    shown = ""
    if row.has_interval:
        shown = f" (95 % interval {interval_words(row.step_low_ns, row.step_high_ns, told=True)} ms)"
    against = ""
    if default is not None:
        saved_ns = default.measured_step_ns - row.measured_step_ns
        against = (
            f", {format_ms(abs(saved_ns))} {'less' if saved_ns >= 0 else 'more'} than with DDP's default"
        )
    return f"Measured on real ranks: {format_ms(row.measured_step_ns)} a step{shown}{against}."


def reasoned(answer: Answer) -> dict[str, Played]:
    """By name, the assignments whose critical path is told: first what is recommended, last what it is held
    against."""
    named: dict[str, Played] = {}
    if answer.pick == "cap" and answer.cap_mb is not None:
        named[f"Recommended: bucket_cap_mb={format_number(answer.cap_mb, 6)}"] = answer.played
    if answer.best is not None:
        named[
            "Recommended: the best buckets found"
            if answer.pick == "recommended"
            else "The best buckets found"
        ] = answer.best
    against = answer.against[0].upper() + answer.against[1:]
    named[f"{against}, which is recommended" if answer.pick == "default" else against] = answer.default
    return named


def significance_words(found: Recommendation) -> str | None:
    """Why the optimum may not matter; None where it does, or where there is nothing to gain."""
    gain = found.gain
    if gain.refuted:
        return f"{capital(gain.sentence)}."
    if gain.significant is False:
        told = gain.sentence.removeprefix("no significant difference: ")
        return f"The optimum is not significant: {told}."
    if gain.significant is None and gain.gain_ns:
        missing = " and ".join(gain.not_known)
        why = f"{missing} was not recorded" if missing else "what it rests on is doubtful, see the notes"
        return f"Whether the optimum is significant is not known: {why}."
    return None


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
    return ", ".join([*words, knob_words(knobs)] if knobs or not words else words)


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
        if not lengths:
            continue
        if kind == "backward":
            words.append(PATH_WORDS[kind])
        else:
            count = f"{len(lengths)} {_PLURALS[kind] if len(lengths) > 1 else PATH_WORDS[kind]}"
            words.append(f"{count} {format_ms(sum(lengths))}")
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


def knob_words(kwargs: Mapping[str, Any]) -> str:
    """DDP's arguments as one would type them, cut short."""
    text = ", ".join(f"{name}={_short(value)}" for name, value in kwargs.items())
    return text or "nothing to set"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        head = ", ".join(
            format_number(item, 4) if isinstance(item, float) else str(item) for item in value[:3]
        )
        return f"[{head}, … {len(value)} in all]"
    return format_number(value, 6) if isinstance(value, float) else repr(value)
