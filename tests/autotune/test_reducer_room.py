"""What a GPU has room for beside a job, on a stand-in for its allocator: activations come back every step."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from sim.autotuner.reducer_room import Room
from sim.errors import MachineError

GB = 1 << 30
GPU = torch.device("cuda", 5)


@dataclass
class Allocator:
    """What torch says of one GPU, in GB; only of the one that is asked for."""

    free: float = 1
    reserved: float = 78
    allocated: float = 18
    peak: float = 76

    def put(self, patch: pytest.MonkeyPatch) -> None:
        def told(name: str) -> int:
            return round(getattr(self, name) * GB)

        patch.setattr(
            torch.cuda, "mem_get_info", lambda device: (told("free"), 80 * GB) if device == GPU else 1
        )
        patch.setattr(torch.cuda, "memory_reserved", lambda device: told("reserved") if device == GPU else 1)
        patch.setattr(
            torch.cuda, "memory_allocated", lambda device: told("allocated") if device == GPU else 1
        )
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device: told("peak") if device == GPU else 1)


class Job:
    """A DDP as far as its memory is asked for: gradients of so many GB on a GPU, not the current one."""

    device = GPU

    def __init__(self, gradients: float) -> None:
        self._parameter = nn.Parameter(torch.empty(round(gradients * GB) // 4, device="meta"))

    def parameters(self) -> list[nn.Parameter]:
        return [self._parameter]


def room(gradients: float, allocator: Allocator, patch: pytest.MonkeyPatch) -> Room:
    allocator.put(patch)
    return Room(Job(gradients))  # type: ignore[arg-type]


def fits(one: Room) -> bool:
    try:
        one.check()
    except MachineError:
        return False
    return True


def test_where_activations_lay_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job has had 76 of 80 GB at once: 61 are unused between steps, 3 are left beside it, less NCCL's."""
    assert not fits(room(6, Allocator(), monkeypatch))
    assert not fits(room(2.6, Allocator(), monkeypatch))
    assert fits(room(2.4, Allocator(), monkeypatch))


def test_what_nccl_may_want_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It allocates beside PyTorch, whose cache is of no use to it."""
    assert not fits(room(0.1, Allocator(free=0.2, reserved=79.8, peak=40), monkeypatch))


def test_a_count_that_the_job_began_anew_is_not_taken_for_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator()
    one = room(6, allocator, monkeypatch)
    one.look()
    allocator.peak = allocator.allocated  # torch.cuda.reset_peak_memory_stats
    assert not fits(one)
    unseen = room(6, Allocator(peak=18), monkeypatch)
    assert not fits(unseen)
    assert fits(room(0.4, Allocator(peak=18), monkeypatch))


def test_a_copy_of_ours_that_is_gone_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the recording's Reducer, then the probe, then the candidate's: one at a time."""
    allocator = Allocator(free=8, reserved=72, peak=70)
    one = room(5, allocator, monkeypatch)
    assert fits(one)
    allocator.free, allocator.reserved, allocator.peak = 3, 77, 75
    assert fits(one)
