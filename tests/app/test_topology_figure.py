"""The picture of a cluster: all of it or honest counts of it, and figures that are the cluster's own."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from app.figures.machine import MAX_BOXES, MAX_COLUMNS, MAX_INSIDE, Machine, machine_of
from app.figures.placing import apart, plan_of
from app.figures.strands import NOT_LOADED, strands_of, width_of
from app.figures.style import ALARM
from app.figures.switches import MAX_GROUPS, MAX_LEAVES, MAX_OWN, MAX_SPINES
from app.figures.topology import topology_figure
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link, Network
from tests.cluster_strategies import clusters
from tests.clusters.whole_graph import network_links
from tests.effort import tries

PRESETS: dict[str, Callable[[], Cluster]] = {
    "dgx_a100": lambda: sim.cluster("dgx_a100", hosts=4),
    "dgx_h100": lambda: sim.cluster("dgx_h100"),
    "p4de": lambda: sim.cluster("p4de", hosts=2),
    "gh200": lambda: sim.cluster("gh200_slingshot", hosts=4),
    "pcie_box": lambda: sim.cluster("pcie_box", sockets=2),
    "pcie_hosts": lambda: sim.cluster("pcie_hosts", hosts=4, gpus=4, gbit_per_s=10),
}
GPU, NIC = Device(name="gpu0", kind="gpu"), Device(name="nic0", kind="nic")
SMALL = HostTemplate(
    name="small",
    generation="ampere",
    devices=(GPU, NIC),
    links=(Link(a="gpu0", b="nic0", kind="pcie", bytes_per_s=12e9, latency_ns=500),),
)


def two_racks() -> Cluster:
    """Four hosts on two switches, with a slow uplink of two links between them."""
    ports = [
        Link(a=f"host{host}.nic0", b="left" if host < 2 else "right", kind="net", bytes_per_s=3e9)
        for host in range(4)
    ]
    uplink = Link(a="left", b="right", kind="net", bytes_per_s=5e8, latency_ns=2_000, count=2)
    return Cluster(
        name="two racks",
        templates=(SMALL,),
        hosts=(Hosts(template="small", count=4),),
        switches=("left", "right"),
        links=(*ports, uplink),
    )


def hovers(figure: Any, name: str) -> list[str]:
    return [text for trace in figure.data if trace.name == name for text in trace.customdata]


def pairs(machine: Machine) -> dict[frozenset[str], float]:
    return {frozenset((wire.a, wire.b)): wire.high_bytes_per_s for wire in machine.wires}


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_machine_is_drawn_whole(name: str) -> None:
    """Every part and every link of the machine's own graph, at its own bandwidth, and nothing else."""
    cluster = PRESETS[name]()
    expected: dict[frozenset[str], float] = {}
    for host, template in enumerate(cluster.owners()):
        for link in template.links:
            ends = frozenset((f"host{host}.{link.a}", f"host{host}.{link.b}"))
            expected[ends] = link.bytes_per_s * link.count
    for link in network_links(cluster):
        expected[frozenset((link.a, link.b))] = link.bytes_per_s * link.count
    machine = machine_of(cluster)
    assert pairs(machine) == pytest.approx(expected)
    assert all(part.count == 1 for part in machine.parts)
    gpus = [part for part in machine.parts if part.kind == "gpu"]
    assert [part.name for part in gpus] == list(cluster.all_gpus())
    assert [part.rank for part in gpus] == list(range(len(gpus)))


def test_the_72_gpus_of_a_rack_are_all_drawn_and_numbered() -> None:
    figure = topology_figure(sim.cluster("nvl72"))
    (gpus,) = (trace for trace in figure.data if trace.name == "GPUs")
    assert list(gpus.text) == [str(number) for number in range(72)]
    assert gpus.textfont.size >= 7


@given(clusters())
@settings(max_examples=tries(30, 6), deadline=None)
def test_any_cluster_is_drawn_within_the_budget(cluster: Cluster) -> None:
    machine = machine_of(cluster)
    plan = plan_of(machine)
    assert {part.name for part in machine.parts} == set(plan.places)
    assert sum(box.count for box in machine.boxes) == cluster.host_count
    switches = MAX_LEAVES * (MAX_GROUPS + len(machine.boxes)) + MAX_SPINES + MAX_OWN
    assert len(machine.parts) <= MAX_INSIDE + MAX_BOXES + switches
    assert topology_figure(cluster).to_json() == topology_figure(cluster).to_json()


@pytest.mark.parametrize("hosts", [2, 10, 33, 128, 2_000, 12_500])
def test_a_large_cluster_is_counted(hosts: int) -> None:
    """First host in detail; all others, all leaves and all ports are still accounted for."""
    cluster = sim.cluster("dgx_h100", hosts=hosts)
    machine = machine_of(cluster)
    assert len(machine.parts) < 400
    assert sum(box.count for box in machine.boxes) == hosts
    assert machine.boxes[0].is_detailed
    leaves = [part for part in machine.parts if part.kind == "switch" and part.level == 1]
    assert sum(leaf.count for leaf in leaves) == 8 * -(-hosts // 32)
    drawn = {part.name for part in leaves}
    ports = [wire for wire in machine.wires if (wire.a in drawn) != (wire.b in drawn) and wire.kind == "net"]
    up = [wire for wire in ports if "spine0" not in (wire.a, wire.b)]
    assert sum(wire.alike for wire in up) == 8 * hosts
    assert {wire.high_bytes_per_s for wire in up} == {50e9}


def test_hosts_of_very_many_kinds_are_one_box() -> None:
    templates = tuple(replace(SMALL, name=f"t{number}") for number in range(200))
    cluster = Cluster(
        name="zoo",
        templates=templates,
        hosts=tuple(Hosts(template=one.name, count=1) for one in templates),
        network=Network(bytes_per_s=1e9, hosts_per_leaf=8),
    )
    machine = machine_of(cluster)
    assert sum(box.count for box in machine.boxes) == 200
    assert sum(box.is_detailed for box in machine.boxes) <= MAX_COLUMNS
    assert len(machine.parts) < 400
    assert "kinds" in str(topology_figure(cluster).layout.annotations)


def test_a_host_with_more_gpus_than_can_be_drawn_is_counted() -> None:
    gpus = tuple(Device(name=f"gpu{number}", kind="gpu") for number in range(576))
    switch = Device(name="nvswitch", kind="nvswitch")
    links = tuple(Link(a=one.name, b="nvswitch", kind="nvlink", bytes_per_s=1e11) for one in gpus)
    template = HostTemplate(name="t", generation="blackwell", devices=(*gpus, switch), links=links)
    cluster = Cluster(name="c", templates=(template,), hosts=(Hosts(template="t", count=1),))
    machine = machine_of(cluster)
    assert [(part.kind, part.count) for part in machine.parts] == [("gpu", 576), ("nvswitch", 1)]
    (wire,) = machine.wires
    assert (wire.alike, wire.high_bytes_per_s) == (576, 1e11)
    assert "576 of these" in hovers(topology_figure(cluster), "links")[0]


def test_a_network_of_ones_own_has_its_tiers() -> None:
    cluster = two_racks()
    spine = Link(a="left", b="core", kind="net", bytes_per_s=1e9)
    taller = replace(cluster, switches=("core", "left", "right"), links=(*cluster.links, spine))
    levels = {part.name: part.level for part in machine_of(taller).parts if part.kind == "switch"}
    assert levels == {"left": 1, "right": 1, "core": 2}
    places = plan_of(machine_of(taller)).places
    assert places["core"].y > places["left"].y == places["right"].y > places["host0.nic0"].y
    assert places["left"].x < places["right"].x


def test_many_switches_of_ones_own_are_one() -> None:
    names = tuple(f"s{number}" for number in range(100))
    links = tuple(Link(a="host0.nic0", b=name, kind="net", bytes_per_s=1e9) for name in names)
    cluster = replace(two_racks(), switches=names, links=links)
    machine = machine_of(cluster)
    (switch,) = (part for part in machine.parts if part.kind == "switch")
    (wire,) = (wire for wire in machine.wires if wire.kind == "net")
    assert (switch.count, wire.alike) == (100, 100)


def test_a_hover_tells_a_link_in_units() -> None:
    texts = hovers(topology_figure(two_racks()), "links")
    uplink = next(text for text in texts if "left – right" in text)
    assert "1 GB/s each way" in uplink
    assert "2 side by side, 0.5 GB/s each" in uplink
    assert "latency 2 us one way" in uplink
    nvlink = next(
        text for text in hovers(topology_figure(PRESETS["dgx_a100"]()), "links") if "NVLink" in text
    )
    assert "240 GB/s each way" in nvlink
    assert "12 side by side, 20 GB/s each" in nvlink


def test_a_wider_link_carries_more() -> None:
    assert width_of(1e9) < width_of(1e10) < width_of(1e12)
    machine = machine_of(sim.cluster("dgx_a100"))
    widths = {strand.wire.kind: strand.width for strand in strands_of(machine, plan_of(machine))}
    assert widths["nvlink"] > widths["pcie"] >= widths["qpi"]


def test_the_busiest_link_is_the_bottleneck() -> None:
    """The slow uplink holds the ring up; ports carry as many bytes, three times as fast."""
    cluster = two_racks()
    machine = machine_of(cluster, sim.link_loads(cluster))
    strands = {
        frozenset((strand.wire.a, strand.wire.b)): strand for strand in strands_of(machine, plan_of(machine))
    }
    uplink, port = strands[frozenset(("left", "right"))], strands[frozenset(("host0.nic0", "left"))]
    assert (uplink.colour, uplink.busy) == (ALARM, 1.0)
    assert port.busy == pytest.approx(1 / 3)
    assert port.width < uplink.width
    assert uplink.wire.share == pytest.approx(2 * 3 / 4)
    text = next(
        one
        for one in hovers(topology_figure(cluster, sim.link_loads(cluster)), "links")
        if "left – right" in one
    )
    assert "1.5 bytes cross it for each byte of the message" in text
    assert "busy for 1,573 us a MiB, 100% of the busiest" in text


def test_what_the_ring_leaves_out_is_grey() -> None:
    cluster = PRESETS["dgx_a100"]()
    machine = machine_of(cluster, sim.link_loads(cluster))
    sockets = [strand for strand in strands_of(machine, plan_of(machine)) if strand.wire.kind == "qpi"]
    assert {strand.colour for strand in sockets} == {NOT_LOADED}
    assert all(wire.s_per_byte is None for wire in machine_of(cluster).wires)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_the_legend_names_no_algorithm(algorithm: str) -> None:
    """Loads may be those of a tree."""
    cluster = PRESETS["dgx_a100"]()
    figure = topology_figure(cluster, sim.link_loads(cluster, algorithm=algorithm))
    names = {trace.name for trace in figure.data if trace.showlegend}
    assert {"busiest: holds the all-reduce up", "not used by the all-reduce"} <= names
    assert "ring" not in figure.to_json().replace("string", "")


def test_loads_of_links_alike_are_those_of_each() -> None:
    """Beyond 64 hosts loads come with a count; a larger cluster looks like a small one."""
    small, large = (sim.cluster("dgx_h100", hosts=hosts) for hosts in (4, 128))
    for kind in ("pcie", "nvlink"):
        share = [
            {
                round(wire.share or 0, 2)
                for wire in machine_of(one, sim.link_loads(one)).wires
                if wire.kind == kind and "host0.gpu0" in (wire.a, wire.b)
            }
            for one in (small, large)
        ]
        assert len(share[0]) == len(share[1]) == 1
        assert share[0].pop() == pytest.approx(share[1].pop(), rel=0.05)


def test_ranks_are_those_of_the_placement() -> None:
    cluster = replace(two_racks(), placement=("host2.gpu0", "host0.gpu0"))
    figure = topology_figure(cluster)
    assert ["rank 1" in text or "rank 0" in text for text in hovers(figure, "GPUs")] == [True, True]
    idle = hovers(figure, "GPUs without a rank")
    assert ["host1" in idle[0], "host3" in idle[1], all("no rank runs on it" in text for text in idle)] == [
        True
    ] * 3


def test_names_from_files_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    gpu, nic = Device(name=evil, kind="gpu"), Device(name=evil + "n", kind="nic")
    link = Link(a=gpu.name, b=nic.name, kind="pcie", bytes_per_s=1e9)
    other = HostTemplate(name=f"{evil}2", generation="ampere", devices=(gpu, nic), links=(link,))
    template = replace(other, name=evil)
    cluster = Cluster(
        name=evil,
        templates=(template, other),
        hosts=(Hosts(template=template.name, count=200), Hosts(template=other.name, count=2)),
        switches=(evil,),
        links=(Link(a=f"host0.{evil}n", b=evil, kind="net", bytes_per_s=1e9),),
    )
    figure = topology_figure(cluster)
    html = figure.to_html(include_plotlyjs=False, full_html=False)
    body = html.split("Plotly.newPlot", 1)[1]
    assert "<script>alert" not in body.replace("\\u003c", "<")
    assert "script" in body


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=12),
    st.floats(0.1, 3),
)
def test_parts_stand_apart_and_near_to_where_they_belong(wished: list[float], gap: float) -> None:
    found = apart(wished, gap, -1e6, 1e6)
    order = sorted(range(len(wished)), key=lambda number: (wished[number], number))
    for before, after in pairwise(order):
        assert found[after] - found[before] >= gap * (1 - 1e-9)
    assert sum(found) == pytest.approx(sum(wished), abs=1e-6)
    if all(wished[b] - wished[a] >= gap for a, b in pairwise(order)):
        assert found == pytest.approx(wished)


def test_the_picture_says_what_it_shows() -> None:
    figure = topology_figure(sim.cluster("dgx_h100", hosts=128))
    assert "dgx_h100" in figure.layout.title.text
    assert "128 hosts of 8 Hopper GPUs, 1,024 GPUs" in figure.layout.title.text
    named = topology_figure(sim.cluster("dgx_h100", hosts=128), name="DGX H100")
    assert named.layout.title.text.startswith("<b>DGX H100</b>")
    assert all(len(line) < 90 for line in named.layout.title.text.split("<br>"))
    assert "GPUs" in figure.layout.yaxis.ticktext
    entries = {trace.name for trace in figure.data if trace.showlegend}
    assert "NVLink, 370.8 GB/s" in entries
    assert any(name.startswith("network, 50 GB/s, ") for name in entries)
    assert "31 like dgx_h100" in str(figure.layout.annotations)
