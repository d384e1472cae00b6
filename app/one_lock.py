"""All runs of a page take turns at what Streamlit keeps of its knobs.

It starts a visitor's next run before the last one has heard that it is to end, and gives each a lock of
its own. Where both looked at once, the page ended with "dictionary changed size during iteration": five
times in a thousand where knobs follow each other within 10 ms.
"""

import threading
from collections.abc import Callable

from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState

_LOCK = (
    threading.RLock()
)  # one for all visitors: it is held for microseconds, and by one thread of Python's anyway
_MAKE = SafeSessionState.__init__


def _make(self: SafeSessionState, state: SessionState, yield_callback: Callable[[], None]) -> None:
    _MAKE(self, state, yield_callback)
    object.__setattr__(self, "_lock", _LOCK)  # its own would make it a knob of that name


def share() -> None:
    """From now on."""
    SafeSessionState.__init__ = _make  # type: ignore[method-assign]
