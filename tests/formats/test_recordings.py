"""Reading recordings: whatever was written comes back, cut-off lines are told, wrong ones are named."""

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.formats.recordings import load_recording
from sim.live.follower import Follower
from sim.nouns.devices import backend_of
from sim.nouns.recording import (
    RecordedBackward,
    RecordedBucket,
    RecordedLayout,
    RecordedParameter,
    RecordedRank,
    RecordedStep,
    Recording,
    RecordingHeader,
)
from sim.nouns.workload import Buffer

COUNT = 4
LAYOUT = ((3, 2), (1, 0))
TIMES = st.integers(0, 10**12)


def header(rank: int, **changes: Any) -> RecordingHeader:
    parameters = tuple(
        RecordedParameter(name=f"p{index}", shape=(2, 2), dtype="float32", num_bytes=16, device="cpu")
        for index in range(COUNT)
    )
    said: dict[str, Any] = {
        "level": "full",
        "every": 1,
        "torch": "2.13.0",
        "backend": "gloo",
        "device": "cpu",
    }
    said |= {"clock": "host", "module": "Net", "comm_hook": None, "ddp": {"static_graph": False}}
    return RecordingHeader(**{**said, "rank": rank, "world_size": 2, "parameters": parameters, **changes})


def backward(ready: tuple[int | None, ...], *, synchronised: bool = True, **changes: Any) -> RecordedBackward:
    end = max(time or 0 for time in ready) + 5
    at = [max(ready[index] or 0 for index in bucket) for bucket in LAYOUT]
    buckets = tuple(
        RecordedBucket(index=place, num_bytes=32, ready_ns=ns, launch_ns=ns + 2, end_ns=ns + 40)
        for place, ns in enumerate(at)
    )
    times: dict[str, Any] = {"started_ns": 0, "forward_start_ns": 10, "forward_end_ns": 110}
    times |= {"backward_ns": end, "sync_end_ns": end + 50, "ready_ns": ready, "forwards": 1}
    made = buckets if synchronised else ()
    return RecordedBackward(**{**times, "synchronised": synchronised, "buckets": made, **changes})


def step(number: int, *backwards: RecordedBackward, **changes: Any) -> RecordedStep:
    plain = RecordedStep(
        step=number, started_at_ns=1000 * number, step_ns=900, optimizer_ns=30, backwards=backwards
    )
    return replace(plain, **changes)


def rank_of(number: int, steps: tuple[RecordedStep, ...], **changes: Any) -> RecordedRank:
    layout = RecordedLayout(step=1, bucket_indices=LAYOUT)
    return RecordedRank(header=header(number, **changes), layouts=(layout,), steps=steps)


def recording_of(*ranks: RecordedRank) -> Recording:
    return Recording(name="run", ranks=ranks)


def lines_of(rank: RecordedRank) -> str:
    rows = [
        {"kind": "recording", "schema_version": 1, **asdict(rank.header)},
        *({"kind": "buckets", **asdict(layout)} for layout in rank.layouts),
        *({"kind": "step", **asdict(one)} for one in rank.steps),
    ]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def write(folder: Path, ranks: tuple[RecordedRank, ...]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (folder / f"rank-{rank.header.rank}.jsonl").write_text(lines_of(rank))
    return folder


@st.composite
def any_steps(draw: st.DrawFn) -> tuple[RecordedStep, ...]:
    numbers = sorted(draw(st.sets(st.integers(1, 200), max_size=5)))
    ready = st.tuples(*[st.one_of(st.none(), TIMES)] * COUNT)
    backwards = st.builds(
        backward,
        ready,
        synchronised=st.booleans(),
        forwards=st.integers(1, 3),
        uses=st.dictionaries(st.integers(0, COUNT - 1), st.integers(2, 4), max_size=2),
    )
    several, optimizer = st.lists(backwards, min_size=1, max_size=3), st.none() | TIMES
    return tuple(step(number, *draw(several), optimizer_ns=draw(optimizer)) for number in numbers)


@given(steps=any_steps())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_was_written_comes_back(steps: tuple[RecordedStep, ...], tmp_path: Path) -> None:
    ranks = (rank_of(0, steps), rank_of(1, steps[:1]))
    read = load_recording(write(tmp_path / "run", ranks))
    assert read == recording_of(*ranks)


@given(steps=any_steps().filter(bool), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_line_cut_off_anywhere_is_left_out_and_told(
    steps: tuple[RecordedStep, ...], data: st.DataObject, tmp_path: Path
) -> None:
    path = write(tmp_path / "run", (rank_of(0, steps),)) / "rank-0.jsonl"
    text = path.read_bytes()
    last = len(text.splitlines(keepends=True)[-1])
    path.write_bytes(text[: -data.draw(st.integers(1, last))])
    (read,) = load_recording(path.parent).ranks
    assert read.steps == steps[:-1]
    assert read.torn == (not path.read_bytes().endswith(b"\n"))


def edited(change: Callable[[list[Any]], None], folder: Path) -> Path:
    write(folder, (rank_of(0, (step(1, backward((4, 3, 2, 1))), step(2, backward((4, 3, 2, 1))))),))
    path = folder / "rank-0.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.pop(0), r"line 1: kind: 'buckets' is not legal; it must be 'recording'"),
        (lambda rows: rows[0].update(rank=1), r"line 1: rank: 1 is not legal in a file of this name"),
        (lambda rows: rows[0].update(rank=7), r"line 1: rank: 7 is not legal; world_size is 2"),
        (lambda rows: rows[1]["bucket_indices"].append([9]), r"line 2: bucket_indices: 9 is not legal"),
        (lambda rows: rows[2].update(kind="stop"), r"line 3: kind: 'stop' is not legal"),
        (lambda rows: rows[2].update(aside=True), r"line 3: aside: copies into buckets ran on a stream"),
        (lambda rows: rows[2].update(backwards=[]), r"line 3: backwards: an empty list"),
        (lambda rows: rows[3]["backwards"][0]["ready_ns"].pop(), r"line 4: backwards.0.ready_ns: 3 times"),
        (lambda rows: rows[3].update(step=1), r"line 4: step: 1 is not legal; it follows step 1"),
        (lambda rows: rows.insert(2, [1]), r"line 3: not a JSON object"),
    ],
)
def test_faults_are_named_by_file_line_and_field(
    change: Callable[[list[Any]], None], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"rank-0\.jsonl: {words}"):
        load_recording(edited(change, tmp_path / "run"))


def test_directories_without_a_recording(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        load_recording(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no rank-<r>\.jsonl in it"):
        load_recording(tmp_path)
    (tmp_path / "rank-0.jsonl").write_text('{"kind":"recor')
    with pytest.raises(InputError, match="no whole line in it"):
        load_recording(tmp_path)


def on_gpus(number: int, gpus: int = 8, backend: str = "nccl", **changes: Any) -> dict[str, Any]:
    """The header of a rank on a host with ``gpus`` of them, as torchrun places ranks."""
    device = f"cuda:{number % gpus}"
    placed = tuple(replace(one, device=device) for one in header(0).parameters)
    changes = {"clock": "cuda events", "parameters": placed, "world_size": 16, **changes}
    return {"device": device, "backend": backend, **changes}


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_ranks_of_a_host_have_devices_of_their_own(tmp_path: Path, gpus: int) -> None:
    steps = tuple(step(number, backward((4, 3, 2, 1))) for number in range(1, 21))
    folder = write(tmp_path / "run", tuple(rank_of(rank, steps, **on_gpus(rank, gpus)) for rank in range(16)))
    read = load_recording(folder)
    assert [rank.header.device for rank in read.ranks] == [f"cuda:{rank % gpus}" for rank in range(16)]
    followed = Follower(folder).refresh(60)
    assert (len(followed.ranks), followed.faults, read.missing_ranks) == (16, (), ())


ELSEWHERE = tuple(replace(one, device=f"cuda:{1 + (at == 2)}") for at, one in enumerate(header(0).parameters))
BUFFERS = (Buffer(dtype="int64", num_bytes=8),)
OTHERS = {"device": "cpu", "backend": "gloo", "clock": "host", "parameters": ELSEWHERE, "torch": "2.9.0"}
OTHERS |= {"module": "Other", "comm_hook": "fp16_compress_hook", "buffers": BUFFERS}


@pytest.mark.parametrize(("field", "value"), OTHERS.items())
def test_what_ranks_of_one_run_cannot_differ_in_is_named(tmp_path: Path, field: str, value: Any) -> None:
    ranks = (rank_of(0, (), **on_gpus(0)), rank_of(1, (), **(on_gpus(1) | {field: value})))
    folder = write(tmp_path / "run", ranks)
    with pytest.raises(InputError, match=f"{folder}: {field}: rank 1 has another than rank 0"):
        load_recording(folder)
    followed = Follower(folder).refresh(60)
    assert [rank.header.rank for rank in followed.ranks] == [0]
    assert f"{field}: rank 1" in followed.faults[0]


@pytest.mark.parametrize("odd", [1, 2, 3])
@pytest.mark.parametrize("name", ["static_graph", "gradient_as_bucket_view", "bucket_bytes_cap"])
def test_ranks_whose_switches_differ_are_no_run(tmp_path: Path, name: str, odd: int) -> None:
    """What DDP logged so far is no switch, and an object's address is its process's."""
    said = {"static_graph": False, "gradient_as_bucket_view": False, "bucket_bytes_cap": 1}
    why = f"rank {odd} has another than rank 0 (2 and {said[name]}); give the files"
    words = re.escape(f": ddp.{name}: {why}")
    for other in (said[name], 2):
        ranks = []
        for rank in range(4):
            ddp = said | {"rebuilt_buckets": rank} | ({name: other} if rank == odd else {})
            hook = f"<hooks.Hook object at {0x7F00 + rank:#x}>"
            ranks.append(rank_of(rank, (), world_size=4, ddp=ddp, comm_hook=hook))
        folder = write(tmp_path / "run", tuple(ranks))
        with pytest.raises(InputError, match=words) if other == 2 else nullcontext():
            assert len(load_recording(folder).ranks) == 4


def test_the_backend_is_that_of_the_device() -> None:
    both = "cpu:gloo,cuda:nccl"
    for said, device, backend in (
        *(("nccl", "cuda:3", "nccl"), ("gloo", "cuda:3", "gloo"), ("undefined", "cuda:3", "nccl")),
        *(("undefined", "cpu", "gloo"), (both, "cuda:3", "nccl"), (both, "cpu", "gloo")),
        *(("cuda:gloo", "cuda:0", "gloo"), ("ucc", "cuda:0", "ucc")),
    ):
        assert backend_of(said, device) == backend
