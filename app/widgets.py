"""What pages draw alike: errors, searches, cards, tables, knobs, and files that say where they are from."""

import json
import os
import platform
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from typing import Any, TypeVar

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.memo import digest
from app.playing import Inputs, Progress
from app.words import capital, plain
from sim.errors import SimError
from sim.formats.documents import csv_text
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.units import format_number


@contextmanager
def told() -> Iterator[None]:
    """Show a ``SimError`` of the block where the block would have drawn; anything else is a bug."""
    try:
        yield
    except SimError as error:
        st.error(plain(str(error)), icon=":material/error:")


@st.fragment
def folded(title: str, key: str, draw: Callable[[], object]) -> None:
    """An expander that ``draw`` fills while it is open; opening it runs nothing else anew."""
    # Streamlit takes one with another title for another one, which is closed.
    st.session_state[key] = st.session_state.get(key, False)
    box = st.expander(title, key=key, on_change="rerun")
    if box.open:
        with box:
            draw()


Value = TypeVar("Value")
_EVERY_S = 0.05
# After a move: a knob that is on its way starts no search, which would take time from drawing.
_STILL_S = 0.15
# Searches at once, those no longer awaited among them.
_SLOTS = threading.BoundedSemaphore(os.cpu_count() or 1)


class _NoLongerAwaited(Exception):
    """Ends a search whose page has gone on."""


def wait_for(search: Callable[[Progress], Value]) -> Value:
    """What ``search`` answers, with a line of what it is doing meanwhile, by the words it tells.

    Streamlit ends a script once a knob was turned, where it sends a message or looks at the session next, but
    not in the middle of a computation: so the search has a thread of its own. A search that is no longer
    awaited ends when it tells its next words.
    """
    place, left = st.empty(), threading.Event()
    words, shown = "searching", ""
    answer: Future[Value] = Future()

    def tell(told: str) -> None:
        nonlocal words
        words = told
        if left.is_set():
            raise _NoLongerAwaited

    rest_s = _STILL_S if st.session_state.get("has_searched") else 0.0
    st.session_state["has_searched"] = True

    def work() -> None:
        try:
            left.wait(rest_s)
            tell(words)
            while not _SLOTS.acquire(timeout=_EVERY_S):
                tell("waiting for other searches")
            try:
                answer.set_result(search(tell))
            finally:
                _SLOTS.release()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it again
            answer.set_exception(error)

    threading.Thread(target=work, name="search", daemon=True).start()
    try:
        while not wait([answer], _EVERY_S).done:
            if words == shown:
                st.session_state.get("has_searched")  # looks; the same words again would be drawn again
            else:
                shown = words
                place.caption(f":material/hourglass_top: {capital(shown)} …")
    finally:
        left.set()
    place.empty()
    return answer.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A figure with its name above and what it is a part of below; ``told`` explains it."""

    label: str
    value: str
    told: str | None = None
    below: str | None = None
    colour: Any = "off"  # of what stands below, one of streamlit's own


def draw_card(place: DeltaGenerator, card: Card) -> None:
    """Draw a card at its place."""
    look: dict[str, Any] = {"delta_arrow": "off", "border": True, "height": "stretch"}
    place.metric(card.label, card.value, card.below, card.colour, help=card.told, **look)


def draw_cards(cards: Sequence[Card]) -> None:
    """A row of cards."""
    for place, card in zip(st.columns(len(cards)), cards, strict=True):
        draw_card(place, card)


def table(
    rows: Iterable[Mapping[str, Any]],
    words: Mapping[str, str | None] | None = None,
    *,
    signed: Collection[str] = (),
    pinned: str | None = None,
    **more: Any,
) -> None:
    """A table: what has a unit stands to two places, with its sign where ``signed``.

    ``words`` are the help by column, ``pinned`` names the one that stays in sight.
    """
    shown, config = list(rows), st.column_config
    drawn: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in shown for name in row):
        told = (words or {}).get(name)
        drawn[name] = config.Column(help=told, pinned=name == pinned)
        if name.endswith((", ms", ", %", ", MiB", " ms")):
            drawn[name] = config.NumberColumn(format="%+.2f" if name in signed else "%.2f", help=told)
    st.dataframe(shown, hide_index=True, column_config=drawn, placeholder="", **more)


Noun = TypeVar("Noun", Assignment, Report, Recommendation)


def provenance(inputs: Inputs, scaled: Mapping[str, Any], **more: Mapping[str, Any]) -> dict[str, Any]:
    """What a result came from.

    ``scaled`` is what is not as it was measured; of ``more``, ``choice`` is the assignment that was chosen
    and its switches, ``switches`` those under which many assignments were played.
    """
    files = inputs.origin or inputs
    told = {
        "tool": f"bucketsim {version('bucketsim')}",
        "python": platform.python_version(),
        "workload": inputs.workload.name,
        "workload_sha256": digest(files.workload),
        "hardware": inputs.hardware.name,
        "hardware_sha256": digest(files.hardware),
    }
    return told | {name: dict(what) for name, what in {"scaled": scaled, **more}.items() if what}


def origin_words(where_from: Mapping[str, Any]) -> str:
    """An origin in one line, digests cut short: the exports hold them whole."""
    words = [where_from["tool"], f"python {where_from['python']}"]
    for noun in ("workload", "hardware"):
        words.append(f"{noun} {where_from[noun]} (sha256 {where_from[f'{noun}_sha256'][:12]})")
    scaled = where_from.get("scaled", {}).items()
    told = [f"{k} x{format_number(v, 6)}" if isinstance(v, float) else f"{k} {v}" for k, v in scaled]
    return " · ".join([*words, f"scaled {', '.join(told)}"] if told else words)


def signed(noun: Noun, where_from: Mapping[str, Any]) -> Noun:
    """The noun with its origin added to what it says of itself."""
    return replace(noun, provenance={**noun.provenance, **where_from})


def signed_csv(rows: Iterable[Mapping[str, Any]], where_from: Mapping[str, Any]) -> str:
    """Rows as CSV with the origin in columns of its own, behind theirs."""
    told, origin = list(rows), _short(where_from, "scaled", "switches")
    return csv_text([{**row, **origin} for row in told], [*dict.fromkeys(chain.from_iterable(told)), *origin])


def signed_snippet(text: str, where_from: Mapping[str, Any]) -> str:
    """Python lines under a comment that says where they come from."""
    origin = _short(where_from, "scaled", "choice")
    return "".join(f"# {name}: {value}\n" for name, value in origin.items()) + text


def _short(where_from: Mapping[str, Any], *more: str) -> dict[str, str]:
    """Tool and digests, and those of ``more`` that there are, as JSON: each in one line."""
    told = {name: json.dumps(where_from[name], ensure_ascii=True) for name in more if name in where_from}
    return {name: str(where_from[name]) for name in ("tool", "workload_sha256", "hardware_sha256")} | told


# By label of its button: what makes a file when it is asked for, its name, and what it is.
Files = Mapping[str, tuple[str | Callable[[], str], str, str]]


def downloads(files: Files, where_from: Mapping[str, Any] | None = None) -> None:
    """A row of files to take home without drawing the page again, and where all of them come from."""
    look: dict[str, Any] = {"icon": ":material/download:", "on_click": "ignore"}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, (content, file, words) in files.items():
            st.download_button(label, content, file, help=words, **look)
    if where_from is not None:
        st.caption(plain(origin_words(where_from)))


def chart(figure: go.Figure, key: str, alt: str, **more: Any) -> None:
    """Draw a figure; ``alt`` says what it shows to those who do not see it."""
    st.plotly_chart(figure, key=key, config={"displaylogo": False}, alt=alt, **more)


def ask(
    draw: Callable[..., Any], label: str, key: str, words: str | None = None, *of: Any, **more: Any
) -> Any:
    """Draw a widget that the address holds, and read it; ``words`` are its help, ``of`` its options."""
    return draw(label, *of, key=key, help=words, **{"bind": "query-params", **more})


MOST = 2**53 - 1  # what a browser can count to


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and its widget; ``default`` is its own where nothing is told.

    Its kind is that of its default: a flag, a number (a whole one, or maybe none), a text, or one of
    ``choices``.
    """

    name: str
    default: bool | int | float | str | None
    help: str
    least: float = 0
    most: float = MOST
    choices: tuple[Any, ...] = ()

    @property
    def kind(self) -> str:
        """``toggle``, ``integer``, ``number``, ``text`` or ``select``."""
        kinds = {bool: "toggle", int: "integer", str: "text"}
        return "select" if self.choices else kinds.get(type(self.default), "number")

    def draw(self, key: str, **more: Any) -> Any:
        """Draw it and read it; a text that is too long or a number out of range the browser refuses."""
        # The label is as one would copy it: where the sidebar is narrow, the page's style breaks it.
        widgets: dict[str, tuple[Any, ...]] = {
            "select": (st.selectbox, self.choices, self.choices.index(self.default) if self.choices else 0),
            "toggle": (st.toggle, self.default),
            "text": (st.text_input, self.default, 2000),
            "integer": (st.number_input, int(self.least), int(self.most), self.default, 1),
            "number": (st.number_input, float(self.least), float(self.most), self.default, 1.0),
        }
        widget, *of = widgets[self.kind]
        look = {"format": "%.6g", "placeholder": "none"} if self.kind == "number" else {}
        return ask(widget, self.name, key, self.help, *of, **look, **more)


def take_name(key: str, words: Mapping[str, str]) -> None:
    """Let the address name an option of a select box by its bare name, before that box is drawn.

    ``bind="query-params"`` writes the words that a select box shows (``?pick=DeepSpeed+ZeRO-1``), and reads
    nothing else. A bare name (``?pick=zero1``) is put into words here, and the page starts again with them.
    """
    named = st.query_params.get(key, "")
    if named not in words or named in words.values():
        return
    if key in st.session_state:  # drawn before, as after "back" in the browser: the box owns its parameter
        st.session_state[key] = named
        return
    st.query_params[key] = words[named]
    st.rerun()


def keep_among(key: str, options: Collection[str]) -> None:
    """Turn the box of ``key``, which is drawn next, to its first option where its choice is none any more."""
    if st.session_state.get(key) not in (None, *options):
        st.session_state[key] = next(iter(options))  # once forgotten, a browser goes on showing it
