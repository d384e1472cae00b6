"""``bucketsim dash`` before it serves: a port that is taken, and Ctrl-C."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from app import launch
from tests.commands import bucketsim


def test_a_port_that_is_taken_is_told_before_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = bucketsim("dash", "--port", port)
    assert said.code == 1
    assert said.err == (
        f"error: --port: {port} is not legal: Address already in use; give one that is free, or none\n"
    )


def test_ctrl_c_is_heard_while_the_server_starts(tmp_path: Path) -> None:
    """A streamlit that takes its time, in place of the real one."""
    package = tmp_path / "streamlit" / "web"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "cli.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    with subprocess.Popen(
        launch.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "interrupted\n")
