"""``streamlit run``, which Ctrl-C ends with one word until streamlit, once it serves, hears it itself."""

import os
import runpy
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
