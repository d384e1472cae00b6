"""Clusters that are broken, empty or odd: one clear line, or the right number."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import sim
from sim.clusters.topology.traffic import TRAFFIC
from sim.errors import InputError, SimError
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link, Network
from tests.cluster_strategies import clusters
from tests.effort import tries


def template(name: str = "pair", *, nics: int = 1, joined: bool = True) -> HostTemplate:
    """Two GPUs on a socket, or the second on nothing."""
    gpus = [Device(name=f"gpu{number}", kind="gpu") for number in range(2)]
    ports = [Device(name=f"nic{number}", kind="nic") for number in range(nics)]
    linked = [*gpus, *ports] if joined else [gpus[0], *ports]
    return HostTemplate(
        name=name,
        generation="ampere",
        devices=(*gpus, *ports, Device(name="cpu0", kind="cpu")),
        links=tuple(Link(a=part.name, b="cpu0", kind="pcie", bytes_per_s=12e9) for part in linked),
    )


def switched(
    *templates: HostTemplate, links: dict[str, str] | None = None, switches: tuple[str, ...] = ("s",)
) -> Cluster:
    """A host of each template, and links of 1 GB/s from part to part."""
    return Cluster(
        name="c",
        templates=templates,
        hosts=tuple(Hosts(template=each.name, count=1) for each in templates),
        switches=switches,
        links=tuple(Link(a=a, b=b, kind="net", bytes_per_s=1e9) for a, b in (links or {}).items()),
    )


TWO = (template("a"), template("b"))
BOTH = {"host0.nic0": "s", "host1.nic0": "s"}


def all_of(cluster: Cluster, ranks: tuple[str, ...] | None = None) -> list[Any]:
    """Everything that can be asked of a cluster."""
    return [
        sim.cluster_hardware(cluster, ranks),
        *(sim.link_loads(cluster, ranks, algorithm) for algorithm in TRAFFIC),
    ]


def joined(cluster: Cluster) -> Cluster:
    """The same with a link for every part that has none, a NIC in every host, and a network; none below
    1 MB/s."""
    templates = []
    for each in cluster.templates:
        parts = each.devices
        if not each.of_kind("nic"):
            parts = (*parts, Device(name="nic0", kind="nic"))
        links = tuple(replace(link, bytes_per_s=max(1e6, link.bytes_per_s)) for link in each.links)
        linked = {link.a for link in links} | {"cpu"}
        more = [
            Link(a=part.name, b="cpu", kind="pcie", bytes_per_s=1e9)
            for part in parts
            if part.name not in linked
        ]
        templates.append(replace(each, devices=parts, links=(*links, *more)))
    network = cluster.network or Network(bytes_per_s=1e9, hosts_per_leaf=2)
    network = replace(network, bytes_per_s=max(1e6, network.bytes_per_s))
    return replace(cluster, templates=tuple(templates), network=network, switches=(), links=())


@given(clusters())
@settings(max_examples=tries(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_legal_cluster_has_figures_or_a_word_why_not(cluster: Cluster) -> None:
    try:
        sim.cluster_hardware(cluster)
    except SimError as error:
        said = str(error)
    else:
        said = "figures"
    assert said
    assert "\n" not in said


@given(clusters().map(joined))
@settings(max_examples=tries(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_cluster_that_is_joined_has_figures(cluster: Cluster) -> None:
    hardware = sim.cluster_hardware(cluster)
    assert all((point.duration_ns > 0) == (hardware.world_size > 1) for point in hardware.all_reduce)
    for algorithm in TRAFFIC:
        loads = sim.link_loads(cluster, None, algorithm)
        assert not loads or hardware.world_size > 1
        assert all(0 < load.share < math.inf for load in loads)


def test_links_too_slow_for_a_byte_a_second() -> None:
    slow = Network(bytes_per_s=1, hosts_per_leaf=1, oversubscription=4)
    cluster = Cluster(
        name="slow",
        templates=(template(),),
        hosts=(Hosts(template="pair", count=2),),
        network=slow,
    )
    with pytest.raises(InputError, match=r"bytes_per_s: links that leave the job 0\.25 bytes/s"):
        sim.cluster_hardware(cluster)


def test_a_graph_in_two_parts() -> None:
    apart = switched(*TWO, links={"host0.nic0": "one", "host1.nic0": "two"}, switches=("one", "two"))
    with pytest.raises(InputError, match=r"links: no way from 'host0\.nic0' to 'host1\.nic0'"):
        all_of(apart)
    assert len(all_of(apart, ("host1.gpu0", "host1.gpu1"))) == 1 + len(TRAFFIC)


def test_a_switch_with_no_links_is_not_in_the_way() -> None:
    spare = switched(*TWO, links=BOTH, switches=("s", "spare"))
    assert all_of(spare) == all_of(switched(*TWO, links=BOTH))


@pytest.mark.parametrize("ranks", [("host0.gpu0",), ("host1.gpu1",)])
def test_one_rank_has_nothing_to_send(ranks: tuple[str, ...]) -> None:
    hardware, *loads = all_of(switched(*TWO, links=BOTH), ranks)
    assert {point.duration_ns for point in hardware.all_reduce} == {0}
    assert loads == [()] * len(TRAFFIC)


def test_ranks_on_one_host_of_many_are_those_of_one_host() -> None:
    many, one = sim.cluster("dgx_a100", hosts=64), sim.cluster("dgx_a100")
    ranks = [f"host40.gpu{number}" for number in range(8)]
    assert sim.cluster_hardware(many, ranks).all_reduce == sim.cluster_hardware(one).all_reduce


def test_gpus_that_no_way_joins() -> None:
    loose = switched(template(joined=False))
    with pytest.raises(InputError, match="no ring joins gpu0, gpu1 of template 'pair'"):
        sim.cluster_hardware(loose)
    two = switched(template("a", joined=False), template("b"), links=BOTH)
    with pytest.raises(InputError, match="links: no way through host0 joins its NICs and gpu0, gpu1"):
        sim.cluster_hardware(two)
    assert sim.cluster_hardware(two, ["host0.gpu0", "host1.gpu0"]).world_size == 2


def test_a_host_without_nics_among_several() -> None:
    cluster = switched(template("a"), template("b", nics=0), links={"host0.nic0": "s"})
    with pytest.raises(InputError, match="hosts: host1 has no NIC in the network"):
        sim.cluster_hardware(cluster)
    assert sim.cluster_hardware(cluster, ["host1.gpu0", "host1.gpu1"]).world_size == 2


def test_hosts_without_a_network() -> None:
    with pytest.raises(InputError, match="hosts: host0 has no NIC in the network"):
        sim.cluster_hardware(switched(*TWO, switches=()))


def test_a_circle_without_latency_ends() -> None:
    """Every way as long as every other: the one over fewest switches is taken."""
    ring = {"one": "two", "two": "three", "three": "one"}
    cluster = switched(
        *TWO,
        links={**ring, "host0.nic0": "one", "host1.nic0": "three"},
        switches=("one", "two", "three"),
    )
    loads = sim.link_loads(cluster)
    assert {(load.a, load.b) for load in loads if "two" in (load.a, load.b)} == set()
    assert {load.share for load in loads} == {1.5}


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, True, 0.5])
def test_bandwidths_that_are_none(wrong: float) -> None:
    with pytest.raises(InputError, match=r"bytes_per_s: .* is not legal; give bytes/s >= 1"):
        Link(a="gpu0", b="gpu1", kind="pcie", bytes_per_s=wrong)
    network = sim.cluster("dgx_a100").network
    assert network is not None
    with pytest.raises(InputError, match=r"bytes_per_s: .* is not legal; give bytes/s >= 1"):
        replace(network, bytes_per_s=wrong)


def document(cluster: Cluster) -> dict[str, Any]:
    read = json.loads(sim.to_text(cluster))
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("links", 0, "bytes_per_s"), 0, "bytes_per_s: 0.* is not legal"),
        (("links", 0, "bytes_per_s"), "fast", "bytes_per_s"),
        (("links", 0, "b"), "nowhere", "'nowhere' is not legal; give a switch of 'switches' or a NIC"),
        (("links", 0, "a"), "host9.nic0", "'host9.nic0' is not legal"),
        (("hosts",), [], "hosts: an empty list is not legal"),
        (("hosts", 0, "count"), 0, "count: 0 is not legal"),
        (("templates",), [], "template: 'a' is not legal"),
        (("placement",), [], "placement: an empty list is not legal"),
        (("placement",), ["host0.gpu7"], r"placement\.0: 'host0\.gpu7' is not legal"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, path: tuple[Any, ...], value: Any, said: str) -> None:
    whole = document(switched(*TWO, links=BOTH))
    part: Any = whole
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (tmp_path / "c.json").write_text(json.dumps(whole))
    with pytest.raises(InputError, match=said) as caught:
        sim.load_cluster(tmp_path / "c.json")
    assert "c.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"kind": "cluster", "hosts": ' + "[" * 100_000, '{"bytes_per_s": NaN}', "", "null"],
    ids=["deep", "deep hosts", "NaN", "nothing", "null"],
)
def test_files_that_are_no_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=r"c\.json: ") as caught:
        sim.load_cluster(tmp_path / "c.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["dgx", ["dgx_a100"], 3, None])
def test_a_preset_that_there_is_not(name: Any) -> None:
    with pytest.raises(InputError, match=r"preset: .* is not legal; give one of dgx_a100"):
        sim.cluster(name)
