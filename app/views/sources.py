"""What to look at: a measured run, bundled files, or an upload. The same widgets on every page that asks.

``ask`` draws, and looks into an upload to know what is still to be asked for; ``read`` opens the other files
after it and tells what is wrong with an upload, so that an error leaves every widget in its place.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import streamlit as st

import sim
from app import cached, cached_cluster, cached_records
from app.cached import Inputs
from app.cached_cluster import Made
from app.cached_records import Opened, Source
from app.cached_uploads import Outcome
from app.library import Library
from app.views import cluster_knobs, sidebar_last, uploading
from app.words import labels
from app.words import uploads as words
from sim.errors import InputError, SimError
from sim.formats.record_files import recorded_step
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Uploaded
from sim.nouns.measurement import Measurement
from sim.nouns.records import Record
from sim.nouns.workload import Workload

MEASURED, BUNDLED, UPLOAD = "measured", "bundled", "upload"
_BEFORE = "started_from"
_START_WORDS = {MEASURED: "measured run", BUNDLED: "bundled files", UPLOAD: "upload"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A ready-made cluster and what of it is set."""

    name: str
    settings: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfUpload:
    """A machine of the upload: a place among its hardware, or None for its cluster."""

    place: int | None


Machine = str | Preset | OfUpload


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the widgets point to; ``record`` and names of workloads and hardware are names in the library.

    ``workload`` None is the upload's, where it has one, else nothing yet; ``upload`` is what it holds.
    """

    record: str | None = None
    workload: str | None = None
    hardware: Machine | None = None
    upload: Outcome | None = None

    @property
    def has_assignment(self) -> bool:
        """Whether an assignment was uploaded."""
        uploaded = None if self.upload is None else self.upload.uploaded
        return uploaded is not None and uploaded.assignment is not None

    @property
    def words(self) -> str:
        """The names that were chosen, as the library has them: different files may be of one name inside."""
        machine = self.hardware if isinstance(self.hardware, str) else None
        return ", ".join(name for name in (self.record, self.workload, machine) if name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs that were read, and what belongs to them.

    ``record`` is the name of the library's measured record of these inputs, None if there is none.
    ``measured`` is an uploaded record of them, or the steps of an uploaded trace; ``measured_digest`` is the
    key of that upload. ``assignment`` was uploaded beside the inputs, and ``uploaded`` is the whole upload,
    with its notes. ``is_carried``: the inputs are those that a run was measured with, in place of those of
    the files.
    """

    inputs: Inputs
    record: str | None
    measured: Record | None = None
    measured_digest: str = ""
    assignment: Assignment | None = None
    uploaded: Uploaded | None = None
    is_carried: bool = False


def ask(library: Library) -> Asked:
    """Draw the widgets, where the caller stands (the sidebar)."""
    starts = [UPLOAD]
    if library.workloads:
        starts.insert(0, BUNDLED)
    if library.records:
        starts.insert(0, MEASURED)
    start = st.selectbox(
        "Start from",
        starts,
        format_func=_START_WORDS.__getitem__,
        key="start",
        bind="query-params",
        help=labels.HELP["start"],
    )
    _stay(library, st.session_state.get(_BEFORE), start)
    st.session_state[_BEFORE] = start
    if start == MEASURED:
        return Asked(record=_named("Record", "record", library.records))
    upload = uploading.ask() if start == UPLOAD else None
    if start == UPLOAD and upload is None:
        return Asked()  # nothing yet: bundled files are never shown in the place of an upload
    uploaded = None if upload is None else upload.uploaded
    workload = None
    if library.workloads and (uploaded is None or uploaded.workload is None):
        workload = _named("Workload", "workload", library.workloads, words.HELP["workload"])
    return Asked(workload=workload, hardware=_machine(library, uploaded), upload=upload)


def _stay(library: Library, before: str | None, start: str) -> None:
    """Turn what is asked next to what was looked at before, where what one starts from now has it, too."""
    state, found = st.session_state, dict[str, str]()
    with suppress(SimError, KeyError):  # what cannot be read, or is a ready-made cluster, is nowhere else
        if (before, start) == (MEASURED, BUNDLED):
            folder = library.records[state["record"]]
            found = {
                "workload": _alike(library.workloads, cached.load_workload, folder / "workload.json"),
                "hardware": _alike(library.hardware, cached.load_hardware, folder / "hardware.json"),
            }
        elif (before, start) == (BUNDLED, MEASURED):
            workload = cached.load_workload(library.workloads[state["workload"]])
            hardware = cached.load_hardware(library.hardware[state["hardware"]])
            found = {"record": _record_of(library, _inputs(workload, hardware)) or ""}
    if all(found.values()) and not found.keys() & st.query_params.keys():  # an address says what it asks for
        for key, name in found.items():
            state[key] = name


def _alike(files: Mapping[str, Path], load: Callable[[Path], tuple[Any, str]], wanted: Path) -> str:
    """The name of the file that has the same in it as ``wanted``; empty: none has."""
    _, digest = load(wanted)
    return next((name for name, path in files.items() if load(path)[1] == digest), "")


def _named(label: str, key: str, files: Mapping[str, Any], help_text: str | None = None) -> str | None:
    return st.selectbox(label, list(files), key=key, bind="query-params", help=help_text)


def _machine(library: Library, uploaded: Uploaded | None) -> Machine | None:
    """One of the upload's machines, a bundled one, or a ready-made cluster, in this order."""
    own = _machines_of(uploaded)
    presets = {words.computed_words(name): name for name in cluster_knobs.PRESETS}
    machines: dict[str, str | OfUpload] = {**own, **{name: name for name in library.hardware}, **presets}
    chosen: str | None
    if own:  # a key of its own, so that new files come with their own machine; they are not in the URL
        chosen = st.selectbox("Hardware", list(machines), key="up_hardware", help=words.HELP["hardware"])
    else:
        chosen = _named("Hardware", "hardware", machines, words.HELP["hardware"])
    if chosen is None:
        return None
    if chosen in presets:
        name = presets[chosen]
        settings = cluster_knobs.settings_of(name)
        st.caption(words.COMPUTED_CAPTION)
        return Preset(name=name, settings=tuple(sorted(settings.items())))
    return machines[chosen]


def _machines_of(uploaded: Uploaded | None) -> dict[str, OfUpload]:
    if uploaded is None:
        return {}
    found: dict[str, OfUpload] = {}
    for place, one in enumerate(uploaded.hardware):
        shown = words.uploaded_words(one.name, one.world_size)
        found[shown if shown not in found else f"{shown} ({place + 1})"] = OfUpload(place=place)
    if uploaded.cluster is not None:
        found[f"{words.uploaded_words(uploaded.cluster.name)}, computed"] = OfUpload(place=None)
    return found


def read(library: Library, asked: Asked) -> Given | None:
    """The files that the widgets point to; None where one is still to be given.

    Raises:
        SimError: a file that cannot be read, or an upload that is not legal.
    """
    if asked.record is not None:
        folder = library.records[asked.record]
        workload = cached.load_workload(folder / "workload.json")
        hardware = cached.load_hardware(folder / "hardware.json")
        return _as_measured(
            Given(inputs=_inputs(workload, hardware), record=asked.record),
            lambda: cached_records.open_record(folder),
        )
    upload = asked.upload
    if upload is not None and upload.error is not None:
        raise InputError(upload.error)
    uploaded = None if upload is None else upload.uploaded
    if asked.workload is not None:
        workload = cached.load_workload(library.workloads[asked.workload])
    elif upload is not None and uploaded is not None and uploaded.workload is not None:
        workload = (uploaded.workload, upload.workload_digest)
    else:
        return None
    if asked.hardware is None:
        return None
    inputs = _inputs(workload, _hardware(library, asked.hardware, upload))
    given = Given(
        inputs=inputs,
        record=_record_of(library, inputs),
        uploaded=uploaded,
        assignment=None if uploaded is None else uploaded.assignment,
    )
    if upload is not None and uploaded is not None:
        given = _with_measured(given, upload, uploaded)
    measured = _recorded_step(library, asked, uploaded)
    return given if measured is None else replace(given, inputs=cached.held(given.inputs, measured))


def _recorded_step(library: Library, asked: Asked, uploaded: Uploaded | None) -> Measurement | None:
    """The step that the job of the workload took while it was recorded, where that is known."""
    if asked.workload is not None:
        return recorded_step(library.workloads[asked.workload])
    return None if uploaded is None else uploaded.recorded_step


def _with_measured(given: Given, upload: Outcome, uploaded: Uploaded) -> Given:
    """What was measured of the upload belongs to its own workload on the hardware that comes first."""
    if uploaded.record is None or not upload.hardware_digests:
        return given
    if given.inputs.key != f"{upload.workload_digest} {upload.hardware_digests[0]}":
        return given
    opened = Opened(record=uploaded.record, key=f"upload {upload.key}")
    given = replace(given, measured=uploaded.record, measured_digest=upload.key)
    return _as_measured(given, lambda: opened)


def _as_measured(given: Given, open_record: Callable[[], Opened]) -> Given:
    """``given`` from the inputs that its measured run had: its box, its slowest rank.

    A run that cannot be read, or carried there, leaves the files as they are: where it is compared, it is
    told why.
    """
    try:
        opened = open_record()
        inputs = cached.as_measured(opened.key, lambda: opened.record)
    except SimError:
        return given
    if inputs.key == given.inputs.key:
        return given
    return replace(given, inputs=inputs, is_carried=True)


def _inputs(workload: tuple[Workload, str], hardware: tuple[Hardware, str]) -> Inputs:
    return Inputs(
        workload=workload[0],
        hardware=hardware[0],
        workload_digest=workload[1],
        hardware_digest=hardware[1],
    )


def _hardware(library: Library, machine: Machine, upload: Outcome | None) -> tuple[Hardware, str]:
    """A machine and its digest; of a cluster its collectives are computed."""
    if isinstance(machine, str):
        return cached.load_hardware(library.hardware[machine])
    if isinstance(machine, Preset):
        return _computed(cached_cluster.make(machine.name, dict(machine.settings)))
    assert upload is not None
    uploaded = upload.uploaded
    assert uploaded is not None
    if machine.place is None:
        assert uploaded.cluster is not None
        return _computed(Made(cluster=uploaded.cluster, digest=upload.cluster_digest))
    return uploaded.hardware[machine.place], upload.hardware_digests[machine.place]


def _computed(made: Made) -> tuple[Hardware, str]:
    sidebar_last.send()
    hardware = cached_cluster.hardware(made)
    return hardware, sim.digest(hardware)


def measured_run(library: Library, given: Given) -> Source | None:
    """The measured run that belongs to the inputs: what was uploaded with them, else one in the library."""
    if given.measured is not None:
        return Opened(record=given.measured, key=f"upload {given.measured_digest}")
    return None if given.record is None else library.records[given.record]


def inputs_words(given: Given, asked: Asked) -> str:
    """Workload, hardware and when it was calibrated, and their files: several may have one name."""
    hardware = given.inputs.hardware
    when = hardware.provenance.get("date")
    calibrated = f", calibrated {when[:16].replace('T', ' ')}" if isinstance(when, str) else ""
    named = f"{given.inputs.workload.name} on {hardware.name}{calibrated}"
    return " · ".join(filter(None, [named, given.record or asked.words]))


def tell_chosen(asked: Asked) -> None:
    """That a part of what is shown was not uploaded: it is bundled, and nobody need have meant it."""
    parts = {"workload": asked.workload, "hardware": asked.hardware}
    chosen = {
        noun: one.name if isinstance(one, Preset) else one
        for noun, one in parts.items()
        if one is not None and not isinstance(one, OfUpload)
    }
    if asked.upload is not None and asked.upload.uploaded is not None:
        for noun, name in chosen.items():
            st.info(labels.plain(words.not_uploaded(noun, name)), icon=":material/info:")


def record_looked_at(library: Library) -> str | None:
    """The name among all records of the run that Tune and Compare show; None: they show none."""
    if st.session_state.get("start") != MEASURED:
        return None
    return library.name_among_all(st.session_state.get("record"))


def workload_looked_at(library: Library) -> str | None:
    """The workload that Tune and Compare show, as the Cluster page names it; None: it has no such one."""
    start = st.session_state.get("start")
    if start == BUNDLED:
        return st.session_state.get("workload")
    if start == UPLOAD:
        uploaded = cluster_knobs.uploaded_workload()
        return None if uploaded is None else words.uploaded_words(uploaded[0].name)
    folder = library.records.get(st.session_state.get("record", ""))
    with suppress(SimError):  # a record that cannot be read is told of where it is looked at
        if folder is not None:
            return _alike(library.workloads, cached.load_workload, folder / "workload.json") or None
    return None


def nothing_to_show(library: Library) -> None:
    """What a page says where nothing was chosen yet."""
    st.info(
        "There is nothing to look at yet: upload a workload in the sidebar, or a trace that has "
        "one; a machine may come with it, or be a ready-made cluster. An address does not hold files: "
        "whoever opens one has to give them again."
        + (
            " No bundled files were found; `bucketsim dash --traces DIR` names them."
            if library.is_empty
            else ""
        )
    )
    st.markdown(
        "- `bucketsim record` makes a workload of your model, and so does a trace of torch.profiler.\n"
        "- `bucketsim calibrate` makes a hardware of your machine, and so does the output of nccl-tests.\n"
        "- `bucketsim validate` replays assignments on real ranks and makes a record of them."
    )


def _record_of(library: Library, inputs: Inputs) -> str | None:
    """The record whose digests are the same, if there is one."""
    for name, folder in library.records.items():
        try:
            _, workload = cached.load_workload(folder / "workload.json")
            _, hardware = cached.load_hardware(folder / "hardware.json")
        except SimError:
            continue  # a record that is broken, or still being written, belongs to nothing yet
        if f"{workload} {hardware}" == inputs.key:
            return name
    return None
