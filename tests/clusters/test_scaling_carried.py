"""Both ends of what is not known about a curve: what is sure stays, and beyond it nothing jumps."""

from hypothesis import given
from hypothesis import strategies as st

from sim.clusters.scaling.carried import End, at_end
from sim.nouns.hardware import Hardware
from sim.units import divide_half_even
from tests.handmade import wired

ENDS: tuple[End, End] = ("min_ns", "max_ns")
MIB = 1 << 20


def hardware_of(times_ns: list[int], least_ns: list[int | None], greatest_ns: list[int | None]) -> Hardware:
    """Points at 1, 2, 4, … MiB; None: no range."""
    sizes = [MIB << octave for octave in range(len(times_ns))]
    ranges = zip(sizes, least_ns, greatest_ns, strict=True)
    known = {str(size): {"min_ns": low, "max_ns": high} for size, low, high in ranges if low is not None}
    return wired(dict(zip(sizes, times_ns, strict=True)), spread={"all_reduce": known})


def durations(hardware: Hardware) -> list[int]:
    return [point.duration_ns for point in hardware.all_reduce]


def test_a_range_of_all_points_is_taken_whole() -> None:
    hardware = hardware_of([10, 20, 40], [8, 17, 30], [11, 26, 70])
    low, high = (at_end(hardware, end) for end in ENDS)
    assert (durations(low), durations(high)) == ([8, 17, 30], [11, 26, 70])
    assert "all_reduce" not in low.spread


def test_beyond_the_last_sure_point_only_the_rise_is_unsure() -> None:
    """1 and 4 MiB are measured; 800 ns are 400 more than the last takes, times 0.9 to 1.5."""
    hardware = hardware_of([100, 200, 400, 800], [None, 180, None, 720], [None, 240, None, 1200])
    low, high = (at_end(hardware, end) for end in ENDS)
    assert durations(low) == [100, 180, 400, 400 + 360]
    assert durations(high) == [100, 240, 400, 400 + 600]


rises = st.lists(st.integers(0, 10**9), min_size=2, max_size=8)


@given(rises, st.integers(0, 7), st.floats(0.1, 1), st.floats(1, 10))
def test_ends_enclose_the_curve_and_go_on_from_what_is_sure(
    rises: list[int], last_sure: int, least: float, greatest: float
) -> None:
    times = [sum(rises[: at + 1]) for at in range(len(rises))]
    low_ns = [None if at <= last_sure else int(time * least) for at, time in enumerate(times)]
    high_ns = [None if at <= last_sure else round(time * greatest) for at, time in enumerate(times)]
    hardware = hardware_of(times, low_ns, high_ns)
    lows, highs = (durations(at_end(hardware, end)) for end in ENDS)
    for at, (low, time, high) in enumerate(zip(lows, times, highs, strict=True)):
        assert low <= time <= high
        if at <= last_sure:
            assert low == time == high
        else:  # the rise from the last sure point is all that has a range
            sure = times[min(last_sure, len(times) - 1)]
            assert low - sure >= (time - sure) * least - 2
            assert high - sure <= (time - sure) * greatest + 2


@given(st.integers(1, 10**9), st.integers(100, 200), st.integers(1, 6))
def test_the_fast_end_is_no_faster_than_the_wire_beyond_what_was_measured(
    wire_ns: int, percent: int, count: int
) -> None:
    """Where a range ends at the wire, every MiB beyond the last point takes at least what the wire takes."""
    wires = [wire_ns << octave for octave in range(count + 1)]
    times = [divide_half_even(wire * percent, 100) for wire in wires]
    ends = [None, *wires[1:]]
    lows = durations(at_end(hardware_of(times, ends, ends), "min_ns"))
    for low, wire in zip(lows[1:], wires[1:], strict=True):
        assert low - lows[0] >= wire - wires[0] - 1
