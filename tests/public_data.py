"""The public measurements, in the folder that ``BUCKETSIM_DATA`` names."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("BUCKETSIM_DATA", ""))
HAS_DATA = "BUCKETSIM_DATA" in os.environ
needs_data = pytest.mark.skipif(not HAS_DATA, reason="BUCKETSIM_DATA does not name the public measurements")
