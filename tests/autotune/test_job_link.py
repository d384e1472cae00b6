"""What is measured of a job's link stays within its budget on any wire, and is what the wire gave."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.autotuner.job_link import BUDGET_S, LinkProbe, measure_link
from tests.effort import tries

KIB, MIB = 1 << 10, 1 << 20


class Alone:
    """A single rank."""

    def agree(self) -> None:
        pass

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
