"""validate and record take the device of the job, as far as this machine has it, and say which."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from sim.errors import ReplayError
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.recorder import profile
from sim.recorder.factory import load_factory
from sim.recorder.profile import record as record_step
from sim.validator import replay
from sim.validator.jobs import ReplayJob, read_job
from tests.commands import Said, bucketsim
from tests.dist.starting import forked_to_their_ends

FACTORY = "tests.dist.factories:regression"
WIDTH = ("--arg", "width=32")
LINK = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=10**6),))


@pytest.fixture(scope="module")
def recorded() -> Workload:
    made = load_factory(FACTORY, arguments={"width": 32})
    return record_step(made, name="regression", repeats=3)


@pytest.fixture
def files(recorded: Workload, tmp_path: Path) -> Path:
    """Workloads recorded on each device, a link, and an assignment made for 16 ranks."""
    on_gpu = replace(
        recorded,
        provenance={**recorded.provenance, "device": "cuda:3"},
        gradients=tuple(replace(one, device="cuda:3") for one in recorded.gradients),
    )
    of_sixteen = sim.assign(recorded, bucket_cap_mb=0.005)
    assert of_sixteen.made_for is not None
    of_sixteen = replace(of_sixteen, made_for=replace(of_sixteen.made_for, world_size=16))
    made: dict[str, Any] = {"cpu": recorded, "gpu": on_gpu, "link": LINK, "best": of_sixteen}
    for name, noun in made.items():
        (tmp_path / f"{name}.json").write_text(sim.to_text(noun))
    return tmp_path


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What ranks would be started for, in place of starting them: device and backend."""
    seen: list[tuple[str, str]] = []

    def run_ranks(place: Any, job: ReplayJob, *_: Any) -> None:
        seen.append((job.carrier.device, job.carrier.groups))
        raise ReplayError("planted")

    monkeypatch.setattr(replay, "run_ranks", run_ranks)
    return seen


def gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def validate(folder: Path, workload: str, *more: object) -> Said:
    given = [folder / f"{workload}.json", "--hardware", folder / "link.json", "-o", folder / "out"]
    return bucketsim("validate", *given, "--caps", "0.01", "--rounds", "1", *more)


NCCL, GLOO = ("cuda", "cpu:gloo,cuda:nccl"), ("cpu", "gloo")


@pytest.mark.parametrize(
    ("workload", "here", "more", "order"),
    [
        ("cpu", 0, (), GLOO),
        ("cpu", 8, (), GLOO),  # the job computes on the CPU, whatever else there is
        ("gpu", 8, (), NCCL),
        ("gpu", 1, (), GLOO),  # two ranks
        ("gpu", 0, (), GLOO),
        ("gpu", 8, ("--device", "cpu"), GLOO),
        ("gpu", 8, ("--backend", "gloo"), GLOO),
        ("cpu", 8, ("--model", FACTORY, *WIDTH), GLOO),
        ("gpu", 8, ("--model", FACTORY, *WIDTH), NCCL),
        ("gpu", 0, ("--model", FACTORY, *WIDTH, "--device", "cpu"), GLOO),
        ("gpu", 8, ("ab", FACTORY, *WIDTH), NCCL),
    ],
)
def test_ranks_run_where_the_job_does(
    workload: str,
    here: int,
    more: tuple[str, ...],
    order: tuple[str, str],
    files: Path,
    ordered: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(here, monkeypatch)
    inputs = ("--workload", files / f"{workload}.json", "--hardware", files / "link.json")
    said = bucketsim(*more, *inputs) if "ab" in more else validate(files, workload, *more)
    assert ordered == [order], said.err
    is_told = "--device" not in more and workload == "gpu"
    assert ("device: " in said.err) == is_told


@pytest.mark.parametrize("command", ["ab", "validate"])
def test_a_model_of_a_gpu_job_is_not_run_on_a_cpu_unasked(
    command: str, files: Path, ordered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(0, monkeypatch)
    job = files / "gpu.json"
    words = {"ab": ("ab", FACTORY, "--workload", job), "validate": ("validate", job, "--model", FACTORY)}
    said = bucketsim(*words[command], "--hardware", files / "link.json", *WIDTH, "-o", files / "out")
    assert (said.code == 0, ordered) == (False, [])
    assert "--device cpu" in said.err


def test_where_nothing_is_known_a_model_runs_on_the_gpu_there_is(
    files: Path, ordered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for here, order in ((0, GLOO), (2, NCCL)):
        gpus(here, monkeypatch)
        ordered.clear()
        best = ["--assignment", files / "best.json"]
        said = bucketsim("ab", FACTORY, *WIDTH, *best, "--rounds", "1")
        assert ordered == [order]
        assert "best: made for 16 ranks, and run on 2" in said.err


def test_record_takes_the_gpu_there_is(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def record(*_: Any, device: str, **__: Any) -> Workload:
        asked.append(device)
        return sim.load_workload(files / "cpu.json")

    monkeypatch.setattr(profile, "record", record)
    for here in (0, 1):
        gpus(here, monkeypatch)
        assert bucketsim("record", FACTORY, *WIDTH, "-o", files / f"w{here}.json").code == 0
    assert bucketsim("record", FACTORY, *WIDTH, "--device", "cpu", "-o", files / "w2.json").code == 0
    assert asked == ["cpu", "cuda", "cpu"]


def test_bf16_over_nccl_is_taken_and_what_only_a_gpu_refuses_comes_before_the_record(
    files: Path, recorded: Workload, ordered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2, monkeypatch)
    hooked = files / "hooked.json"
    hooked.write_text(sim.to_text(sim.assign(recorded, comm_hook="bf16_compress")))
    model = ("--model", FACTORY, *WIDTH)
    validate(files, "gpu", *model, "--assignment", hooked)
    assert ordered == [NCCL]
    assert (files / "out").exists()
    adding = files / "adding.json"
    adding.write_text(sim.to_text(sim.assign(recorded, set_to_none=False)))
    said = validate(files, "gpu", "--assignment", adding, "-o", files / "other")
    assert said.code != 0
    assert not (files / "other").exists()
    assert len(ordered) == 1


@pytest.mark.parametrize("asked", [(), ("--device", "cuda")])
def test_a_job_for_other_hosts_says_its_device_and_asks_for_their_gpus(
    asked: tuple[str, ...], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared where no GPU is, without a workload: the CPU is taken, and that is said."""
    gpus(0, monkeypatch)
    order = ["ab", FACTORY, *WIDTH, "--assignment", files / "best.json"]
    said = bucketsim(*order, *asked, "--ranks", "16", "--prepare", "-o", files / "ab")
    assert said.code == 0, said.err
    carrier = read_job(files / "ab" / "job.json")[0].carrier
    assert (carrier.device, carrier.groups) == (NCCL if asked else GLOO)
    assert ("device: cpu" in said.err) == (not asked)
    assert ("--gpus-per-node" in said.out) == bool(asked)


def test_calibrate_measures_no_more_than_a_workload_sends(files: Path, recorded: Workload) -> None:
    said = bucketsim("calibrate", "--prepare", "--workload", files / "gpu.json", "-o", files / "link")
    assert said.code == 0, said.err
    (*_, largest) = json.loads((files / "link" / "job.json").read_text())["sizes"]
    assert recorded.total_bytes <= largest < max(2 * recorded.total_bytes, 4097)


@pytest.mark.parametrize(
    ("here", "asked", "ordered"),
    [
        (8, (), NCCL),
        (0, (), GLOO),
        (0, ("--device", "cuda"), NCCL),
        (8, ("--device", "cpu"), GLOO),
        (8, ("--backend", "gloo"), ("cuda", "gloo")),
    ],
)
def test_calibrate_measures_between_gpus_where_they_are(
    here: int,
    asked: tuple[str, ...],
    ordered: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(here, monkeypatch)
    said = bucketsim("calibrate", "--ranks", "16", "--prepare", "-o", tmp_path / "link", *asked)
    assert said.code == 0, said.err
    carrier = read_job(tmp_path / "link" / "job.json")[0].carrier
    assert (carrier.device, carrier.groups) == ordered
    assert ("device:" in said.err) == (asked in ((), ("--backend", "gloo")))


@pytest.mark.dist
@pytest.mark.slow
def test_an_ab_test_is_prepared_here_and_run_by_others(files: Path) -> None:
    out = files / "ab"
    best = files / "best.json"
    inputs = ["--workload", files / "cpu.json", "--hardware", files / "link.json", "--assignment", best]
    order = ["ab", FACTORY, *inputs, *WIDTH, "--rounds", "4", "--samples", "5"]
    said = bucketsim(*order, "--prepare", "-o", out)
    assert said.code == 0, said.err
    assert "srun --ntasks 2" in said.out
    assert bucketsim("gather", out).code != 0  # nothing has run
    assert [code for code, _ in forked_to_their_ends([out, out])] == [0, 0]
    said = bucketsim("gather", out, "--json")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert (document["kind"], document["world_size"], document["samples_per_step"]) == ("ab", 2, 10)
    assert document["predicted_gain_ns"] is not None
    assert json.loads((out / "ab.json").read_text()) == document
