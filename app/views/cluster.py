"""The Cluster page: what the machine is, what its collectives take, how a workload scales on it."""

from importlib.metadata import version
from typing import Any

import streamlit as st
from streamlit.navigation.page import StreamlitPage

import sim
from app import playing, sources
from app.figures.cluster import curve_rows, draw_curve, scaling_figure
from app.memo import digest, memo
from app.sources import MACHINE_WORDS, Library, Outcome, Preset
from app.widgets import Card, ask, chart, downloads, draw_cards, table, take_name, told
from app.words import counted, device_sentence, estimated_sentence, file_safe, plain, sentence
from sim.clusters.scaling import ScalingRow
from sim.columns import SCALING, records
from sim.errors import InputError
from sim.nouns.cluster import Cluster, split_name
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms, format_number, format_percent, format_size, format_time

_HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_UPLOAD = "upload"
_SHOWN_BYTES = (1 << 20, 1 << 30)
Machine = Preset | Outcome | None  # None: still to be uploaded


def _ask_machine() -> Machine:
    """Draw what the machine is asked with, where the caller stands (the sidebar), and read it."""
    named = {**MACHINE_WORDS, _UPLOAD: _UPLOAD}
    take_name("machine", named)
    words = "A ready-made cluster, from data sheets, or one of your own as JSON (`kind: cluster`)."
    machine = ask(st.selectbox, "Machine", "machine", words, [*named], format_func=named.__getitem__)
    if machine == _UPLOAD:
        return sources.ask_upload()
    return Preset(machine, tuple(sorted(sources.settings_of(machine).items())))


def _cluster_of(machine: Machine) -> Cluster | None:
    """The cluster that the knobs point to; an upload that is not legal, or has none, is an ``InputError``."""
    if isinstance(machine, Preset):
        return sources.make_cluster(machine)
    if isinstance(machine, str):
        raise InputError(machine)
    if machine is not None and machine.cluster is None:
        raise InputError(f"kind: these files hold {', '.join(machine.formats)}, and no cluster")
    return None if machine is None else machine.cluster


def _ask_workload(library: Library) -> tuple[str | None, Workload | None]:
    """The name of a workload, where there are any, and what was uploaded; drawn where the caller stands."""
    own = sources.uploaded_workload()
    names = [*([] if own is None else [sources.uploaded_words(own.name)]), *library.workloads]
    words = "What each GPU computes and sends in a step; it stays the same at every size."
    return ask(st.selectbox, "Workload", "scaled", words, names) if names else None, own


def show(library: Library, tune: StreamlitPage | None = None) -> None:
    """Draw the page; what cannot be computed is one line in its place, and the rest stays.

    ``tune`` is the page that plays a workload on the machine that is set.
    """
    with st.sidebar:
        machine = _ask_machine()
        st.divider()
        name, recorded = _ask_workload(library)
        words = "Powers of two up to so many hosts."
        most = ask(st.select_slider, "Scale up to, hosts", "most_hosts", words, _HOSTS, value=64)
    st.title("Cluster")
    cluster = _cluster_of(machine)
    if cluster is None:
        st.info(
            "Upload the JSON of a cluster in the sidebar: `bucketsim cluster PRESET --save-cluster C.json` "
            "makes one, to be changed by hand."
        )
        return
    file = file_safe(cluster.name)
    by_hand = "The machine, to be changed by hand and uploaded, or given to `bucketsim cluster`"
    files: dict[str, Any] = {"Cluster JSON": (sim.to_text(cluster), f"{file}.cluster.json", by_hand)}
    with told():
        hardware = sources.cluster_hardware(cluster)
        _machine(cluster, hardware)
        words = "Its collectives, for the Tune page and every command that takes a hardware"
        files["Hardware JSON"] = (sim.to_text(hardware), f"{file}.hardware.json", words)
        if name in library.workloads:
            recorded = playing.load_workload(library.workloads[name])
        if recorded is None:
            st.info("No bundled workload was found; `bucketsim dash --traces DIR` names them.")
        else:
            preset = machine if isinstance(machine, Preset) else None
            rows = _scaling(recorded, cluster, preset, most, hardware.world_size)
            if rows:
                words = "A row a number of hosts"
                files["Scaling CSV"] = sim.scaling_csv(rows), f"{file}.scaling.csv", words
            if tune is not None and preset is not None and name in library.workloads:
                of = {"start": "bundled files", "workload": name, "hardware": preset.words}
                turned = {f"{preset.name}_{setting}": value for setting, value in preset.turned.items()}
                at = of | {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in turned.items()}
                st.page_link(tune, label="Open this workload on this machine in Tune", query_params=at)
    st.subheader("Take it home")
    downloads(files)
    st.caption(plain(f"bucketsim {version('bucketsim')}, cluster sha256 {digest(cluster)[:12]}"))


def _machine(cluster: Cluster, hardware: Hardware) -> None:
    """What it is, and what an all-reduce takes on it."""
    rows = curve_rows(hardware)
    of_size = {row.num_bytes: row for row in rows if row.num_bytes in _SHOWN_BYTES}
    hosts = counted(cluster.host_count, "host")
    by_whom = "By NCCL's cost model over the links of this machine; nobody measured it."
    cards = [Card(label="Ranks", value=f"{hardware.world_size:,}", below=hosts)]
    for size, row in of_size.items():
        label, value = f"All-reduce of {format_size(size)}", format_time(row.duration_ns)
        rate, method = row.bytes_per_s(row.duration_ns), f", {row.method}" if row.method else ""
        below = (
            f"{format_number(rate / 1e9)} GB/s bus bandwidth{method}" if rate else "one rank sends nothing"
        )
        cards.append(Card(label=label, value=value, told=by_whom, below=below))
    draw_cards(cards)
    source, largest = str(hardware.provenance.get("source", "")), of_size.get(_SHOWN_BYTES[-1])
    if largest is not None and largest.low_ns < largest.high_ns:
        low, high = format_time(largest.low_ns), format_time(largest.high_ns)
        of = format_size(largest.num_bytes)
        source = f"{source}. A measurement of {of} may be expected from {low} to {high}"
    st.caption(sentence(f"{source}."))
    st.subheader("What does an all-reduce take?")
    chart(draw_curve(rows), "curve", "Time and bus bandwidth of an all-reduce over its size")
    st.caption(
        "Shaded: the range in which a measurement may be expected. Bus bandwidth is nccl-tests': "
        "2 (n - 1) / n times size over time."
    )


def _scaling(
    workload: Workload, cluster: Cluster, preset: Preset | None, most: int, ranks: int
) -> tuple[ScalingRow, ...]:
    """Draw how a workload scales, with a sentence of the machine that was set, which has ``ranks``.

    Where GPUs are taken to be as slow as the CPU of the recording, that is no answer.
    """
    unlike = device_sentence(workload)
    st.subheader("How does a workload scale on it?")
    if unlike is not None:
        st.warning(plain(unlike))
    hosts = host_counts(cluster, most)
    if len(hosts) < 2:
        st.info("This machine is one host: there is nothing to scale over.")
        return ()
    rows = _scaling_rows(workload, preset or cluster, hosts)
    own = next((row for row in rows if row.world_size == ranks), rows[-1])
    answer = plain(scaling_sentence(workload.name, own, is_as_slow=unlike is not None))
    st.markdown(answer if unlike else f"**{answer}**")
    if (estimated := estimated_sentence(workload)) is not None:
        st.warning(plain(estimated))
    words = "Efficiency, exposed communication and the best cap over world size"
    chart(scaling_figure(rows), "scaling", words)
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
def _scaling_rows(
    workload: Workload, machine: Cluster | Preset, hosts: tuple[int, ...]
) -> tuple[ScalingRow, ...]:
    """How a workload scales over numbers of hosts; the rows of a ready-made machine name its settings."""
    with st.spinner("Searching for the best cap at each world size …"):
        if isinstance(machine, Cluster):
            return sim.scaling(workload, machine, hosts=hosts)
        settings = {name: [value] for name, value in machine.settings if name != "hosts"}
        return sim.scaling(workload, machine.name, hosts=hosts, settings=settings)


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
