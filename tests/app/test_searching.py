"""A search in a process of its own finds what it finds here, and is ended with whoever waited for it."""

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sim
from app import cached, searcher
from app.searching import apart
from sim.errors import MachineError, NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests import ranks  # what it has imported, a search need not
from tests.app.conftest import make_inputs

__all__ = ["ranks"]
CAPS = (1.0, 4.0)


def nothing(words: str) -> None:
    """Whoever waits goes on waiting."""


@pytest.mark.parametrize(
    ("search", "more"),
    [(sim.tune, ()), (sim.best, ()), (searcher.sweep, ()), (sim.step_band, (CAPS,))],
)
def test_it_finds_what_is_found_here(
    search: Callable[..., Any], more: tuple[Any, ...], workload: Workload, hardware: Hardware
) -> None:
    said: list[str] = []
    asked = (workload, hardware, *more)
    assert apart(search, *asked, progress=said.append) == search(*asked, progress=nothing)
    assert said[0] == "searching"
    assert multiprocessing.active_children() == []


def test_switches_and_a_slow_rank_are_swept(workload: Workload, hardware: Hardware) -> None:
    plain = searcher.sweep(workload, hardware, progress=nothing)
    options = {"gradient_as_bucket_view": True}
    asked = (workload, hardware, sim.scale(workload, hardware, backward=1.5)[0], options, plain)
    said: list[str] = []
    found = apart(searcher.sweep_under, *asked, progress=said.append)
    assert found == searcher.sweep_under(*asked, progress=nothing)
    assert any(words.startswith("trying caps under the switches, ") for words in said)
    assert all(row.step_ns > same.step_ns for row, same in zip(found, plain, strict=True))


def test_what_it_raises_is_raised(workload: Workload, hardware: Hardware) -> None:
    plain = searcher.sweep(workload, hardware, progress=nothing)
    asked = (workload, hardware, None, {"bucket_cap": 1}, plain)
    with pytest.raises(NotModelledError) as here:
        searcher.sweep_under(*asked, progress=nothing)
    with pytest.raises(NotModelledError) as apart_from_here:
        apart(searcher.sweep_under, *asked, progress=nothing)
    assert str(apart_from_here.value) == str(here.value)


def test_it_ends_with_whoever_waited(workload: Workload, hardware: Hardware) -> None:
    def leave(words: str) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        apart(sim.tune, workload, hardware, progress=leave)
    assert multiprocessing.active_children() == []


def test_one_that_is_ended_from_outside_is_told(workload: Workload, hardware: Hardware) -> None:
    def kill(words: str) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(MachineError, match="ended from outside"):
        apart(sim.tune, workload, hardware, progress=kill)


@pytest.mark.usefixtures("fresh")
def test_the_band_of_a_long_step_is_read_from_fewer_draws(
    workload: Workload, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure = make_inputs(replace(workload, estimated=True, band=(0.5, 2.0)), hardware)
    monkeypatch.setattr(cached, "_DRAWN_GRADIENTS", 500 * len(workload.gradients))
    assert all(500 <= point.draws < 550 for point in cached.band(unsure))
