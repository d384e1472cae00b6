"""What this machine calls itself, for provenance."""

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
