"""Clusters for tests: legal ones of every shape the noun allows, presets by name, links of given times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from sim.clusters.machines import preset
from sim.nouns.cluster import Cluster, HostKind, Hosts, Network, Step
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired

MS, MIB = 1_000_000, 1 << 20
RATES = st.floats(1, 1e13)
dgx_a100, dgx_h100, p4de, gh200_slingshot, nvl72 = (
    partial(preset, name) for name in ("dgx_a100", "dgx_h100", "p4de", "gh200_slingshot", "nvl72")
)
# What presets cannot be made without.
NEEDED: dict[str, dict[str, int]] = {
    "pcie_hosts": {"hosts": 2, "gpus": 4, "gbit_per_s": 10},
    "hgx_ethernet": {"hosts": 2, "gbit_per_s": 25},
}


def pcie_box(gpus: int = 4, **settings: Any) -> Cluster:
    return preset("pcie_box", gpus=gpus, **settings)


def pcie_hosts(hosts: int, gpus: int, **settings: Any) -> Cluster:
    return preset("pcie_hosts", hosts=hosts, gpus=gpus, **settings)


def hosts_of(count: int) -> Cluster:
    """``count`` hosts of one GPU each."""
    return pcie_hosts(count, 1, gbit_per_s=10)


def workload_of(ready_ms: list[float], sizes_mib: list[float], forward_ms: float = 10) -> Workload:
    """Gradients that become ready from the last to the first; backward ends with the last of them."""
    ready, sizes = [round(ms * MS) for ms in ready_ms], [round(mib * MIB) for mib in sizes_mib]
    return handmade(ready[::-1], sizes[::-1], forward_ns=round(forward_ms * MS), backward_ns=ready[-1])


def measured(points_ms: Mapping[float, float], ranks: int = 2) -> Hardware:
    """Hardware by MiB and ms of its all-reduces."""
    times = {round(size * MIB): round(time * MS) for size, time in points_ms.items()}
    return wired(times, name=f"{ranks} ranks", world_size=ranks)


@st.composite
def kinds(draw: st.DrawFn, name: str) -> HostKind:
    """A kind of host: what one field says limits the others."""
    gpus, nics = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    generation = draw(st.sampled_from(["volta", "turing", "ampere", "hopper", "blackwell"]))
    steps = st.builds(Step, bytes_per_s=RATES, rings=st.integers(1, 64))
    drawn = st.builds(
        HostKind,
        name=st.just(name),
        gpus=st.just(gpus),
        generation=st.just(generation),
        between_gpus=st.lists(steps, min_size=min(1, gpus - 1), max_size=gpus - 1).map(tuple),
        nics=st.just(nics),
        parts=st.sampled_from([1, gpus]) if nics in (0, gpus) else st.just(1),
        gpu_slot_bytes_per_s=RATES if nics else st.none(),
        nic_slot_bytes_per_s=RATES if nics else st.none(),
        staged=st.booleans(),
        nvls=st.booleans() if generation in ("hopper", "blackwell") else st.just(False),
        ll128=st.booleans(),
        cpu=...,
    )
    return draw(drawn)


networks = st.builds(
    Network,
    bytes_per_s=RATES,
    hosts_per_leaf=st.integers(1, 64),
    rails=st.integers(1, 8),
    oversubscription=st.floats(0.001, 100),
    latency_ns=st.none() | st.integers(0, 10**6),
    switch_latency_ns=st.integers(0, 10**6),
    ll128=...,
    ll=...,
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to six hosts of one or two kinds, with or without a network, on all GPUs or some."""
    made = [draw(kinds(name)) for name in draw(st.lists(st.sampled_from("ab"), min_size=1, unique=True))]
    group = st.builds(
        Hosts,
        kind=st.sampled_from([kind.name for kind in made]),
        count=st.integers(1, 3),
        port_bytes_per_s=st.none() | RATES,
    )
    whole = Cluster(
        name=draw(st.text(st.characters(codec="utf-8"), max_size=6)),
        kinds=tuple(made),
        hosts=tuple(draw(st.lists(group, min_size=1, max_size=2))),
        network=draw(st.none() | networks),
        provenance={"source": "drawn"},
    )
    ranks = st.lists(st.sampled_from(list(whole.all_gpus())), min_size=1, unique=True).map(tuple)
    return replace(whole, placement=draw(st.none() | ranks))


@st.composite
def placements(draw: st.DrawFn, clusters: Sequence[Cluster], *, least: int = 1) -> tuple[Cluster, list[str]]:
    """Some GPUs of one of these clusters, up to twelve, in any order."""
    cluster = draw(st.sampled_from(clusters))
    gpus = draw(st.permutations(list(cluster.all_gpus())))
    return cluster, gpus[: draw(st.integers(least, min(12, len(gpus))))]
