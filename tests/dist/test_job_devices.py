"""Commands that run ranks take the device of the job, as far as this machine has it, and say which."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch

import sim
from sim.errors import ReplayError
from sim.nouns.workload import Workload
from sim.recorder import training_step
from sim.recorder.models import load_factory
from sim.recorder.training_step import record as record_step
from sim.validator import calibrate, replay
from sim.validator.jobs import CalibrationJob, Carrier, ReplayJob, read_job
from sim.validator.ranks.rank import Rank
from tests.commands import bucketsim
from tests.dist.starting import FLAT, forked_to_their_ends

FACTORY = "tests.dist.factories:regression"


@pytest.fixture(scope="module")
def recorded() -> Workload:
    made = load_factory(FACTORY, arguments={"width": 32})
    return record_step(made, name="regression", repeats=3)


@pytest.fixture
def files(recorded: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: workloads recorded on each device, a link, an assignment made for 16 ranks."""
    on_gpu = replace(
        recorded,
        provenance={**recorded.provenance, "device": "cuda:3", "backend": "gloo"},
        gradients=tuple(replace(one, device="cuda:3") for one in recorded.gradients),
    )
    best = sim.assign(recorded, bucket_cap_mb=0.005)
    assert best.made_for is not None
    best = replace(best, made_for=replace(best.made_for, world_size=16))
    made: dict[str, Any] = {"cpu": recorded, "gpu": on_gpu, "link": FLAT, "best": best}
    made |= {"adding": sim.assign(recorded, set_to_none=False), "wide": replace(FLAT, world_size=16)}
    for name, noun in made.items():
        (tmp_path / f"{name}.json").write_text(sim.to_text(noun))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of ranks that would be started, in place of starting them."""
    seen: list[str] = []

    def run_ranks(place: Any, job: ReplayJob, *_: Any) -> None:
        seen.append(job.carrier.device)
        raise ReplayError("planted")

    for module in (replay, calibrate):
        monkeypatch.setattr(module, "run_ranks", run_ranks)
    return seen


def gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


AB, MODEL, CALIBRATE = f"ab {FACTORY} --arg width=32", f"--model {FACTORY} --arg width=32", "calibrate"


@pytest.mark.parametrize(
    ("workload", "here", "more", "device"),
    [
        ("cpu", 0, "", "cpu"),
        ("cpu", 8, "", "cpu"),  # the job computes on the CPU, whatever else there is
        ("gpu", 8, "", "cuda"),
        ("gpu", 1, "", "cpu"),  # two ranks
        ("gpu", 0, "", "cpu"),
        ("gpu", 8, "--device cpu", "cpu"),
        ("gpu", 8, "--backend gloo", "cpu"),
        ("cpu", 8, MODEL, "cpu"),
        ("gpu", 8, MODEL, "cuda"),
        ("gpu", 0, f"{MODEL} --device cpu", "cpu"),
        ("gpu", 8, AB, "cuda"),
        ("cpu", 8, CALIBRATE, "cpu"),
        ("gpu", 8, CALIBRATE, "cuda"),
        ("gpu", 1, CALIBRATE, "cpu"),
    ],
)
def test_ranks_run_where_the_job_does(
    workload: str, here: int, more: str, device: str, files: Path, ordered: list[str], monkeypatch: Any
) -> None:
    gpus(here, monkeypatch)
    validate = f"validate {workload}.json --hardware link.json -o out --caps 0.01 --rounds 1 {more}"
    given = f"{more} --workload {workload}.json"
    others = {AB: f"{given} --hardware link.json", CALIBRATE: f"{given} -o wire.json"}
    said = bucketsim(*others.get(more, validate).split())
    assert ordered == [device], said.err
    assert ("device: " in said.err) == ("--device" not in more and workload == "gpu")


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (0, f"{AB} --workload"),  # on the CPU a model of a GPU's is another job
        (0, f"validate {MODEL}"),
        (8, f"validate {MODEL} --box 2 --rate 1gbit"),  # whose wires NCCL does not take
        (2, "validate --assignment adding.json"),  # its kernels are in no schedule
    ],
)
def test_what_the_device_refuses_is_refused_before_there_is_a_record(
    here: int, words: str, files: Path, ordered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(here, monkeypatch)
    said = bucketsim(*words.split(), "gpu.json", "--hardware", "link.json", "-o", "out")
    assert (said.code == 0, ordered, (files / "out").exists()) == (False, [], False)
    assert ("adding to gradients" if here == 2 else "--device cpu") in said.err


def test_where_nothing_is_known_a_model_runs_on_the_gpu_there_is(
    files: Path, ordered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def record(*_: Any, device: str, **__: Any) -> Workload:
        asked.append(device)
        return sim.load_workload(files / "cpu.json")

    monkeypatch.setattr(training_step, "record", record)
    for here, device in ((0, "cpu"), (2, "cuda")):
        gpus(here, monkeypatch)
        said = bucketsim(*AB.split(), "--assignment", "best.json", "--rounds", "1")
        assert ordered.pop() == device
        assert "best: made for 16 ranks, and run on 2" in said.err
        for more in ((), ("--device", "cpu")):
            assert bucketsim("record", FACTORY, *more, "-o", f"w{here}{len(more)}.json").code == 0
        assert asked[-2:] == [device, "cpu"]
    words = f"{AB} --assignment best.json --workload cpu.json --hardware wide.json --link emulated"
    assert "made for 16" not in bucketsim(*words.split()).err  # so many has the link that is emulated


@pytest.mark.parametrize(
    ("command", "here", "device"),
    [
        (f"{AB} --assignment best.json", 0, "cpu"),  # without a GPU or a workload: the CPU, and it is said
        (f"{AB} --assignment best.json --device cuda", 0, "cuda"),
        ("calibrate", 8, "cuda"),
        ("calibrate", 0, "cpu"),
        ("calibrate --workload gpu.json", 0, "cuda"),  # its device, on whichever machine it is prepared
        ("calibrate --device cuda", 0, "cuda"),
        ("calibrate --device cpu", 8, "cpu"),
    ],
)
def test_a_job_for_other_hosts_says_its_device_and_asks_for_their_gpus(
    command: str, here: int, device: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(here, monkeypatch)
    said = bucketsim(*command.split(), "--ranks", "16", "--prepare", "-o", "job")
    assert said.code == 0, said.err
    carrier = read_job(files / "job" / "job.json")[0].carrier
    assert (carrier.device, carrier.backend) == (device, "gloo" if "gpu" in command else None)
    assert ("device: " in said.err) == ("--device" not in command)
    assert ("--gpus-per-node" in said.out) == (device == "cuda")


def test_threads_of_a_rank_are_at_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's current device is each thread's own, GPU 0 at first; one computes while ranks all-reduce."""
    main = get_ident()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3 if get_ident() == main else 0)
    rank = Rank(CalibrationJob(carrier=Carrier(device="cuda")))
    assert rank.device == torch.device("cuda:3")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: rank.device).result() == rank.device


def test_calibrate_measures_no_more_than_a_workload_sends(files: Path, recorded: Workload) -> None:
    said = bucketsim("calibrate", "--prepare", "--workload", "gpu.json", "-o", "link")
    assert said.code == 0, said.err
    (*_, largest) = json.loads((files / "link" / "job.json").read_text())["sizes"]
    assert recorded.total_bytes <= largest < max(2 * recorded.total_bytes, 4097)


@pytest.mark.dist
@pytest.mark.slow
def test_an_ab_test_is_prepared_here_and_run_by_others(files: Path) -> None:
    inputs = "--workload cpu.json --hardware link.json --assignment best.json --rounds 4 --prepare -o ab"
    said = bucketsim(*AB.split(), *inputs.split())
    assert said.code == 0, said.err
    assert "srun --ntasks 2" in said.out
    assert bucketsim("gather", "ab").code != 0  # nothing has run
    assert [code for code, _ in forked_to_their_ends([files / "ab"] * 2)] == [0, 0]
    said = bucketsim("gather", "ab", "--json")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert (document["kind"], document["world_size"]) == ("ab", 2)
    assert document["predicted_gain_ns"] is not None
    assert json.loads((files / "ab" / "ab.json").read_text()) == document
