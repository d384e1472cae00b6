"""The Cluster page: what the machine is, what its collectives take, how a workload scales on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from app.widgets import Card, chart, download, draw_card, factor, take_name, told
from app.words import MACHINE_WORDS, device_sentence, estimated_sentence, file_safe, plain, sentence
from sim.clusters.ranks.distribution import AssignmentComparison, PairedRow
from sim.clusters.ranks.rank_files import Ranks, SlowRanks
from sim.clusters.ranks.summary import StepDistribution
from sim.clusters.scaling.one_machine import ScalingRow
from sim.nouns.cluster import Cluster, split_name
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_number, format_percent, format_size, format_time

HOST_STOPS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_UPLOAD, _FOLLOWED = "upload", "workload_followed"
COMPUTING = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the sidebar asks for: a preset with its settings, or an upload; neither before one is given.

    ``workload`` is a name in the library, or that of ``uploaded``. ``computing`` is how many times as long
    all that it computes takes.
    """

    preset: Preset | None
    upload: UploadedFile | None
    workload: str | None
    computing: float
    most_hosts: int
    uploaded: Workload | None = None

    def recorded(self, library: Library) -> Workload:
        """The workload as it was recorded."""
        assert self.workload is not None
        if self.workload in library.workloads:
            return playing.load_workload(library.workloads[self.workload])
        assert self.uploaded is not None
        return self.uploaded


def _ask(library: Library, looked_at: str | None) -> Asked:
    """Draw the sidebar and read it; ``looked_at`` is the workload that the visitor was turned to last."""
    take_name("machine", MACHINE_WORDS)
    with st.sidebar:
        machine = st.selectbox(
            "Machine",
            [*PRESETS, _UPLOAD],
            format_func=MACHINE_WORDS.__getitem__,
            key="machine",
            bind="query-params",
            help="A ready-made cluster, from data sheets, or one of your own as JSON (`kind: cluster`).",
        )
        preset: Preset | None = None
        upload: UploadedFile | None = None
        if machine == _UPLOAD:
            upload = sources.one_file(
                "Cluster JSON",
                "up_c",
                "What `bucketsim cluster PRESET --save-cluster C.json` writes; change it by hand.",
            )
        else:
            settings = sources.settings_of(machine)
            preset = Preset(name=machine, settings=tuple(sorted(settings.items())))
        st.divider()
        workload, uploaded = None, sources.uploaded_workload()
        names = [*library.workloads, *([] if uploaded is None else [sources.uploaded_words(uploaded.name)])]
        if looked_at in names and looked_at != st.session_state.get(_FOLLOWED):
            st.session_state[_FOLLOWED] = looked_at
            if "scaled" not in st.query_params:  # else the address names one
                st.session_state["scaled"] = looked_at
        if names:
            workload = st.selectbox(
                "Workload",
                names,
                key="scaled",
                bind="query-params",
                help="What each GPU computes and sends in a step; it stays the same at every size.",
            )
        computing = factor(
            "Computing ×",
            COMPUTING,
            "computing",
            "Multiplies forward, loss, backward and optimizer: 0.1 is a GPU ten times as fast as "
            "the device that the workload was recorded on.",
        )
        most = st.select_slider(
            "Scale up to, hosts",
            HOST_STOPS,
            value=64,
            key="most_hosts",
            bind="query-params",
            help="Powers of two up to so many hosts.",
        )
    return Asked(
        preset=preset,
        upload=upload,
        workload=workload,
        computing=computing,
        most_hosts=most,
        uploaded=uploaded,
    )


def in_tune(asked: Asked, library: Library) -> dict[str, str] | None:
    """The address at which Tune plays the workload on this machine; None where Tune cannot have it."""
    if asked.preset is None or asked.workload not in library.workloads or asked.computing != 1.0:
        return None
    settings = {one.name: one.default for one in PRESETS[asked.preset.name]}
    return {
        "start": "bundled files",
        "workload": asked.workload,
        "hardware": asked.preset.words,
        **{
            f"{asked.preset.name}_{name}": str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in asked.preset.settings
            if value != settings[name]
        },
    }


_SHOWN_BYTES = (1 << 20, 1 << 30)


def show(library: Library, tune: StreamlitPage | None = None) -> None:
    """Draw the page; what cannot be computed is one line in its place, and the rest stays.

    ``tune`` is the page that plays a workload on the machine that is set.
    """
    asked = _ask(library, sources.workload_looked_at(library))
    st.title("Cluster")
    cluster = _cluster(asked)
    if cluster is None:
        st.info(
            "Upload the JSON of a cluster in the sidebar: `bucketsim cluster … --save-cluster` makes one."
        )
        return
    hardware: Hardware | None = None
    with told():
        hardware = sources.cluster_hardware(cluster)
    if hardware is not None:
        _headline(cluster, hardware)
        _curve(hardware)
    rows: tuple[ScalingRow, ...] = ()
    if hardware is not None and asked.workload is None:
        st.info("No bundled workload was found; `bucketsim dash --traces DIR` names them.")
    elif hardware is not None and asked.workload is not None:
        with told():
            recorded = asked.recorded(library)
            unlike = device_sentence(recorded, asked.computing)
            workload = computing(recorded, asked.computing)
            is_as_slow = unlike is not None and asked.computing == 1.0
            rows = _scaling(asked, workload, cluster, hardware.world_size, unlike, is_as_slow=is_as_slow)
            if tune is not None and (address := in_tune(asked, library)) is not None:
                st.page_link(tune, label="Open this workload on this machine in Tune", query_params=address)
            elif asked.preset is not None and asked.computing != 1.0:
                st.caption(
                    "Tune has no knob for Computing ×. Where that stands at 1, the workload can be "
                    "opened on this machine in Tune, where Backward × makes backward alone faster."
                )
            _ranks_that_differ(workload, hardware)
    _export(cluster, hardware, rows)


def _cluster(asked: Asked) -> Cluster | None:
    """The cluster that the knobs point to; None where it is still to be uploaded."""
    if asked.preset is not None:
        return sources.make_cluster(asked.preset)
    if asked.upload is None:
        return None
    file = asked.upload
    return _parse_cluster(sources.content_digest(file), file.name, file.getvalue)


@memo(8)
def _parse_cluster(same: str, name: str, content: Callable[[], bytes]) -> Cluster:
    with st.spinner("Reading the upload …"):
        return one(sim.parse_cluster(content(), name))


def _headline(cluster: Cluster, hardware: Hardware) -> None:
    rows = {row.num_bytes: row for row in curve_rows(hardware)}
    ranks, *cards = st.columns(1 + len(_SHOWN_BYTES))
    hosts = cluster.host_count
    below = f"{hosts:,} host{'s' if hosts > 1 else ''}"
    draw_card(ranks, Card(label="Ranks", value=f"{hardware.world_size:,}", below=below))
    for card, size in zip(cards, _SHOWN_BYTES, strict=True):
        row = rows.get(size)
        if row is None:
            continue
        draw_card(
            card,
            Card(
                label=f"All-reduce of {format_size(size)}",
                value=format_time(row.duration_ns),
                told="By NCCL's cost model over the links of this machine; nobody measured it.",
                below=_card_words(row),
            ),
        )
    words = str(hardware.provenance.get("source", ""))
    st.caption(sentence(f"{words}. {range_words(rows.get(_SHOWN_BYTES[-1]))}"))


def _card_words(row: CurveRow) -> str:
    if (rate := row.bytes_per_s(row.duration_ns)) is None:
        return "one rank sends nothing"
    return f"{format_number(rate / 1e9)} GB/s bus bandwidth{', ' + row.method if row.method else ''}"


def _curve(hardware: Hardware) -> None:
    st.subheader("What does an all-reduce take?")
    rows = curve_rows(hardware)
    chart(draw_curve(rows), "curve", "Time and bus bandwidth of an all-reduce over its size")
    st.caption(
        "Computed by NCCL's own cost model from data sheets: nothing is measured. Shaded: "
        "the range in which a measurement may be expected. Bus bandwidth is nccl-tests': 2 "
        "(n - 1) / n times size over time."
    )


def _scaling(
    asked: Asked, workload: Workload, cluster: Cluster, ranks: int, unlike: str | None, *, is_as_slow: bool
) -> tuple[ScalingRow, ...]:
    """Draw how a workload scales; ``unlike`` says why it may not be what these GPUs compute.

    The sentence is of the machine that was set, which has ``ranks``. ``is_as_slow``: it is no answer, as GPUs
    compute faster than the recording.
    """
    st.subheader("How does a workload scale on it?")
    if unlike is not None:
        st.warning(plain(unlike))
    hosts = host_counts(cluster, asked.most_hosts)
    if len(hosts) < 2:
        st.info("This machine is one host: there is nothing to scale over.")
        return ()
    rows = _scaling_rows(workload, cluster, asked.preset, hosts)
    own = next((row for row in rows if row.world_size == ranks), rows[-1])
    sentence = plain(scaling_sentence(workload.name, own, is_as_slow=is_as_slow))
    st.markdown(sentence if is_as_slow else f"**{sentence}**")
    estimated = estimated_sentence(workload)
    if estimated is not None:
        st.warning(plain(estimated))
    chart(
        scaling_figure(rows), "scaling", "Efficiency, exposed communication and the best cap over world size"
    )
    st.caption(
        "Each GPU keeps its batch. Efficiency: samples a second and GPU over those of one "
        "GPU alone. Best buckets: the best found that are contiguous in ready order; hover "
        "for whether it is proved. Exposed: copies and launches too. Shaded: what the range "
        "of the all-reduce curve allows, and the caps around the best that are within 0.1 % "
        "of it. A ring around a cap: hover for why it changes."
    )
    st.dataframe(
        [
            {
                "ranks": row.world_size,
                "default, ms": row.default_step_ns / 1e6,
                "best cap, ms": row.cap_step_ns / 1e6,
                "best buckets, ms": row.optimum_step_ns / 1e6,
                "efficiency": format_percent(row.cap_efficiency),
                "exposed, ms": row.cap_exposed_comm_ns / 1e6,
                "bucket_cap_mb": row.bucket_cap_mb,
            }
            for row in rows
        ],
        hide_index=True,
        column_config=dict.fromkeys(
            ("default, ms", "best cap, ms", "best buckets, ms", "exposed, ms"),
            st.column_config.NumberColumn(format="%.2f"),
        ),
    )
    for line in dict.fromkeys(row.doubts for row in rows if row.doubts and unlike is None):
        st.warning(plain(f"{line[0].upper()}{line[1:]}."), icon=":material/warning:")
    for row in rows:
        if row.reason:
            st.caption(plain(f"Why the best cap changes: {row.reason}."))
    return rows


def host_counts(cluster: Cluster, most: int) -> tuple[int, ...]:
    """Powers of two up to ``most`` hosts, and as many as are set; of a placement or a network of one's own no
    more than there are."""
    if cluster.placement is not None:
        top = min(most, len({split_name(rank)[0] for rank in cluster.placement}))
    elif len(cluster.hosts) == 1 and cluster.network is not None:
        top = most
    else:
        top = min(most, cluster.host_count)
    counts = {1 << power for power in range(top.bit_length()) if 1 << power <= top}
    return tuple(sorted(counts | {top} | ({cluster.host_count} if cluster.placement is None else set())))


def _export(cluster: Cluster, hardware: Hardware | None, rows: tuple[ScalingRow, ...]) -> None:
    name = file_safe(cluster.name)
    st.subheader("Take it home")
    files = [
        (
            "Cluster JSON",
            sim.to_text(cluster),
            f"{name}.cluster.json",
            "The machine, to be changed by hand and uploaded, or given to `bucketsim cluster`",
        )
    ]
    if hardware is not None:
        text = sim.to_text(hardware)
        files.append(
            (
                "Hardware JSON",
                text,
                f"{name}.hardware.json",
                "Its collectives, for the Tune page and every command that takes a hardware",
            )
        )
    if rows:
        text = sim.scaling_csv(rows)
        files.append(("Scaling CSV", text, f"{name}.scaling.csv", "A row a number of hosts"))
    with st.container(horizontal=True):
        for label, text, file, words in files:
            download(label, text, file, words)
    st.caption(plain(f"bucketsim {tool_version()}, cluster sha256 {digest(cluster)[:12]}"))


JITTERS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)
PACES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
MOST_RANKS = 16_384  # a page is not to wait for minutes; the command plays more
_RANK_STEPS = 200_000


def _ranks_that_differ(workload: Workload, hardware: Hardware) -> None:
    """Ask how ranks differ, and draw the steps that come of it."""
    st.subheader("What if ranks differ?")
    left, middle, right = st.columns(3)
    with left:
        jitter = factor(
            "Jitter of each rank and step",
            JITTERS,
            "jitter",
            "Sigma of a lognormal factor of mean 1 on all that a rank computes, drawn anew in each step.",
            _percent,
        )
    with middle:
        spread = factor(
            "Spread between ranks",
            JITTERS,
            "spread",
            "Sigma of such a factor that each rank draws once and keeps: no two GPUs are equally fast.",
            _percent,
        )
    with right:
        pace = factor(
            "One slow rank, times as long",
            PACES,
            "slow",
            "Rank 0 takes so many times as long for all that it computes.",
        )
    if not jitter and not spread and pace == 1.0:
        st.info("All ranks are alike, and nobody waits. Move a slider to see what the slowest one costs.")
        return
    if hardware.world_size > MOST_RANKS:
        st.info(f"More than {MOST_RANKS:,} ranks: `bucketsim ranks` plays them.")
        return
    found = _differing(workload, hardware, jitter, spread, pace)
    default = found.rows[0].distribution
    best = next(row for row in found.rows if row.name == found.best_by_mean)
    st.markdown(f"**{plain(ranks_sentence(default, best))}**")
    chart(
        distribution_figure(found), "ranks", "How many steps are not longer than a time, for each assignment"
    )
    st.caption(
        "A collective starts when its last rank has come, so a step follows the slowest. "
        "Solid: the mean. Dashed: the step if all ranks were alike. The same draws for each "
        "assignment."
    )


def words_of(jitter: float, spread: float, pace: float) -> str:
    """How ranks differ, in a few words."""
    words = [f"jitter {_percent(jitter)}"] if jitter else []
    words += [f"spread {_percent(spread)}"] if spread else []
    words += [f"rank 0 taking {pace:g} times as long"] if pace != 1.0 else []
    return ", ".join(words)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


def computing(workload: Workload, factor: float) -> Workload:
    """A workload all of whose computing takes ``factor`` times as long."""
    return workload if factor == 1.0 else _computing(workload, factor)


@memo(32)
def _computing(workload: Workload, factor: float) -> Workload:
    changed = WhatIf(backward=factor).on(workload)
    return replace(
        changed,
        name=f"{workload.name}, computing x {format_number(factor, 6)}",
        forward_ns=round(workload.forward_ns * factor),
        loss_ns=round(workload.loss_ns * factor),
        optimizer_ns=round(workload.optimizer_ns * factor),
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


@memo(16)
def _differing(
    workload: Workload, hardware: Hardware, jitter: float, spread: float, pace: float
) -> AssignmentComparison:
    """Steps of ranks that differ, under DDP's default, the best cap and the best buckets found."""
    with st.spinner("Playing all ranks …"):
        found = playing.tune(Inputs(workload=workload, hardware=hardware))
        assignments = {"DDP's default": found.families["default"].assignment}
        if "bucket_cap_mb" in found.families:
            assignments["best cap"] = found.families["bucket_cap_mb"].assignment
        assignments["best buckets"] = found.assignment
        ranks = Ranks(
            name=words_of(jitter, spread, pace),
            pace_jitter=jitter,
            pace_spread=spread,
            slow=(SlowRanks(first=0, pace=pace),) if pace != 1.0 else (),
        )
        samples = max(20, min(400, _RANK_STEPS // hardware.world_size))  # fewer of very many ranks
        return sim.compare_assignments(workload, hardware, assignments, ranks, samples=samples)


def range_words(row: CurveRow | None) -> str:
    """What a measurement of one size may come to; nothing where no range is stated."""
    if row is None or row.low_ns == row.high_ns:
        return ""
    low, high = format_time(row.low_ns), format_time(row.high_ns)
    return f"A measurement of {format_size(row.num_bytes)} may be expected from {low} to {high}."


def scaling_sentence(workload: str, row: ScalingRow, *, is_as_slow: bool = False) -> str:
    """What one machine comes to, and what to set there: DDP's default, where no cap is better that shows.

    ``is_as_slow``: its GPUs are taken to compute no faster than the CPU of the recording.
    """
    behind = row.default_step_ns - row.cap_step_ns
    where = f"{workload} on {row.world_size:,} GPUs{' no faster than that CPU' if is_as_slow else ''}"
    if row.default_is_alike or behind <= 0:
        saved = f"saves {format_ms(behind)} a step, less than 0.1 %" if behind > 0 else "saves nothing"
        return (
            f"{where}: {format_percent(row.default_efficiency)} of what one GPU alone does, "
            f"with DDP's default; {format_ms(row.default_exposed_comm_ns)} of communication is exposed. "
            f"Keep it: the best bucket_cap_mb, {format_number(row.bucket_cap_mb, 4)}, {saved}."
        )
    unsure = ""
    if not row.cap_is_sure:
        low, high = sorted((row.best_cap_low_mb, row.best_cap_high_mb))
        unsure = (
            f" Not certain: at the ends of the range of the all-reduce curve the best caps are "
            f"{format_number(low, 4)} and "
            f"{format_number(high, 4)}."
        )
    return (
        f"{where}: {format_percent(row.cap_efficiency)} of what one GPU alone does, with "
        f"the best bucket_cap_mb, {format_number(row.bucket_cap_mb, 4)}; "
        f"{format_ms(row.cap_exposed_comm_ns)} of "
        f"communication is exposed. DDP's default is {format_ms(behind)} slower.{unsure}"
    )


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
