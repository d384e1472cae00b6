"""Commands that run ranks take the device of the job, as far as this machine has it, and say which."""

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
from sim.recorder.models import load_factory
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
    best = sim.assign(recorded, bucket_cap_mb=0.005)
    assert best.made_for is not None
    best = replace(best, made_for=replace(best.made_for, world_size=16))
    made: dict[str, Any] = {"cpu": recorded, "gpu": on_gpu, "link": LINK, "best": best}
    made["adding"] = sim.assign(recorded, set_to_none=False)
    for name, noun in made.items():
        (tmp_path / f"{name}.json").write_text(sim.to_text(noun))
    return tmp_path


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of ranks that would be started, in place of starting them."""
    seen: list[str] = []

    def run_ranks(place: Any, job: ReplayJob, *_: Any) -> None:
        seen.append(job.carrier.device)
        raise ReplayError("planted")

    monkeypatch.setattr(replay, "run_ranks", run_ranks)
    return seen


def gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def validate(folder: Path, workload: str, *more: object) -> Said:
    given = [folder / f"{workload}.json", "--hardware", folder / "link.json", "-o", folder / "out"]
    return bucketsim("validate", *given, "--caps", "0.01", "--rounds", "1", *more)


@pytest.mark.parametrize(
    ("workload", "here", "more", "device"),
    [
        ("cpu", 0, (), "cpu"),
        ("cpu", 8, (), "cpu"),  # the job computes on the CPU, whatever else there is
        ("gpu", 8, (), "cuda"),
        ("gpu", 1, (), "cpu"),  # two ranks
        ("gpu", 0, (), "cpu"),
        ("gpu", 8, ("--device", "cpu"), "cpu"),
        ("gpu", 8, ("--backend", "gloo"), "cpu"),
        ("cpu", 8, ("--model", FACTORY, *WIDTH), "cpu"),
        ("gpu", 8, ("--model", FACTORY, *WIDTH), "cuda"),
        ("gpu", 0, ("--model", FACTORY, *WIDTH, "--device", "cpu"), "cpu"),
        ("gpu", 8, ("ab", FACTORY, *WIDTH), "cuda"),
    ],
)
def test_ranks_run_where_the_job_does(
    workload: str,
    here: int,
    more: tuple[str, ...],
    device: str,
    files: Path,
    ordered: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(here, monkeypatch)
    inputs = ("--workload", files / f"{workload}.json", "--hardware", files / "link.json")
    said = bucketsim(*more, *inputs) if "ab" in more else validate(files, workload, *more)
    assert ordered == [device], said.err
    is_told = "--device" not in more and workload == "gpu"
    assert ("device: " in said.err) == is_told


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (0, ("ab", FACTORY, "--workload")),  # on the CPU a model of a GPU's is another job
        (0, ("validate", "--model", FACTORY)),
        (2, ("validate", "--assignment", "adding.json")),  # its kernels are in no schedule
    ],
)
def test_what_the_device_refuses_is_refused_before_there_is_a_record(
    here: int, words: tuple[str, ...], files: Path, ordered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(here, monkeypatch)
    monkeypatch.chdir(files)
    width = WIDTH if FACTORY in words else ()
    said = bucketsim(*words, "gpu.json", "--hardware", "link.json", *width, "-o", "out")
    assert (said.code == 0, ordered, (files / "out").exists()) == (False, [], False)
    assert ("--device cpu" if here == 0 else "adding to gradients") in said.err


def test_where_nothing_is_known_a_model_runs_on_the_gpu_there_is(
    files: Path, ordered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def record(*_: Any, device: str, **__: Any) -> Workload:
        asked.append(device)
        return sim.load_workload(files / "cpu.json")

    monkeypatch.setattr(profile, "record", record)
    for here, device in ((0, "cpu"), (2, "cuda")):
        gpus(here, monkeypatch)
        said = bucketsim("ab", FACTORY, *WIDTH, "--assignment", files / "best.json", "--rounds", "1")
        assert ordered.pop() == device
        assert "best: made for 16 ranks, and run on 2" in said.err
        for more in ((), ("--device", "cpu")):
            out = files / f"w{here}{len(more)}.json"
            assert bucketsim("record", FACTORY, *WIDTH, "-o", out, *more).code == 0
        assert asked[-2:] == [device, "cpu"]


@pytest.mark.parametrize(
    ("command", "here", "asked", "device"),
    [
        ("ab", 0, (), "cpu"),  # prepared where no GPU is, without a workload: the CPU is taken, and said
        ("ab", 0, ("--device", "cuda"), "cuda"),
        ("calibrate", 8, (), "cuda"),
        ("calibrate", 0, (), "cpu"),
        ("calibrate", 0, ("--device", "cuda"), "cuda"),
        ("calibrate", 8, ("--device", "cpu"), "cpu"),
    ],
)
def test_a_job_for_other_hosts_says_its_device_and_asks_for_their_gpus(
    command: str,
    here: int,
    asked: tuple[str, ...],
    device: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(here, monkeypatch)
    words = {"ab": (FACTORY, *WIDTH, "--assignment", files / "best.json"), "calibrate": ()}
    said = bucketsim(command, *words[command], *asked, "--ranks", "16", "--prepare", "-o", files / "job")
    assert said.code == 0, said.err
    assert read_job(files / "job" / "job.json")[0].carrier.device == device
    assert ("device: " in said.err) == (not asked)
    assert ("--gpus-per-node" in said.out) == (device == "cuda")


def test_calibrate_measures_no_more_than_a_workload_sends(files: Path, recorded: Workload) -> None:
    said = bucketsim("calibrate", "--prepare", "--workload", files / "gpu.json", "-o", files / "link")
    assert said.code == 0, said.err
    (*_, largest) = json.loads((files / "link" / "job.json").read_text())["sizes"]
    assert recorded.total_bytes <= largest < max(2 * recorded.total_bytes, 4097)


@pytest.mark.dist
@pytest.mark.slow
def test_an_ab_test_is_prepared_here_and_run_by_others(files: Path) -> None:
    out = files / "ab"
    best = files / "best.json"
    inputs = ["--workload", files / "cpu.json", "--hardware", files / "link.json", "--assignment", best]
    order = ["ab", FACTORY, *inputs, *WIDTH, "--rounds", "4"]
    said = bucketsim(*order, "--prepare", "-o", out)
    assert said.code == 0, said.err
    assert "srun --ntasks 2" in said.out
    assert bucketsim("gather", out).code != 0  # nothing has run
    assert [code for code, _ in forked_to_their_ends([out, out])] == [0, 0]
    said = bucketsim("gather", out, "--json")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert (document["kind"], document["world_size"]) == ("ab", 2)
    assert document["predicted_gain_ns"] is not None
    assert json.loads((out / "ab.json").read_text()) == document
