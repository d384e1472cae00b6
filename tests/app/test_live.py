"""The live view on a recording that grows, run without a browser."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from sim.errors import InputError, NotModelledError
from sim.live.follower import Followed
from sim.live.held import LiveReport
from sim.nouns.recommendation import Recommendation
from sim.nouns.recording import (
    RecordedBackward,
    RecordedBucket,
    RecordedLayout,
    RecordedParameter,
    RecordedStep,
    RecordingHeader,
)
from sim.truth.recorded_job import RecordedJob
from sim.units import transfer_ns
from tests.app.conftest import MS, cards, is_clean, make_hardware, open_page, plain, said, visit
from tests.formats.test_recordings import backward as plain_backward
from tests.formats.test_recordings import header as plain_header

COUNT, SIZE = 8, 1 << 20
ONE, TWO = ((7, 6, 5, 4, 3, 2, 1, 0),), ((7, 6, 5, 4), (3, 2, 1, 0))
EVIL = "<img src=x onerror=alert(1)>*Net*"


def header(rank: int, **changes: Any) -> RecordingHeader:
    ddp = {"gradient_as_bucket_view": False, "static_graph": False, "bucket_bytes_cap": 26214400}
    parameters = tuple(
        RecordedParameter(name=f"p{index}", shape=(512, 512), dtype="float32", num_bytes=SIZE, device="cpu")
        for index in range(COUNT)
    )
    return plain_header(rank, **{"module": EVIL, "ddp": ddp, "parameters": parameters} | changes)


def service(size: int) -> int:
    """A collective on the curve of ``make_hardware``, above 1 MiB."""
    first, last = make_hardware().all_reduce[1:]
    rise = (last.duration_ns - first.duration_ns) / (last.num_bytes - first.num_bytes)
    return round(first.duration_ns + rise * (size - first.num_bytes))


def backwards(
    random: Random, buckets: tuple[tuple[int, ...], ...], pace: float, *, are_together: bool
) -> list[RecordedBackward]:
    """Of two ranks: gradients 2 ms apart, buckets and copies one after another as ``make_hardware`` has them.

    ``are_together``: they begin a step at once, each bucket ended where the last of them ends it.
    """
    sizes = [SIZE * len(bucket) for bucket in buckets]
    backs = [transfer_ns(size, make_hardware().copy_out_bytes_per_s) for size in sizes]
    forwards, readies, launches, ends = [], [], [], []
    for slower in (0.97, 1.0):
        noise = pace * random.uniform(0.99, 1.01) * slower
        forwards.append(1000 + round(10 * MS * noise))
        readies.append(tuple(round((COUNT - index) * 2 * MS * noise) for index in range(COUNT)))
        launches.append([max(readies[-1][index] for index in bucket) for bucket in buckets])
        ends.append([launches[-1][0] + service(sizes[0])])
        for at, size in zip(launches[-1][1:], sizes[1:], strict=True):
            ends[-1].append(max(ends[-1][-1], at) + service(size))
    if are_together:
        last = [max(map(sum, zip(forwards, of_ranks, strict=True))) for of_ranks in zip(*ends, strict=True)]
        ends = [[end - forward for end in last] for forward in forwards]
    made = []
    for forward, ready, at, end in zip(forwards, readies, launches, ends, strict=True):
        carried = backward_ns = max(ready) + MS // 2
        for done, back in zip(end, backs, strict=True):
            carried = max(carried, done) + back
        rows = [
            RecordedBucket(index=place, num_bytes=size, ready_ns=start, launch_ns=start, end_ns=done)
            for place, (size, start, done) in enumerate(zip(sizes, at, end, strict=True))
        ]
        times = {"forward_start_ns": 1000, "forward_end_ns": forward, "backward_ns": backward_ns}
        made.append(plain_backward(ready, **times, sync_end_ns=carried, buckets=tuple(rows)))
    return made


class Job:
    """A made-up job of two ranks that writes as ``sim.record`` does."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.random, self.clock_ns, self.number = folder, Random(3), 10**18, 0
        folder.mkdir(parents=True, exist_ok=True)
        for rank in (0, 1):
            self.write(rank, {"kind": "recording", "schema_version": 1, **asdict(header(rank, **changes))})

    def write(self, rank: int, row: dict[str, Any]) -> None:
        with (self.folder / f"rank-{rank}.jsonl").open("a") as stream:
            stream.write(json.dumps(row, separators=(",", ":")) + "\n")

    def layout(self, buckets: tuple[tuple[int, ...], ...]) -> "Job":
        for rank in (0, 1):
            made = RecordedLayout(step=self.number + 1, bucket_indices=buckets)
            self.write(rank, {"kind": "buckets", **asdict(made)})
        self.buckets = buckets
        return self

    def train(
        self,
        count: int,
        *,
        pace: float = 1.0,
        micro_batches: int = 1,
        each_reduces: bool = False,
        unused: tuple[int, ...] = (),
    ) -> "Job":
        for _ in range(count):
            self.number += 1
            of_ranks = backwards(self.random, self.buckets, pace, are_together=micro_batches == 1)
            for rank, made in enumerate(of_ranks):
                seen = tuple(None if index in unused else t for index, t in enumerate(made.ready_ns))
                made = replace(made, ready_ns=seen)
                plain = replace(made, synchronised=False, buckets=(), sync_end_ns=made.backward_ns)
                plain = made if each_reduces else plain
                each = plain.forward_end_ns + plain.sync_end_ns
                parts = [plain] * (micro_batches - 1) + [made]
                for number, part in enumerate(parts):  # each at its own place of the step
                    begins = ("started_ns", "forward_start_ns", "forward_end_ns")
                    moved = {name: getattr(part, name) + each * number for name in begins}
                    parts[number] = replace(part, **moved)
                step = RecordedStep(
                    step=self.number,
                    started_at_ns=self.clock_ns,
                    step_ns=parts[-1].forward_end_ns + made.sync_end_ns + MS,
                    optimizer_ns=MS,
                    backwards=tuple(parts),
                )
                self.write(rank, {"kind": "step", **asdict(step)})
            self.clock_ns += 60 * MS
        return self

    def read(self) -> Followed:
        return sim.follow(self.folder).refresh(30)


def judged(job: Job, hardware: Any = None) -> tuple[LiveReport, RecordedJob]:
    followed = job.read()
    window = sim.live_window(followed)
    assert window is not None
    recorded = sim.job_in_recording(window, hardware)
    return sim.judge_live(followed, window, recorded), recorded


def off(report: LiveReport) -> float:
    """By how much unseen steps are off, in the median."""
    return abs(report.unseen.median_error)


def gain_of(job: Job, recorded: RecordedJob) -> Recommendation:
    return recorded.tune(job.read().ranks[0].layouts[-1].bucket_indices)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "watch" / "run").layout(TWO)


def test_unseen_steps_are_predicted_by_a_given_machine_and_by_the_jobs_own(job: Job) -> None:
    """The made-up steps scatter by 1 % and follow the model; copies in are part of what was recorded."""
    job.train(120)
    for hardware in (make_hardware(), None):
        report, recorded = judged(job, hardware)
        assert report.calibrated == (3, 22)
        assert off(report) < 0.01
        assert (report.unseen.count if report.unseen else 0) == 98
        assert recorded.link_is_own == (hardware is None)
    (point,) = recorded.hardware.all_reduce
    assert point.duration_ns == service(4 * SIZE)
    assert recorded.hardware.copy_out_bytes_per_s == pytest.approx(8e9, rel=0.01)


def test_micro_batches_under_no_sync_are_part_of_the_step(job: Job) -> None:
    """The workload is that of the plain backward; what the copies add comes from the machine."""
    job.train(60, micro_batches=3)
    report, recorded = judged(job, make_hardware())
    assert recorded.workload.switches == {"accumulation_steps": 3}
    assert recorded.workload.ready_includes == ()
    assert off(report) < 0.03
    job.train(5, micro_batches=2)
    assert judged(job, make_hardware())[0].left_out == 5


def test_a_new_layout_gets_a_prediction_of_its_own(job: Job) -> None:
    job.train(80).layout(ONE).train(80)
    report, _ = judged(job, make_hardware())
    first, second = (layout.step_ns for layout in report.layouts)
    assert (second or 0) > (first or 0) + MS
    assert set(report.series.predicted[:80]) == {first}
    assert set(report.series.predicted[80:]) == {second}
    assert off(report) < 0.01
    assert (report.unseen.count if report.unseen else 0) == 80


def test_of_other_sizes_the_jobs_own_collectives_say_nothing(job: Job) -> None:
    job.train(80).layout(ONE).train(80)
    report, recorded = judged(job)
    first, second = report.layouts
    assert first.step_ns is not None
    assert second.step_ns is None
    assert "these buckets have 8 MiB, and " in second.why_not
    assert "tell only what 4 MiB takes; give" in second.why_not
    assert report.unseen is None
    assert set(report.series.predicted[80:]) == {-1}
    with pytest.raises(NotModelledError, match=r"^these buckets have"):
        recorded.predict(ONE)
    answer = recorded.tune(TWO)  # what smaller ones take may be constant, or in proportion to their bytes
    assert answer.gain.significant is False
    assert answer.assignment.bucket_indices == TWO


def test_samples_and_hours_are_by_the_clock(job: Job, page: AppTest) -> None:
    """Steps begin 60 ms apart, whatever they take, as where data loading has its time between them."""
    job.layout(ONE).train(40).train(60, pace=1.25)
    (job.folder / "hardware.json").write_text(sim.to_text(make_hardware()))
    report, recorded = judged(job, sim.load_hardware(job.folder / "hardware.json"))
    assert report.period_ns == 60 * MS
    found = gain_of(job, recorded)
    gain_ns = found.gain.told_ns
    page.session_state["live_samples"] = 64
    page.run()
    shown = cards(page)
    assert shown["Samples a second"] == f"{64 / 0.06:,.1f} → {64 / (0.06 - gain_ns / 1e9):,.1f}"
    assert shown["Rank-hours a day, less"] == f"{2 * 24 * gain_ns / (60 * MS):,.2f}"


@pytest.mark.parametrize(
    "ddp", [{"find_unused_parameters": True}, {"gradient_as_bucket_view": True, "static_graph": True}, {}]
)
def test_what_is_pasted_keeps_the_jobs_switches_and_takes_the_promised_step(
    ddp: dict[str, bool], tmp_path: Path
) -> None:
    job = Job(tmp_path / "run", ddp=ddp).layout(ONE).train(30)
    _, recorded = judged(job, make_hardware())
    found = gain_of(job, recorded)
    assert found.gain.told_ns > 0
    pasted, lines = found.assignment, sim.snippet(found.assignment, recorded.workload)
    assert ddp.items() <= pasted.ddp_kwargs.items()
    assert all(f"{name}=True" in lines or f"'{name}': True" in lines for name in ddp)
    played = sim.simulate(recorded.workload, recorded.hardware, pasted)
    assert sim.summarize(played).step_ns == found.report.step_ns
    if pasted.by_keywords:  # what stock DDP makes of these very keywords
        made = sim.assign(recorded.workload, **pasted.ddp_kwargs)
        assert [*map(set, made.bucket_indices)] == [*map(set, pasted.bucket_indices)]


@pytest.mark.parametrize("name", ["gpt-13.8M-cpu", pytest.param("bert-14.0M-cpu", marks=pytest.mark.slow)])
def test_promised_buckets_are_reached_where_a_switch_moves_them(name: str) -> None:
    """With find_unused_parameters caps are counted in another order, so that keywords reach other buckets."""
    traces = Path(__file__).parents[2] / "traces"
    workload = sim.load_workload(traces / "workloads" / f"{name}.json")
    hardware = sim.load_hardware(traces / "hardware" / "box-2x4gbit.json")
    used, switched = sim.assign(workload, find_unused_parameters=True), {"find_unused_parameters": True}
    recorded = RecordedJob(workload=workload.with_switches(switched), hardware=hardware)
    found = recorded.tune(used.bucket_indices)
    switches, buckets, gain = found.assignment.ddp_kwargs, found.assignment.bucket_indices, found.gain
    assert switches["find_unused_parameters"] is True
    caps = {key: value for key, value in switches.items() if key.startswith("bucket_cap")}
    if caps:
        made = sim.assign(workload, **caps, find_unused_parameters=True)
        assert [*map(sorted, made.bucket_indices)] == [*map(sorted, buckets)]
    else:
        assert "sim.apply" in sim.snippet(found.assignment, workload)
    assert None not in (gain.low_ns, gain.high_ns)
    assert gain.low_ns <= gain.told_ns <= gain.high_ns


def test_what_cannot_be_predicted_is_refused_in_words(tmp_path: Path) -> None:
    hooked = Job(tmp_path / "hooked", comm_hook="my_hook").layout(TWO).train(30)
    with pytest.raises(NotModelledError, match="comm_hook: 'my_hook' is not modelled"):
        judged(hooked)
    plain = Job(tmp_path / "plain").layout(TWO).train(30)
    with pytest.raises(InputError, match="world_size: 4 is not legal; the job has 2 ranks"):
        judged(plain, replace(make_hardware(), world_size=4))
    compressed = Job(tmp_path / "fp16", comm_hook="fp16_compress_hook").layout(TWO).train(30)
    _, recorded = judged(compressed, make_hardware())
    assert recorded.workload.switches == {"comm_hook": "fp16_compress"}
    assert gain_of(compressed, recorded).baseline.step_ns > 0
    viewed = Job(tmp_path / "view", ddp={"gradient_as_bucket_view": True}).layout(TWO).train(30)
    _, recorded = judged(viewed)
    assert recorded.workload.switches == {"gradient_as_bucket_view": True}
    assert recorded.hardware.copy_out_bytes_per_s is None


def test_the_gain_is_that_of_the_simulated_steps(job: Job) -> None:
    job.layout(ONE).train(40)
    report, recorded = judged(job, make_hardware())
    asked = gain_of(job, recorded)
    gain = asked.gain
    found = sim.tune(recorded.workload, recorded.hardware)
    assert 0.999 < found.report.step_ns / asked.report.step_ns <= 1
    assert asked.baseline.step_ns == report.layouts[-1].step_ns
    assert None not in (gain.low_ns, gain.high_ns)
    assert 0 < gain.low_ns <= gain.told_ns <= gain.high_ns  # never outside its own interval
    assert gain.significant is not False
    best = Job(job.folder.parent / "best").layout(found.assignment.bucket_indices).train(40)
    _, recorded = judged(best, make_hardware())
    none = gain_of(best, recorded)
    assert none.gain.told_ns <= MS // 10
    assert none.gain.sentence.startswith(("no significant difference", "no contiguous assignment"))


def test_steps_that_still_become_shorter_are_not_predicted_from(job: Job, page: AppTest) -> None:
    """A warm-up of twelve steps, three times as long as those that follow."""
    job.train(12, pace=3.0).train(11)
    assert sim.live_window(job.read()) is None
    page.run()
    assert "steps still become shorter" in said(page)
    job.train(60)
    report, _ = judged(job)
    assert report.calibrated == (13, 32)
    assert off(report) < 0.05
    page.run()
    assert "Steps 3 to 12 took longer" in said(page)


@pytest.fixture
def page(job: Job, traces: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    return open_page(monkeypatch, "live", traces, "--watch", str(job.folder.parent))


def test_the_page_waits_calibrates_and_predicts(page: AppTest, job: Job) -> None:
    for rank in (0, 1):
        (job.folder / f"rank-{rank}.jsonl").rename(job.folder.parent / f"later-{rank}")
    page.run()
    assert is_clean(page)
    assert "No steps yet" in page.info[0].value
    for rank in (0, 1):
        (job.folder.parent / f"later-{rank}").rename(job.folder / f"rank-{rank}.jsonl")
    job.train(10)
    page.run()
    assert is_clean(page)
    assert "Calibrating: 8 of 20 steps after 2 of warm-up" in page.info[0].value
    job.train(60)
    page.run()
    assert is_clean(page)
    shown = cards(page)
    assert abs(float(shown["Unseen steps"].rstrip("%"))) < 1
    assert "48 steps with the buckets in use that the model has not seen" in said(page)
    assert "No machine was given" in said(page)
    assert not any(EVIL in one.value for one in [*page.markdown, *page.caption, *page.info])
    assert len(page.get("plotly_chart")) == 1


def test_an_address_that_names_a_record_shows_it_beside_a_job_that_is_watched(
    job: Job, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune's link to its record led to the job, and said that no knob has the record's name."""
    page = open_page(monkeypatch, "main", traces, "--watch", str(job.folder.parent), cap="25").run()
    (link,) = page.get("page_link")
    assert link.proto.query_string == "run=measured%2Fmade-up"
    visit(page, "validate", run="measured/made-up")
    assert is_clean(page)
    assert page.segmented_control(key="show").value == "records"
    assert page.selectbox(key="run").value == "measured/made-up"
    page.segmented_control(key="show").set_value("live").run()
    assert "No steps yet" in said(page)
    visit(page, "validate")
    assert page.segmented_control(key="show").value == "live"


def test_a_machine_that_is_not_legal_takes_no_figure_away(page: AppTest, job: Job) -> None:
    """A file beside the recording, which is chosen first: one line, and the job's own collectives."""
    (job.folder / "hardware.json").write_text("{")
    job.train(60)
    page.run()
    assert ["hardware.json: " in plain([one]) for one in page.error] == [True]
    assert "No machine was given" in said(page)
    assert len(page.get("plotly_chart")) == 1


def test_faults_and_refusals_are_one_line_each(page: AppTest, job: Job) -> None:
    job.write(0, {"kind": "<b>evil</b>"})
    job.train(40)
    page.run()
    assert is_clean(page)
    assert "1 fault was found" in said(page)
    assert not any("<b>evil" in one.value for one in [*page.markdown, *page.caption])
    hooked = Job(job.folder.parent / "hooked", comm_hook="<i>mine</i>").layout(TWO).train(40)
    assert hooked.folder.is_dir()
    page.run()
    page.selectbox(key="recording").set_value("hooked").run()
    assert not page.exception
    assert len(page.error) == 1
    assert "is not modelled here" in plain(page.error)
    assert "<i>" not in page.error[0].value
