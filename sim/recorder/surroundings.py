"""Where a recording was made: versions, machine, date."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def surroundings(device: torch.device) -> dict[str, Any]:
    """Date, versions and hardware, for a Workload's provenance."""
    facts: dict[str, Any] = {
        "tool_version": _tool_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "device": str(device),
    }
    if device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


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


def _tool_version() -> str | None:
    try:
        return version("bucketsim")
    except PackageNotFoundError:
        return None
