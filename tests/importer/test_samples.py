"""Which of a job's steps are taken: all that scatter, and of several groups the shortest."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.importer.recorded import keep, workload_of
from sim.importer.samples import quiet_steps
from sim.nouns.recording import RecordedStep, Recording
from sim.units import NS_PER_MS, format_ms
from tests.importer.test_recorded import recorded

SCATTER = st.lists(st.floats(1, 1.04), min_size=2, max_size=12)


@example(100, 1.95, [1, 1], [1, 1.04], Random(0))  # of the slower two, one is not twice as long
@given(st.integers(20, 500), st.floats(1.35, 12), SCATTER, SCATTER, st.randoms(use_true_random=False))
def test_of_steps_in_two_groups_the_shorter_is_taken_and_both_are_told(
    length_ms: int, factor: float, quiet: list[float], loud: list[float], order: Random
) -> None:
    """A median of all would be a step that none took: half of them take 48 ms and half 96 ms, say."""
    quiet, loud = quiet[: 3 * len(loud)], loud[: 3 * len(quiet)]
    made = [(True, length_ms * one) for one in quiet] + [(False, length_ms * factor * one) for one in loud]
    order.shuffle(made)
    lengths = {number: round(ms * NS_PER_MS) for number, (_, ms) in enumerate(made)}
    kept, said = quiet_steps(lengths, on_gpu=True)
    assert kept == {number for number, (is_quiet, _) in enumerate(made) if is_quiet}
    assert f"{len(quiet)} of about " in said
    assert f" and {len(loud)} of about " in said
    assert all(format_ms(lengths[number]) in said for number in sorted(kept)[:8])


def test_steps_alone_are_no_group() -> None:
    for loud in ([40], [15, 90]):  # of which the shorter is one that scatters
        lengths = {number: ms * NS_PER_MS for number, ms in enumerate([10] * 8 + loud)}
        kept, said = quiet_steps(lengths, on_gpu=True)
        assert kept == set(range(7 + len(loud)))
        assert said.startswith(f"steps differ, {len(kept)} of about 10.00 ms and 1 of about {loud[-1]}.00 ms")


@given(st.integers(20, 500), st.lists(st.floats(1, 1.2), min_size=2, max_size=12), st.floats(1, 1.9))
def test_steps_that_scatter_stay_and_so_does_one_among_many(
    length_ms: int, scatter: list[float], alone: float
) -> None:
    lengths = dict(enumerate(round(length_ms * one * NS_PER_MS) for one in (*scatter, alone)))
    assert quiet_steps(lengths, on_gpu=True) == (set(lengths), "")


@pytest.mark.parametrize(("loud", "out"), [(range(7, 15), 8), (range(3, 15, 3), 4), (range(13, 15), 0)])
def test_steps_of_a_recording_that_are_held_up_are_left_out_unless_they_are_few(
    loud: range, out: int
) -> None:
    """A median of them would be no step of the job; a few that are held up change no median."""
    held_up = recorded([[True]] * 12, pace=lambda number, _: 9.0 if number in loud else 1.0)
    found, quiet = workload_of(held_up), workload_of(recorded([[True]] * 12))
    assert {one.step for one in keep(held_up)[0].steps} == {*range(3, 15)} - {*loud[:out]}
    assert abs(found.backward_ns / quiet.backward_ns - 1) < 0.02
    told = [f"{out} steps of 12 left out" in line for line in found.provenance["doubtful"]]
    assert told == [True] * (out > 0)


def test_steps_with_other_buckets_are_no_group() -> None:
    """They may be as much shorter for it."""
    (rank,) = recorded([[True]] * 24, pace=lambda number, _: 3.0 if number > 14 else 1.0).ranks

    def wider(one: RecordedStep) -> RecordedStep:
        (last,) = one.backwards
        whole = replace(last.buckets[0], num_bytes=64)
        return replace(one, backwards=(replace(last, buckets=(whole,)),))

    steps = (one if one.step > 14 else wider(one) for one in rank.steps)
    (kept,) = keep(Recording(name="run", ranks=(replace(rank, steps=tuple(steps)),)))
    assert (len(kept.steps), kept.said) == (24, [])
