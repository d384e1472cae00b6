"""What the live view remembers: one reader a directory for all sessions, and what its windows say.

A reader is shared, locked, and hands out what nothing changes any more; choices are each session's own.
"""

import hashlib
from pathlib import Path
from typing import Any

import streamlit as st

import sim
from sim.errors import NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.live import Calibration, Followed, LiveGain
from sim.nouns.recording import RecordedLayout, Recording

_READ_S = 1.0  # of one refresh: a long file is caught up with over several


@st.cache_resource(max_entries=4, show_spinner=False)
def _follower(directory: str) -> Any:
    return sim.follow(directory)


def refresh(directory: Path) -> Followed:
    """What a recording holds by now."""
    followed: Followed = _follower(str(directory.absolute())).refresh(_READ_S)
    return followed


def window_key(run: str, window: Recording, layouts: tuple[RecordedLayout, ...], machine: str) -> str:
    """What a calibration is remembered by."""
    steps = [
        (rank.header.rank, [(one.step, one.started_at_ns) for one in rank.steps]) for rank in window.ranks
    ]
    told = repr((run, steps, [(one.step, one.bucket_indices) for one in layouts], machine))
    return hashlib.sha256(told.encode()).hexdigest()


def calibrate(
    key: str, window: Recording, layouts: tuple[RecordedLayout, ...], hardware: Hardware | None
) -> Calibration:
    """The workload of a window and what it predicts."""
    return _calibrate(key, window, layouts, hardware)


@st.cache_data(max_entries=16, show_spinner=False)
def _calibrate(
    key: str, _window: Recording, _layouts: tuple[RecordedLayout, ...], _hardware: Hardware | None
) -> Calibration:
    return sim.calibrate_live(_window, _layouts, _hardware)


def gain(key: str, calibration: Calibration, layout: RecordedLayout) -> LiveGain | str:
    """What other buckets would save, or why that cannot be said; ``key`` is the calibration's."""
    return _gain(key, calibration, layout)


@st.cache_data(max_entries=16, show_spinner="Searching for better buckets …")
def _gain(key: str, _calibration: Calibration, _layout: RecordedLayout) -> LiveGain | str:
    try:
        return sim.live_gain(_calibration, _layout)
    except NotModelledError as error:  # remembered as well: each refresh would search again
        return str(error)
