"""Small workloads and places for tests that start real ranks."""

import os
import shutil
import subprocess

import pytest

from sim.nouns.workload import Workload
from tests.handmade import handmade

MS = 1_000_000


def can_box() -> str | None:
    """Why no box can be made here, or None."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root for network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs iproute2"
    probe = f"bsprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


needs_box = pytest.mark.skipif(can_box() is not None, reason=str(can_box()))


@pytest.fixture
def small_workload() -> Workload:
    """Ten fp32 gradients of 1 MiB, 6 ms apart; forward 10 ms, backward 66 ms, optimizer 2 ms."""
    return handmade(
        [(10 - index) * 6 * MS for index in range(10)],
        shapes=[(512, 512)] * 10,
        name="ten layers",
        names="layers.{}.weight",
        forward_ns=10 * MS,
        backward_ns=66 * MS,
        optimizer_ns=2 * MS,
    )
