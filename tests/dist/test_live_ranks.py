"""``sim.record`` on two gloo ranks: what it sees, and that training never notices it.

All cases but the killed rank run in one job (``live_worker``); the tests look at its answers.
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from sim.formats.recordings import load_recording
from sim.importer.recorded.recorded_run import measured_of
from sim.importer.recorded.recorded_workload import workload_of
from tests.ranks import run_together
from tests.this_torch import takes

pytestmark = pytest.mark.dist

KINDS = ("plain", "view", "static", "unused", *(["batched"] if takes({"batched_grad_copy": True}) else []))
Answers = list[dict[str, Any]]


def run(folder: Path, *cases: str) -> list[tuple[int, str]]:
    """Exit codes and errors of both ranks."""
    return run_together("tests.dist.live_worker", folder, *cases)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks left behind."""
    made = tmp_path_factory.mktemp("live")
    done = run(made)
    assert [code for code, _ in done] == [0, 0], done
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Answers:
    """What each rank answered."""
    return [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in (0, 1)]


def steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "step"]


def layouts(lines: list[dict[str, Any]]) -> list[list[list[int]]]:
    return [line["bucket_indices"] for line in lines if line["kind"] == "buckets"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_plain_ddp_to_the_bit(kind: str, ranks: Answers) -> None:
    """During a recording, after one that ended on its own, and in a second one on the same model."""
    for answers in ranks:
        row = answers["gradients"][kind]
        assert row["equal"]
        assert row["apart"]
        assert row["max_steps"] == 4
        assert len(steps(row["lines"])) == 18
        assert len(steps(row["second"])) == 6


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unused"])
def test_recorded_buckets_are_those_in_ddps_log(kind: str, ranks: Answers) -> None:
    """A2.6; with find_unused_parameters there is no rebuild and so nothing in the log."""
    for answers in ranks:
        row = answers["gradients"][kind]
        logged = [[int(index) for index in bucket.split()] for bucket in row["log"].split(",")]
        assert len(logged) > 1
        assert layouts(row["lines"])[-1] == layouts(row["second"])[-1] == logged
        last = steps(row["lines"])[-1]["backwards"][0]
        sizes = [parameter["num_bytes"] for parameter in row["lines"][0]["parameters"]]
        assert [bucket["num_bytes"] for bucket in last["buckets"]] == [
            sum(sizes[index] for index in bucket) for bucket in logged
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_times_stand_in_the_order_of_events(kind: str, ranks: Answers) -> None:
    """A3.2, A3.5, A3.10: gradient, bucket, launch in order, end, end of backward."""
    for answers in ranks:
        lines = answers["gradients"][kind]["lines"]
        layout = layouts(lines)[-1]
        for step in steps(lines)[2:]:
            (backward,) = step["backwards"]
            assert 0 == backward["started_ns"] <= backward["forward_start_ns"] < backward["forward_end_ns"]
            assert 0 < max(backward["ready_ns"]) <= backward["backward_ns"] <= backward["sync_end_ns"]
            launches = [bucket["launch_ns"] for bucket in backward["buckets"]]
            assert launches == sorted(launches)
            for bucket, parameters in zip(backward["buckets"], layout, strict=True):
                assert max(backward["ready_ns"][index] for index in parameters) <= bucket["ready_ns"]
                assert bucket["ready_ns"] <= bucket["launch_ns"]
                assert bucket["ready_ns"] <= bucket["end_ns"] <= backward["sync_end_ns"]
            spent = backward["forward_end_ns"] + backward["sync_end_ns"] + step["optimizer_ns"]
            assert abs(step["step_ns"] - spent) <= 3


def test_the_light_level_registers_no_hook(ranks: Answers) -> None:
    for answers in ranks:
        row = answers["light"]
        assert row["equal"]
        assert row["hook"] is None
        logged = [[int(index) for index in bucket.split()] for bucket in row["log"].split(",")]
        assert layouts(row["lines"]) == [logged]
        assert len(steps(row["lines"])) == 6
        for step in steps(row["lines"]):
            (backward,) = step["backwards"]
            assert backward["buckets"] == []
            assert None not in backward["ready_ns"]


def test_accumulation_and_evaluation_are_told_apart(ranks: Answers, folder: Path) -> None:
    """A3.12; a forward with gradients and without backward arms the Reducer for the next backward."""
    for answers in ranks:
        row = answers["accumulation"]
        assert row["equal"]
        first, *others = steps(row["lines"])
        assert [b["synchronised"] for b in first["backwards"]] == [False, False, True]
        assert [len(b["buckets"]) for b in first["backwards"]] == [0, 0, 1]
        assert len(others) == 5
        for step in others:
            assert [b["synchronised"] for b in step["backwards"]] == [True, False, True]
            assert [len(b["buckets"]) for b in step["backwards"]] == [2, 0, 2]
            assert [b["forwards"] for b in step["backwards"]] == [2, 1, 1]
            assert step["backwards"][0]["started_ns"] == 0
    workload = workload_of(load_recording(folder / "accumulation"))
    assert workload.ready_includes == ()
    assert workload.provenance["made_from"] == "4 no_sync backwards"


def test_scaler_and_foreign_optimizers_do_not_confuse_steps(ranks: Answers) -> None:
    for answers in ranks:
        rows = steps(answers["scaled"])
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert [row["optimizer_ns"] is None for row in rows] == [False] * 3 + [True] + [False] * 2
        assert all(len(row["backwards"]) == 1 for row in rows)


def test_a_reentrant_checkpoint_ends_before_ddp_waits(ranks: Answers) -> None:
    for answers in ranks:
        for row in steps(answers["checkpointed"])[2:]:
            (backward,) = row["backwards"]
            assert max(backward["ready_ns"]) <= backward["backward_ns"]
            assert max(bucket["end_ns"] for bucket in backward["buckets"]) <= backward["sync_end_ns"]
            last = backward["buckets"][-1]["ready_ns"]
            assert backward["backward_ns"] - last < backward["sync_end_ns"] - last


def test_every_third_step_is_recorded_and_no_more_than_asked_for(ranks: Answers) -> None:
    for answers in ranks:
        assert [row["step"] for row in steps(answers["every"])] == [1, 4]


def test_an_exception_flushes_and_propagates(ranks: Answers) -> None:
    for answers in ranks:
        row = answers["failing"]
        assert row["caught"] == 'KeyError("the user\'s own")'
        assert row["left"] == 0
        assert [step["step"] for step in steps(row["lines"])] == [1, 2, 3]
        assert [step["step"] for step in steps(row["broken off"])] == [1, 2, 3, 4]


def test_a_communication_hook_is_refused_or_wrapped(ranks: Answers) -> None:
    for answers in ranks:
        row = answers["hooks"]
        assert row["equal"]
        python, builtin = row["refused"]
        assert "fp16_compress_hook" in python
        assert "FP16_COMPRESS" in builtin
        assert all("level='light'" in words and "wrap=" in words for words in row["refused"])
        assert "one communication hook" in row["other"]
        assert row["left behind"] == []
        assert row["light"][0]["comm_hook"] == row["wrapped"][0]["comm_hook"] == "fp16_compress_hook"
        assert [len(step["backwards"][0]["buckets"]) for step in steps(row["wrapped"])] == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model", "a Net is not legal"),
        ("level", "full, light"),
        ("every", "integer >= 1"),
        ("max_steps", "integer >= 1"),
        ("wrap", "level='full' only"),
        ("frozen", "11 parameters require grad, DDP was made with 12"),
        ("nested", "being recorded already"),
        ("exists", "exists already"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(name: str, words: str, ranks: Answers) -> None:
    for answers in ranks:
        assert words in answers["arguments"][name]


def test_a_full_disk_does_not_stop_training(ranks: Answers, folder: Path) -> None:
    for rank, answers in enumerate(ranks):
        row = answers["full_disk"]
        assert row["equal"]
        assert len(row["warned"]) == 1
        assert f"rank-{rank}.jsonl: recording stops here" in row["warned"][0]
    recording = load_recording(folder / "full_disk")
    assert [rank.torn for rank in recording.ranks] == [True, True]
    assert [len(rank.steps) for rank in recording.ranks] == [1, 1]


def test_a_workload_and_its_buckets_come_out_of_it(folder: Path) -> None:
    recording = load_recording(folder / "gradients" / "plain")
    assert (recording.world_size, recording.missing_ranks) == (2, ())
    workload = workload_of(recording)
    assert workload.ready_includes == ("copy_in", "launch", "interference")
    assert len(workload.samples) == 16
    assert [buffer.dtype for buffer in workload.buffers] == ["float32", "int64"]
    buckets = measured_of(recording)["buckets"]
    assert [bucket["index"] for bucket in buckets] == [0, 1]
    assert all(sum(bucket["last_arriver"].values()) == bucket["steps"] == 16 for bucket in buckets)


@pytest.mark.slow
def test_a_killed_rank_leaves_readable_files(tmp_path: Path) -> None:
    assert [code for code, _ in run(tmp_path, "killed")] == [0, -signal.SIGKILL]
    answer = json.loads((tmp_path / "answers-0.json").read_text())["killed"]
    assert "closed by peer" in answer["reason"] or "reset by peer" in answer["reason"]
    recording = load_recording(tmp_path / "killed")
    assert [[step.step for step in rank.steps] for rank in recording.ranks] == [[1, 2, 3, 4]] * 2
