"""Following a recording: however the bytes come in, the same is read in the end."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.importer.recorded.recorded_run import hardware_of
from sim.live import follower as following
from sim.live.follower import Follower, find_recordings
from sim.live.held import BLOCK, find_change
from sim.nouns.recording import RecordedStep, Recording
from tests.effort import tries
from tests.formats.test_recordings import any_steps, backward, rank_of, recording_of, step, write

EASY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=tries(25)
)
READY = (4, 3, 2, 1)


def line(one: RecordedStep) -> str:
    return json.dumps({"kind": "step", **asdict(one)}, separators=(",", ":")) + "\n"


def steps_until(count: int, since: int = 1) -> tuple[RecordedStep, ...]:
    return tuple(step(number, backward(READY)) for number in range(since, count + 1))


@given(steps=any_steps(), seed=st.integers(0, 10**9), cut=st.integers(0, 40))
@EASY
def test_any_split_into_appends_reads_as_the_whole(
    steps: tuple[RecordedStep, ...], seed: int, cut: int, tmp_path: Path
) -> None:
    random = Random(seed)
    whole = write(tmp_path / "whole", (rank_of(0, steps), rank_of(1, steps[:2])))
    grown = tmp_path / "grown"
    grown.mkdir(exist_ok=True)
    for path in grown.iterdir():
        path.unlink()
    texts = {path.name: path.read_bytes() for path in whole.iterdir()}
    texts["rank-0.jsonl"] = texts["rank-0.jsonl"][: len(texts["rank-0.jsonl"]) - cut]
    (whole / "rank-0.jsonl").write_bytes(texts["rank-0.jsonl"])
    follower = Follower(grown)
    assert follower.refresh().ranks == ()
    while any(texts.values()):
        name = random.choice([name for name, left in texts.items() if left])
        size = random.randint(1, random.choice([5, 300, len(texts[name])]))
        with (grown / name).open("ab") as stream:
            stream.write(texts[name][:size])
        texts[name] = texts[name][size:]
        follower.refresh()
    seen, expected = follower.refresh(), load_recording(whole)
    assert seen.first is not None
    assert seen.first.ranks == expected.ranks
    for rank, read in zip(seen.ranks, expected.ranks, strict=True):
        assert list(rank.steps.step) == [one.step for one in read.steps]
        assert list(rank.steps.sync) == [
            sum(part.sync_end_ns - part.backward_ns for part in one.backwards) for one in read.steps
        ]
    assert seen.unread_bytes == seen.fault_count == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (line(step(2, backward(READY))).encode(), "step: 2 is not legal; it follows step 3"),
        (line(step(4, backward((4, 3, 2, 1, 0)))).encode(), "5 times; there are 4 parameters"),
        (line(step(4, backward(READY), step_ns=1 << 60)).encode(), "beyond"),
        (line(step(4, backward(READY), started_at_ns=-1)).encode(), "beyond"),
        (b'{"kind":"buckets","step":4,"bucket_indices":[[9]]}\n', "bucket_indices: 9 is not legal"),
    ],
)
def test_a_damaged_line_is_told_and_what_follows_is_read(bad: bytes, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(3)), rank_of(1, steps_until(3))))
    with (folder / "rank-0.jsonl").open("ab") as stream:
        stream.write(bad)
        stream.write("".join(map(line, steps_until(8, 5))).encode())
    seen = Follower(folder).refresh()
    assert list(seen.ranks[0].steps.step) == [1, 2, 3, 5, 6, 7, 8]
    assert list(seen.ranks[1].steps.step) == [1, 2, 3]
    assert seen.fault_count == len(seen.faults) == 1
    assert "rank-0.jsonl: line 6: " in seen.faults[0]
    assert words in seen.faults[0]


def test_a_header_that_cannot_be_used_leaves_the_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(3)), rank_of(1, steps_until(3), level="light")))
    (folder / "rank-2.jsonl").write_text('{"kind":"recording"}\n' + line(steps_until(1)[0]))
    seen = Follower(folder).refresh()
    assert [rank.header.rank for rank in seen.ranks] == [0]
    assert seen.fault_count == 2
    assert "level: rank 1 has another than rank 0" in seen.faults[0]
    assert "schema_version: None" in seen.faults[1]


def test_ranks_that_come_later_and_a_new_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(5)),))
    follower = Follower(folder)
    alone = follower.refresh()
    assert alone.first is not None
    assert alone.first.missing_ranks == (1,)
    write(folder, (rank_of(1, steps_until(2)),))
    both = follower.refresh()
    assert [len(rank.steps) for rank in both.ranks] == [5, 2]
    assert both.run == alone.run
    write(folder, (rank_of(0, steps_until(3)),))  # truncated and written again
    again = follower.refresh()
    assert [len(rank.steps) for rank in again.ranks] == [3, 2]
    assert again.run != both.run
    (folder / "rank-1.jsonl").unlink()
    assert [rank.header.rank for rank in follower.refresh().ranks] == [0]
    longer = "".join(map(line, (step(n, backward((9, 8, 7, 6))) for n in range(1, 30))))
    first = (folder / "rank-0.jsonl").read_text().splitlines(keepends=True)[0]
    (folder / "rank-0.jsonl").write_text(first + longer)  # the same inode, longer than before
    last = follower.refresh()
    assert list(last.ranks[0].steps.step) == list(range(1, 30))
    assert len(both.ranks[0].steps) == 5  # what was handed out has not changed


def test_memory_is_bounded_and_says_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_ROWS_A_RANK", 400)
    monkeypatch.setattr(following, "WHOLE_STEPS", 10)
    folder = write(tmp_path / "run", (rank_of(0, steps_until(1000)),))
    follower = Follower(folder)
    seen = follower.refresh(30)
    assert seen.first is not None
    assert [one.step for one in seen.first.ranks[0].steps] == list(range(1, 11))
    assert 300 <= len(seen.ranks[0].steps) <= 400
    assert seen.ranks[0].steps.step[-1] == 1000
    assert f"the first {1000 - len(seen.ranks[0].steps)} steps" in seen.dropped[0]


@pytest.mark.parametrize(("clock", "warmup"), [("cuda", 11), pytest.param("host", 2, marks=pytest.mark.slow)])
def test_hundreds_of_ranks_leave_enough_steps_to_predict_from(
    clock: str, warmup: int, tmp_path: Path
) -> None:
    made = rank_of(0, steps_until(34), clock=clock, world_size=256)
    ranks = tuple(replace(made, header=replace(made.header, rank=rank)) for rank in range(256))
    follower = Follower(write(tmp_path / "run", ranks))
    seen = follower.refresh(30)
    while seen.unread_bytes:
        seen = follower.refresh(30)
    assert len(seen.ranks) == 256
    assert seen.warmup_steps == warmup
    assert seen.whole_steps >= 20
    window = sim.live_window(seen, 20)
    assert window is not None
    assert {len(rank.steps) for rank in window.ranks} == {20}
    assert window.ranks[0].steps[0].step > warmup
    assert sim.live_window(seen, seen.whole_steps) is not None
    with pytest.raises(InputError, match=f"steps: 100 is not legal; of 256 ranks {seen.whole_steps} whole"):
        sim.live_window(seen, 100)


@given(ranks=st.integers(1, 512))
def test_whole_steps_are_bounded_and_never_too_few(ranks: int) -> None:
    kept = following.steps_to_keep(ranks)
    assert following.FEWEST_WHOLE_STEPS <= kept <= following.WHOLE_STEPS
    assert kept == following.FEWEST_WHOLE_STEPS or kept * ranks <= following.MOST_WHOLE_STEPS
    assert kept >= following.steps_to_keep(ranks + 1)


def test_a_long_file_is_caught_up_with_in_several_refreshes(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(1200)), rank_of(1, steps_until(1200))))
    follower = Follower(folder)
    seen, turns = follower.refresh(0.02), 1
    assert seen.unread_bytes > 0
    while seen.unread_bytes:
        seen, turns = follower.refresh(0.02), turns + 1
    assert turns >= 2
    assert [len(rank.steps) for rank in seen.ranks] == [1200, 1200]


def test_nothing_new_is_the_same_answer(tmp_path: Path) -> None:
    follower = Follower(write(tmp_path / "run", (rank_of(0, steps_until(5)),)))
    assert follower.refresh() is follower.refresh()
    missing = Follower(tmp_path / "nowhere").refresh()
    assert (missing.ranks, missing.step_count, missing.first) == ((), 0, None)


def test_recordings_are_found_newest_first(tmp_path: Path) -> None:
    write(tmp_path, (rank_of(0, ()),))
    write(tmp_path / "b", (rank_of(0, ()),))
    write(tmp_path / "deep" / "a", (rank_of(0, ()),))
    write(tmp_path / "too" / "deep" / "c", (rank_of(0, ()),))
    for age, path in enumerate((tmp_path / "b", tmp_path / "deep" / "a", tmp_path)):
        os.utime(path / "rank-0.jsonl", (1000 - age, 1000 - age))
    assert find_recordings(tmp_path) == (tmp_path / "b", tmp_path / "deep" / "a", tmp_path)
    assert find_recordings(tmp_path / "nowhere") == ()
    assert sim.find_recordings(tmp_path / "deep") == (tmp_path / "deep" / "a",)


# A machine from a job's own collectives: what is the launch's and what the pass over a bucket.

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
    ("sizes", "launch_ns"),
    [
        ((MIB, 25 * MIB, 20 * MIB), 60_000),
        ((25 * MIB, MIB, 7 * MIB), 60_000),
        ((25 * MIB, 25 * MIB, MIB), 60_000),
        ((25 * MIB, 25 * MIB + 100_000), 0),  # 3 ms of 25 MiB and 2.9 of a little more would say 29 ms
        ((25 * MIB, 25 * MIB), 0),
    ],
)
def test_a_launch_does_not_contain_the_pass_over_its_bucket(sizes: tuple[int, ...], launch_ns: int) -> None:
    """The first bucket's pass, 3 ms of 25 MiB, was charged to every bucket of any layout; noise between
    buckets of nearly one size is no launch."""
    assert hardware_of(recorded(sizes, 60_000)).launch_cost_ns == pytest.approx(launch_ns, abs=2)


# Drift: how often steps that do not drift raise an alarm, and what is found of those that do.

NOISE = 0.02


def steps(count: int, seed: int, *, shift: float = 0.0, since: int = 0, memory: float = 0.0) -> np.ndarray:
    """Errors of steps with a heavy-tailed noise of which neighbours may share a part, and a change."""
    random = np.random.default_rng(seed)
    noise = NOISE * random.standard_t(4, count)
    for place in range(1, count):
        noise[place] += memory * noise[place - 1]
    noise[since:] += shift
    return noise


def change(errors: np.ndarray) -> int | None:
    """In which the first 20 steps are known."""
    return find_change(errors[20:], errors[:20])


@pytest.mark.parametrize(("memory", "most"), [(0.0, 0), pytest.param(0.8, 2, marks=pytest.mark.slow)])
def test_many_looks_at_a_growing_series_raise_hardly_an_alarm(memory: float, most: int) -> None:
    """20 series of 1,000 steps, 19 looks each."""
    made = [steps(1000, seed, memory=memory) for seed in range(20)]
    alarms = [any(change(one[:count]) is not None for count in range(60, 1001, 50)) for one in made]
    assert sum(alarms) <= most


@pytest.mark.parametrize("before", [0, 38, 100])
def test_a_change_near_the_beginning_is_found_and_never_forgotten(before: int) -> None:
    """However few unseen steps precede it, and however many follow."""
    for seed in range(3):
        errors = steps(20 + before + 5000, seed, shift=0.34, since=20 + before)
        for after in (50, 80, 150, 300, 1000, 5000):
            found = change(errors[: 20 + before + after])
            assert found is not None
            assert abs(found - before) <= max(2 * BLOCK, (20 + before + after) // 400 + 1)


@pytest.mark.parametrize(("count", "since"), [(600, 150), (600, 420), (4_000, 3_800)])
def test_five_percent_are_found_where_they_begin(count: int, since: int) -> None:
    places = [change(steps(count, seed, shift=0.05, since=20 + since)) for seed in range(20)]
    found = [place for place in places if place is not None]
    assert len(found) >= 19
    assert np.quantile(np.abs(np.array(found) - since), 0.9) <= 3 * BLOCK


@given(st.integers(0, 10_000), st.floats(0.5, 100))
def test_checkpoints_and_evaluations_are_no_drift(seed: int, times: float) -> None:
    """Two long steps in each 40, from the middle on."""
    errors = steps(600, seed) / 10
    for place in range(300, 600, 40):
        errors[place : place + 2] += times
    assert change(errors) is None


def test_what_has_gone_again_and_what_is_small_are_not_told() -> None:
    errors = steps(900, 5) / 10
    errors[300:500] += 0.05
    assert change(errors) is None
    assert change(steps(900, 5, shift=0.005, since=300)) is None


@given(st.integers(0, 1000), st.integers(0, 39))
def test_few_steps_say_nothing(seed: int, count: int) -> None:
    assert find_change(steps(count, seed, shift=10.0, since=count // 2), np.zeros(0)) is None
