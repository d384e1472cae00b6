"""What this machine calls itself and has: for provenance, and for who asks whether it will do."""

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name as Linux tells it, or the best that the platform knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def physical_cores() -> int | None:
    """Cores as Linux counts them, hyper-threads taken together; None where the platform does not say."""
    threads = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({path.read_text(encoding="ascii") for path in threads}) or None


def usable_threads() -> int:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """Mean number of threads that ran or wanted to in the last minute; None where nobody counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def is_root() -> bool:
    """Whether this process is the superuser's."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
