"""Take it home: lines to paste and downloads, each with its origin in it, and the origin on the screen."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import streamlit as st

import sim
from app import cached
from app.cached import Inputs, Played
from app.figures.timeline import draw_timeline, timeline_data
from app.provenance import origin_words, provenance, signed, signed_csv, signed_html, signed_snippet
from app.views.folding import folded
from app.views.knobs import Knobs
from app.words import labels
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import CandidateAgreement
from sim.nouns.workload import Workload

NEWEST = "newest"
TORCH_VERSIONS = (NEWEST, *(f"2.{minor}" for minor in range(13, -1, -1)))
_ZERO = ("zero1", "zero2")


def show(inputs: Inputs, turned: Knobs, shown: Played, measured: CandidateAgreement | None) -> None:
    """Draw the lines and the buttons. Each file is made when it is asked for.

    ``measured`` is what is shown, as real ranks ran it; None where they did not.
    """
    where_from = provenance(inputs, turned.what_if.told(), turned.choice.told())
    name = labels.file_safe(f"{inputs.workload.name}-{turned.choice.words}")

    def assignment() -> str:
        return sim.to_text(signed(shown.assignment, where_from))

    def sweep() -> str:
        options = turned.choice.options_under_ddp
        swept_from = provenance(inputs, turned.what_if.told(), switches=dict(options))
        return signed_csv(sim.sweep_csv(cached.sweep(inputs, options)), swept_from)

    def perfetto() -> str:
        return sim.perfetto_json(shown.timeline, measured, provenance=where_from)

    def report() -> str:
        return sim.to_text(signed(shown.report, where_from))

    def recommendation() -> str:
        # The search knows neither the choice, nor its switches, nor a slowest rank.
        alike = replace(turned.what_if, slowest_rank=1.0)
        return sim.to_text(signed(cached.tune(inputs), provenance(inputs, alike.told())))

    def timeline() -> str:
        page = draw_timeline(timeline_data(shown.timeline)).to_html(include_plotlyjs=True)
        return signed_html(str(page), where_from)

    files: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        ("bucket_indices JSON", assignment, "assignment.json", "The buckets, and what makes DDP use them"),
        ("Sweep CSV", sweep, "sweep.csv", "All caps tried, and DDP's default"),
        ("Perfetto JSON", perfetto, "trace.json", "Open it in ui.perfetto.dev or chrome://tracing"),
        ("Report JSON", report, "report.json", "All figures of the assignment shown"),
        (
            "Recommendation JSON",
            recommendation,
            "recommendation.json",
            "The whole answer of the search: its proof, and what each knob reaches",
        ),
        ("Timeline HTML", timeline, "timeline.html", "The timeline as a page of its own, some 5 MB"),
    )
    st.subheader("Take it home")
    st.caption(f"Of the assignment shown: {labels.plain(turned.choice.words)}.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, make, ending, words in files:
            download(label, make, f"{name}.{ending}", words)
        lines, language, problem = _lines(shown.assignment, inputs.workload, ask_torch())
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
    st.caption(labels.plain(origin_words(where_from)))


def ask_torch() -> str | None:
    """The torch version that the lines are for, where the caller stands; None is the newest."""
    version = st.selectbox(
        "torch version",
        TORCH_VERSIONS,
        key="torch",
        bind="query-params",
        help=labels.HELP["torch"],
        width=150,
    )
    return None if version == NEWEST else version


def torch_asked() -> str | None:
    """What ``ask_torch`` was answered last, for lines that stand above it."""
    version = st.session_state.get("torch", NEWEST)
    return None if version == NEWEST else str(version)


def _lines(assignment: Assignment, workload: Workload, torch: str | None) -> tuple[str, str, str]:
    """The lines, their language, and why there are none."""
    try:
        if assignment.policy in _ZERO:
            return sim.deepspeed_config(assignment, workload), "json", ""
        if assignment.policy == "megatron":
            return sim.megatron_flags(assignment, workload), "bash", ""
        return sim.snippet(assignment, workload, torch=torch), "python", ""
    except SimError as error:
        return "", "python", labels.plain(str(error))


def download(
    label: str, content: str | Callable[[], str], file: str, words: str, *, disabled: bool = False
) -> None:
    """A button that takes a file home without drawing the page again."""
    st.download_button(
        label,
        content,
        file,
        on_click="ignore",
        help=words,
        icon=":material/download:",
        disabled=disabled,
    )
