"""The Cluster page: what the machine is, what its collectives take, how a workload scales on it."""

import streamlit as st
from streamlit.navigation.page import StreamlitPage

import sim
from app import cached_cluster
from app.cached_cluster import Made
from app.figures.curve import CurveRow, curve_rows, draw_curve
from app.figures.scaling import scaling_figure
from app.figures.style import CHART
from app.library import Library
from app.provenance import tool_version
from app.views import cluster_knobs, cluster_ranks, export, headline, sources
from app.views.cluster_knobs import Asked
from app.views.errors import told
from app.views.headline import Card
from app.words import cluster as labels_cluster
from app.words import labels
from sim.nouns.cluster import split_name
from sim.nouns.hardware import Hardware
from sim.nouns.scaling_row import ScalingRow
from sim.nouns.workload import Workload
from sim.units import format_number, format_percent, format_size, format_time

_SHOWN_BYTES = (1 << 20, 1 << 30)


def show(library: Library, tune: StreamlitPage | None = None) -> None:
    """Draw the page; what cannot be computed is one line in its place, and the rest stays.

    ``tune`` is the page that plays a workload on the machine that is set.
    """
    asked = cluster_knobs.show(library, sources.workload_looked_at(library))
    st.title("Cluster")
    made = _made(asked)
    if made is None:
        st.info(
            "Upload the JSON of a cluster in the sidebar: `bucketsim cluster … --save-cluster` makes one."
        )
        return
    hardware: Hardware | None = None
    with told():
        hardware = cached_cluster.hardware(made)
    if hardware is not None:
        _headline(made, hardware)
    if hardware is not None:
        _curve(hardware)
    rows: tuple[ScalingRow, ...] = ()
    if hardware is not None and asked.workload is None:
        st.info("No bundled workload was found; `bucketsim dash --traces DIR` names them.")
    elif hardware is not None and asked.workload is not None:
        with told():
            recorded = asked.recorded(library)
            unlike = labels_cluster.device_sentence(recorded[0], asked.computing)
            workload, digest = cached_cluster.computing(*recorded, asked.computing)
            is_as_slow = unlike is not None and asked.computing == 1.0
            rows = _scaling(
                workload, digest, asked.most_hosts, made, hardware.world_size, unlike, is_as_slow=is_as_slow
            )
            if tune is not None and (in_tune := cluster_knobs.in_tune(asked, library)) is not None:
                st.page_link(tune, label=labels_cluster.IN_TUNE, query_params=in_tune)
            elif asked.preset is not None and asked.computing != 1.0:
                st.caption(labels_cluster.NOT_IN_TUNE)
            cluster_ranks.show(workload, digest, made, hardware.world_size)
    _export(made, hardware, rows)


def _made(asked: Asked) -> Made | None:
    """The cluster that the knobs point to; None where it is still to be uploaded."""
    if asked.preset is not None:
        return cached_cluster.make(asked.preset, asked.settings)
    if asked.upload is None:
        return None
    return cached_cluster.parse(asked.upload.content, asked.upload.name)


def _headline(made: Made, hardware: Hardware) -> None:
    rows = {row.num_bytes: row for row in curve_rows(hardware)}
    ranks, *cards = st.columns(1 + len(_SHOWN_BYTES))
    hosts = made.cluster.host_count
    below = f"{hosts:,} host{'s' if hosts > 1 else ''}"
    headline.draw(ranks, Card(label="Ranks", value=f"{hardware.world_size:,}", below=below))
    for card, size in zip(cards, _SHOWN_BYTES, strict=True):
        row = rows.get(size)
        if row is None:
            continue
        headline.draw(
            card,
            Card(
                label=f"All-reduce of {format_size(size)}",
                value=format_time(row.duration_ns),
                told=labels_cluster.HELP["computed"],
                below=_card_words(row),
            ),
        )
    words = str(hardware.provenance.get("source", ""))
    st.caption(labels.sentence(f"{words}. {labels_cluster.range_words(rows.get(_SHOWN_BYTES[-1]))}"))


def _card_words(row: CurveRow) -> str:
    if row.bytes_per_s is None:
        return "one rank sends nothing"
    return (
        f"{format_number(row.bytes_per_s / 1e9)} GB/s bus bandwidth{', ' + row.method if row.method else ''}"
    )


def _curve(hardware: Hardware) -> None:
    st.subheader("What does an all-reduce take?")
    rows = curve_rows(hardware)
    st.plotly_chart(
        draw_curve(rows),
        key="curve",
        config=CHART,
        alt="Time and bus bandwidth of an all-reduce over its size",
    )
    st.caption(labels_cluster.CURVE_CAPTION)


def _scaling(
    workload: Workload,
    digest: str,
    most_hosts: int,
    made: Made,
    ranks: int,
    unlike: str | None,
    *,
    is_as_slow: bool,
) -> tuple[ScalingRow, ...]:
    """Draw how a workload scales; ``unlike`` says why it may not be what these GPUs compute.

    The sentence is of the machine that was set, which has ``ranks``. ``is_as_slow``: it is no answer, as GPUs
    compute faster than the recording.
    """
    st.subheader("How does a workload scale on it?")
    if unlike is not None:
        st.warning(labels.plain(unlike))
    hosts = host_counts(made, most_hosts)
    if len(hosts) < 2:
        st.info("This machine is one host: there is nothing to scale over.")
        return ()
    rows = cached_cluster.scaling(workload, digest, made, hosts)
    own = next((row for row in rows if row.world_size == ranks), rows[-1])
    sentence = labels.plain(labels_cluster.scaling_sentence(workload.name, own, is_as_slow=is_as_slow))
    st.markdown(sentence if is_as_slow else f"**{sentence}**")
    estimated = labels.estimated_sentence(workload)
    if estimated is not None:
        st.warning(labels.plain(estimated))
    st.plotly_chart(
        scaling_figure(rows),
        key="scaling",
        config=CHART,
        alt="Efficiency, exposed communication and the best cap over world size",
    )
    st.caption(labels_cluster.SCALING_CAPTION)
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
        st.warning(labels.plain(f"{line[0].upper()}{line[1:]}."), icon=":material/warning:")
    for row in rows:
        if row.reason:
            st.caption(labels.plain(f"Why the best cap changes: {row.reason}."))
    return rows


def host_counts(made: Made, most: int) -> tuple[int, ...]:
    """Powers of two up to ``most`` hosts, and as many as are set; of a placement or a network of one's own no
    more than there are."""
    cluster = made.cluster
    if cluster.placement is not None:
        top = min(most, len({split_name(rank)[0] for rank in cluster.placement}))
    elif len(cluster.hosts) == 1 and cluster.network is not None:
        top = most
    else:
        top = min(most, cluster.host_count)
    counts = {1 << power for power in range(top.bit_length()) if 1 << power <= top}
    return tuple(sorted(counts | {top} | ({cluster.host_count} if cluster.placement is None else set())))


def _export(made: Made, hardware: Hardware | None, rows: tuple[ScalingRow, ...]) -> None:
    name = labels.file_safe(made.cluster.name)
    st.subheader("Take it home")
    files = [
        (
            "Cluster JSON",
            sim.to_text(made.cluster),
            f"{name}.cluster.json",
            labels_cluster.HELP["cluster_json"],
        )
    ]
    if hardware is not None:
        text = sim.to_text(hardware)
        files.append(("Hardware JSON", text, f"{name}.hardware.json", labels_cluster.HELP["hardware_json"]))
    if rows:
        text = sim.scaling_csv(rows)
        files.append(("Scaling CSV", text, f"{name}.scaling.csv", "A row a number of hosts"))
    with st.container(horizontal=True):
        for label, text, file, words in files:
            export.download(label, text, file, words)
    st.caption(labels.plain(f"bucketsim {tool_version()}, cluster sha256 {made.digest[:12]}"))
