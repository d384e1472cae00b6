"""A job that is running: predicted against measured as steps come in, and what other buckets would gain."""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import cached, cached_live, launch
from app.figures.live import lateness_figure, parts_figure, steps_figure
from app.figures.style import CHART
from app.library import LIVE, Library
from app.views import live_autotune, live_gain, uploading
from app.views.errors import told
from app.words import labels
from app.words import live as words
from sim.errors import SimError
from sim.formats.recordings import find_autotunes
from sim.nouns.hardware import Hardware
from sim.nouns.live import Calibration, Followed, LiveReport
from sim.nouns.recording import RecordedLayout, Recording
from sim.units import format_ms

_EVERY = {"1 s": 1.0, "2 s": 2.0, "5 s": 5.0, "10 s": 10.0, "paused": None}
_STEPS = (10, 20, 50, 100)
_UPLOAD = "upload a hardware"
_OWN = "own"  # in place of a digest: the job's own collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the controls ask for. ``hardware`` None: the job's own collectives, ``digest``: its key."""

    watch: Path
    found: tuple[Path, ...]
    directory: Path
    steps: int
    by_clock: bool
    hardware: Hardware | None
    digest: str
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
    return place.selectbox(
        "Refresh every",
        list(_EVERY),
        index=1,
        key="live_every",
        bind="query-params",
        help=words.HELP["every"],
    )


def _wait(watch: Path) -> None:
    """Look again; the whole page comes once there is a recording."""
    if sim.find_recordings(watch):
        st.rerun()
    if live_autotune.show(watch):
        return
    st.info(words.WAITING, icon=":material/hourglass_empty:")
    st.caption(labels.plain(str(watch)))


def _controls(watch: Path, found: list[Path], library: Library) -> tuple[Wanted, str]:
    """Everything that can be chosen."""
    names = {_name(watch, path): path for path in found}
    left, middle, right = st.columns([3, 2, 2])
    name = left.selectbox(
        "Recording", list(names), key="recording", bind="query-params", help=words.HELP["recording"]
    )
    machine = middle.selectbox(
        "Machine",
        list(_machines(names[name], library)),
        key="live_machine",
        bind="query-params",
        help=words.HELP["machine"],
    )
    every = _refresh(right)
    with st.expander("Window, axis, and your numbers", icon=":material/tune:"):
        one, two, three, four = st.columns(4)
        steps = one.selectbox(
            "Calibration steps",
            _STEPS,
            index=1,
            key="live_steps",
            bind="query-params",
            help=words.HELP["steps"],
        )
        axis = two.selectbox(
            "Axis", ["step", "clock"], key="live_axis", bind="query-params", help=words.HELP["axis"]
        )
        samples = three.number_input(
            "Samples per step, all ranks",
            min_value=0,
            step=1,
            key="live_samples",
            bind="query-params",
            help=words.HELP["samples"],
        )
        to_go = four.number_input(
            "Steps still to go",
            min_value=0,
            step=1000,
            key="live_to_go",
            bind="query-params",
            help=words.HELP["to_go"],
        )
    hardware, digest = _hardware(_machines(names[name], library)[machine])
    return (
        Wanted(
            watch=watch,
            found=tuple(sorted(found)),
            directory=names[name],
            steps=steps,
            by_clock=axis == "clock",
            hardware=hardware,
            digest=digest,
            samples=int(samples),
            to_go=int(to_go),
        ),
        every,
    )


def _name(watch: Path, path: Path) -> str:
    return path.name or str(path) if path == watch else str(path.relative_to(watch))


def _machines(directory: Path, library: Library) -> dict[str, Path | None]:
    """Machines to choose from, the likeliest first; ``_UPLOAD`` and the job's own have no file."""
    given = launch.settings(sys.argv[1:]).hardware
    machines: dict[str, Path | None] = {} if given is None else {f"{given.stem} (--hardware)": given}
    for folder in dict.fromkeys((directory, directory.parent)):
        for path in sorted(folder.glob("hardware*.json")):
            machines.setdefault(f"{path.stem} (beside the recording)", path)
    machines[words.OWN_MACHINE] = None
    machines |= dict(library.hardware)
    machines[_UPLOAD] = Path(_UPLOAD)
    return machines


def _hardware(path: Path | None) -> tuple[Hardware | None, str]:
    """The machine that was chosen, with its digest; ``None``: the job's own, as where a file is not legal."""
    with told():
        if path == Path(_UPLOAD):
            file = uploading.one("Hardware JSON", "up_live")
            if file is not None:
                return cached.parse_hardware(bytes(file.getbuffer()), file.name)
        elif path is not None:
            return cached.load_hardware(path)
    return None, _OWN


def _live(wanted: Wanted) -> None:
    """One refresh: what was read, what it says."""
    if tuple(sorted(sim.find_recordings(wanted.watch))) != wanted.found:
        st.rerun()  # another recording has come: the page is to offer it
    live_autotune.show(wanted.watch)
    followed = cached_live.refresh(wanted.directory)
    state, *others = words.state_sentences(followed, time.time())
    st.markdown(f"**{labels.plain(state)}**" if followed.step_count else state)
    for sentence in others:
        st.caption(labels.plain(sentence))
    if followed.faults:
        with st.expander(f"Faults in the files: {followed.fault_count}", icon=":material/error:"):
            for fault in followed.faults:
                st.markdown(f"- {labels.plain(fault)}")
    if not followed.ranks:
        return
    with told():
        _judged(_fitting(wanted, followed), followed)


def _fitting(wanted: Wanted, followed: Followed) -> Wanted:
    """``wanted`` by the job's own collectives where the machine is of another number of ranks, and a word."""
    ranks = followed.ranks[0].header.world_size
    if wanted.hardware is None or wanted.hardware.world_size == ranks:
        return wanted
    st.warning(labels.plain(words.other_ranks_sentence(wanted.hardware, ranks)), icon=":material/warning:")
    return replace(wanted, hardware=None, digest=_OWN)


def _judged(wanted: Wanted, followed: Followed) -> None:
    window = _window(wanted, followed)
    chosen_first = window is not _chosen(followed)
    layouts = followed.ranks[0].layouts
    if window is None:
        st.info(words.calibrating_sentence(followed, min(wanted.steps, followed.whole_steps)))
        _job(followed, None)
        return
    key = cached_live.window_key(followed.run, window, layouts, wanted.digest)
    try:
        calibration = cached_live.calibrate(key, window, layouts, wanted.hardware)
    except SimError:
        _job(followed, None)
        raise
    report = sim.judge_live(followed, calibration)
    if wanted.steps > followed.whole_steps:
        st.caption(
            f"Of {len(followed.ranks)} ranks {followed.whole_steps} whole steps are kept after warm-up: the "
            f"window is no longer than that."
        )
    if chosen_first and calibration.first_step > followed.warmup_steps + 1:
        st.caption(words.settling_sentence(followed.warmup_steps + 1, calibration.first_step - 1))
    _cards(report, calibration)
    _sentences(report, calibration)
    st.plotly_chart(
        steps_figure(report, by_clock=wanted.by_clock),
        key="live_steps_figure",
        config=CHART,
        alt="Measured steps over their prediction, and the error of the prediction below",
    )
    st.caption(words.STEPS_CAPTION)
    _recalibrate(followed, wanted)
    _gain(wanted, key, calibration, layouts, report)
    st.subheader("Where does a step go?")
    st.plotly_chart(
        parts_figure(report, by_clock=wanted.by_clock),
        key="live_parts_figure",
        config=CHART,
        alt="The parts of a step over time, on top of each other",
    )
    st.caption(words.PARTS_CAPTION)
    if report.lateness:
        st.subheader("Who do the others wait for?")
        st.markdown(labels.plain(words.lateness_sentence(report.lateness) or ""))
        st.plotly_chart(
            lateness_figure(report.lateness),
            key="live_late_figure",
            config=CHART,
            alt="How often each rank ends its backward last",
        )
    _job(followed, calibration)


def _window(wanted: Wanted, followed: Followed) -> Recording | None:
    """The steps to predict from: the first ones, or those that were latest when the button was pressed."""
    chosen = _chosen(followed)
    if chosen is not None:
        return chosen
    return sim.live_window(followed, min(wanted.steps, followed.whole_steps))


def _chosen(followed: Followed) -> Recording | None:
    """The latest steps as they were when the button was pressed, if it was."""
    run, window = st.session_state.get("live_window", (None, None))
    return window if run == followed.run else None


def _recalibrate(followed: Followed, wanted: Wanted) -> None:
    """Take the latest steps as the window, or the first ones again."""
    left, right = st.columns(2)
    left.button(
        "Predict from the latest steps",
        key="live_again",
        help=words.HELP["recalibrate"],
        on_click=_choose_latest,
        args=(followed, wanted.steps),
    )
    if _chosen(followed) is not None:
        right.button("Predict from the first steps again", key="live_first", on_click=_choose_first)


def _choose_latest(followed: Followed, steps: int) -> None:
    window = sim.latest_window(followed, min(steps, followed.whole_steps))
    if window is not None:
        st.session_state["live_window"] = (followed.run, window)


def _choose_first() -> None:
    st.session_state.pop("live_window", None)


def _cards(report: LiveReport, calibration: Calibration) -> None:
    recent = format_ms(report.recent.step_ns) if report.recent else "–"
    now = calibration.layouts[-1].parts if calibration.layouts else None
    cards = [
        ("Step, latest 50", recent, words.HELP["step"]),
        ("Predicted", format_ms(now.step_ns) if now else "–", words.HELP["predicted"]),
        ("Unseen steps", words.share_card(report.unseen), words.HELP["error"]),
        ("Calibration steps", words.share_card(report.window), words.HELP["window"]),
        ("Drift", words.drift_card(report), words.HELP["drift"]),
    ]
    if report.lateness:
        cards.append(("Last rank", words.last_card(report.lateness), words.HELP["last"]))
    for column, (label, value, help_) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value, help=help_)


def _sentences(report: LiveReport, calibration: Calibration) -> None:
    st.markdown(labels.plain(words.unseen_sentence(report)))
    if noise := words.noise_sentence(report):
        st.info(labels.plain(noise), icon=":material/info:")
    sentence = labels.plain(words.drift_sentence(report.drift, report))
    if report.drift is not None:
        st.warning(sentence, icon=":material/trending_up:")
    else:
        st.markdown(sentence)
    for layout in calibration.layouts[-1:]:
        if layout.parts is None:
            st.warning(labels.plain(f"No prediction for the buckets in use: {layout.why_not}"))
    if not calibration.layouts:
        st.warning("The job has not said yet which buckets it has, so that nothing can be predicted.")
    for note in (*calibration.notes, words.summary_words(report)):
        if note:
            st.caption(labels.plain(note))


def _gain(
    wanted: Wanted,
    key: str,
    calibration: Calibration,
    layouts: tuple[RecordedLayout, ...],
    report: LiveReport,
) -> None:
    st.subheader("What would other buckets gain?")
    if not layouts:
        st.markdown("The job has not said yet which buckets it has.")
        return
    with told():
        gain = cached_live.gain(key, calibration, layouts[-1])
        if isinstance(gain, str):
            st.info(labels.plain(gain))
            return
        live_gain.show(
            gain,
            report,
            is_own_machine=calibration.hardware_is_own,
            is_gpu=calibration.workload.provenance.get("clock") != "host",
            samples=wanted.samples,
            to_go=wanted.to_go,
        )


def _job(followed: Followed, calibration: Calibration | None) -> None:
    with st.expander("The job", icon=":material/info:"):
        for name, value in words.job_rows(followed.ranks[0].header, calibration):
            st.markdown(f"**{name}**: {value}")
