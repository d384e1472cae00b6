"""A job that is running: predicted against measured as steps come in, and what other buckets would gain."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import launch, playing
from app.figures.records import steps_figure
from app.memo import memo
from app.sources import LIVE, Library
from app.widgets import Card, ask, chart, downloads, draw_cards, told
from app.words import counted, plain
from sim.errors import NotModelledError, SimError
from sim.live.follower import Followed
from sim.live.held import LiveReport, Unseen
from sim.live.window import CALIBRATION_STEPS
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain, Recommendation
from sim.nouns.recording import RecordedLayout, Recording, RecordingHeader
from sim.telling import tell_assumed
from sim.truth.recorded_job import RecordedJob
from sim.tuner.setting import tell_setting
from sim.units import NS_PER_S, format_ms, format_percent, format_ranks

_EVERY = {"1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "10 s": 10.0, "paused": None}
_NO_STEPS = (
    "No steps yet: waiting for `rank-<r>.jsonl` in this directory. A job writes them "
    "with `with sim.record(ddp_model, DIR):` around its training loop, on every rank."
)
_READ_S = 1.0  # of one refresh: a long file is caught up with over several
_QUIET_S, _QUIET_STEPS = 30.0, 10  # without a new step; longer where steps themselves are long
_HOW_TO_GAIN = (
    "For what other buckets would gain on this machine, measure its link: by `bucketsim calibrate --ranks "
    "{0}` (over gloo on GPUs with `--backend gloo`), or NCCL's by nccl-tests and `bucketsim import auto`."
)
_UNSEEN = (
    "Median of measured over predicted, minus 1, over all steps after the calibration window that ran with "
    "the buckets in use: +5 % took 5 % longer than predicted. None of these steps was used to predict."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the controls ask for. ``hardware`` None: the job's own collectives; 0 samples: not known."""

    watch: Path
    found: tuple[Path, ...]
    directory: Path
    hardware: Hardware | None
    samples: int


def show(watch: Path, library: Library) -> None:
    """Draw the live view of what is written to ``watch``; only its figures are drawn again by themselves."""
    found = sim.find_recordings(watch)
    if not found:
        every = _refresh(st.container())
        st.fragment(_wait, run_every=_EVERY[every])(watch)
        return
    with told():
        wanted, every = _controls(watch, list(found), library)
        st.fragment(_live, run_every=_EVERY[every])(wanted)


def is_first(watch: Path | None, library: Library) -> bool:
    """Whether a visitor is to see ``watch`` first: unless it has records of ``validate`` alone."""
    if watch is None:
        return False
    has_records = any(name.startswith(LIVE) for name in library.records)
    return not has_records or bool(sim.find_recordings(watch))


def _refresh(place: DeltaGenerator) -> str:
    """How often to look again, one of ``_EVERY``."""
    words = "How often new lines are read. Only the figures below are drawn again."
    return str(ask(place.selectbox, "Refresh every", "live_every", words, list(_EVERY), index=1))


def _wait(watch: Path) -> None:
    """Look again; the whole page comes once there is a recording."""
    if sim.find_recordings(watch):
        st.rerun()
    st.info(_NO_STEPS, icon=":material/hourglass_empty:")
    st.caption(plain(str(watch)))


def _controls(watch: Path, found: list[Path], library: Library) -> tuple[Wanted, str]:
    """Everything that can be chosen, and how often to look again."""
    names = {
        path.name or str(path) if path == watch else str(path.relative_to(watch)): path for path in found
    }
    a, b, c, d = st.columns([3, 2, 1, 1])
    words = "Directories that `sim.record` wrote to, the last written first."
    directory = names[ask(a.selectbox, "Recording", "recording", words, list(names))]
    machines = _machines(directory, library)
    words = "What an all-reduce takes: a calibrated machine, or what the job's own buckets took."
    path = machines[ask(b.selectbox, "Machine", "live_machine", words, list(machines))]
    words = "Samples in one step, over all ranks: batch per rank x ranks x micro-batches. 0: not known."
    samples = ask(c.number_input, "Samples per step", "live_samples", words, min_value=0, step=1)
    every, hardware = _refresh(d), None
    with told():  # a file that is not legal takes no figure away
        hardware = None if path is None else playing.load_hardware(path)
    given: dict[str, Any] = {"directory": directory, "hardware": hardware, "samples": int(samples)}
    return Wanted(watch=watch, found=tuple(sorted(found)), **given), every


def _machines(directory: Path, library: Library) -> dict[str, Path | None]:
    """Machines to choose from, the likeliest first; the job's own collectives have no file."""
    given = launch.settings(sys.argv[1:]).hardware
    machines: dict[str, Path | None] = {} if given is None else {f"{given.stem} (--hardware)": given}
    for folder in dict.fromkeys((directory, directory.parent)):
        for path in sorted(folder.glob("hardware*.json")):
            machines.setdefault(f"{path.stem} (beside the recording)", path)
    return {**machines, "the job's own collectives": None, **library.hardware}


@st.cache_resource(max_entries=4, show_spinner=False)
def _follower(directory: str) -> Any:
    return sim.follow(directory)  # one reader a directory for all sessions, locked


def _live(wanted: Wanted) -> None:
    """One refresh: what was read, what it says."""
    if tuple(sorted(sim.find_recordings(wanted.watch))) != wanted.found:
        st.rerun()  # another recording has come: the page is to offer it
    followed: Followed = _follower(str(wanted.directory.absolute())).refresh(_READ_S)
    state, *others = state_sentences(followed, time.time())
    st.markdown(state if state == _NO_STEPS else f"**{plain(state)}**")
    for sentence in others:
        st.caption(plain(sentence))
    if followed.faults:
        with st.expander(f"Faults in the files: {followed.fault_count}", icon=":material/error:"):
            for fault in followed.faults:
                st.markdown(f"- {plain(fault)}")
    if not followed.ranks:
        return
    ranks, hardware = followed.ranks[0].header.world_size, wanted.hardware
    if hardware is not None and hardware.world_size != ranks:
        words = (
            f"{hardware.name} is a machine of {hardware.world_size:,} ranks, and the job has {ranks:,}: "
            "nothing is predicted from it. What follows is predicted from the job's own collectives. "
        )
        st.warning(plain(words + _HOW_TO_GAIN.format(ranks)), icon=":material/warning:")
        wanted = replace(wanted, hardware=None)
    with told():
        _judged(wanted, followed)


def _judged(wanted: Wanted, followed: Followed) -> None:
    needed = min(CALIBRATION_STEPS, followed.whole_steps)
    window, header = sim.live_window(followed, needed), followed.ranks[0].header
    if window is None:
        st.info(calibrating_sentence(followed, needed))
        _tell_job(header, None)
        return
    steps = [
        (one.header.rank, [(step.step, step.started_at_ns) for step in one.steps]) for one in window.ranks
    ]
    try:
        made_from = followed.run, steps
        job = _job(made_from, wanted.hardware, lambda: sim.job_in_recording(window, wanted.hardware))
    except SimError:
        _tell_job(header, None)
        raise
    report = sim.judge_live(followed, window, job)
    first, warmup = report.calibrated[0], followed.warmup_steps
    if first > warmup + 1:
        words = f"Steps {warmup + 1:,} to {first - 1:,} took longer than those after them: warm-up"
        st.caption(f"{words}, not predicted from.")
    _cards(report)
    _sentences(report, window, job)
    words = "Measured steps over their prediction, and the error of the prediction below"
    chart(steps_figure(report), "live_steps_figure", words)
    st.caption(
        "Points: measured steps. Line: their rolling median of 50. Dashed: predicted. "
        "Shaded: the steps that the prediction was made from; it has seen none of the others."
    )
    _gain(wanted, job, followed.ranks[0].layouts, report)
    _tell_job(header, job)


@memo(16)
def _job(window: Sequence[object], machine: Hardware | None, make: Callable[[], RecordedJob]) -> RecordedJob:
    return make()


def _cards(report: LiveReport) -> None:
    now = report.layouts[-1].step_ns if report.layouts else None
    recent = format_ms(report.recent_ns) if report.recent_ns else "–"

    def off(steps: Unseen | None) -> str:  # how much longer than predicted, in the median
        return "–" if steps is None else format_percent(steps.median_error, sign=True)

    latest = "Median of the last 50 steps, of the rank that is slowest in each; loading data is not in it."
    of_window = "The same of the steps that the prediction was made from: noise, or the model's error."
    cards = [
        Card(label="Step, latest 50", value=recent, told=latest),
        Card(label="Predicted", value=format_ms(now) if now else "–"),
        Card(label="Unseen steps", value=off(report.unseen), told=_UNSEEN),
        Card(label="Calibration steps", value=off(report.window), told=of_window),
    ]
    draw_cards(cards)


def _sentences(report: LiveReport, window: Recording, job: RecordedJob) -> None:
    st.markdown(plain(unseen_sentence(report)))
    for layout in report.layouts[-1:]:
        if layout.step_ns is None:
            st.warning(plain(f"No prediction for the buckets in use: {layout.why_not}"))
    if not report.layouts:
        st.warning("The job has not said yet which buckets it has, so that nothing can be predicted.")
    for note in tell_assumed(window, job):
        st.caption(plain(note))
    if report.left_out:
        st.caption(f"{report.left_out:,} steps have another number of micro-batches and are left out.")


def _gain(wanted: Wanted, job: RecordedJob, layouts: tuple[RecordedLayout, ...], report: LiveReport) -> None:
    if not layouts:  # which is told above
        return
    st.subheader("What would other buckets gain?")
    with told():
        gain = _gain_of(job, layouts[-1].bucket_indices)
        if isinstance(gain, str):
            st.info(plain(gain))
        else:
            _show_gain(gain, report, job, wanted)


@memo(16)
def _gain_of(job: RecordedJob, buckets: tuple[tuple[int, ...], ...]) -> Recommendation | str:
    """What other buckets would save, or why that cannot be said."""
    try:
        with st.spinner("Searching for better buckets …"):
            return job.tune(buckets)
    except NotModelledError as error:  # remembered as well: each refresh would search again
        return str(error)


def _show_gain(found: Recommendation, report: LiveReport, job: RecordedJob, wanted: Wanted) -> None:
    """The gain a step against the buckets in use, what it is worth, and what to paste."""
    ranks, gain_ns, period_ns = job.hardware.world_size, found.gain.told_ns, report.period_ns
    if job.link_is_own:
        words = "A first guess: the machine is known only between the sizes of the buckets in use. "
        st.caption(words + _HOW_TO_GAIN.format(ranks))
    sentence = plain(f"The recommended buckets: {found.gain.sentence}.")
    doubt = doubt_sentence(found.gain, report)
    st.markdown(sentence if doubt else f"**{sentence}**")
    if doubt:
        st.warning(plain(doubt), icon=":material/warning:")
    if found.setting.pick == "default":
        return
    st.markdown(f"Set: {plain(tell_setting(found.setting, found.against))}.")
    cards = [Card(label="Gain a step, predicted", value=format_ms(gain_ns))]
    if period_ns is not None and period_ns > gain_ns:
        hours = "Rank-hours" if job.workload.provenance.get("clock") == "host" else "GPU-hours"
        words = "At the measured time from one step to the next: median of 200, loading data included."
        a_day = f"{ranks * 24 * gain_ns / period_ns:,.2f}"
        cards.append(Card(label=f"{hours} a day, less", value=a_day, told=words))
        if wanted.samples:
            now, then = (wanted.samples * NS_PER_S / ns for ns in (period_ns, period_ns - gain_ns))
            cards.append(Card(label="Samples a second", value=f"{now:,.1f} → {then:,.1f}", told=words))
    draw_cards(cards)
    with st.expander("Take the recommended buckets home", icon=":material/content_copy:"):
        st.code(sim.snippet(found.assignment, job.workload), language="python")
        words = "For `sim.apply`, and for `bucketsim ab`, which measures this gain."
        downloads({"Assignment JSON": (sim.to_text(found.assignment), "assignment.json", words)})


def _tell_job(header: RecordingHeader, job: RecordedJob | None) -> None:
    """What is known of the job."""
    ddp = [f"{name}={value}" for name, value in header.ddp.items() if value is not None]
    told = [
        f"{header.module}, {len(header.parameters)} parameters that require grad",
        f"{counted(header.world_size, 'rank')}, {header.backend} on {header.device}, torch {header.torch}",
        f"communication hook: {header.comm_hook or 'none'}",
        ", ".join([one for one in ddp if not one.startswith("rebuilt_buckets=")][:20]),
    ]
    told += [] if job is None else [f"predicted on {job.hardware.name}"]
    st.caption(plain("The job: " + "; ".join(filter(None, told)) + "."))


def _age(seconds: float) -> str:
    """A time that has passed: ``1.2 s``, ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{max(0.0, seconds):.{1 if seconds < 10 else 0}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _quiet_after_s(followed: Followed) -> float:
    """How long nothing new has to be there until one says so: ten steps, or 30 s."""
    starts = followed.ranks[0].steps.started_at[-50:]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    return max(_QUIET_S, _QUIET_STEPS * median(gaps) / 1e9) if gaps else _QUIET_S


def state_sentences(followed: Followed, now_s: float) -> list[str]:
    """What the job is doing, as far as its files say; the first sentence is the state."""
    if not any(len(rank.steps) for rank in followed.ranks):
        return [_NO_STEPS]
    limit = _quiet_after_s(followed)
    ages = {rank.header.rank: now_s - rank.written_at_s for rank in followed.ranks}
    newest, last = min(ages.values()), max(rank.steps.step[-1] for rank in followed.ranks if len(rank.steps))
    ends = [rank.end for rank in followed.ranks]
    if followed.unread_bytes > 1 << 20:
        told = [f"Reading: step {last:,} so far, {followed.unread_bytes / 2**20:,.0f} MiB are still to come."]
    elif all(ends):
        how = "Ended with an error" if any(end is not None and end.failed for end in ends) else "Ended"
        told = [f"{how}: the job closed its recording {_age(newest)} ago. Last step {last:,}."]
    elif newest > limit:
        why = "the recording was not closed: the job was killed, or stands still"
        told = [f"Nothing new for {_age(newest)}, and {why}. Last step {last:,}."]
    else:
        told = [f"Running: step {last:,}, {_age(newest)} ago."]
        silent = {rank: age for rank, age in ages.items() if age > limit}
        if silent:
            told.append(f"{_ranks(sorted(silent))} not written for {_age(max(silent.values()))}.")
    behind = [
        rank.header.rank for rank in followed.ranks if not len(rank.steps) or rank.steps.step[-1] < last - 10
    ]
    if behind and len(behind) < len(followed.ranks):
        told.append(
            f"{_ranks(behind)} fallen behind step {last:,}; only steps that all ranks have are shown."
        )
    if followed.first and followed.first.missing_ranks:
        told.append(f"{_ranks(followed.first.missing_ranks)} no file here: what they do is not seen.")
    if followed.fault_count:
        were = "was" if followed.fault_count == 1 else "were"
        told.append(
            f"{counted(followed.fault_count, 'fault')} {were} found in the files; damaged lines are left out."
        )
    if followed.forgotten:
        told.append(f"No longer kept: the first {followed.forgotten:,} steps.")
    return told


def _ranks(ranks: Sequence[int]) -> str:
    return f"{format_ranks(ranks).capitalize()} {'has' if len(ranks) == 1 else 'have'}"


def calibrating_sentence(followed: Followed, needed: int) -> str:
    """How many steps there are to predict from, and how many there have to be."""
    warmup = followed.warmup_steps
    done = min(int((rank.steps.step > warmup).sum()) for rank in followed.ranks)
    if done >= needed:
        more = f"the first {needed} that do not are predicted from"
        return f"Calibrating: steps still become shorter, as in warm-up; {more}."
    return f"Calibrating: {done} of {needed} steps after {warmup} of warm-up are there on all ranks."


def unseen_sentence(report: LiveReport) -> str:
    """How the prediction does on steps that it has not seen, and how its window's own ones scatter."""
    unseen, window = report.unseen, report.window
    words = "Predicted from steps {:,} to {:,}".format(*report.calibrated)
    if unseen is None:
        return f"{words}; no later step is there yet."
    off, low, high = (format_percent(x, sign=True) for x in (unseen.median_error, unseen.low, unseen.high))
    noise = ""
    if window is not None and window.low <= unseen.median_error <= window.high:
        low_own, high_own = (format_percent(x, sign=True) for x in (window.low, window.high))
        noise = f" The steps of the window scatter between {low_own} and {high_own} themselves."
    return (
        f"{words}: {format_ms(unseen.predicted_ns)} a step. {unseen.count:,} steps with the buckets in use "
        f"that the model has not seen took {format_ms(unseen.measured_ns)} in the median, {off}; nine of ten "
        f"of them are within {low} and {high} of the prediction.{noise}"
    )


def doubt_sentence(gain: Gain, report: LiveReport) -> str:
    """That the prediction is off by more than the gain; empty where it is not."""
    unseen = report.unseen
    if unseen is None or gain.told_ns <= 0 or gain.significant is False:
        return ""
    off_ns = abs(unseen.measured_ns - unseen.predicted_ns)
    if off_ns <= gain.told_ns:
        return ""
    return (
        f"Not to be relied on: the prediction of the buckets in use is off by {format_ms(off_ns)} a step, "
        f"which is more than this gain. Measure it with bucketsim ab before you change anything."
    )
