"""From one recording and one link every way to ask gives the same buckets and the same gain."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sim
from app import playing, sources
from app.playing import Choice, round_cap_mb
from app.views.tune import answer_sentence
from sim.autotuner import loop
from sim.costs.doubts import doubts_about_step
from sim.formats.record_files import recorded_step
from sim.formats.recordings import load_recording
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.truth.fit import apply_factor
from sim.truth.recorded_job import RecordedJob, held_to, job_in_recording
from sim.validator.candidates import standing_candidates
from tests.app.conftest import MS, make_hardware
from tests.app.test_live import COUNT, Job
from tests.commands import bucketsim
from tests.effort import IS_WHOLE

PAIRS = tuple((index, index - 1) for index in range(COUNT - 1, 0, -2))

# How a job runs: what its recording's header says, how it trains, and what its prediction has to know of it.
Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def ddp(name: str, value: bool = True, **train: Any) -> Case:
    return {"ddp": {name: value}}, train, {name: value}


_TWICE = {"accumulation_steps": 2, "no_sync": False}
CASES: dict[str, Case] = {
    "plain": ({}, {}, {}),
    "accumulation": ({}, {"micro_batches": 3}, {"accumulation_steps": 3}),
    "each reduces": ({}, {"micro_batches": 2, "each_reduces": True}, _TWICE),
    "unused": ddp("find_unused_parameters", unused=(3,)),
    "static graph": ddp("static_graph"),
    "fp16": ({"comm_hook": "fp16_compress_hook"}, {}, {"comm_hook": "fp16_compress"}),
}
if IS_WHOLE:  # switches that decide less
    CASES |= {"views": ddp("gradient_as_bucket_view"), "no broadcasts": ddp("broadcast_buffers", False)}


class Recorded(NamedTuple):
    """A recording, its import, a machine, the switches its prediction has to know, and what tune says."""

    recording: Path
    workload_file: Path
    hardware_file: Path
    workload: Workload
    hardware: Hardware
    step: Measurement
    switches: dict[str, Any]
    job: RecordedJob
    asked: Recommendation

    def page(self, hardware: Hardware) -> playing.Inputs:
        """What the dashboard asks about with this link."""
        job = playing.held(playing.Inputs(workload=self.workload, hardware=hardware), self.step)
        return playing.Inputs(workload=job.workload, hardware=job.hardware)


@pytest.fixture(params=CASES, scope="module")
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    (header, train, switches), at = CASES[request.param], tmp_path_factory.mktemp("recorded")
    job = Job(at / "rec", **header).layout(PAIRS).train(40, **train)
    file, hardware = at / "imp" / "workload.json", make_hardware()
    (at / "hardware.json").write_text(sim.to_text(hardware))
    bucketsim("import", "recording", str(job.folder), "-o", str(at / "imp"))
    workload, step = sim.load_workload(file), recorded_step(file)
    assert step is not None
    its = held_to(workload, hardware, step)
    asked = sim.tune(its.workload, its.hardware)
    return Recorded(job.folder, file, at / "hardware.json", workload, hardware, step, switches, its, asked)


def laid_out(job: RecordedJob, buckets: Sequence[tuple[int, ...]]) -> Assignment:
    """These buckets with the job's switches."""
    return as_the_job(job.workload, Assignment(bucket_indices=tuple(buckets)))


def told(answer: Recommendation) -> tuple[Any, ...]:
    gain = answer.gain
    return answer.assignment, answer.baseline.step_ns, gain.gain_ns, gain.low_ns, gain.high_ns, answer.setting


def test_the_import_says_how_the_job_ran_and_a_given_switch_goes_before(recorded: Recorded) -> None:
    workload, asked, job = recorded.workload, recorded.step.asked, recorded.job
    assert (workload.switches, workload.job.bucket_indices) == (recorded.switches, PAIRS)
    assert asked.ddp_kwargs | asked.settings == recorded.switches
    views = "gradient_as_bucket_view"
    other = replace(job, workload=job.workload.with_switches({views: True}))
    assert laid_out(job, PAIRS).ddp_kwargs.get(views) is recorded.switches.get(views)
    assert laid_out(other, PAIRS).ddp_kwargs[views] is True
    assert sim.assign(other.workload).ddp_kwargs[views] is True


def test_all_ways_to_ask_give_one_answer(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware, job = recorded.hardware, recorded.job
    assert job.own is not None
    asked = recorded.asked
    expected = told(asked)
    assert asked.gain.gain_ns == asked.baseline.step_ns - asked.report.step_ns
    gain = sim.gain(job.workload, job.hardware, as_the_job(job.workload, asked.assignment))
    assert (
        replace(gain, sentence=asked.gain.sentence) == asked.gain
    )  # whose words know of no other candidates
    assert sim.gain(job.workload, job.hardware, asked.assignment) == gain
    # what is best by the times as given; the answer may be another one of equal steps
    assert sim.best(job.workload, job.hardware) == asked.families["bucket_indices"].assignment

    recording = load_recording(recorded.recording)
    in_memory = job_in_recording(recording, hardware)
    assert told(in_memory.tune(PAIRS)) == expected

    layout = recording.ranks[0].layouts[-1]
    live = sim.job_in_recording(recording, hardware).tune(layout.bucket_indices)
    assert told(live) == expected

    monkeypatch.setattr(loop, "_hardware", lambda recording, link: hardware)
    assert told(loop.predict(recorded.recording, {}, PAIRS)) == expected

    page = recorded.page(hardware)
    step = sources.Given(inputs=page, record="its very step", job=recorded.job)
    assert sources.measured_run(sources.Library(workloads={}, hardware={}, records={}), step) is None
    assert told(playing.tune(page)) == expected
    answer = playing.recommended(page, Choice(pick="default"), playing.tune(page)).report.step_ns
    assert (asked.baseline.step_ns - answer, answer) == (asked.setting.saved_ns, asked.setting.step_ns)
    if asked.setting.cap_mb is not None:
        assert round_cap_mb(page, Choice(pick="default")) == asked.setting.cap_mb


@pytest.mark.parametrize("recorded", ["plain"], indirect=True)
def test_no_way_to_ask_tells_a_gain_where_a_step_refutes_the_link(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link 50 times as slow as the one that gave the recorded step."""
    hardware = apply_factor(recorded.hardware, "curve", 50.0)
    job = held_to(recorded.workload, hardware, recorded.step)
    assert job.own is not None
    (why,) = doubts_about_step(job.hardware)
    asked = sim.tune(job.workload, job.hardware)
    assert (asked.gain.refuted, asked.gain.gain_ns) == (True, 0)
    assert why in asked.gain.sentence
    assert asked.assignment.bucket_indices == PAIRS
    apart = laid_out(job, [(index,) for index in range(COUNT)])
    assert sim.gain(job.workload, job.hardware, apart).refuted

    recording = load_recording(recorded.recording)
    layout = recording.ranks[0].layouts[-1]
    live = sim.job_in_recording(recording, hardware).tune(layout.bucket_indices)
    assert live.gain.refuted
    assert why in live.gain.sentence

    monkeypatch.setattr(loop, "_hardware", lambda recording, link: hardware)
    found = loop.predict(recorded.recording, {}, PAIRS)
    assert why in found.gain.sentence
    assert (found.gain.gain_ns, found.assignment.bucket_indices) == (0, PAIRS)
    assert found.setting.pick == "default"

    page = recorded.page(hardware)
    for options in ((), (("static_graph", True),)):
        answer = playing.tune(playing.under(page, options))
        assert answer.setting.pick == "default"
        assert why in answer_sentence(answer)

    slow = recorded.hardware_file.with_name("slow.json")
    slow.write_text(sim.to_text(hardware))
    files = (str(recorded.workload_file), "--hardware", str(slow))
    said = bucketsim("tune", *files).out.splitlines()
    assert why in said[1]
    assert "saves" not in " ".join(said[1:4])
    exported = bucketsim("export", *files, "--as", "assignment")
    assert why in exported.err
    assert json.loads(exported.out)["bucket_indices"] == [*map(list, PAIRS)]


def test_commands_ask_about_the_job_as_it_ran(recorded: Recorded, tmp_path: Path) -> None:
    job = recorded.job
    files = (str(recorded.workload_file), "--hardware", str(recorded.hardware_file))
    answer = json.loads(bucketsim("tune", *files, "--json").out)
    asked = recorded.asked
    assert answer["gain"]["gain_ns"] == asked.gain.gain_ns
    assert answer["setting"] == asdict(asked.setting)
    assert answer["assignment"]["bucket_indices"] == [*map(list, asked.assignment.bucket_indices)]
    exported = json.loads(bucketsim("export", *files, "--as", "assignment").out)
    assert exported["bucket_indices"] == answer["assignment"]["bucket_indices"]
    kwargs = answer["assignment"]["ddp_kwargs"] | recorded.switches
    assert exported["ddp_kwargs"] | exported["settings"] == kwargs
    used = tmp_path / "used.json"
    used.write_text(sim.to_text(laid_out(job, PAIRS)))
    told_step = json.loads(bucketsim("simulate", *files, "--assignment", str(used), "--json").out)
    assert told_step["step_ns"] == job.own.step_ns - job.own.recorder_ns
    default = json.loads(bucketsim("simulate", *files, "--json").out)
    rows = json.loads(bucketsim("sweep", *files, "--caps", "1", "--json").out)["rows"]
    assert rows[0]["step_ns"] == default["step_ns"]


@pytest.mark.parametrize("extra_ns", [0, 8 * MS, 40 * MS])
def test_what_is_left_of_a_step_counts_once(recorded: Recorded, extra_ns: int) -> None:
    """However much of a step is nobody's, the recorded buckets give the recorded step, whatever the job."""
    steps = tuple(replace(one, step_ns=one.step_ns + extra_ns) for one in recorded.step.iterations)
    longer = replace(recorded.step, iterations=steps)
    own = sim.own_step(recorded.workload, recorded.hardware, longer)
    assert longer.asked is not None
    step = sim.summarize(sim.simulate(own.workload, own.hardware, longer.asked)).step_ns
    assert step == own.step_ns - own.recorder_ns
    assert own.recorder_ns <= MS // 100


def test_all_that_is_replayed_has_the_jobs_switches(recorded: Recorded) -> None:
    job = recorded.job
    first, *others = job.workload.gradients
    small = replace(job.workload, gradients=(replace(first, num_bytes=1024, shape=(256,)), *others))
    for candidate in standing_candidates(small, [4.0], as_the_job(small, Assignment(bucket_indices=PAIRS))):
        given = candidate.assignment.ddp_kwargs | candidate.assignment.settings
        assert recorded.switches.items() <= given.items(), candidate.name
        sim.simulate(small, job.hardware, candidate.assignment)
