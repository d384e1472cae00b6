"""What this machine has for tests: time (`make test` tries a twelfth of the examples of a property), packages
of the extra ``models``, and the public measurements, in the folder that ``BUCKETSIM_DATA`` names."""

import importlib
import os
from pathlib import Path

import pytest

FEWEST = 8
PATIENCE_S = 600.0  # for what comes sooner or later: only a hang takes as long, on however slow a machine
IS_WHOLE = os.environ.get("BUCKETSIM_TESTS") == "all"


def tries(most: int, few: int | None = None) -> int:
    """``most``; where time is short ``few``, or else a twelfth of it, but never less than ``FEWEST``."""
    return most if IS_WHOLE else min(most, few or max(FEWEST, most // 12))


DATA = Path(os.environ.get("BUCKETSIM_DATA", ""))
HAS_DATA = "BUCKETSIM_DATA" in os.environ
needs_data = pytest.mark.skipif(not HAS_DATA, reason="BUCKETSIM_DATA does not name the public measurements")


def needs_package(name: str) -> None:
    """Skip the test where ``name`` does not import, unless ``BUCKETSIM_REQUIRE_<NAME>`` is 1."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        if os.environ.get(f"BUCKETSIM_REQUIRE_{name.upper()}") == "1":
            raise
        pytest.skip(f"{name} cannot be imported: {error}")
