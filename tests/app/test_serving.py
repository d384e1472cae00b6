"""How the server's process is set up before streamlit runs in it."""

import platform
import subprocess
import sys

import pytest

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
