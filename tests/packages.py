"""Packages of the extra ``models``: what needs them is skipped where they are not, with the reason."""

import importlib
import os

import pytest


def needs_package(name: str) -> None:
    """Skip the test where ``name`` does not import, unless ``BUCKETSIM_REQUIRE_<NAME>`` is 1."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        if os.environ.get(f"BUCKETSIM_REQUIRE_{name.upper()}") == "1":
            raise
        pytest.skip(f"{name} cannot be imported: {error}")
