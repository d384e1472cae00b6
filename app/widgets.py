"""What pages draw alike: errors, what is folded away, searches, cards, tables, downloads, knobs."""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.playing import Progress
from app.provenance import origin_words
from app.words import plain
from sim.errors import SimError


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
    place = st.empty()
    words, shown = "searching", ""
    left = threading.Event()
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
        while True:
            try:
                found = answer.result(timeout=_EVERY_S)
                break
            except TimeoutError:
                if words == shown:
                    st.session_state.get("has_searched")  # looks; the same words again would be drawn again
                    continue
                shown = words
                place.caption(f":material/hourglass_top: {shown[:1].upper()}{shown[1:]} …")
    finally:
        left.set()
    place.empty()
    return found


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

    def draw(self, key: str) -> Any:
        """Draw it and read it; a text that is too long or a number out of range the browser refuses."""
        # The label is as one would copy it: where the sidebar is narrow, the page's style breaks it.
        widgets: dict[str, tuple[Any, ...]] = {
            "select": (st.selectbox, self.choices, self.choices.index(self.default) if self.choices else 0),
            "toggle": (st.toggle, self.default),
            "text": (st.text_input, self.default, 2000),
            "integer": (st.number_input, int(self.least), int(self.most), self.default, 1),
            "number": (st.number_input, float(self.least), float(self.most), self.default),
        }
        widget, *of = widgets[self.kind]
        look = {"format": "%.6g", "placeholder": "none"} if self.kind == "number" else {}
        return ask(widget, self.name, key, self.help, *of, **look)


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
    """Forget what was chosen with the box of ``key``, which is drawn next, where it is no option any more."""
    if st.session_state.get(key) not in (None, *options):
        del st.session_state[key]


def factor(label: str, stops: Sequence[float], key: str, words: str, **more: Any) -> float:
    """A slider over a few numbers, at the first of them or at 1 where that is one."""
    look = {"value": 1.0 if 1.0 in stops else stops[0], "format_func": "{:g}".format, **more}
    found: float = ask(st.select_slider, label, key, words, stops, **look)
    return found


def mib(label: str, key: str, value: float | None, words: str, **more: Any) -> float | None:
    """A number of MiB, as precise as one likes."""
    look = {"step": 1.0, "format": "%.6g", "placeholder": "none"}
    found: float | None = ask(st.number_input, label, key, words, 0.0, 65536.0, value, **look, **more)
    return found
