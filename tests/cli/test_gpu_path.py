"""A GPU user's way through the commands, on files as 2 hosts of 8 GPUs write them (``tests.gpu_files``)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app import launch
from sim.autotuner.loop import predict
from sim.formats.documents import load
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from tests.app.conftest import is_clean
from tests.commands import bucketsim
from tests.effort import PATIENCE_S
from tests.gpu_files import (
    KINDS,
    RANKS,
    WARMUP,
    GpuJob,
    hook_order,
    layout,
    write_link,
    write_recording,
    write_traces,
)

FEW = 26  # steps: 11 of warm-up, and enough of both kinds after it


def ran(*words: object) -> Any:
    """What a command that must succeed says as JSON."""
    said = bucketsim(*words, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a plain job, imported with its link's log, and what ``tune`` makes of them."""
    folder = tmp_path_factory.mktemp("gpus")
    job = replace(KINDS["plain"], steps=FEW)
    write_recording(folder / "recording", job)
    write_link(folder / "all_reduce_perf.txt", job)
    ran("import", "auto", folder / "recording", folder / "all_reduce_perf.txt", "-o", folder / "imported")
    return folder


def files_of(folder: Path) -> tuple[Any, ...]:
    """What commands are given of an import."""
    return folder / "imported" / "workload.json", "--hardware", folder / "imported" / "hardware.json"


def imported(folder: Path, job: GpuJob) -> tuple[Workload, Measurement]:
    """A job's recording, written and imported."""
    write_recording(folder / "recording", job)
    ran("import", "recording", folder / "recording", "-o", folder / "imported")
    (run,) = (folder / "imported").glob("measurement-*.json")
    return sim.load_workload(folder / "imported" / "workload.json"), load(run, Measurement)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_job_is_read_as_it_ran(kind: str, tmp_path: Path) -> None:
    job = replace(KINDS[kind], steps=FEW)
    workload, run = imported(tmp_path, job)
    told, asked, is_bare = workload.provenance, run.asked, job.measures_plain or job.micro_batches > 1
    assert (told["backend"], told["device_type"], told["world_size"]) == ("nccl", "cuda", RANKS)
    assert (run.backend, run.world_size, told["missing_ranks"]) == ("nccl", RANKS, [])
    assert told["dropped_warmup_steps"] == WARMUP
    assert workload.order() == tuple(hook_order(job))  # also where one kernel made several ready
    assert workload.ready_includes == (() if is_bare else ("copy_in", "launch", "interference"))
    if is_bare:  # DDP's copies lie between them elsewhere
        assert len({one.ready_ns for one in workload.gradients}) < len(hook_order(job))
    assert [one.ready_ns is None for one in workload.gradients] == [name in job.never for name in job.names]
    assert run.observed == layout(job)
    assert asked.settings.get("accumulation_steps", 1) == job.micro_batches
    assert asked.ddp_kwargs.get("find_unused_parameters", False) == bool(job.never)
    assert bool(workload.extensions) == job.compiled
    assert [one.num_bytes for one in workload.buffers] == [job.buffers] * bool(job.buffers)
    serial = [one for one in told["doubtful"] if "CUDA_DEVICE_MAX_CONNECTIONS" in one]
    assert len(serial) == len(job.environment)
    assert told["rank"] == 11  # the slowest


def test_the_loop_of_the_readme(here: Path) -> None:
    """Import, tune, simulate, sweep, export: the recorded step is met, and the gain is of the step's size."""
    files = files_of(here)
    answer = ran("tune", *files, "-o", here / "best.json")
    best = sim.load_assignment(here / "best.json")
    assert best.made_for.world_size == RANKS
    recorded = load(next((here / "imported").glob("measurement-*.json")), Measurement)
    step = sorted(one.step_ns for one in recorded.iterations)[len(recorded.iterations) // 2]
    assert answer["baseline"]["step_ns"] == pytest.approx(step, rel=0.03)
    simulated = ran("simulate", *files)
    assert simulated["step_ns"] == pytest.approx(step, rel=0.03)
    rows = ran("sweep", *files, "--caps", "1,25", "--bandwidth", "1,2")
    assert len(rows["rows"] if isinstance(rows, dict) else rows) == 6  # DDP's default is one of them
    snippet = bucketsim("export", files[0], "--assignment", here / "best.json", "--as", "snippet")
    assert snippet.code == 0
    assert "DistributedDataParallel" in snippet.out or "sim.apply" in snippet.out


def test_what_is_not_to_be_relied_on_is_said_once_and_to_the_point(here: Path) -> None:
    """A link that the recorded step refutes, and a curve that nccl-tests can measure and calibrate cannot."""
    link = sim.load_hardware(here / "imported" / "hardware.json")
    curve = tuple(replace(one, duration_ns=30 * one.duration_ns) for one in link.all_reduce)
    (here / "slow.json").write_text(sim.to_text(replace(link, all_reduce=curve)))
    job = here / "imported" / "workload.json"
    said = bucketsim("simulate", job, "--hardware", here / "slow.json")
    assert said.code == 0
    assert (said.out + said.err).count("cannot come from it") == 1
    assert "doubtful: " not in said.err  # such as how well the factors of a link are known that is another
    assert "held to the job's own recorded step" not in said.out
    said = bucketsim("simulate", job, "--hardware", here / "slow.json", "--policy", "fully_shard")
    assert said.code != 0
    assert "all_gather_perf of nccl-tests" in said.err
    assert "calibrate" not in said.err


def test_a_replay_of_other_ranks_says_how_to_ask_for_the_jobs_own(here: Path) -> None:
    files = files_of(here)
    said = bucketsim("validate", *files, "-o", here / "replayed")
    assert (said.code, (here / "replayed").exists()) == (1, False)
    assert "--ranks 16, and --prepare" in said.err
    said = bucketsim("validate", *files, "--ranks", RANKS, "--prepare", "-o", here / "replayed")
    assert said.code == 0, said.err
    assert "--nodes HOSTS --ntasks-per-node RANKS_PER_HOST --gpus-per-node RANKS_PER_HOST" in said.out
    assert json.loads((here / "replayed" / "job.json").read_text())["carrier"]["device"] == "cuda"


def test_the_recording_is_followed_live(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = sim.follow(here / "recording").refresh(60)
    assert (len(followed.ranks), followed.faults, followed.warmup_steps) == (RANKS, (), WARMUP)
    write_recording(tmp_path / "watched" / "run", replace(KINDS["mixed"], steps=45, measures_plain=False))
    followed = sim.follow(tmp_path / "watched" / "run").refresh(60)
    window = sim.live_window(followed)
    assert window is not None
    recorded = sim.job_in_recording(window)
    told = recorded.hardware.provenance
    assert (told["backend"], told["device_type"]) == ("nccl", "cuda")
    assert recorded.hardware.world_size == RANKS
    report = sim.judge_live(followed, window, recorded)
    assert abs(report.unseen.median_error) < 0.03
    monkeypatch.setattr("sys.argv", ["main.py", "--watch", str(tmp_path / "watched")])
    page = AppTest.from_file(str(launch.MAIN), default_timeout=PATIENCE_S).run()
    assert is_clean(page)
    said = " ".join(one.value for one in [*page.markdown, *page.caption, *page.info, *page.warning])
    assert "step 45" in said.lower()  # running, or with nothing new: as old as its files are by now


def test_autotunes_first_rank_predicts_from_the_files_of_all(here: Path) -> None:
    wire = sim.load_hardware(here / "imported" / "hardware.json")
    link = {"all_reduce": tuple(one for one in wire.all_reduce if one.num_bytes >= 16 << 10)}
    found = predict(here / "recording", link, layout(KINDS["plain"]))
    assert found.assignment.bucket_indices is not None
    assert 0 <= found.gain.gain_ns < 0.2 * found.baseline.step_ns
    assert found.baseline.step_ns - found.baseline.exposed_comm_ns < found.report.step_ns


@pytest.mark.parametrize("backend", ["nccl", "undefined", "cpu:gloo,cuda:nccl"])
def test_a_profilers_trace_closes_the_loop_too(backend: str, tmp_path: Path) -> None:
    traces = write_traces(tmp_path / "traces", backend)
    ran("import", "auto", *traces, "-o", tmp_path / "imported")
    files = files_of(tmp_path)
    told = sim.load_workload(files[0]).provenance
    assert (told["backend"], told["device_type"]) == ("nccl", "cuda")
    assert ran("simulate", *files)["step_ns"] > 0
