"""What a page shows while it searches; a knob that is turned meanwhile does not wait for the search."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import streamlit as st

from app.views import sidebar_last

Value = TypeVar("Value")
Progress = Callable[[str], None]

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
    sidebar_last.send()
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
