"""What the Compare page remembers, and the candidates it is asked about; keys as in ``cached``."""

from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

import sim
from app import cached, cached_cluster
from app.answering import round_cap_mb
from app.cached import Inputs, Played
from app.choosing import Choice, WhatIf, micro_batches
from app.library import Library
from app.words import compare as words
from app.words.cluster import MACHINE_WORDS
from app.words.switches import option_words
from sim.errors import InputError, NotModelledError
from sim.nouns.difference import Difference
from sim.nouns.hardware import Hardware
from sim.units import format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a candidate runs: as above, on bundled hardware, or on a ready-made cluster, and what if.

    One of ``hardware`` (a name in the library) and ``preset`` (with ``settings`` of it), or neither.
    """

    hardware: str | None = None
    preset: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    what_if: WhatIf = field(default_factory=WhatIf)

    @property
    def words(self) -> str:
        """The machine in a few words; empty where it is that above."""
        named = self.hardware or ""
        if self.preset is not None:
            settings = ", ".join(f"{value} {name}" for name, value in self.settings)
            named = f"{MACHINE_WORDS[self.preset]}{f', {settings}' if settings else ''}"
        factors = [f"{name} × {format_number(value, 6)}" for name, value in self.what_if.told().items()]
        return ", ".join([named, *factors] if named else factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment on one machine; with ``is_best_cap`` the cap of ``choice`` is still to be searched."""

    letter: str
    choice: Choice
    is_best_cap: bool = False
    machine: Machine = field(default_factory=Machine)

    @property
    def words(self) -> str:
        """The candidate in a few words, without its letter."""
        named = self.choice.words
        if self.is_best_cap:
            cap = "" if self.choice.cap_mb is None else f"={format_number(self.choice.cap_mb, 6)}"
            named = ", ".join([f"{words.BEST_CAP_WORDS}{cap}", *map(option_words, self.choice.options)])
        return f"{named} on {self.machine.words}" if self.machine.words else named

    @property
    def name(self) -> str:
        """Letter and words."""
        return f"{self.letter} {self.words}"

    def told(self) -> dict[str, Any]:
        """What was asked for, whole: the pick with all its caps and switches, and another machine."""
        told = self.choice.told()
        if self.is_best_cap:
            told["pick"] = words.BEST_CAP
        machine = {
            "hardware": self.machine.hardware,
            "preset": self.machine.preset,
            **dict(self.machine.settings),
        }
        machine |= self.machine.what_if.told()
        machine = {name: value for name, value in machine.items() if value is not None}
        return told | ({"machine": machine} if machine else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A candidate that was played, with its best cap found; on what, and what came of it."""

    candidate: Candidate
    inputs: Inputs
    played: Played

    @property
    def letter(self) -> str:
        """The candidate's."""
        return self.candidate.letter

    @property
    def name(self) -> str:
        """Letter and words."""
        return self.candidate.name

    @property
    def step_ns(self) -> int:
        """The predicted step."""
        return self.played.report.step_ns

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step has."""
        return micro_batches(self.played.assignment.settings)

    @property
    def uncounted_bytes(self) -> int:
        """What collectives carry that no time is known of, so that it is not in this step."""
        hardware = self.inputs.hardware
        return sum(
            one.num_bytes
            for one in sim.collectives(self.played.timeline)
            if one.kind == "all_gather" and not hardware.all_gather
        )

    @property
    def key(self) -> str:
        """What results are remembered by."""
        return f"{self.inputs.key} {self.candidate.choice.key}"


def play(inputs: Inputs, candidate: Candidate, library: Library) -> Result:
    """A candidate on its own machine.

    Raises:
        SimError: a machine that cannot be read or made, an assignment that cannot be played on it.
    """
    own = _on_machine(inputs, candidate.machine, library)
    if candidate.is_best_cap:
        cap = _best_cap_mb(own, candidate.choice)
        candidate = replace(candidate, choice=replace(candidate.choice, cap_mb=cap))
    return Result(candidate=candidate, inputs=own, played=cached.play(own, candidate.choice))


def _best_cap_mb(inputs: Inputs, choice: Choice) -> float:
    """The round cap of the Tune page, for the switches and ranks of this candidate."""
    is_plain = not choice.options and inputs.slowest is None
    cap_mb = round_cap_mb(inputs, choice, cached.tune(inputs) if is_plain else None)
    if cap_mb is None:
        raise NotModelledError(f"{words.BEST_CAP_WORDS}: there is none, as no cap was tried")
    return cap_mb


def _on_machine(inputs: Inputs, machine: Machine, library: Library) -> Inputs:
    hardware, digest = inputs.hardware, inputs.hardware_digest
    if machine.hardware is not None:
        if machine.hardware not in library.hardware:
            raise InputError(f"machine: there is no bundled hardware {machine.hardware!r} any more")
        hardware, digest = cached.load_hardware(library.hardware[machine.hardware])
    elif machine.preset is not None:
        made = cached_cluster.make(machine.preset, dict(machine.settings))
        hardware = cached_cluster.hardware(made)
        digest = _digest(hardware, made.digest)
    own = Inputs(
        workload=inputs.workload,
        hardware=hardware,
        workload_digest=inputs.workload_digest,
        hardware_digest=digest,
    )
    return cached.scale(own, machine.what_if)


@st.cache_data(max_entries=64, show_spinner=False)
def _digest(_hardware: Hardware, key: str) -> str:
    return sim.digest(_hardware)


def difference(before: Result, after: Result) -> Difference:
    """Why one candidate's step is not as long as another's.

    Raises:
        SimError: as ``sim.difference``.
    """
    return _difference(before.played, after.played, before.key, after.key)


@st.cache_data(max_entries=128, show_spinner="Taking both steps apart …")
def _difference(_before: Played, _after: Played, before_key: str, after_key: str) -> Difference:
    return sim.difference(_before.timeline, _after.timeline)
