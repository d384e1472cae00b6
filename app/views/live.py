"""A job that is running: predicted against measured as steps come in, and what other buckets would gain."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import launch, playing, sources
from app.figures.live import PART_WORDS, lateness_figure, parts_figure, steps_figure, trial_figure
from app.library import LIVE, Library
from app.memo import memo, one
from app.widgets import ask, chart, told
from app.words import capital, counted, plain
from sim.autotuner.progress import AutotuneProgress, find_autotunes
from sim.errors import NotModelledError, SimError
from sim.live.calibration import Calibration
from sim.live.follower import Followed
from sim.live.held import Drift, Lateness, LiveReport, Unseen
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain, Recommendation
from sim.nouns.recording import RecordedLayout, Recording, RecordingHeader
from sim.truth.recorded_job import RecordedJob
from sim.tuner.setting import tell_setting
from sim.units import NS_PER_S, format_ms, format_percent, format_ranks

_EVERY = {"1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "10 s": 10.0, "paused": None}
_STEPS = (10, 20, 50, 100)
_UPLOAD = "upload a hardware"
_WINDOW = "live_window"
_NO_STEPS = (
    "No steps yet: waiting for `rank-<r>.jsonl` in this directory. A job writes them "
    "with `with sim.record(ddp_model, DIR):` around its training loop, on every rank."
)
_READ_S = 1.0  # of one refresh: a long file is caught up with over several
_QUIET_S, _QUIET_STEPS = 30.0, 10  # without a new step; longer where steps themselves are long
FEWEST_FOR_DRIFT = 40
_WORTH_A_WORD = 0.01  # of the step
_OFF = 0.1  # of the step: a prediction that is off by more does not say whether anything changed
DAY_S = 86_400
_ALIKE = 0.5  # of the unseen error: where the window's own is larger, most of it is no change
_CAUSES: dict[str, str] = {
    "before": "buffers that are broadcast before forward, or gaps between micro-batches",
    "forward": "the compute lane",
    "backward": "the compute lane",
    "sync": "the network, or a rank that comes late",
    "optimizer": "the optimizer and what runs before it, such as clipping",
}
_HOW_TO_GAIN = (
    "For what other buckets would gain on this machine, measure its link: over gloo by "
    "`bucketsim calibrate --ranks {0}`, over NCCL by nccl-tests and `bucketsim import auto`."
)
_PHASES: dict[str, str] = {
    "settling": "It waits until DDP has rebuilt its buckets.",
    "recording": "It records its own steps.",
    "link": "It measures its link between two steps.",
    "prediction": "It predicts the best buckets while it goes on.",
    "trial": "It trains with both buckets in turns.",
}
_CARD_HELP = {
    "Step, latest 50": "Measured: median of the last 50 steps, of the rank that is slowest in each. From "
    "the start of the first forward to the end of the optimizer; loading data is not in it.",
    "Predicted": "The step that the model predicts from the calibration window, for the buckets in use now.",
    "Unseen steps": "Median of measured over predicted, minus 1, over all steps after the calibration "
    "window that ran with the buckets in use: +5 % took 5 % longer than predicted (elsewhere errors are "
    "predicted over measured). None of these steps was used to predict. ",
    "Calibration steps": "The same of the calibration steps, those that the prediction was made from. What "
    "is as large here is noise, or the model's own error, and nothing that came later.",
    "Drift": "A lasting change of how long steps take: medians of ten steps each, nearly all on their side "
    "of the middle between two levels that are apart by six times their scatter. A few long steps "
    "(checkpoint, evaluation) are no drift. Changes below 1 % are not told.",
    "Last rank": "The rank that ends its backward last in so many of the latest 200 steps that it is "
    "no chance (one in a thousand, were all ranks alike): others wait for it. By the "
    "hosts' clocks; on GPUs by each rank's own time since the step began.",
    "Gain a step, predicted": "Predicted, not measured: the step of the buckets in use minus that of the "
    "recommended ones, on the same workload and machine.",
    "a day, less": "World size x predicted gain x steps a day, at the measured time from one step to "
    "the next (median of the latest 200, loading data included): what the same training takes less, "
    "each day.",
    "Samples a second": "Now: samples a step over the measured time from the start of one step to that of "
    "the next (median of the latest 200, loading data included; pauses such as "
    "checkpoints are not). Then: the same time without the predicted gain.",
    "to the end, less": "World size x predicted gain x steps still to go.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the controls ask for. ``hardware`` None: the job's own collectives; 0 samples: not known."""

    watch: Path
    found: tuple[Path, ...]
    directory: Path
    steps: int
    by_clock: bool
    hardware: Hardware | None
    samples: int
    to_go: int


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
    return not has_records or bool(sim.find_recordings(watch) or find_autotunes(watch))


def _refresh(place: DeltaGenerator) -> str:
    """How often to look again, one of ``_EVERY``."""
    words = "How often new lines are read. Only the figures below are drawn again."
    return str(ask(place.selectbox, "Refresh every", "live_every", words, list(_EVERY), index=1))


def _wait(watch: Path) -> None:
    """Look again; the whole page comes once there is a recording."""
    if sim.find_recordings(watch):
        st.rerun()
    if _autotune(watch):
        return
    st.info(_NO_STEPS, icon=":material/hourglass_empty:")
    st.caption(plain(str(watch)))


def _controls(watch: Path, found: list[Path], library: Library) -> tuple[Wanted, str]:
    """Everything that can be chosen, and how often to look again."""
    names = {
        path.name or str(path) if path == watch else str(path.relative_to(watch)): path for path in found
    }
    left, middle, right = st.columns([3, 2, 2])
    words = "Directories that `sim.record` wrote to, the last written first."
    directory = names[ask(left.selectbox, "Recording", "recording", words, list(names))]
    machines = _machines(directory, library)
    words = "What an all-reduce takes: a calibrated machine, or what the job's own buckets took."
    machine = ask(middle.selectbox, "Machine", "live_machine", words, list(machines))
    every = _refresh(right)
    of_steps = "How many steps after warm-up make the workload. All later steps are predicted unseen."
    of_axis = "Steps by their number, or by the wall clock at which they began."
    of_samples = "Samples in one step, over all ranks: batch per rank x ranks x micro-batches. 0: not known."
    of_rest = "Optimizer steps that are still to be trained. 0: not known."
    with st.expander("Window, axis, and your numbers", icon=":material/tune:"):
        a, b, c, d = st.columns(4)
        steps = ask(a.selectbox, "Calibration steps", "live_steps", of_steps, _STEPS, index=1)
        axis = ask(b.selectbox, "Axis", "live_axis", of_axis, ["step", "clock"])
        label = "Samples per step, all ranks"
        samples = ask(c.number_input, label, "live_samples", of_samples, min_value=0, step=1)
        to_go = ask(d.number_input, "Steps still to go", "live_to_go", of_rest, min_value=0, step=1000)
    wanted = Wanted(
        watch=watch,
        found=tuple(sorted(found)),
        directory=directory,
        steps=steps,
        by_clock=axis == "clock",
        hardware=_hardware(machines[machine]),
        samples=int(samples),
        to_go=int(to_go),
    )
    return wanted, every


def _machines(directory: Path, library: Library) -> dict[str, Path | None]:
    """Machines to choose from, the likeliest first; ``_UPLOAD`` and the job's own have no file."""
    given = launch.settings(sys.argv[1:]).hardware
    machines: dict[str, Path | None] = {} if given is None else {f"{given.stem} (--hardware)": given}
    for folder in dict.fromkeys((directory, directory.parent)):
        for path in sorted(folder.glob("hardware*.json")):
            machines.setdefault(f"{path.stem} (beside the recording)", path)
    return {**machines, "the job's own collectives": None, **library.hardware, _UPLOAD: Path(_UPLOAD)}


def _hardware(path: Path | None) -> Hardware | None:
    """The machine that was chosen; ``None``: the job's own, as where a file is not legal."""
    with told():
        if path == Path(_UPLOAD):
            file = sources.one_file("Hardware JSON", "up_live")
            if file is not None:
                return _parse_hardware(sources.content_digest(file), file.name, file.getvalue)
        elif path is not None:
            return playing.load_hardware(path)
    return None


@memo(8)
def _parse_hardware(same: str, name: str, content: Callable[[], bytes]) -> Hardware:
    with st.spinner("Reading the upload …"):
        return one(sim.parse_hardware(content(), name))


@st.cache_resource(max_entries=4, show_spinner=False)
def _follower(directory: str) -> Any:
    return sim.follow(directory)  # one reader a directory for all sessions, locked


def _live(wanted: Wanted) -> None:
    """One refresh: what was read, what it says."""
    if tuple(sorted(sim.find_recordings(wanted.watch))) != wanted.found:
        st.rerun()  # another recording has come: the page is to offer it
    _autotune(wanted.watch)
    followed: Followed = _follower(str(wanted.directory.absolute())).refresh(_READ_S)
    state, *others = state_sentences(followed, time.time())
    st.markdown(f"**{plain(state)}**" if followed.step_count else state)
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
    # The steps to predict from: the first ones, or those that were latest when the button was pressed.
    chosen = _chosen(followed)
    window = chosen or sim.live_window(followed, min(wanted.steps, followed.whole_steps))
    layouts = followed.ranks[0].layouts
    if window is None:
        st.info(calibrating_sentence(followed, min(wanted.steps, followed.whole_steps)))
        _job(followed, None)
        return
    steps = [
        (one.header.rank, [(step.step, step.started_at_ns) for step in one.steps]) for one in window.ranks
    ]
    cuts = [(one.step, one.bucket_indices) for one in layouts]
    try:
        calibration = _calibrate(
            (followed.run, steps, cuts),
            wanted.hardware,
            lambda: sim.calibrate_live(window, layouts, wanted.hardware),
        )
    except SimError:
        _job(followed, None)
        raise
    report = sim.judge_live(followed, calibration)
    if wanted.steps > followed.whole_steps:
        st.caption(
            f"Of {len(followed.ranks)} ranks {followed.whole_steps} whole steps are kept after warm-up: the "
            f"window is no longer than that."
        )
    first, warmup = calibration.first_step, followed.warmup_steps
    if chosen is None and first > warmup + 1:
        st.caption(
            f"Steps {warmup + 1:,} to {first - 1:,} took longer than those "
            f"after them: warm-up, not predicted from."
        )
    _cards(report, calibration)
    _sentences(report, calibration)
    words = "Measured steps over their prediction, and the error of the prediction below"
    chart(steps_figure(report, by_clock=wanted.by_clock), "live_steps_figure", words)
    st.caption(
        "Points: measured steps. Line: their rolling median of 50. Dashed: predicted. "
        "Shaded: the steps that the prediction was made from; it has seen none of the others."
    )
    _recalibrate(followed, wanted)
    _gain(wanted, calibration, layouts, report)
    st.subheader("Where does a step go?")
    words = "The parts of a step over time, on top of each other"
    chart(parts_figure(report, by_clock=wanted.by_clock), "live_parts_figure", words)
    st.caption(
        "Rolling medians of the parts of a step, all micro-batches together, of the rank "
        "that is slowest in it. Communication: from the end of backward to the end of DDP's "
        "synchronisation, what backward did not hide."
    )
    if report.lateness:
        st.subheader("Who do the others wait for?")
        st.markdown(plain(lateness_sentence(report.lateness)))
        words = "How often each rank ends its backward last"
        chart(lateness_figure(report.lateness), "live_late_figure", words)
    _job(followed, calibration)


@memo(16)
def _calibrate(
    window: Sequence[object], machine: Hardware | None, make: Callable[[], Calibration]
) -> Calibration:
    return make()


def _chosen(followed: Followed) -> Recording | None:
    """The latest steps as they were when the button was pressed, if it was."""
    run, window = st.session_state.get(_WINDOW, (None, None))
    return window if run == followed.run else None


def _recalibrate(followed: Followed, wanted: Wanted) -> None:
    """Take the latest steps as the window, or the first ones again."""

    def choose_latest() -> None:
        window = sim.latest_window(followed, min(wanted.steps, followed.whole_steps))
        if window is not None:
            st.session_state[_WINDOW] = (followed.run, window)

    words = "Make the workload from the latest steps instead; only steps after them count as unseen."
    label = "Predict from the latest steps"
    left, right = st.columns(2)
    left.button(label, key="live_again", help=words, on_click=choose_latest)
    if _chosen(followed) is not None:
        label = "Predict from the first steps again"
        right.button(label, key="live_first", on_click=st.session_state.pop, args=(_WINDOW, None))


def _draw_cards(cards: dict[str, str]) -> None:
    """Cards by what stands on them; help by how that ends."""
    for column, (label, value) in zip(st.columns(len(cards)), cards.items(), strict=True):
        column.metric(
            label, value, help=next(words for key, words in _CARD_HELP.items() if label.endswith(key))
        )


def _cards(report: LiveReport, calibration: Calibration) -> None:
    now = calibration.layouts[-1].parts if calibration.layouts else None

    def share(steps: Unseen | None) -> str:  # how much longer than predicted, in the median
        return "–" if steps is None else format_percent(steps.median_error, sign=True)

    cards = {
        "Step, latest 50": format_ms(report.recent_ns) if report.recent_ns else "–",
        "Predicted": format_ms(now.step_ns) if now else "–",
        "Unseen steps": share(report.unseen),
        "Calibration steps": share(report.window),
        "Drift": drift_card(report),
    }
    if report.lateness:
        first = report.lateness[0]
        cards["Last rank"] = "none" if first.is_chance else str(first.rank)
    _draw_cards(cards)


def _sentences(report: LiveReport, calibration: Calibration) -> None:
    st.markdown(plain(unseen_sentence(report)))
    if noise := noise_sentence(report):
        st.info(plain(noise), icon=":material/info:")
    sentence = plain(drift_sentence(report.drift, report))
    if report.drift is not None:
        st.warning(sentence, icon=":material/trending_up:")
    else:
        st.markdown(sentence)
    for layout in calibration.layouts[-1:]:
        if layout.parts is None:
            st.warning(plain(f"No prediction for the buckets in use: {layout.why_not}"))
    if not calibration.layouts:
        st.warning("The job has not said yet which buckets it has, so that nothing can be predicted.")
    for note in calibration.notes:
        st.caption(plain(note))
    if report.left_out:
        st.caption(f"{report.left_out:,} steps have another number of micro-batches and are left out.")


def _gain(
    wanted: Wanted, calibration: Calibration, layouts: tuple[RecordedLayout, ...], report: LiveReport
) -> None:
    st.subheader("What would other buckets gain?")
    if not layouts:
        st.markdown("The job has not said yet which buckets it has.")
        return
    with told():
        gain = _gain_of(calibration, lambda: sim.live_gain(calibration, layouts[-1]))
        if isinstance(gain, str):
            st.info(plain(gain))
        else:
            _show_gain(gain, len(layouts[-1].bucket_indices), report, calibration.job, wanted)


@memo(16)
def _gain_of(calibration: Calibration, search: Callable[[], Recommendation]) -> Recommendation | str:
    """What other buckets would save, or why that cannot be said."""
    try:
        with st.spinner("Searching for better buckets …"):
            return search()
    except NotModelledError as error:  # remembered as well: each refresh would search again
        return str(error)


def _show_gain(
    found: Recommendation, in_use: int, report: LiveReport, job: RecordedJob, wanted: Wanted
) -> None:
    """The gain a step against the ``in_use`` buckets, what it is worth, and what to paste."""
    ranks, gain_ns, period_ns = job.hardware.world_size, found.gain.told_ns, report.period_ns
    if job.link_is_own:
        words = "A first guess: the machine is known only between the sizes of the buckets in use. "
        st.caption(words + _HOW_TO_GAIN.format(ranks))
    doubt, sentence = doubt_sentence(found.gain, report), plain(gain_sentence(found, in_use))
    st.markdown(sentence if doubt else f"**{sentence}**")
    if doubt:
        st.warning(plain(doubt), icon=":material/warning:")
    if found.setting is None or found.setting.pick == "default":
        return
    st.markdown(f"Set: {plain(tell_setting(found.setting, found.against))}.")
    hours = "Rank-hours" if job.workload.provenance.get("clock") == "host" else "GPU-hours"
    cards = {"Gain a step, predicted": format_ms(gain_ns)}
    if period_ns is not None and period_ns > gain_ns:
        a_day = DAY_S * NS_PER_S / period_ns
        cards[f"{hours} a day, less"] = f"{saved_hours(ranks, gain_ns, a_day):,.2f}"
        if wanted.samples:
            now, then = (wanted.samples * NS_PER_S / ns for ns in (period_ns, period_ns - gain_ns))
            cards["Samples a second"] = f"{now:,.1f} → {then:,.1f}"
    if wanted.to_go:
        cards[f"{hours} to the end, less"] = f"{saved_hours(ranks, gain_ns, wanted.to_go):,.2f}"
    _draw_cards(cards)
    with st.expander("Take it home", icon=":material/content_copy:"):
        st.code(sim.snippet(found.assignment, job.workload), language="python")
        st.download_button(
            "Assignment JSON",
            sim.to_text(found.assignment),
            file_name="assignment.json",
            mime="application/json",
            key="live_assignment",
            on_click="ignore",
            help="For `sim.apply`, and for `bucketsim ab`, which measures this gain.",
        )


def saved_hours(ranks: int, gain_ns: int, steps: float) -> float:
    """Device-hours that ``steps`` of training in use would be shorter by, over all ranks."""
    return ranks * steps * gain_ns / (3_600 * NS_PER_S)


def _autotune(watch: Path) -> bool:
    """Each tuning that is told in ``watch``: phase, prediction, trial, verdict. Whether there is one."""
    found = find_autotunes(watch)
    for name, tuned in found.items():
        st.subheader(plain(f"{tuned.name} on {tuned.world_size} ranks tunes its buckets ({name})"))
        sentence = plain(autotune_sentence(tuned))
        if tuned.outcome == "kept":
            st.success(sentence, icon=":material/check:")
        elif tuned.outcome is not None:
            st.info(sentence, icon=":material/undo:")
        else:
            st.markdown(sentence)
        if tuned.in_use_ns is not None and tuned.best_ns is not None:
            now = f"{format_ms(tuned.in_use_ns)} a step with the {tuned.buckets_in_use} buckets in use"
            st.caption(plain(f"Predicted: {now}, {format_ms(tuned.best_ns)} with the best."))
        if tuned.looks:
            chart(trial_figure(tuned), f"autotune {name}", "The gain of a trial as it narrows")
    return bool(found)


def autotune_sentence(told: AutotuneProgress) -> str:
    """What the job is doing, or how it ended."""
    if told.outcome is not None:
        return f"{told.outcome}: {told.why} ({told.steps} steps, {told.seconds or 0:.1f} s)"
    return f"{_PHASES.get(told.phase, '')} Step {told.steps}."


def _job(followed: Followed, calibration: Calibration | None) -> None:
    with st.expander("The job", icon=":material/info:"):
        for name, value in job_rows(followed.ranks[0].header, calibration).items():
            st.markdown(f"**{name}**: {plain(value)}")


def job_rows(header: RecordingHeader, calibration: Calibration | None) -> dict[str, str]:
    """What is known of the job."""
    ddp = [f"{name}={value}" for name, value in header.ddp.items() if value is not None]
    level = f"{header.level} level, every {header.every}. step" if header.every > 1 else header.level
    rows = {
        "Model": f"{header.module}, {len(header.parameters)} parameters that require grad",
        "Ranks": str(header.world_size),
        "Backend and device": f"{header.backend} on {header.device}",
        "torch": header.torch,
        "Recorded": level,
        "Communication hook": header.comm_hook or "none",
        "DDP": ", ".join([one for one in ddp if not one.startswith("rebuilt_buckets=")][:20]),
    }
    if calibration is not None:
        count, reduced = calibration.job.micro_batches
        if count > 1:
            rows["Micro-batches"] = f"{count} a step, {reduced} of them synchronised"
        rows["Machine"] = calibration.job.hardware.name
    return rows


def age_words(seconds: float) -> str:
    """A time that has passed: ``1.2 s``, ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def quiet_after_s(followed: Followed) -> float:
    """How long nothing new has to be there until one says so: ten steps, or 30 s."""
    starts = followed.ranks[0].steps.started_at[-50:] if followed.ranks else []
    gaps = sorted(later - earlier for earlier, later in pairwise(starts))
    return max(_QUIET_S, _QUIET_STEPS * gaps[len(gaps) // 2] / 1e9) if gaps else _QUIET_S


def state_sentences(followed: Followed, now_s: float) -> list[str]:
    """What the job is doing, as far as its files say; the first sentence is the state."""
    if not followed.step_count:
        return [_NO_STEPS]
    limit = quiet_after_s(followed)
    ages = {rank.header.rank: now_s - rank.written_at_s for rank in followed.ranks}
    newest, last = min(ages.values()), max(rank.steps.step[-1] for rank in followed.ranks if len(rank.steps))
    if followed.unread_bytes > 1 << 20:
        told = [f"Reading: step {last:,} so far, {followed.unread_bytes / 2**20:,.0f} MiB are still to come."]
    elif all(rank.end is not None for rank in followed.ranks):
        has_failed = any(rank.end is not None and rank.end.failed for rank in followed.ranks)
        how = "Ended with an error" if has_failed else "Ended"
        told = [f"{how}: the job closed its recording {age_words(newest)} ago. Last step {last:,}."]
    elif newest > limit:
        told = [
            f"Nothing new for {age_words(newest)}, and the recording was not closed: the job was killed, or "
            f"stands still. Last step {last:,}."
        ]
    else:
        told = [f"Running: step {last:,}, {age_words(newest)} ago."]
        silent = {rank: age for rank, age in ages.items() if age > limit}
        if silent:
            told.append(f"{_ranks(sorted(silent))} not written for {age_words(max(silent.values()))}.")
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
    return told + [f"No longer kept: {dropped}." for dropped in followed.dropped]


def _ranks(ranks: Sequence[int]) -> str:
    return f"{format_ranks(ranks).capitalize()} {'has' if len(ranks) == 1 else 'have'}"


def calibrating_sentence(followed: Followed, needed: int) -> str:
    """How many steps there are to predict from, and how many there have to be."""
    warmup = followed.warmup_steps
    done = min(int((rank.steps.step > warmup).sum()) for rank in followed.ranks)
    if done >= needed:
        return (
            f"Calibrating: steps still become shorter, as in warm-up; the first {needed} that do not are "
            f"predicted from."
        )
    return (
        f"Calibrating: {done} of {needed} steps after {warmup} of warm-up are there on all ranks; with "
        f"{needed} the next ones are predicted."
    )


def drift_card(report: LiveReport) -> str:
    """The shift, that none was found, that it is too early to tell, or that the prediction itself is off."""
    unseen = report.unseen
    if report.drift is not None:
        return format_percent(report.drift.shift, sign=True)
    if unseen is None or unseen.count < FEWEST_FOR_DRIFT:
        return "–"
    return "none found" if abs(unseen.median_error) < _OFF else "not to be told"


def unseen_sentence(report: LiveReport) -> str:
    """How the prediction does, on steps that it has not seen and on those that it was made from."""
    unseen, calibrated = report.unseen, report.calibrated
    window = f"steps {calibrated[0]:,} to {calibrated[1]:,}"
    if report.window is not None:
        error = report.window.median_error
        longer = f"{format_percent(abs(error))} {'longer' if error >= 0 else 'less'} than predicted"
        window += f" (which took {longer} themselves)"
    if unseen is None:
        return f"Predicted from {window}; no later step is there yet."
    off, low, high = (format_percent(x, sign=True) for x in (unseen.median_error, unseen.low, unseen.high))
    return (
        f"Predicted from {window}: {format_ms(unseen.predicted_ns)} a step. {unseen.count:,} steps with "
        f"the buckets in use that the model has not seen took {format_ms(unseen.measured_ns)} in the median, "
        f"{off}; nine of ten of them are within {low} and {high} of the prediction."
    )


def noise_sentence(report: LiveReport) -> str:
    """Where the unseen steps are off no more than the window's own ones: what that is; else empty."""
    unseen, window = report.unseen, report.window
    if unseen is None or window is None or abs(unseen.median_error) < _WORTH_A_WORD:
        return ""
    error, own = unseen.median_error, window.median_error
    if own * error > 0 and abs(own) >= _ALIKE * abs(error):
        return (
            f"The {window.count} steps that the prediction was made from are off by "
            f"{format_percent(own, sign=True)} themselves: so much is noise, or the model's own error, and "
            "nothing that came later. On a noisy machine the slowest rank of each step takes longer than any "
            "one rank does in the median, which is what is predicted."
        )
    if window.low <= error <= window.high:
        low, high, off = (format_percent(x, sign=True) for x in (window.low, window.high, error))
        return (
            f"The steps that the prediction was made from scatter between {low} and {high}: on a machine as "
            f"noisy as this, {off} is no error of the model. A longer window, or a machine with nothing else "
            "on it, tells more."
        )
    return ""


def drift_sentence(drift: Drift | None, report: LiveReport) -> str:
    """Whether steps became longer, since when, and which part did."""
    unseen, window = report.unseen, report.window
    if unseen is None or unseen.count < FEWEST_FOR_DRIFT:
        return f"Drift: {FEWEST_FOR_DRIFT} unseen steps are needed to tell."
    if drift is None:
        off = 0.0 if window is None else unseen.median_error - window.median_error
        level = ""
        if abs(off) >= _WORTH_A_WORD:
            level = (
                f" They took {format_percent(abs(off))} {'longer' if off > 0 else 'less'} than the "
                "calibration steps, which is too little beside their scatter, or did not last."
            )
        if abs(unseen.median_error) < _OFF:
            return f"No lasting change was found in {unseen.count:,} unseen steps.{level}"
        return (
            f"Measured {format_ms(unseen.measured_ns)} against {format_ms(unseen.predicted_ns)} "
            "predicted, without a step since which that is so: the prediction itself is off by "
            f"{format_percent(unseen.median_error, sign=True)}, and does not tell whether the job "
            f"drifts.{level}"
        )
    after, before = format_percent(drift.after, sign=True), format_percent(drift.before, sign=True)
    share = ", ".join(
        f"{PART_WORDS[name]} by {format_percent(value, sign=True)}"
        for name, value in sorted(drift.parts.items(), key=lambda part: -abs(part[1]))
        if abs(value) >= 0.0005
    )
    doubt = ""
    if window is not None and window.high - window.low > abs(drift.shift):
        doubt = (
            " Single steps of the window scatter as widely: it may be another program on the machine, and "
            "go again."
        )
    return (
        f"Since step {drift.since_step:,} steps take {format_percent(abs(drift.shift))} "
        f"{'longer' if drift.shift > 0 else 'shorter'} than before "
        f"({after} against the prediction, {before} before). In shares of the step: {share}. "
        f"Most of it lies in {PART_WORDS[drift.largest_part]}: {_CAUSES[drift.largest_part]}.{doubt}"
    )


def lateness_sentence(rows: Sequence[Lateness]) -> str:
    """Which rank the others wait for, if any; ``rows`` begin with the one that comes last most often."""
    rank, share = rows[0].rank, format_percent(rows[0].share, 0)
    if rows[0].is_chance:
        often = f"rank {rank} does in {share} of the latest steps"
        return f"No rank comes last more often than chance has it: {often}."
    behind = format_ms(rows[0].behind_ns)
    return f"Rank {rank} comes last in {share} of the latest steps, by {behind} in the median."


def gain_sentence(found: Recommendation, in_use: int) -> str:
    """What the recommended buckets would gain against the ``in_use`` ones, honestly."""
    gain, gain_ns = found.gain, found.gain.told_ns
    if gain.refuted:
        return f"{capital(gain.sentence)}. Keep what you have."
    if gain_ns <= 0 and (found.setting is None or found.setting.pick == "default"):
        return "No better buckets were found: the job runs with the best ones that the search knows."
    if gain_ns <= 0:  # under a hook, or beside a slow rank, of which the search for buckets knows nothing
        return "The search for buckets that may be cut anywhere finds none that are better; one cap is."
    saved, now_ns = format_ms(gain_ns), found.baseline.step_ns
    share = f"({format_percent(gain_ns / now_ns if now_ns else 0.0)})"
    between = ""
    if gain.low_ns is not None and gain.high_ns is not None:
        between = f" (95 % interval {format_ms(gain.low_ns)} to {format_ms(gain.high_ns)})"
    if gain.significant is False:
        return (
            f"Not significant: other buckets would save {saved} {share} a step{between}. Keep what you have."
        )
    unknown = f" Not recorded, so not known: {' and '.join(gain.not_known)}." if gain.not_known else ""
    return (
        f"The recommended {len(found.assignment.bucket_indices)} buckets would save {saved} a step "
        f"{share}{between} against the {in_use} in use.{unknown}"
    )


def doubt_sentence(gain: Gain, report: LiveReport) -> str:
    """That the prediction is off by more than the gain; empty where it is not."""
    unseen, gain_ns = report.unseen, gain.told_ns
    if unseen is None or gain_ns <= 0 or gain.significant is False:
        return ""
    off_ns = abs(unseen.measured_ns - unseen.predicted_ns)
    if off_ns <= gain_ns:
        return ""
    return (
        f"Not to be relied on: the prediction of the buckets in use is off by {format_ms(off_ns)} a step, "
        f"which is more than this gain. Measure it with bucketsim ab before you change anything."
    )
