"""Following a recording: however the bytes come in, the same is read in the end."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.live import follower as following
from sim.live.follower import Follower, find_recordings
from sim.nouns.recording import RecordedStep, Recording
from sim.truth.own_link import hardware_of
from tests.effort import tries
from tests.formats.test_recordings import any_steps, backward, rank_of, recording_of, step, write

ONE_FOLDER = [HealthCheck.function_scoped_fixture]
EASY = settings(suppress_health_check=ONE_FOLDER, deadline=None, max_examples=tries(25))
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
    assert seen.first.ranks == expected.ranks
    for rank, read in zip(seen.ranks, expected.ranks, strict=True):
        assert list(rank.steps.step) == [one.step for one in read.steps]
        assert list(rank.steps.step_ns) == [one.step_ns for one in read.steps]
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
    assert "schema_version: missing" in seen.faults[1]


def test_ranks_that_come_later_and_a_new_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(5)),))
    follower = Follower(folder)
    alone = follower.refresh()
    assert alone.first.missing_ranks == (1,)
    write(folder, (rank_of(1, steps_until(2)),))
    both = follower.refresh()
    assert follower.refresh() is both, "nothing is new"
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
    assert [one.step for one in seen.first.ranks[0].steps] == list(range(1, 11))
    assert 300 <= len(seen.ranks[0].steps) <= 400
    assert seen.ranks[0].steps.step[-1] == 1000
    assert seen.forgotten == 1000 - len(seen.ranks[0].steps)


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
    kept = [following.steps_to_keep(ranks) for ranks in range(1, 513)]
    assert kept == sorted(kept, reverse=True)
    assert (kept[0], kept[-1]) == (following.WHOLE_STEPS, following.FEWEST_WHOLE_STEPS)
    window = sim.live_window(seen, 20)
    assert {len(rank.steps) for rank in window.ranks} == {20}
    assert window.ranks[0].steps[0].step > warmup
    assert sim.live_window(seen, seen.whole_steps) is not None
    with pytest.raises(InputError, match=f"steps: 100 is not legal; of 256 ranks {seen.whole_steps} whole"):
        sim.live_window(seen, 100)


def test_a_long_file_is_caught_up_with_in_several_refreshes(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", (rank_of(0, steps_until(1200)), rank_of(1, steps_until(1200))))
    follower = Follower(folder)
    seen, turns = follower.refresh(0.02), 1
    assert seen.unread_bytes > 0
    while seen.unread_bytes:
        seen, turns = follower.refresh(0.02), turns + 1
    assert turns >= 2
    assert [len(rank.steps) for rank in seen.ranks] == [1200, 1200]


def test_recordings_are_found_newest_first(tmp_path: Path) -> None:
    write(tmp_path, (rank_of(0, ()),))
    write(tmp_path / "b", (rank_of(0, ()),))
    write(tmp_path / "deep" / "a", (rank_of(0, ()),))
    write(tmp_path / "too" / "deep" / "c", (rank_of(0, ()),))
    for age, path in enumerate((tmp_path / "b", tmp_path / "deep" / "a", tmp_path)):
        os.utime(path / "rank-0.jsonl", (1000 - age, 1000 - age))
    assert find_recordings(tmp_path) == (tmp_path / "b", tmp_path / "deep" / "a", tmp_path)
    assert find_recordings(tmp_path / "nowhere") == Follower(tmp_path / "nowhere").refresh().ranks == ()
    assert sim.find_recordings(tmp_path / "deep") == (tmp_path / "deep" / "a",)


# A machine from a job's own collectives: what is the launch's and what the pass over a bucket.

MIB = 1 << 20
NS_PER_BYTE = 0.125  # 8 GB/s


def recorded(sizes: tuple[int, ...], launch_ns: int) -> Recording:
    """Both ranks, three steps; a bucket is launched a pass over its bytes and a launch after it is ready."""
    plain = backward((3, 2, 1, 0))
    buckets = []
    for place, size in enumerate(sizes):
        ready_ns = 10_000_000 * place
        at = ready_ns + round(NS_PER_BYTE * size) + launch_ns
        stamps = {"ready_ns": ready_ns, "launch_ns": at, "end_ns": at + 1_000_000}
        buckets.append(replace(plain.buckets[0], index=place, num_bytes=size, **stamps))
    steps = tuple(step(number, replace(plain, buckets=tuple(buckets))) for number in (1, 2, 3))
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
