"""Take it home: the downloads, each with its origin in it, and the origin on the screen."""

from collections.abc import Callable

import streamlit as st

import sim
from app import cached
from app.cached import Inputs, Played
from app.provenance import origin_words, provenance, signed, signed_csv, signed_snippet
from app.views import truth
from app.views.knobs import Knobs
from app.words import labels
from sim.errors import NotModelledError
from sim.nouns.comparison import Agreement


def show(inputs: Inputs, turned: Knobs, shown: Played, agreement: Agreement | None) -> None:
    """Draw the buttons. Each file is made when it is asked for."""
    where_from = provenance(inputs, turned.what_if.told())
    rows = cached.sweep(inputs)
    measured = None if agreement is None else truth.row_of(agreement, shown)
    name = labels.file_safe(f"{inputs.workload.name}-{turned.choice.words}")

    def assignment() -> str:
        return sim.to_text(signed(shown.assignment, where_from))

    def sweep() -> str:
        return signed_csv(sim.sweep_csv(rows), where_from)

    def perfetto() -> str:
        return sim.perfetto_json(shown.timeline, measured, provenance=where_from)

    def report() -> str:
        return sim.to_text(signed(shown.report, where_from))

    files: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        ("bucket_indices JSON", assignment, "assignment.json", "The buckets, and what makes DDP use them"),
        ("Sweep CSV", sweep, "sweep.csv", "All caps tried, and DDP's default"),
        ("Perfetto JSON", perfetto, "trace.json", "Open it in ui.perfetto.dev or chrome://tracing"),
        ("Report JSON", report, "report.json", "All figures of the assignment shown"),
    )
    st.subheader("Take it home")
    st.caption(f"Of the assignment shown: {labels.plain(turned.choice.words)}.")
    with st.container(horizontal=True):
        for label, make, ending, words in files:
            _button(label, make, f"{name}.{ending}", words)
        try:
            lines = signed_snippet(sim.snippet(shown.assignment, inputs.workload), where_from)
            _button("Python snippet", lines, f"{name}.py", "What to pass to DistributedDataParallel")
        except NotModelledError as error:
            _button("Python snippet", "", f"{name}.py", labels.plain(str(error)), disabled=True)
    st.caption(labels.plain(origin_words(where_from)))


def _button(
    label: str, content: str | Callable[[], str], file: str, words: str, *, disabled: bool = False
) -> None:
    st.download_button(
        label,
        content,
        file,
        on_click="ignore",
        help=words,
        icon=":material/download:",
        disabled=disabled,
    )
