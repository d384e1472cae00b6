"""What to look at: a measured run, bundled files, or an upload. The same widgets on every page that asks.

``ask`` draws, and looks into an upload to know what is still to be asked for; ``read`` opens the other files
after it and tells what is wrong with an upload, so that an error leaves every widget in its place. What was
made of uploads is remembered by their content: whoever sees it has given the same files.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

import sim
from app import playing
from app.launch import Settings
from app.memo import memo, one
from app.playing import Inputs
from app.widgets import Knob
from app.widgets import ask as ask_for
from app.words import CARRIED, counted, option_words, plain, sentence
from sim.errors import InputError, SimError
from sim.formats.record_files import recorded_step
from sim.importer.imported import Imported, ImportOptions, Kind
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import MAX_RANKS, Hardware
from sim.nouns.measurement import Measurement, Record
from sim.nouns.workload import Workload
from sim.telling import tell_own_step
from sim.truth.recorded_job import RecordedJob
from sim.units import format_ms, format_size

MEASURED, BUNDLED, UPLOAD = "measured", "bundled", "upload"
_START_WORDS = {MEASURED: "measured run", BUNDLED: "bundled files", UPLOAD: "upload"}
LIVE = "live: "  # what the names of records in the watched directory begin with
_UPLOADS, _KEPT, _TOLD = "up", "up_kept", "told_of_uploads"
_SAID: dict[Kind, str] = {
    "found": "Found in the files",
    "assumed": "Assumed, as they do not say it",
    "missing": "Missing",
    "dropped": "Left out",
    "doubtful": "Doubtful",
}
_MOST_LINES = 20
# One at a time: what reading takes is bounded for one upload, not for those of all users together.
_READING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Files at hand: paths by the name that the page shows, sorted.

    ``records`` are those to start from: what was just measured, caps on even machines, and other systems.
    ``all_records`` are those and every other, by their folder under the traces directory.
    """

    workloads: dict[str, Path]
    hardware: dict[str, Path]
    records: dict[str, Path]
    all_records: dict[str, Path] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to start from but an upload."""
        return not (self.records or (self.workloads and self.hardware))

    def name_among_all(self, record: str | None) -> str | None:
        """What ``all_records`` call one of ``records``; None where there is no such record."""
        path = self.records.get(record or "")
        return next((name for name, other in self.all_records.items() if other == path), None)


def find(settings: Settings) -> Library:
    """What the traces directory and the watched one hold now."""
    traces = settings.traces or Path("no traces")

    def documents(home: Path) -> dict[str, Path]:
        return {str(path.relative_to(home).with_suffix("")): path for path in sorted(home.rglob("*.json"))}

    def records(folder: Path, prefix: str = "") -> dict[str, Path]:
        inside = {path: path.relative_to(folder) for path in sim.find_records(folder)}
        return {f"{prefix}{path.name if at == Path() else at}": path for path, at in inside.items()}

    # First: what was just measured is what one wants to see.
    live = {} if settings.watch is None else records(settings.watch, LIVE)
    return Library(
        workloads=documents(traces / "workloads"),
        hardware=documents(traces / "hardware"),
        records=live | records(traces / "measured") | records(traces / "systems", "systems/"),
        all_records=live | records(traces),
    )


_HOSTS = Knob("hosts", 4, "Hosts of this kind.", 1, 20_000)
_ON_LEAF = "Hosts that share the leaf switches; traffic to others goes over the spines."
_LEAF = Knob("hosts_per_leaf", 32, _ON_LEAF, 1, 100_000)
_GPUS = Knob("gpus", 4, "GPUs of a host.", 1, 16)
_PEER = Knob("peer_to_peer", True, "Off: data between GPUs without NVLink goes through host memory.")
_FULL = "What a leaf's hosts can send, over what it can pass up: 1 is full bisection."
_OVER = Knob("oversubscription", 1.0, _FULL, choices=(1.0, 1.5, 2.0, 3.0, 4.0, 8.0))
_PCIE = Knob("pcie_gen", 4, "Generation of PCIe.", choices=(3, 4, 5))
_SOCKETS = Knob("sockets", 2, "Processors of a host.", choices=(1, 2))
_GBIT = Knob("gbit_per_s", 10, "What a host's port carries, Gbit/s.", choices=(1, 10, 25, 40, 100, 200))
_PROTOCOL = Knob("protocol", "tcp", "Over TCP, or by RDMA.", choices=("tcp", "rdma"))
_GENERATION = Knob("generation", "hopper", "Of the GPUs.", choices=("ampere", "hopper"))
# What each ready-made cluster is called, and what of it is set here; what is not listed keeps its own value.
_PRESETS: dict[str, tuple[str, tuple[Knob, ...]]] = {
    "dgx_h100": ("DGX H100", (_HOSTS, _LEAF, _OVER)),
    "dgx_a100": ("DGX A100", (_HOSTS, replace(_LEAF, default=20), _OVER)),
    "dgx_v100": ("DGX-1 with V100", (replace(_HOSTS, default=1), replace(_LEAF, default=24))),
    "p5": ("AWS p5", (_HOSTS,)),
    "p4de": ("AWS p4de (and p4d)", (_HOSTS,)),
    "gh200_slingshot": ("4 x GH200 on Slingshot", (_HOSTS, replace(_LEAF, default=4))),
    "nvl72": ("GB200 NVL72", (replace(_HOSTS, default=1), _LEAF, _OVER)),
    "pcie_box": ("one host of PCIe GPUs", (_GPUS, _PCIE, _SOCKETS, _PEER)),
    "pcie_hosts": (
        "hosts of PCIe GPUs on Ethernet",
        (_HOSTS, _GPUS, _GBIT, _PROTOCOL, _PCIE, _SOCKETS, replace(_PEER, default=False), _OVER),
    ),
    "hgx_ethernet": ("8 GPUs on NVSwitches, hosts on Ethernet", (_HOSTS, _GBIT, _GENERATION, _OVER)),
}
MACHINE_WORDS = {name: words for name, (words, _) in _PRESETS.items()}


@dataclass(frozen=True, slots=True)
class Preset:
    """A ready-made cluster and what of it is set."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def words(self) -> str:
        """What it is called among the hardware."""
        return f"computed: {MACHINE_WORDS[self.name]}"

    @property
    def turned(self) -> dict[str, Any]:
        """The settings that are not as they stand at first."""
        first = {one.name: one.default for one in _PRESETS[self.name][1]}
        return {name: value for name, value in self.settings if value != first[name]}


Machine = str | Preset | Hardware | Cluster  # a name in the library, or of the upload
Outcome = Imported | str  # what an upload holds, or in one line why it holds nothing


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
    def uploaded(self) -> Imported | None:
        """What was uploaded, where it could be read."""
        return None if isinstance(self.upload, str) else self.upload


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs that were read, and what belongs to them.

    ``record`` is the name of the library's measured record of these inputs, None if there is none, and
    ``measured`` an uploaded one, or the steps of an uploaded trace. ``assignment`` was uploaded beside them.
    ``job`` says how they are held to the step that their job took, where that is known.
    ``is_carried``: the inputs are those that a run was measured with, in place of those of the files.
    """

    inputs: Inputs
    record: str | None
    measured: Record | None = None
    assignment: Assignment | None = None
    job: RecordedJob | None = None
    is_carried: bool = False


def ask(library: Library) -> Asked:
    """Draw the widgets, where the caller stands (the sidebar)."""
    has = {MEASURED: library.records, BUNDLED: library.workloads, UPLOAD: True}
    words = "Measured runs hold workload, hardware and what real ranks did. Uploads are not in the URL."
    named = {"format_func": _START_WORDS.__getitem__}
    start = ask_for(st.selectbox, "Start from", "start", words, [name for name in has if has[name]], **named)
    if start == MEASURED:
        return Asked(record=ask_for(st.selectbox, "Record", "record", None, list(library.records)))
    asked = Asked(upload=ask_upload() if start == UPLOAD else None)
    if start == UPLOAD and asked.upload is None:
        return asked  # nothing yet: bundled files are never shown in the place of an upload
    uploaded, workload = asked.uploaded, None
    if library.workloads and (uploaded is None or uploaded.workload is None):
        words = "What each GPU computes in a step: gradients, and when backward makes them ready."
        workload = ask_for(st.selectbox, "Workload", "workload", words, list(library.workloads))
    own: dict[str, Machine] = {}
    if uploaded is not None:
        of = ((one, counted(one.world_size, "rank")) for one in uploaded.hardware)
        own = {f"{uploaded_words(machine.name)}, {ranks}": machine for machine, ranks in of}
        if uploaded.cluster is not None:
            own[f"{uploaded_words(uploaded.cluster.name)}, computed"] = uploaded.cluster
    words = (
        "What carries the gradients: measured by `bucketsim calibrate` or read from an upload, or computed "
        "for a ready-made cluster by NCCL's cost model from data sheets."
    )
    # Where the upload has some, a key of its own: new files come with their own machine, and are in no URL.
    place: dict[str, Any] = {"key": "up_hardware", "bind": None} if own else {"key": "hardware"}
    return replace(asked, workload=workload, hardware=ask_machine(library, own, "Hardware", words, **place))


def ask_machine(
    library: Library,
    more: Mapping[str, Machine | None],
    label: str,
    words: str,
    *,
    prefix: str = "",
    **place: Any,
) -> Machine | None:
    """Draw a choice of machines, where the caller stands, and read it: ``more``, bundled and ready-made ones.

    ``prefix`` goes before the keys of what a ready-made cluster lets one set.
    """
    presets = {preset.words: preset for preset in map(Preset, MACHINE_WORDS)}
    machines: dict[str, Machine | None] = {**more, **{name: name for name in library.hardware}, **presets}
    chosen = ask_for(st.selectbox, label, place.pop("key"), words, list(machines), **place)
    machine = machines.get(chosen)
    if not isinstance(machine, Preset):
        return machine
    settings = settings_of(machine.name, prefix)
    st.caption(
        "Computed from data sheets by NCCL's cost model; nobody measured it. The Cluster page shows the "
        "machine."
    )
    return replace(machine, settings=tuple(sorted(settings.items())))


def uploaded_words(name: str) -> str:
    """What something uploaded is called among what is bundled."""
    name = " ".join(name.split())
    return f"uploaded: {name if len(name) <= 60 else f'{name[:59]}…'}"


def settings_of(preset: str, prefix: str = "") -> dict[str, Any]:
    """Draw what a ready-made cluster lets one set, where the caller stands, and read it."""
    return {knob.name: knob.draw(f"{prefix}{preset}_{knob.name}") for knob in _PRESETS[preset][1]}


def ask_upload() -> Outcome | None:
    """What was uploaded for Tune, Compare and Cluster, whichever of them asked for it."""
    words = (
        "Drag any of these here, several at once; each is told by its content. Traces of torch.profiler "
        "(Kineto, .json or .json.gz, one a rank), nccl-tests output (text or -J JSON), recordings "
        "(rank-0.jsonl, …), our own workload, hardware, cluster and assignment JSON, or all files of a "
        "measured record. 50 MB a file; for larger ones `bucketsim import` on the command line makes small "
        "files to upload."
    )
    files = kept_files(words)
    if not files:
        return None
    with st.expander("Fill in what the files lack: ranks"):
        lacks = "How many ranks the files are of, where they do not say it. Empty: as the files say."
        of = ("World size, ranks", "up_world_size", lacks, 1, MAX_RANKS, None, 1)
        ranks: int | None = ask_for(st.number_input, *of, placeholder="as the files say")
    st.session_state[_TOLD] = ranks
    outcome = read_files(files, ranks)
    if not isinstance(outcome, str):
        _tell_read(outcome)
    return outcome


def uploaded_workload() -> Workload | None:
    """The workload that was uploaded in this session, with what was filled in there, if there is one."""
    files = st.session_state.get(_KEPT)
    outcome = read_files(files, st.session_state.get(_TOLD)) if files else ""
    return None if isinstance(outcome, str) else outcome.workload


def kept_files(words: str) -> list[UploadedFile]:
    """Ask for files; those of this session stay while one looks elsewhere, where a widget forgets them."""

    def forget() -> None:
        st.session_state.pop(_KEPT, None)

    given = st.file_uploader("Files", key=_UPLOADS, help=words, on_change=forget, accept_multiple_files=True)
    if given:
        st.session_state[_KEPT] = list(given)
    files: list[UploadedFile] = st.session_state.get(_KEPT, [])
    if files and not given:
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        names = ", ".join(file.name for file in files[:3])
        st.caption(plain(f"Still in use: {names}{more}. Give others to replace them."))
        st.button("Forget these files", key="up_forget", on_click=forget, icon=":material/delete:")
    return files


@memo(2_000)
def _sha256(file_id: str, content: Callable[[], memoryview]) -> str:
    return hashlib.sha256(content()).hexdigest()  # once however often a page is drawn


def read_files(files: Sequence[UploadedFile], world_size: int | None = None) -> Outcome:
    """What the files hold together, or why they do not; which is remembered as well."""
    names = tuple(sorted((file.name, _sha256(file.file_id, file.getbuffer)) for file in files))
    return _read_files(names, world_size, lambda: [(file.name, file.getvalue()) for file in files])


@memo(32)
def _read_files(
    names: tuple[tuple[str, str], ...],
    world_size: int | None,
    contents: Callable[[], list[tuple[str, bytes]]],
) -> Outcome:
    try:
        with st.spinner("Reading the upload …"), _READING:
            return sim.read_uploads(contents(), ImportOptions(world_size=world_size))
    except SimError as error:
        return str(error)


def _tell_read(uploaded: Imported) -> None:
    """What an upload was taken for: a line, and in an expander what was found, assumed, missing, left out.

    Sentences quote the files, and nothing in them acts as markup.
    """
    words = []
    if (workload := uploaded.workload) is not None:
        words += [counted(len(workload.gradients), "gradient"), format_size(workload.total_bytes)]
        words.append(f"backward {format_ms(workload.backward_ns)}")
    words += [f"from {len(uploaded.ranks)} ranks"] if len(uploaded.ranks) > 1 else []
    words += [f"hardware of {counted(one.world_size, 'rank')}" for one in uploaded.hardware[:6]]
    words += [] if uploaded.cluster is None else [f"the cluster {uploaded.cluster.name}"]
    if uploaded.assignment is not None:
        words.append(f"an assignment of {counted(len(uploaded.assignment.bucket_indices), 'bucket')}")
    if uploaded.record is not None:
        words.append(counted(len(uploaded.record.candidates), "measured assignment"))
    holds = ", ".join(words) or "no workload and no hardware"
    st.caption(plain(f"{', '.join(uploaded.formats)}: {holds}"))
    if uploaded.notes:
        with st.expander("What was read", bool(uploaded.said("missing")), icon=":material/fact_check:"):
            for kind, title in _SAID.items():
                sentences = [*map(plain, uploaded.said(kind))]
                more = [f"and {len(sentences) - _MOST_LINES} more"] if len(sentences) > _MOST_LINES else []
                if sentences:
                    lines = [f"- {line}" for line in (*sentences[:_MOST_LINES], *more)]
                    st.markdown("\n".join([f"**{title}**\n", *lines]))


def read(library: Library, asked: Asked) -> Given | None:
    """The files that the widgets point to; None where one is still to be given.

    Raises:
        SimError: a file that cannot be read, or an upload that is not legal.
    """
    if asked.record is not None:
        folder = library.records[asked.record]
        inputs = _load(folder / "workload.json", folder / "hardware.json")
        return _as_measured(Given(inputs=inputs, record=asked.record), folder)
    if isinstance(asked.upload, str):
        raise InputError(asked.upload)
    uploaded, step = asked.uploaded, None
    workload = None if uploaded is None else uploaded.workload
    if asked.workload is not None:
        path = library.workloads[asked.workload]
        workload, step = playing.load_workload(path), _step_beside(path.parent)
    elif uploaded is not None:
        step = next((one for one in uploaded.measurements if one.mode == "trace"), None)
    if workload is None or asked.hardware is None:
        return None
    inputs = Inputs(workload=workload, hardware=hardware_of(library, asked.hardware))
    given = Given(inputs=inputs, record=_record_of(library, inputs))
    if uploaded is not None:
        given = replace(given, assignment=uploaded.assignment)
        # What was measured of the upload belongs to its own workload on the hardware that comes first.
        own = (uploaded.workload, *uploaded.hardware[:1])
        if uploaded.record is not None and own == (inputs.workload, inputs.hardware):
            given = _as_measured(replace(given, measured=uploaded.record), uploaded.record)
    if step is None:
        return given
    job = playing.held(given.inputs, step)
    return replace(given, inputs=Inputs(workload=job.workload, hardware=job.hardware), job=job)


@memo(32)
def _step_beside(folder: Path) -> Measurement | None:
    """The step that the job of a workload took while it was recorded, where that is known."""
    return recorded_step(folder / "workload.json")


Source = Path | Record  # a directory, or what was uploaded


def open_record(source: Source) -> Record:
    """A record from its directory, read again when a file in it changes; an uploaded one is open already.

    Raises:
        InputError: as ``sim.load_record``.
    """
    return source if isinstance(source, Record) else _load_record(source)


@memo(64)
def _load_record(path: Path) -> Record:
    return sim.load_record(path)


def _as_measured(given: Given, source: Source) -> Given:
    """``given`` from the inputs that its measured run had: its box, its slowest rank.

    A run that cannot be read, or carried there, leaves the files as they are: where it is compared, it is
    told why.
    """
    try:
        inputs = playing.as_measured(open_record(source))
    except SimError:
        return given
    return given if inputs == given.inputs else replace(given, inputs=inputs, is_carried=True)


def _load(workload: Path, hardware: Path) -> Inputs:
    return Inputs(workload=playing.load_workload(workload), hardware=playing.load_hardware(hardware))


def hardware_of(library: Library, machine: Machine) -> Hardware:
    """A machine; of a cluster its collectives are computed. Raises ``SimError`` where there is none such."""
    if isinstance(machine, str):
        if machine not in library.hardware:
            raise InputError(f"machine: there is no bundled hardware {machine!r} any more")
        return playing.load_hardware(library.hardware[machine])
    if isinstance(machine, Hardware):
        return machine
    return cluster_hardware(make_cluster(machine) if isinstance(machine, Preset) else machine)


@memo(32)
def make_cluster(preset: Preset) -> Cluster:
    """A ready-made cluster."""
    return sim.cluster(preset.name, **dict(preset.settings))


@memo(32)
def cluster_hardware(cluster: Cluster) -> Hardware:
    """The collectives of a cluster by the cost model."""
    with st.spinner("Computing its collectives …"):
        return one(sim.cluster_hardware(cluster))


def measured_run(library: Library, given: Given) -> Source | None:
    """The measured run that belongs to the inputs: what was uploaded with them, else one in the library; none
    where they were held to its very step, which tests nothing."""
    if given.job is not None and given.job.is_held:
        return None
    if given.measured is not None:
        return given.measured
    return None if given.record is None else library.records[given.record]


def tell_inputs(given: Given, asked: Asked) -> None:
    """Workload, hardware and when it was calibrated, and their files: several may have one name.

    And that a part of what is shown was not uploaded: it is bundled, and nobody need have meant it. Where the
    inputs are those of a run; of a recorded job its switches, and how it is held to the step that it took.
    """
    workload, hardware = given.inputs.workload, given.inputs.hardware
    when = hardware.provenance.get("date")
    calibrated = f", calibrated {when[:16].replace('T', ' ')}" if isinstance(when, str) else ""
    machine = asked.hardware.name if isinstance(asked.hardware, Preset) else asked.hardware
    named = [name for name in (asked.record, asked.workload, asked.hardware) if isinstance(name, str)]
    run = [] if given.record in (None, asked.record) else [f"measured: {given.record}"]  # of these very files
    words = [f"{workload.name} on {hardware.name}{calibrated}", ", ".join(named), *run]
    st.caption(plain(" · ".join(filter(None, words))))
    for noun, name, which in (("workload", asked.workload, "of"), ("hardware", machine, "on")):
        if asked.uploaded is not None and isinstance(name, str):
            lacks = f"The upload holds no {noun}. What is shown is {which} {name}, which is not yours"
            st.info(plain(f"{lacks}: choose in the sidebar."), icon=":material/info:")
    if given.is_carried:
        st.caption(CARRIED)
    if workload.switches:
        switches = ", ".join(map(option_words, workload.switches.items()))
        st.caption(plain(f"As the job ran: {switches}. A switch that is set beside goes before its own."))
    said, doubts = tell_own_step(given.job)
    for line in said:
        st.caption(f"{sentence(line)}.")
    for doubt in doubts:
        st.warning(sentence(doubt))


def record_looked_at(library: Library) -> str | None:
    """The name among all records of the run that Tune and Compare show; None: they show none."""
    is_one = st.session_state.get("start") == MEASURED
    return library.name_among_all(st.session_state.get("record")) if is_one else None


def nothing_to_show(library: Library) -> None:
    """What a page says where nothing was chosen yet."""
    bundled = " No bundled files were found; `bucketsim dash --traces DIR` names them."
    st.info(
        "There is nothing to look at yet: upload a workload in the sidebar (`bucketsim record` makes one of "
        "your model), or a trace of torch.profiler; a machine may come with it (`bucketsim calibrate` makes "
        "one, and so does the output of nccl-tests), or be a ready-made cluster. An address does not hold "
        f"files: whoever opens one has to give them again.{bundled if library.is_empty else ''}"
    )


def _record_of(library: Library, inputs: Inputs) -> str | None:
    """The record of the same workload and hardware, if there is one."""
    for name, folder in library.records.items():
        with suppress(SimError):  # a record that is broken, or still being written, belongs to nothing yet
            if _load(folder / "workload.json", folder / "hardware.json") == inputs:
                return name
    return None
