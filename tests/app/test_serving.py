"""How the server's process is set up before streamlit runs in it."""

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState

from app import one_lock

# Eight threads that are there at once, each with memory of its own; then glibc says what heaps it has.
_HEAPS = """
import ctypes, sys, threading
from app import serving
if "shared" in sys.argv:
    serving.share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
there = threading.Barrier(8)
def work():
    libc.malloc(1000)
    there.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
def test_threads_share_two_heaps() -> None:
    def heaps(*argv: str) -> int:
        said = subprocess.run(
            [sys.executable, "-c", _HEAPS, *argv], capture_output=True, text=True, check=True
        )
        return said.stdout.count("<heap ")

    assert heaps() > 2
    assert heaps("shared") == 2


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
