"""Where a recording was made: versions, machine, date."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sim.machine import cpu_model


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


def _tool_version() -> str | None:
    try:
        return version("bucketsim")
    except PackageNotFoundError:
        return None
