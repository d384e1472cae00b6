"""What pages draw alike: errors, what is folded away, a search that is waited for, cards, downloads."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.playing import Progress
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


def draw_card(place: DeltaGenerator, card: Card) -> None:
    """Draw a card at its place."""
    place.metric(
        card.label,
        card.value,
        card.below,
        delta_color="off",
        delta_arrow="off",
        help=card.told,
        border=True,
        height="stretch",
    )


def download(
    label: str, content: str | Callable[[], str], file: str, words: str, *, disabled: bool = False
) -> None:
    """A button that takes a file home without drawing the page again."""
    st.download_button(
        label, content, file, on_click="ignore", help=words, icon=":material/download:", disabled=disabled
    )


def chart(
    figure: go.Figure, key: str, alt: str, config: Mapping[str, Any] | None = None, **more: Any
) -> None:
    """Draw a figure; ``alt`` says what it shows to those who do not see it."""
    st.plotly_chart(figure, key=key, config={"displaylogo": False, **(config or {})}, alt=alt, **more)


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


def factor(
    label: str,
    stops: Sequence[float],
    key: str,
    help_text: str,
    show: Callable[[float], str] = "{:g}".format,
    **more: Any,
) -> float:
    """A slider over a few numbers, at the first of them or at 1 where that is one."""
    return st.select_slider(
        label,
        stops,
        value=1.0 if 1.0 in stops else stops[0],
        format_func=show,
        key=key,
        bind="query-params",
        help=help_text,
        **more,
    )


def mib(label: str, key: str, value: float | None, help_text: str, **more: Any) -> float | None:
    """A number of MiB, as precise as one likes."""
    return st.number_input(
        label,
        min_value=0.0,
        max_value=65536.0,
        value=value,
        step=1.0,
        format="%.6g",
        key=key,
        bind="query-params",
        placeholder="none",
        help=help_text,
        **more,
    )
