"""The Cluster page: what the machine is, what its collectives take, how a workload scales on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.navigation.page import StreamlitPage

import sim
from app import playing, sources
from app.choosing import WhatIf
from app.figures.cluster import CurveRow, curve_rows, distribution_figure, draw_curve, scaling_figure
from app.library import Library
from app.memo import digest, memo, one
from app.playing import Inputs
from app.provenance import tool_version
from app.sources import PRESETS, Preset, UploadedFile
from app.widgets import Card, ask, chart, download, draw_cards, factor, table, take_name, told
from app.words import MACHINE_WORDS, counted, device_sentence, estimated_sentence, file_safe, plain, sentence
from sim.clusters.distribution import AssignmentComparison, PairedRow, StepDistribution
from sim.clusters.ranks import Ranks, SlowRanks
from sim.clusters.scaling import ScalingRow
from sim.columns import SCALING, records
from sim.nouns.cluster import Cluster, split_name
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_number, format_percent, format_size, format_time

_HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_COMPUTING = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_UPLOAD, _FOLLOWED = "upload", "workload_followed"
_SHOWN_BYTES = (1 << 20, 1 << 30)
_JITTERS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)
_PACES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
_MOST_RANKS = 16_384  # a page is not to wait for minutes; the command plays more
_RANK_STEPS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the sidebar asks for: a preset with its settings, or an upload; neither before one is given.

    ``workload`` is a name in the library, or that of ``uploaded``. ``computing`` is how many times as long
    all that it computes takes.
    """

    preset: Preset | None = None
    upload: UploadedFile | None = None
    workload: str | None = None
    computing: float
    most_hosts: int
    uploaded: Workload | None = None

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that the knobs point to; None where it is still to be uploaded."""
        if self.preset is not None:
            return sources.make_cluster(self.preset)
        file = self.upload
        return (
            None if file is None else _parse_cluster(sources.content_digest(file), file.name, file.getvalue)
        )

    def in_tune(self, library: Library) -> dict[str, str] | None:
        """The address at which Tune plays the workload on this machine; None where Tune cannot have it."""
        if self.preset is None or self.workload not in library.workloads or self.computing != 1.0:
            return None
        first = {one.name: one.default for one in PRESETS[self.preset.name]}
        turned = [(name, value) for name, value in self.preset.settings if value != first[name]]
        return {
            "start": "bundled files",
            "workload": self.workload,
            "hardware": self.preset.words,
            **{
                f"{self.preset.name}_{name}": str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in turned
            },
        }


def _ask(library: Library) -> Asked:
    """Draw the sidebar and read it."""
    found: dict[str, Any] = {"uploaded": sources.uploaded_workload()}
    take_name("machine", MACHINE_WORDS)
    words = "A ready-made cluster, from data sheets, or one of your own as JSON (`kind: cluster`)."
    names = {"format_func": MACHINE_WORDS.__getitem__}
    machine = ask(st.selectbox, "Machine", "machine", words, [*PRESETS, _UPLOAD], **names)
    if machine == _UPLOAD:
        words = "What `bucketsim cluster PRESET --save-cluster C.json` writes; change it by hand."
        found["upload"] = sources.one_file("Cluster JSON", "up_c", words)
    else:
        settings = tuple(sorted(sources.settings_of(machine).items()))
        found["preset"] = Preset(name=machine, settings=settings)
    st.divider()
    own = found["uploaded"]
    names_of = [*library.workloads, *([] if own is None else [sources.uploaded_words(own.name)])]
    looked_at = sources.workload_looked_at(library)  # which the visitor was turned to last
    if looked_at in names_of and looked_at != st.session_state.get(_FOLLOWED):
        st.session_state[_FOLLOWED] = looked_at
        if "scaled" not in st.query_params:  # else the address names one
            st.session_state["scaled"] = looked_at
    if names_of:
        words = "What each GPU computes and sends in a step; it stays the same at every size."
        found["workload"] = ask(st.selectbox, "Workload", "scaled", words, names_of)
    words = (
        "Multiplies forward, loss, backward and optimizer: 0.1 is a GPU ten times as fast as "
        "the device that the workload was recorded on."
    )
    computing = factor("Computing ×", _COMPUTING, "computing", words)
    words = "Powers of two up to so many hosts."
    most = ask(st.select_slider, "Scale up to, hosts", "most_hosts", words, _HOSTS, value=64)
    return Asked(computing=computing, most_hosts=most, **found)


def show(library: Library, tune: StreamlitPage | None = None) -> None:
    """Draw the page; what cannot be computed is one line in its place, and the rest stays.

    ``tune`` is the page that plays a workload on the machine that is set.
    """
    with st.sidebar:
        asked = _ask(library)
    st.title("Cluster")
    cluster = asked.cluster
    if cluster is None:
        st.info(
            "Upload the JSON of a cluster in the sidebar: `bucketsim cluster … --save-cluster` makes one."
        )
        return
    hardware: Hardware | None = None
    rows: tuple[ScalingRow, ...] = ()
    with told():
        hardware = sources.cluster_hardware(cluster)
    if hardware is not None:
        _machine(cluster, hardware)
        if asked.workload is None:
            st.info("No bundled workload was found; `bucketsim dash --traces DIR` names them.")
        else:
            with told():
                recorded = asked.uploaded
                if asked.workload in library.workloads:
                    recorded = playing.load_workload(library.workloads[asked.workload])
                assert recorded is not None
                workload = _computing(recorded, asked.computing)
                unlike = device_sentence(recorded, asked.computing)
                rows = _scaling(asked, workload, cluster, hardware.world_size, unlike)
                if tune is not None and (address := asked.in_tune(library)) is not None:
                    label = "Open this workload on this machine in Tune"
                    st.page_link(tune, label=label, query_params=address)
                elif asked.preset is not None and asked.computing != 1.0:
                    st.caption(
                        "Tune has no knob for Computing ×. Where that stands at 1, the workload can be "
                        "opened on this machine in Tune, where Backward × makes backward alone faster."
                    )
                _ranks_that_differ(workload, hardware)
    _take_home(cluster, hardware, rows)


@memo(8)
def _parse_cluster(same: str, name: str, content: Callable[[], bytes]) -> Cluster:
    with st.spinner("Reading the upload …"):
        return one(sim.parse_cluster(content(), name))


def _machine(cluster: Cluster, hardware: Hardware) -> None:
    """What it is, and what an all-reduce takes on it."""
    rows = curve_rows(hardware)
    of_size = {row.num_bytes: row for row in rows if row.num_bytes in _SHOWN_BYTES}
    hosts = counted(cluster.host_count, "host")
    by_whom = "By NCCL's cost model over the links of this machine; nobody measured it."
    cards = [Card(label="Ranks", value=f"{hardware.world_size:,}", below=hosts)]
    for size, row in of_size.items():
        label, value = f"All-reduce of {format_size(size)}", format_time(row.duration_ns)
        cards.append(Card(label=label, value=value, told=by_whom, below=_rate_words(row)))
    draw_cards(cards)
    source = str(hardware.provenance.get("source", ""))
    st.caption(sentence(f"{source}. {range_words(of_size.get(_SHOWN_BYTES[-1]))}"))
    st.subheader("What does an all-reduce take?")
    chart(draw_curve(rows), "curve", "Time and bus bandwidth of an all-reduce over its size")
    st.caption(
        "Computed by NCCL's own cost model from data sheets: nothing is measured. Shaded: "
        "the range in which a measurement may be expected. Bus bandwidth is nccl-tests': 2 "
        "(n - 1) / n times size over time."
    )


def _rate_words(row: CurveRow) -> str:
    rate = row.bytes_per_s(row.duration_ns)
    if rate is None:
        return "one rank sends nothing"
    return f"{format_number(rate / 1e9)} GB/s bus bandwidth{', ' + row.method if row.method else ''}"


def range_words(row: CurveRow | None) -> str:
    """What a measurement of one size may come to; nothing where no range is stated."""
    if row is None or row.low_ns == row.high_ns:
        return ""
    low, high = format_time(row.low_ns), format_time(row.high_ns)
    return f"A measurement of {format_size(row.num_bytes)} may be expected from {low} to {high}."


def _scaling(
    asked: Asked, workload: Workload, cluster: Cluster, ranks: int, unlike: str | None
) -> tuple[ScalingRow, ...]:
    """Draw how a workload scales; ``unlike`` says why it may not be what these GPUs compute.

    The sentence is of the machine that was set, which has ``ranks``; where GPUs are taken to be as slow as
    the CPU of the recording, it is no answer.
    """
    st.subheader("How does a workload scale on it?")
    if unlike is not None:
        st.warning(plain(unlike))
    hosts = host_counts(cluster, asked.most_hosts)
    if len(hosts) < 2:
        st.info("This machine is one host: there is nothing to scale over.")
        return ()
    is_as_slow = unlike is not None and asked.computing == 1.0
    rows = _scaling_rows(workload, cluster, asked.preset, hosts)
    own = next((row for row in rows if row.world_size == ranks), rows[-1])
    answer = plain(scaling_sentence(workload.name, own, is_as_slow=is_as_slow))
    st.markdown(answer if is_as_slow else f"**{answer}**")
    if (estimated := estimated_sentence(workload)) is not None:
        st.warning(plain(estimated))
    told = "Efficiency, exposed communication and the best cap over world size"
    chart(scaling_figure(rows), "scaling", told)
    st.caption(
        "Each GPU keeps its batch. Efficiency: samples a second and GPU over those of one "
        "GPU alone. Best buckets: the best found that are contiguous in ready order; hover "
        "for whether it is proved. Exposed: copies and launches too. Shaded: what the range "
        "of the all-reduce curve allows, and the caps around the best that are within 0.1 % "
        "of it. A ring around a cap: hover for why it changes."
    )
    table(records(SCALING, rows))
    for line in dict.fromkeys(row.doubts for row in rows if row.doubts and unlike is None):
        st.warning(f"{sentence(line)}.", icon=":material/warning:")
    for row in rows:
        if row.reason:
            st.caption(plain(f"Why the best cap changes: {row.reason}."))
    return rows


def host_counts(cluster: Cluster, most: int) -> tuple[int, ...]:
    """Powers of two up to ``most`` hosts, and as many as are set.

    Of a placement or a network of one's own no more than there are.
    """
    own = set() if cluster.placement is not None else {cluster.host_count}
    top = min(most, cluster.host_count)
    if cluster.placement is not None:
        top = min(most, len({split_name(rank)[0] for rank in cluster.placement}))
    elif len(cluster.hosts) == 1 and cluster.network is not None:
        top = most
    return tuple(sorted({1 << power for power in range(top.bit_length())} | {top} | own))


@memo(32)
def _computing(workload: Workload, factor: float) -> Workload:
    """A workload all of whose computing takes ``factor`` times as long."""
    if factor == 1.0:
        return workload
    parts = ("forward_ns", "loss_ns", "optimizer_ns")
    return replace(
        WhatIf(backward=factor).on(workload),
        name=f"{workload.name}, computing x {format_number(factor, 6)}",
        **{name: round(getattr(workload, name) * factor) for name in parts},
    )


@memo(32)
def _scaling_rows(
    workload: Workload, cluster: Cluster, preset: Preset | None, hosts: tuple[int, ...]
) -> tuple[ScalingRow, ...]:
    """How a workload scales over numbers of hosts of a cluster."""
    with st.spinner("Searching for the best cap at each world size …"):
        if preset is None:
            return sim.scaling(workload, cluster, hosts=hosts)
        settings = {name: [value] for name, value in preset.settings if name != "hosts"}
        return sim.scaling(workload, preset.name, hosts=hosts, settings=settings)


def scaling_sentence(workload: str, row: ScalingRow, *, is_as_slow: bool = False) -> str:
    """What one machine comes to, and what to set there: DDP's default, where no cap is better that shows.

    ``is_as_slow``: its GPUs are taken to compute no faster than the CPU of the recording.
    """
    behind, cap = row.default_step_ns - row.cap_step_ns, format_number(row.bucket_cap_mb, 4)
    where = f"{workload} on {row.world_size:,} GPUs{' no faster than that CPU' if is_as_slow else ''}"
    alone = "of what one GPU alone does, with"
    if row.default_is_alike or behind <= 0:
        saved = f"saves {format_ms(behind)} a step, less than 0.1 %" if behind > 0 else "saves nothing"
        return (
            f"{where}: {format_percent(row.default_efficiency)} {alone} DDP's default; "
            f"{format_ms(row.default_exposed_comm_ns)} of communication is exposed. "
            f"Keep it: the best bucket_cap_mb, {cap}, {saved}."
        )
    unsure = ""
    if not row.cap_is_sure:
        low, high = (format_number(end, 4) for end in sorted((row.best_cap_low_mb, row.best_cap_high_mb)))
        ends = "at the ends of the range of the all-reduce curve the best caps are"
        unsure = f" Not certain: {ends} {low} and {high}."
    return (
        f"{where}: {format_percent(row.cap_efficiency)} {alone} the best bucket_cap_mb, {cap}; "
        f"{format_ms(row.cap_exposed_comm_ns)} of communication is exposed. "
        f"DDP's default is {format_ms(behind)} slower.{unsure}"
    )


def _ranks_that_differ(workload: Workload, hardware: Hardware) -> None:
    """Ask how ranks differ, and draw the steps that come of it."""
    st.subheader("What if ranks differ?")
    drawn_each = "Sigma of a lognormal factor of mean 1 on all that a rank computes, drawn anew in each step."
    drawn_once = "Sigma of such a factor that each rank draws once and keeps: no two GPUs are equally fast."
    slow = "Rank 0 takes so many times as long for all that it computes."
    knobs: tuple[tuple[str, Sequence[float], str, str, Any], ...] = (
        ("Jitter of each rank and step", _JITTERS, "jitter", drawn_each, _percent),
        ("Spread between ranks", _JITTERS, "spread", drawn_once, _percent),
        ("One slow rank, times as long", _PACES, "slow", slow, "{:g}".format),
    )
    found = []
    for place, knob in zip(st.columns(3), knobs, strict=True):
        with place:
            found.append(factor(*knob))
    jitter, spread, pace = found
    if not jitter and not spread and pace == 1.0:
        st.info("All ranks are alike, and nobody waits. Move a slider to see what the slowest one costs.")
        return
    if hardware.world_size > _MOST_RANKS:
        st.info(f"More than {_MOST_RANKS:,} ranks: `bucketsim ranks` plays them.")
        return
    compared = _differing(workload, hardware, jitter, spread, pace)
    best = next(row for row in compared.rows if row.name == compared.best_by_mean)
    st.markdown(f"**{plain(ranks_sentence(compared.rows[0].distribution, best))}**")
    told = "How many steps are not longer than a time, for each assignment"
    chart(distribution_figure(compared), "ranks", told)
    st.caption(
        "A collective starts when its last rank has come, so a step follows the slowest. "
        "Solid: the mean. Dashed: the step if all ranks were alike. The same draws for each "
        "assignment."
    )


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


@memo(16)
def _differing(
    workload: Workload, hardware: Hardware, jitter: float, spread: float, pace: float
) -> AssignmentComparison:
    """Steps of ranks that differ, under DDP's default, the best cap and the best buckets found."""
    words = [f"jitter {_percent(jitter)}"] if jitter else []
    words += [f"spread {_percent(spread)}"] if spread else []
    words += [f"rank 0 taking {pace:g} times as long"] if pace != 1.0 else []
    slow = (SlowRanks(first=0, pace=pace),) if pace != 1.0 else ()
    with st.spinner("Playing all ranks …"):
        found = playing.tune(Inputs(workload=workload, hardware=hardware))
        assignments = {"DDP's default": found.families["default"].assignment}
        if "bucket_cap_mb" in found.families:
            assignments["best cap"] = found.families["bucket_cap_mb"].assignment
        assignments["best buckets"] = found.assignment
        ranks = Ranks(name=", ".join(words), pace_jitter=jitter, pace_spread=spread, slow=slow)
        samples = max(20, min(400, _RANK_STEPS // hardware.world_size))  # fewer of very many ranks
        return sim.compare_assignments(workload, hardware, assignments, ranks, samples=samples)


def ranks_sentence(default: StepDistribution, best: PairedRow) -> str:
    """What differing ranks cost under DDP's default, and which assignment is the best of them."""
    cost = (
        f"With {default.ranks}, {default.world_size:,} ranks take {format_ms(default.mean_step_ns)} a step "
        f"in the mean, {format_ms(default.slowest_cost_ns)} more than if all were alike, under DDP's default."
    )
    if best.distribution is default or best.gain_ns <= 0:
        return f"{cost} None of the other assignments does better."
    how = ""
    if best.gain_low_ns is not None and best.gain_high_ns is not None:
        how = f" (95 % interval {format_ms(best.gain_low_ns)} to {format_ms(best.gain_high_ns)})"
    return f"{cost} {best.name.capitalize()}: {format_ms(best.gain_ns)} less{how}."


def _take_home(cluster: Cluster, hardware: Hardware | None, rows: tuple[ScalingRow, ...]) -> None:
    name = file_safe(cluster.name)
    by_hand = "The machine, to be changed by hand and uploaded, or given to `bucketsim cluster`"
    collectives = "Its collectives, for the Tune page and every command that takes a hardware"
    st.subheader("Take it home")
    with st.container(horizontal=True):
        download("Cluster JSON", sim.to_text(cluster), f"{name}.cluster.json", by_hand)
        if hardware is not None:
            download("Hardware JSON", sim.to_text(hardware), f"{name}.hardware.json", collectives)
        if rows:
            download("Scaling CSV", sim.scaling_csv(rows), f"{name}.scaling.csv", "A row a number of hosts")
    st.caption(plain(f"bucketsim {tool_version()}, cluster sha256 {digest(cluster)[:12]}"))
