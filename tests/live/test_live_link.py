"""A machine from a job's own collectives: what is the launch's and what the pass over a bucket."""

from dataclasses import replace

import pytest

from sim.importer.recorded.buckets_link import hardware_of
from sim.nouns.recording import Recording
from tests.formats.test_recordings import backward, rank_of, recording_of, step

MIB = 1 << 20
NS_PER_BYTE = 0.125  # 8 GB/s


def recorded(sizes: tuple[int, ...], launch_ns: int) -> Recording:
    """Both ranks, three steps; a bucket is launched a pass over its bytes and a launch after it is ready."""
    plain = backward((3, 2, 1, 0))
    buckets = tuple(
        replace(
            plain.buckets[0],
            index=place,
            num_bytes=size,
            ready_ns=10_000_000 * place,
            launch_ns=(at := 10_000_000 * place + round(NS_PER_BYTE * size) + launch_ns),
            end_ns=at + 1_000_000,
        )
        for place, size in enumerate(sizes)
    )
    steps = tuple(step(number, replace(plain, buckets=buckets)) for number in (1, 2, 3))
    return recording_of(rank_of(0, steps), rank_of(1, steps))


@pytest.mark.parametrize(
    "sizes", [(MIB, 25 * MIB, 20 * MIB), (25 * MIB, MIB, 7 * MIB), (25 * MIB, 25 * MIB, MIB)]
)
def test_a_launch_does_not_contain_the_pass_over_its_bucket(sizes: tuple[int, ...]) -> None:
    """The first bucket's pass, 3 ms of 25 MiB, was charged to every bucket of any layout."""
    assert hardware_of(recorded(sizes, 60_000)).launch_cost_ns == pytest.approx(60_000, abs=2)


def test_noise_between_buckets_of_nearly_one_size_is_no_launch() -> None:
    """3 ms of 25 MiB and 2.9 of a little more would say 29 ms."""
    noisy = recorded((25 * MIB, 25 * MIB + 100_000), 60_000)
    assert hardware_of(noisy).launch_cost_ns == 0


def test_buckets_of_one_size_do_not_tell_a_launch_from_a_pass() -> None:
    assert hardware_of(recorded((25 * MIB, 25 * MIB), 60_000)).launch_cost_ns == 0
