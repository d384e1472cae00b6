"""The headline is painted before the sidebar and the charts, which take the browser seconds to draw at first.

Knobs have to be drawn before what they ask for can be: so what the browser is told of them waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import streamlit as st
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.RootContainer_pb2 import RootContainer
from streamlit.runtime.scriptrunner import get_script_run_ctx

# The browser loads what draws a card when the first one comes, and React shows what had to be loaded 0.3 s
# later, or behind all that has come meanwhile.
_FIRST_S = 0.4
# Once all is loaded: Streamlit gathers messages for 10 ms, React draws them, and a frame takes 17. A timeline
# that comes meanwhile is plotted before the frame, and takes longer than all else of an answer.
_NEXT_S = 0.06
_SEND: ContextVar[Callable[[], None] | None] = ContextVar("send", default=None)


@contextmanager
def kept() -> Iterator[None]:
    """Keep the sidebar's messages until ``send`` is called, at the latest to the end of the block.

    A run that Streamlit stops in the block leaves them unsent: the browser keeps the sidebar that it has.
    """
    context = get_script_run_ctx()
    if context is None:
        yield
        return
    tell, waiting = context._enqueue, list[ForwardMsg]()

    def keep(message: ForwardMsg) -> None:
        path = message.metadata.delta_path
        if path and path[0] == RootContainer.SIDEBAR:
            waiting.append(message)
        else:
            tell(message)

    def go() -> None:
        context._enqueue = tell
        while waiting:
            tell(waiting.pop(0))

    context._enqueue = keep
    token = _SEND.set(go)
    try:
        yield
        go()
    except Exception:
        go()
        raise
    finally:
        context._enqueue = tell
        _SEND.reset(token)


def headline_is_there() -> None:
    """Give the browser the time to paint the headline alone; at first in a visit send what is kept, too.

    Later the timeline goes before it: the browser has a sidebar, and what it shows is seldom another.
    """
    if _SEND.get() is None:
        return
    if st.session_state.get("has_headline"):
        time.sleep(_NEXT_S)
        return
    st.session_state["has_headline"] = True
    time.sleep(_FIRST_S)
    send()


def send() -> None:
    """Send what is kept, as the headline will take a while."""
    go = _SEND.get()
    if go is not None:
        go()
