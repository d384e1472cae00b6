"""Several assignments on the same draws, and what is refused."""

from dataclasses import replace
from unittest import mock

import pytest

import sim
from sim.clusters.ranks import step_chain as job
from sim.errors import InputError
from sim.nouns.ranks import RankGroup, Ranks, SlowRanks
from tests.bench.machines import machine, model

WORKLOAD = model(60, "affine")
HARDWARE = replace(machine("affine"), world_size=16)
JITTER = Ranks(name="r", pace_jitter=0.1, pace_spread=0.05, stall_probability=0.1, stall_ns=5_000_000)
CAPS = {f"{cap} MiB": sim.assign(WORKLOAD, bucket_cap_mb=cap) for cap in (1, 4, 1000)}


def test_every_row_is_the_distribution_alone() -> None:
    """The same draws whatever else is compared; gains are differences of means."""
    compared = sim.compare_assignments(WORKLOAD, HARDWARE, CAPS, JITTER, samples=100, seed=4)
    first = compared.rows[0].distribution
    for row, (name, assignment) in zip(compared.rows, CAPS.items(), strict=True):
        alone = sim.step_distribution(WORKLOAD, HARDWARE, assignment, JITTER, samples=100, seed=4)
        assert (row.name, row.distribution) == (name, alone)
        assert row.gain_ns == pytest.approx(first.mean_step_ns - alone.mean_step_ns, abs=1)
        assert row.nominal_gain_ns == first.nominal_step_ns - alone.nominal_step_ns
        assert row.gain_low_ns is not None
        assert row.gain_high_ns is not None
        assert row.gain_low_ns <= row.gain_ns <= row.gain_high_ns
    means = {row.name: row.distribution.mean_step_ns for row in compared.rows}
    assert compared.best_by_mean == min(means, key=means.__getitem__)
    nominal = {row.name: row.distribution.nominal_step_ns for row in compared.rows}
    assert compared.best_by_nominal == min(nominal, key=nominal.__getitem__)
    assert len({*nominal.values()}) > 1


def test_the_same_assignment_gains_nothing_in_any_step() -> None:
    twice = {"one": CAPS["4 MiB"], "other": CAPS["4 MiB"]}
    compared = sim.compare_assignments(WORKLOAD, HARDWARE, twice, JITTER, samples=50)
    row = compared.rows[1]
    assert (row.gain_ns, row.gain_low_ns, row.gain_high_ns, row.nominal_gain_ns) == (0, 0, 0, 0)


def test_paired_draws_tell_apart_what_each_mean_alone_does_not() -> None:
    """The interval is less than half of that of the difference of two runs with draws of their own."""
    row = sim.compare_assignments(WORKLOAD, HARDWARE, CAPS, JITTER, samples=400).rows[1]
    told = row.distribution
    assert row.gain_high_ns is not None
    assert row.gain_low_ns is not None
    assert told.mean_high_ns is not None
    assert told.mean_low_ns is not None
    unpaired = 2**0.5 * (told.mean_high_ns - told.mean_low_ns)
    assert row.gain_high_ns - row.gain_low_ns < 0.5 * unpaired


def test_a_seed_is_a_seed() -> None:
    one, two, other = (
        sim.step_distribution(WORKLOAD, HARDWARE, CAPS["1 MiB"], JITTER, samples=30, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == two
    assert one.quantiles_ns != other.quantiles_ns


def test_what_is_not_legal_is_said() -> None:
    arguments = (WORKLOAD, HARDWARE, CAPS["1 MiB"])
    for changes, words in (
        ({"samples": 0}, "samples: 0 is not legal"),
        ({"samples": 10**7}, "samples: 10000000 is not legal"),
        ({"seed": -1}, "seed: -1 is not legal"),
    ):
        with pytest.raises(InputError, match=words):
            sim.step_distribution(*arguments, JITTER, **changes)
    with pytest.raises(InputError, match=r"slow.0: ranks 15 to 16 are not legal; .* world_size 16"):
        sim.step_distribution(*arguments, Ranks(name="r", slow=(SlowRanks(first=15, count=2, pace=2.0),)))
    named = Ranks(name="r", groups=(RankGroup(first=0, workload="other"),))
    with pytest.raises(InputError, match=r"groups.0.workload: 'other' is not given; there are none"):
        sim.step_distribution(*arguments, named)
    with pytest.raises(InputError, match=r"groups.0.workload: '40 tensors' has other gradients"):
        sim.step_distribution(*arguments, named, others={"other": model(40, "affine")})
    with pytest.raises(InputError, match="assignments: none is not legal"):
        sim.compare_assignments(WORKLOAD, HARDWARE, {}, JITTER)
    twice = (SlowRanks(first=0, count=9, pace=100.0), SlowRanks(first=5, count=9, pace=100.0))
    with pytest.raises(InputError, match=r"slow: the paces of rank 5 make 10000 together; give .* to 1000"):
        sim.step_distribution(*arguments, Ranks(name="r", slow=twice))
    included = replace(WORKLOAD, ready_includes=("interference",))
    slowed = replace(HARDWARE, compute_slowdown=1.5)
    with pytest.raises(ValueError, match=r"groups: .* ready_includes alike"):
        sim.step_distribution(WORKLOAD, slowed, CAPS["1 MiB"], named, others={"other": included})


def test_worlds_that_memory_cannot_hold_are_refused() -> None:
    words = r"world_size: 16 ranks with \d+ collectives are more than 30 together"
    with mock.patch.object(job, "MOST_CELLS", 30), pytest.raises(InputError, match=words):
        sim.step_distribution(WORKLOAD, HARDWARE, CAPS["1 MiB"], JITTER, samples=1)


def test_times_that_floats_cannot_hold_are_refused() -> None:
    long = replace(WORKLOAD, backward_ns=1 << 51)
    with pytest.raises(InputError, match="more than 1125899906842624 ns"):
        sim.step_distribution(long, HARDWARE, CAPS["1 MiB"], JITTER, samples=1)
    late = replace(WORKLOAD, forward_ns=1 << 49)
    slow = Ranks(name="r", slow=(SlowRanks(first=0, pace=1000.0),))
    with pytest.raises(InputError, match="more than 1125899906842624 ns"):
        sim.step_distribution(late, HARDWARE, CAPS["1 MiB"], slow, samples=1)


def test_steps_that_are_played_are_told_as_they_go() -> None:
    seen: list[tuple[int, int]] = []
    twice = {"one": CAPS["4 MiB"], "other": CAPS["4 MiB"]}
    sim.compare_assignments(
        WORKLOAD, HARDWARE, twice, JITTER, samples=20, progress=lambda done, total: seen.append((done, total))
    )
    assert {total for _, total in seen} == {2 * (20 + 10)}  # ten jobs, each with a step that is not counted
    assert sorted(done for done, _ in seen) == list(range(1, 61))
