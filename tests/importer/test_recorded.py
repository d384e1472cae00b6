"""What a recording is worth: medians without warm-up, the job's own step, and what cannot be true of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError, NotModelledError
from sim.importer.recorded import as_run, check_recording, keep, workload_of
from sim.nouns.measurement import Measurement
from sim.nouns.recording import RecordedBackward, RecordedRank, RecordedStep, Recording
from sim.units import format_ranks, median_ns
from tests.formats.test_recordings import (
    LAYOUT,
    RecordedLayout,
    backward,
    header,
    rank_of,
    recording_of,
    step,
)

MS = 10**6


def steady(ready: tuple[int | None, ...], count: int = 8, **changes: Any) -> tuple[RecordedStep, ...]:
    """Steps whose ready times are ``ready`` after warm-up, and absurd before."""
    wild = tuple(10**9 for _ in ready)
    return tuple(
        step(number, backward(wild if number <= 2 else ready, **changes)) for number in range(1, count + 1)
    )


@given(st.lists(st.permutations([100, 200, 300, 400]), min_size=3, max_size=9))
def test_ready_times_are_medians_over_the_rank_with_the_longest_backward(rows: list[list[int]]) -> None:
    slow = [tuple(time + 1000 for time in row) for row in rows]
    fast, late = (
        (
            *steady((9, 9, 9, 9), 2),
            *(step(number, backward(tuple(row))) for number, row in enumerate(each, 3)),
        )
        for each in (rows, slow)
    )
    workload = workload_of(recording_of(rank_of(0, fast), rank_of(1, late)))
    assert workload.provenance["rank"] == 1
    assert workload.samples == tuple(slow)
    medians = [median_ns(column) for column in zip(*slow, strict=True)]
    assert [gradient.ready_ns for gradient in workload.gradients] == medians
    assert (workload.backward_ns, workload.forward_ns, workload.optimizer_ns) == (1405, 100, 30)


def test_real_backwards_say_what_is_in_them_and_no_sync_ones_are_plain() -> None:
    ready, plain = (400, 300, 200, 100), (40, 30, 20, 10)
    synchronised = workload_of(recording_of(rank_of(0, steady(ready))))
    assert synchronised.ready_includes == ("copy_in", "launch", "interference")
    both = tuple(step(n, backward(plain, synchronised=False), backward(ready)) for n in range(1, 6))
    made = workload_of(recording_of(rank_of(0, both)))
    assert (made.ready_includes, made.provenance["made_from"]) == ((), "3 no_sync backwards")
    assert tuple(gradient.ready_ns for gradient in made.gradients) == plain
    too_few = workload_of(recording_of(rank_of(0, (*both[:4], *steady(ready)[4:]))))
    assert too_few.ready_includes == synchronised.ready_includes


@pytest.mark.parametrize(
    ("ready", "changes", "words"),
    [
        ((4, 3, 2, 1), {"clock": "cuda events", "device": "cuda:0"}, "has 0 synchronised backwards after 11"),
        ((4, 3, 2, 1), {"ddp": {"torch_distributed_debug": "DETAIL"}}, "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        ((None,) * 4, {}, "no gradient became ready"),
    ],
)
def test_what_makes_no_workload_is_refused(ready: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, NotModelledError), match=words):
        workload_of(recording_of(rank_of(0, steady(ready), **changes)))
    with pytest.raises(InputError, match="rank 0 has 2 synchronised backwards after 2 steps of warm-up"):
        workload_of(recording_of(rank_of(0, steady((4, 3, 2, 1), count=4))))


@pytest.mark.parametrize(("fired", "order"), [((), (3, 2, 1, 0)), ((2, 3, 1, 0), (2, 3, 1, 0))])
def test_gradients_that_are_ready_at_one_time_are_in_the_order_of_their_hooks(
    fired: tuple[int, ...], order: tuple[int, ...]
) -> None:
    layouts = (RecordedLayout(step=1, bucket_indices=((2, 3), (0, 1)), fired=fired),)
    for ready, expected in (((200, 200, 100, 100), order), ((400, 300, 200, 100), (3, 2, 1, 0))):
        rank = replace(rank_of(0, steady(ready)), layouts=layouts)
        assert workload_of(recording_of(rank)).order() == expected


@pytest.mark.parametrize(
    "said", ["CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING=0"]
)
def test_a_recording_of_serialised_work_is_doubtful(said: str) -> None:
    environment = dict([said.split("=")])
    ranks = (rank_of(rank, steady((4, 3, 2, 1)), environment=environment) for rank in (0, 1))
    told = workload_of(recording_of(*ranks)).provenance["doubtful"]
    assert [said in line for line in told] == [True] * said.endswith("1")


# Times as of a real machine: 40 ms of forward and 100 ms of backward, or 110 ms beside communication.

Pace = Callable[[int, bool], float]


def timed(pace: float, *, synchronised: bool, noise: random.Random, started_ns: int) -> RecordedBackward:
    near = pace * noise.uniform(0.99, 1.01)
    length, end = round(near * MS * (110 if synchronised else 100)), started_ns + round(40 * MS * near)
    ready = tuple(round(length * share) for share in (0.8, 0.6, 0.4, 0.2))
    times = {"started_ns": started_ns, "forward_start_ns": started_ns, "forward_end_ns": end}
    after = length + (50 * MS if synchronised else 0)
    return backward(ready, synchronised=synchronised, **times, backward_ns=length, sync_end_ns=after)


def recorded(kinds: Sequence[Sequence[bool]], pace: Pace = lambda number, synchronised: 1.0) -> Recording:
    """One rank; ``kinds`` has, for each step after warm-up, whether its backwards are synchronised."""
    noise, steps = random.Random(0), []
    for number, row in enumerate([[True], [True], *kinds], start=1):
        now, backwards = 0, []
        for kind in row:
            one = timed(pace(number, kind), synchronised=kind, noise=noise, started_ns=now)
            now = one.forward_end_ns + one.sync_end_ns
            backwards.append(one)
        steps.append(step(number, *backwards, step_ns=now + 10 * MS, optimizer_ns=10 * MS))
    layout = RecordedLayout(step=1, bucket_indices=LAYOUT)
    rank = RecordedRank(header=header(0, world_size=1), layouts=(layout,), steps=tuple(steps))
    return Recording(name="run", ranks=(rank,))


def own_step(recording: Recording) -> Measurement:
    run = as_run(recording, workload_of(recording))
    assert not isinstance(run, str), run
    return run


def changed(recording: Recording, change: Callable[[RecordedBackward], RecordedBackward]) -> RecordedRank:
    """Its rank with every backward as ``change`` makes it."""
    (rank,) = recording.ranks
    steps = (replace(each, backwards=tuple(map(change, each.backwards))) for each in rank.steps)
    return replace(rank, steps=tuple(steps))


MIXED = [[False, True], [True]] * 10
APART = [[False, True]] * 8 + [[True]] * 8


@pytest.mark.parametrize("kinds", [MIXED, [[True], [False, True]] * 8])
def test_a_clean_recording_is_not_doubted(kinds: Sequence[Sequence[bool]]) -> None:
    """Steps with more backwards are longer for a reason."""
    kept = keep(recorded(kinds))
    assert check_recording(kept) == ({0: 1.0}, [])
    assert len(kept[0].steps) == len(kinds)


@given(st.floats(1.2, 3.0))
def test_plain_steps_of_a_slower_machine_are_named_and_set_right(slower: float) -> None:
    workload = workload_of(recorded(APART, lambda number, synchronised: 1.0 if synchronised else slower))
    (told,) = workload.provenance["doubtful"]
    assert "the machine was slower in steps with plain backwards" in told
    assert abs(workload.backward_ns - 100 * MS) < 3 * MS
    assert abs(workload.forward_ns - 40 * MS) < 2 * MS


def test_a_plain_backward_longer_than_one_beside_communication_cannot_be() -> None:
    recording = recorded(MIXED)
    longer = changed(
        recording,
        lambda one: one if one.synchronised else replace(one, backward_ns=one.backward_ns + 40 * MS),
    )
    workload = workload_of(replace(recording, ranks=(longer,)))
    (told,) = workload.provenance["doubtful"]
    assert "whose backward is no shorter" in told
    assert abs(workload.backward_ns - 110 * MS) < 3 * MS


@pytest.mark.parametrize(
    ("kinds", "settings", "step_ms"),
    [
        (MIXED, {}, 210),  # without backwards that were only measured
        ([[False, True]] * 10, {"accumulation_steps": 2}, 350),  # with micro-batches that every step has
    ],
)
def test_the_jobs_own_step(kinds: list[list[bool]], settings: dict[str, int], step_ms: int) -> None:
    run = own_step(recorded(kinds))
    assert run.asked.settings == settings
    assert len(run.iterations) == len(kinds)
    assert all(abs(one.step_ns - step_ms * MS) < 10 * MS for one in run.iterations)


def test_a_step_that_one_rank_took_before_its_last_backward_is_left_out() -> None:
    recording = recorded(MIXED)
    (rank,) = recording.ranks
    steps = (replace(one, step_ns=1) if number < 4 else one for number, one in enumerate(rank.steps))
    early = replace(rank, header=header(1, world_size=2), steps=tuple(steps))
    both = replace(rank, header=header(0, world_size=2)), early
    assert len(own_step(Recording(name="run", ranks=both)).iterations) == len(MIXED) - 1


@given(st.integers(1, 40), st.integers(0, len(LAYOUT) - 1))
def test_a_bucket_lasts_as_the_last_rank_to_it_saw_and_a_step_the_mean(late_ms: int, place: int) -> None:
    """The other rank's bucket ends at the same moment, having waited for it, and its step is longer."""
    recording = recorded(MIXED)

    def waits(one: RecordedBackward) -> RecordedBackward:
        late_ns = [late_ms * MS * (each.index == place) for each in one.buckets]
        both = zip(one.buckets, late_ns, strict=True)
        return replace(one, buckets=tuple(replace(each, end_ns=each.end_ns + late) for each, late in both))

    other, ns = changed(recording, waits), late_ms * MS
    longer = tuple(replace(one, step_ns=one.step_ns + 2 * ns) for one in other.steps)
    ranks = recording.ranks[0], replace(other, steps=longer)
    both = tuple(replace(rank, header=header(number, world_size=2)) for number, rank in enumerate(ranks))
    alone = tuple(replace(one, step_ns=one.step_ns + ns) for one in own_step(recording).iterations)
    assert own_step(Recording(name="run", ranks=both)).iterations == alone


@pytest.mark.parametrize("slow", [range(16), (0, 3, 4, 5, 12)])
def test_what_several_ranks_show_is_told_once_with_the_ranks(slow: Sequence[int]) -> None:
    ranks = []
    for number in range(16):
        at = 2.0 + 0.01 * number if number in slow else 1.0
        (rank,) = recorded(APART, lambda _, synchronised, at=at: 1.0 if synchronised else at).ranks
        ranks.append(replace(rank, header=header(number, world_size=16)))
    paces, (told,) = check_recording(keep(Recording(name="run", ranks=tuple(ranks))))
    assert told.startswith(f"{format_ranks(slow)}: the machine was slower ")
    assert [rank for rank, pace in paces.items() if pace > 1.5] == list(slow)
    assert f"divided by {min(paces[rank] for rank in slow):.2f} to " in told


def test_ranks_in_a_row_are_named_by_their_ends() -> None:
    assert [format_ranks(ranks) for ranks in ([3], range(16), [12, 0, 1, 5, 6, 7], range(0, 1024, 2))] == [
        *("rank 3", "ranks 0 to 15", "ranks 0, 1, 5 to 7, 12"),
        "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 504 more",
    ]
