"""What is remembered between two moves of a knob.

Keys are our own digests: streamlit samples large values and would miss an edit (arguments that begin
with ``_`` are not hashed). A new cap plays one assignment; only new inputs search and sweep again.
"""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

import sim
from app.choosing import Choice, WhatIf
from sim.nouns.assignment import Assignment
from sim.nouns.comparison import Agreement
from sim.nouns.hardware import Hardware
from sim.nouns.memory import MemoryPoint
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.rows import SweepRow
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A workload and a machine as their files have them, with the digests that stand for them."""

    workload: Workload
    hardware: Hardware
    workload_digest: str
    hardware_digest: str

    @property
    def key(self) -> str:
        """What results are remembered by."""
        return f"{self.workload_digest} {self.hardware_digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One assignment, what happens under it, and what that means."""

    timeline: Timeline
    report: Report

    @property
    def assignment(self) -> Assignment:
        """The assignment that was played."""
        return self.timeline.assignment


def stamp(path: Path) -> Stamp:
    """What changes when a file, or a file right in a directory, does; empty where there is none."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)


def load_workload(path: Path) -> tuple[Workload, str]:
    """A workload from a file, with its digest."""
    return _load_workload(str(path), stamp(path))


@st.cache_data(max_entries=32, show_spinner=False)
def _load_workload(path: str, when: Stamp) -> tuple[Workload, str]:
    workload = sim.load_workload(path)
    return workload, sim.digest(workload)


def load_hardware(path: Path) -> tuple[Hardware, str]:
    """A hardware from a file, with its digest."""
    return _load_hardware(str(path), stamp(path))


@st.cache_data(max_entries=32, show_spinner=False)
def _load_hardware(path: str, when: Stamp) -> tuple[Hardware, str]:
    hardware = sim.load_hardware(path)
    return hardware, sim.digest(hardware)


@st.cache_data(max_entries=8, show_spinner="Reading the upload …")
def parse_workload(content: bytes, name: str) -> tuple[Workload, str]:
    """A workload from an upload, with its digest."""
    workload = sim.parse_workload(content, name)
    return workload, sim.digest(workload)


@st.cache_data(max_entries=8, show_spinner="Reading the upload …")
def parse_hardware(content: bytes, name: str) -> tuple[Hardware, str]:
    """A hardware from an upload, with its digest."""
    hardware = sim.parse_hardware(content, name)
    return hardware, sim.digest(hardware)


def scale(inputs: Inputs, what_if: WhatIf) -> Inputs:
    """The inputs with the what-ifs applied; themselves where there are none."""
    return inputs if what_if.is_none else _scale(inputs, inputs.key, what_if, what_if.key)


@st.cache_data(max_entries=64, show_spinner=False)
def _scale(_inputs: Inputs, key: str, _what_if: WhatIf, what_if_key: str) -> Inputs:
    workload, hardware = _what_if.apply(_inputs.workload, _inputs.hardware)
    return Inputs(
        workload=workload,
        hardware=hardware,
        workload_digest=sim.digest(workload),
        hardware_digest=sim.digest(hardware),
    )


def play(inputs: Inputs, choice: Choice) -> Played:
    """What happens under the chosen assignment."""
    return _play(inputs, inputs.key, choice, choice.key)


@st.cache_data(max_entries=128, show_spinner=False)
def _play(_inputs: Inputs, key: str, _choice: Choice, choice_key: str) -> Played:
    assignment = _choice.assignment(_inputs.workload, lambda: tune(_inputs).assignment)
    timeline = sim.simulate(_inputs.workload, _inputs.hardware, assignment)
    return Played(timeline=timeline, report=sim.summarize(timeline))


def tune(inputs: Inputs) -> Recommendation:
    """The best assignment, its proof, and what each knob reaches."""
    return _tune(inputs, inputs.key)


@st.cache_data(max_entries=32, show_spinner="Searching for the best assignment …")
def _tune(_inputs: Inputs, key: str) -> Recommendation:
    return sim.tune(_inputs.workload, _inputs.hardware)


def trade_off(inputs: Inputs) -> tuple[MemoryPoint, ...]:
    """The best step under each limit on the largest bucket."""
    return _trade_off(inputs, inputs.key)


@st.cache_data(max_entries=32, show_spinner="Searching under each limit …")
def _trade_off(_inputs: Inputs, key: str) -> tuple[MemoryPoint, ...]:
    return sim.trade_off(_inputs.workload, _inputs.hardware)


def sweep(inputs: Inputs) -> tuple[SweepRow, ...]:
    """The step at each of a range of caps, and DDP's default."""
    return _sweep(inputs, inputs.key)


@st.cache_data(max_entries=32, show_spinner="Trying caps …")
def _sweep(_inputs: Inputs, key: str) -> tuple[SweepRow, ...]:
    return sim.sweep(_inputs.workload, _inputs.hardware)


def agreement(record: Path, copies: bool = True) -> Agreement:
    """A measured record against today's model; read again when a file in it changes."""
    return _agreement(str(record), stamp(record), copies)


@st.cache_data(max_entries=16, show_spinner="Comparing with the measurement …")
def _agreement(record: str, when: Stamp, copies: bool) -> Agreement:
    return sim.agreement(sim.load_record(record), copies)
