"""What is measured of a job's link stays within its budget on any wire, and is what the wire gave."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from sim.autotuner import job_link
from sim.autotuner.job_link import BUDGET_S, LinkProbe, measure_link
from sim.autotuner.unison import Unison, backend_of
from tests.effort import tries

KIB, MIB = 1 << 10, 1 << 20


class Alone:
    """A single rank."""

    def agree(self) -> None:
        pass

    @contextmanager
    def collective(self) -> Iterator[None]:
        yield

    def quickest(self, times_ns: list[int]) -> list[int]:
        return times_ns


class Planted(LinkProbe):
    """A wire with a latency and a rate, on which no time passes; two messages share it.

    Having been idle, it takes its first ``at_once`` bytes for nothing, as a switch's buffer does.
    """

    def __init__(self, total_bytes: int, latency_ns: int, bytes_per_s: float, at_once: int = 0) -> None:
        self.total_bytes, self.is_gloo = total_bytes, True
        self.processor_share = {}
        self.spent_ns = 0
        self._ranks = Alone()  # type: ignore[assignment]
        self._latency_ns, self._bytes_per_s, self._at_once = latency_ns, bytes_per_s, at_once

    def _time(self, size: int, count: int) -> int:
        took = self._latency_ns + round(max(0, count * size - self._at_once) / self._bytes_per_s * 1e9)
        self.spent_ns += took
        return took


@settings(max_examples=tries(400))
@given(st.integers(4, 1 << 34), st.integers(1_000, 100_000_000), st.floats(1e6, 1e11))
def test_it_ends_within_its_budget_and_tells_what_it_saw(
    total_bytes: int, latency_ns: int, bytes_per_s: float
) -> None:
    probe = Planted(total_bytes, latency_ns, bytes_per_s)
    link = measure_link(probe)
    sizes = [point.num_bytes for point in link.curve]
    warm_up = Planted(total_bytes, latency_ns, bytes_per_s)._time(16 * KIB, 1)
    assert probe.spent_ns <= BUDGET_S * 1e9 + warm_up
    assert sizes == sorted(set(sizes))
    assert sizes[0] == min(16 * KIB, total_bytes)
    assert sizes[-1] <= total_bytes
    for point in link.curve:
        assert point.duration_ns == latency_ns + round(point.num_bytes / bytes_per_s * 1e9)
    assert 1 <= link.channel_slowdown <= link.channels


def test_a_fast_wire_is_measured_up_to_all_gradients_at_once() -> None:
    link = measure_link(Planted(100 * MIB, 50_000, 1e9))
    assert link.curve[-1].num_bytes == 100 * MIB
    assert link.channels == 2


def test_what_an_idle_wire_takes_at_once_hardly_changes_what_two_messages_cost() -> None:
    """At 500 Mbit/s 128 kB of 1 MiB would say that each of two takes 2.14 times as long; 4 MiB can be had."""
    link = measure_link(Planted(45 * MIB, 100_000, 62.5e6, at_once=128_000))
    assert 2 <= link.channel_slowdown < 2.04


def test_a_slow_wire_is_measured_as_far_as_time_allows() -> None:
    """At 2 MB/s 1 MiB takes half a second: neither larger messages nor two at once are tried."""
    link = measure_link(Planted(100 * MIB, 1_000_000, 2e6))
    assert link.curve[-1].num_bytes < MIB
    assert (link.channels, link.channel_slowdown) == (1, 1.0)


@pytest.mark.parametrize(
    ("said", "gloo"), [(None, True), ("gloo", True), ("cpu:gloo,cuda:nccl", True), ("fake", False)]
)
def test_gloo_is_known_by_what_carries_the_models_device(said: str | None, gloo: bool) -> None:
    """A group may have been made without a backend's name, or with one for each type of device."""
    if said is not None and "nccl" in said and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    store = FakeStore() if said == "fake" else dist.HashStore()
    dist.init_process_group(said, store=store, rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        probe = LinkProbe(ddp, Unison(ddp))
        assert (probe.is_gloo, backend_of(ddp)) == (gloo, "gloo" if gloo else "fake")
    finally:
        dist.destroy_process_group()


def test_a_gpus_stream_times_the_probes_behind_something_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model's own GPU, whichever is the current one; neither launch nor wait of the host is in it."""
    gpu, done = torch.device("cuda", 3), []

    class Stream:
        def begin(self) -> None:
            done.append("idle")

        def stamp(self) -> int:
            done.append("stamp")
            return len(done)

        def settle(self) -> None:
            done.append("settle")

        def between_ns(self, start: int, end: int) -> int:
            return end - start

    class Work:
        def wait(self) -> None:
            done.append("wait")

    class Tensor:
        device = gpu

        def __getitem__(self, _: slice) -> "Tensor":
            return self

        def chunk(self, count: int) -> list["Tensor"]:
            return [self] * count

    def all_reduce(tensor: Tensor, **_: object) -> Work:
        done.append("launch")
        return Work()

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(done.append(f"on {device}")))
    monkeypatch.setattr(job_link, "spin_cycles", lambda _: done.append("spin"))
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    probe = Planted(1 << 20, 1, 1e9)
    probe._ranks, probe._group = Alone(), None  # type: ignore[assignment]
    probe._clock, probe._memory = Stream(), Tensor()  # type: ignore[assignment]
    assert LinkProbe._time(probe, 1024, 1) == 3
    assert done == ["idle", "on cuda:3", "spin", "stamp", "launch", "wait", "stamp", "settle"]
