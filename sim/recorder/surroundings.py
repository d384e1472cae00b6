"""Where a recording was made: versions, machine, date, environment."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sim.machine import cpu_model
from sim.nouns.devices import SERIALISING

# by which torchrun and SLURM count the starts of a job after its first
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


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


def environment(device: torch.device) -> dict[str, str]:
    """The variables that change how work on ``device`` runs, where they are set."""
    if device.type != "cuda":
        return {}
    return {name: os.environ[name] for name in SERIALISING if name in os.environ}


def restart() -> str:
    """A directory's name for this start of the job, ``""`` for its first."""
    counts = [os.environ.get(name, "") for name in _RESTARTS]
    number = sum(int(count) for count in counts if count.isdecimal())
    return f"restart-{number}" if number else ""


def _tool_version() -> str | None:
    try:
        return version("bucketsim")
    except PackageNotFoundError:
        return None
