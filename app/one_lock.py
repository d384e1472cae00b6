"""All runs of a page for one visitor take turns at what Streamlit keeps of the knobs.

It starts the next run before the last one has heard that it is to end, and gives each a lock of its own.
Where both looked at once, the page ended with "dictionary changed size during iteration": five times in a
thousand where knobs follow each other within 10 ms.
"""

import threading
from collections.abc import Callable

from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState

_MAKE = SafeSessionState.__init__


def _make(self: SafeSessionState, state: SessionState, yield_callback: Callable[[], None]) -> None:
    _MAKE(self, state, yield_callback)
    kept = vars(state.query_params)  # the state itself takes no attribute more
    lock = kept.setdefault("lock_of_all_runs", threading.RLock())
    object.__setattr__(self, "_lock", lock)  # its own way would make it a knob of that name


def share() -> None:
    """From now on."""
    SafeSessionState.__init__ = _make  # type: ignore[method-assign]
