"""How the server's process is set up before streamlit runs in it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState

from app import one_lock


def test_runs_of_a_page_take_turns_at_its_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit starts one while the last still ends, and gives each a lock of its own."""

    def runs() -> list[SafeSessionState]:
        state = SessionState()
        return [SafeSessionState(state, lambda: None) for _ in range(2)]

    alone, other = runs()
    assert alone._lock is not other._lock, "else this is no longer needed"
    monkeypatch.setattr(SafeSessionState, "__init__", SafeSessionState.__init__)
    one_lock.share()
    first, second = runs()
    with ThreadPoolExecutor() as pool, first._lock:
        waits = pool.submit(lambda: second._lock.acquire(blocking=False))
        assert not waits.result()
    first["cap"] = 4
    assert second["cap"] == 4
    assert runs()[0]._lock is not first._lock, "one visitor does not wait for another"
