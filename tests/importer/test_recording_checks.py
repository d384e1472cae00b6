"""What cannot be true of a recording is named with its figures, mended where the recording allows it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.importer.recorded import as_run, check_recording, keep, workload_of
from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording
from sim.units import format_ranks
from tests.formats.test_recordings import LAYOUT, RecordedLayout, backward, header

MS = 10**6
Pace = Callable[[int, bool], float]


def timed(pace: float, *, synchronised: bool, noise: random.Random) -> RecordedBackward:
    """40 ms of forward and 100 ms of backward, or 110 ms beside communication, at a pace."""
    near = pace * noise.uniform(0.99, 1.01)
    length = near * (110 if synchronised else 100)
    ready = tuple(round(length * MS * share) for share in (0.8, 0.6, 0.4, 0.2))
    made = backward(ready, synchronised=synchronised)
    return replace(
        made,
        started_ns=0,
        forward_start_ns=0,
        forward_end_ns=round(40 * MS * near),
        backward_ns=round(length * MS),
        sync_end_ns=round(length * MS) + (50 * MS if synchronised else 0),
        buckets=made.buckets if synchronised else (),
    )


def recorded(kinds: Sequence[Sequence[bool]], pace: Pace = lambda step, synchronised: 1.0) -> Recording:
    """One rank; ``kinds`` has, for each step after warm-up, whether its backwards are synchronised."""
    noise = random.Random(0)
    steps = []
    for number, step in enumerate([[True], [True], *kinds], start=1):
        backwards = [timed(pace(number, kind), synchronised=kind, noise=noise) for kind in step]
        each = [one.forward_end_ns + one.sync_end_ns for one in backwards]
        placed = [
            replace(one, started_ns=sum(each[:at]), forward_start_ns=sum(each[:at]), forward_end_ns=end)
            for at, one in enumerate(backwards)
            for end in (sum(each[:at]) + one.forward_end_ns,)
        ]
        steps.append(
            RecordedStep(
                step=number,
                started_at_ns=number * 10**9,
                step_ns=sum(each) + 10 * MS,
                optimizer_ns=10 * MS,
                backwards=tuple(placed),
            )
        )
    layout = RecordedLayout(step=1, bucket_indices=LAYOUT)
    rank = RecordedRank(header=header(0, world_size=1), layouts=(layout,), steps=tuple(steps))
    return Recording(name="run", ranks=(rank,))


MIXED = [[False, True], [True]] * 10


def test_a_clean_recording_is_not_doubted() -> None:
    paces, doubtful = check_recording(keep(recorded(MIXED)))
    assert (doubtful, paces) == ([], {0: 1.0})


@given(st.floats(1.2, 3.0))
def test_plain_steps_of_a_slower_machine_are_named_and_set_right(slower: float) -> None:
    apart = [[False, True]] * 8 + [[True]] * 8
    recording = recorded(apart, lambda step, synchronised: 1.0 if synchronised else slower)
    workload = workload_of(recording)
    (told,) = workload.provenance["doubtful"]
    assert "the machine was slower in steps with plain backwards" in told
    assert "record plain backwards between the others" in told
    assert abs(workload.backward_ns - 100 * MS) < 3 * MS
    assert abs(workload.forward_ns - 40 * MS) < 2 * MS


def test_a_plain_backward_longer_than_one_beside_communication_cannot_be() -> None:
    recording = recorded(MIXED)
    (rank,) = recording.ranks
    steps = tuple(
        replace(
            step,
            backwards=tuple(
                one if one.synchronised else replace(one, backward_ns=one.backward_ns + 40 * MS)
                for one in step.backwards
            ),
        )
        for step in rank.steps
    )
    workload = workload_of(replace(recording, ranks=(replace(rank, steps=steps),)))
    (told,) = workload.provenance["doubtful"]
    assert "whose backward is no shorter" in told
    assert abs(workload.backward_ns - 110 * MS) < 3 * MS


def test_a_machine_that_changes_meanwhile_is_told() -> None:
    recording = recorded([[True]] * 20, lambda step, synchronised: 1.0 if step <= 12 else 1.3)
    _, (told,) = check_recording(keep(recording))
    assert "earlier steps took 2" in told
    assert "record again" in told


def test_the_jobs_own_step_leaves_out_backwards_that_were_only_measured() -> None:
    recording = recorded(MIXED)
    run = as_run(recording, workload_of(recording))
    assert not isinstance(run, str)
    assert run.asked is not None
    assert run.asked.settings == {}
    assert len(run.iterations) == 20
    assert all(abs(step.step_ns - 210 * MS) < 10 * MS for step in run.iterations)


def test_micro_batches_that_every_step_has_are_part_of_the_jobs_step() -> None:
    recording = recorded([[False, True]] * 10)
    kept = replace(recording, ranks=(replace(recording.ranks[0], steps=recording.ranks[0].steps[2:]),))
    run = as_run(kept, workload_of(kept))
    assert not isinstance(run, str)
    assert run.asked is not None
    assert run.asked.settings == {"accumulation_steps": 2}
    assert all(step.step_ns > 330 * MS for step in run.iterations)


@given(st.integers(1, 40), st.integers(0, len(LAYOUT) - 1))
def test_a_bucket_lasts_as_long_as_the_rank_saw_that_came_last_to_it(late_ms: int, place: int) -> None:
    """The other rank's bucket ends at the same moment, having waited for it."""
    recording = recorded(MIXED)
    (rank,) = recording.ranks

    def waits(one: RecordedBackward) -> RecordedBackward:
        buckets = tuple(
            replace(bucket, end_ns=bucket.end_ns + late_ms * MS * (bucket.index == place))
            for bucket in one.buckets
        )
        return replace(one, buckets=buckets)

    def other(steps: tuple[RecordedStep, ...]) -> tuple[RecordedStep, ...]:
        return tuple(replace(step, backwards=tuple(map(waits, step.backwards))) for step in steps)

    second = RecordedRank(header=header(1, world_size=2), layouts=rank.layouts, steps=other(rank.steps))
    first = replace(rank, header=header(0, world_size=2))
    one, two = (Recording(name="run", ranks=ranks) for ranks in ((rank,), (first, second)))
    alone, both = as_run(one, workload_of(one)), as_run(two, workload_of(two))
    assert not isinstance(alone, str)
    assert not isinstance(both, str)
    assert both.iterations == alone.iterations


def test_where_most_steps_are_held_up_the_quiet_ones_are_imported() -> None:
    """A median of them would be no step of the job; a few that are held up change no median."""
    quiet = workload_of(recorded([[True]] * 12))
    mostly = recorded([[True]] * 12, pace=lambda step, _: 9.0 if step > 6 else 1.0)
    found = workload_of(mostly)
    assert abs(found.backward_ns / quiet.backward_ns - 1) < 0.02
    assert len(keep(mostly)[0].steps) == 4
    assert "8 steps of 12 left out" in found.provenance["doubtful"][0]
    seldom = recorded([[True]] * 12, pace=lambda step, _: 9.0 if step > 12 else 1.0)
    assert len(keep(seldom)[0].steps) == 12
    assert not workload_of(seldom).provenance["doubtful"]


def test_steps_with_more_backwards_are_longer_for_a_reason() -> None:
    alternating = recorded([[True], [False, True]] * 8, pace=lambda step, _: 1.0)
    assert len(keep(alternating)[0].steps) == 16


@pytest.mark.parametrize("slow", [range(16), (0, 3, 4, 5, 12)])
def test_what_several_ranks_show_is_told_once_with_the_ranks(slow: Sequence[int]) -> None:
    apart = [[False, True]] * 8 + [[True]] * 8
    ranks = []
    for number in range(16):
        at = 2.0 + 0.01 * number if number in slow else 1.0
        (rank,) = recorded(apart, lambda _, synchronised, at=at: 1.0 if synchronised else at).ranks
        ranks.append(replace(rank, header=header(number, world_size=16)))
    paces, (told,) = check_recording(keep(Recording(name="run", ranks=tuple(ranks))))

    assert told.startswith(f"{format_ranks(slow)}: the machine was slower ")
    assert [rank for rank, pace in paces.items() if pace > 1.5] == list(slow)
    assert f"divided by {min(paces[rank] for rank in slow):.2f} to " in told


def test_ranks_in_a_row_are_named_by_their_ends() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks(range(16)) == "ranks 0 to 15"
    assert format_ranks([12, 0, 1, 5, 6, 7]) == "ranks 0, 1, 5 to 7, 12"
    assert format_ranks(range(0, 1024, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 504 more"
