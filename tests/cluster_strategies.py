"""Hypothesis strategies for clusters: legal ones, of every shape that the noun allows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from sim.clusters.machines import preset
from sim.nouns.cluster import Cluster, HostKind, Hosts, Network, Step

dgx_a100, dgx_h100, p4de, gh200_slingshot, nvl72 = (
    partial(preset, name) for name in ("dgx_a100", "dgx_h100", "p4de", "gh200_slingshot", "nvl72")
)


def pcie_box(gpus: int = 4, **settings: Any) -> Cluster:
    return preset("pcie_box", gpus=gpus, **settings)


def pcie_hosts(hosts: int, gpus: int, **settings: Any) -> Cluster:
    return preset("pcie_hosts", hosts=hosts, gpus=gpus, **settings)


RATES = st.floats(1, 1e13)
# What presets cannot be made without.
NEEDED: dict[str, dict[str, int]] = {
    "pcie_hosts": {"hosts": 2, "gpus": 4, "gbit_per_s": 10},
    "hgx_ethernet": {"hosts": 2, "gbit_per_s": 25},
}

steps = st.builds(
    Step,
    kind=st.sampled_from(["nvlink", "nvswitch", "pcie", "shm", "qpi"]),
    bytes_per_s=RATES,
    rings=st.integers(1, 64),
)


@st.composite
def kinds(draw: st.DrawFn, name: str) -> HostKind:
    gpus, nics = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    generation = draw(st.sampled_from(["volta", "turing", "ampere", "hopper", "blackwell"]))
    return HostKind(
        name=name,
        gpus=gpus,
        generation=generation,
        between_gpus=tuple(draw(st.lists(steps, min_size=min(1, gpus - 1), max_size=gpus - 1))),
        nics=nics,
        parts=gpus if nics in (0, gpus) and draw(st.booleans()) else 1,
        gpu_slot_bytes_per_s=draw(RATES) if nics else None,
        nic_slot_bytes_per_s=draw(RATES) if nics else None,
        staged=draw(st.booleans()),
        nvls=generation in ("hopper", "blackwell") and draw(st.booleans()),
        ll128=draw(st.booleans()),
        cpu=draw(st.sampled_from(["intel", "amd", "arm"])),
    )


networks = st.builds(
    Network,
    bytes_per_s=RATES,
    hosts_per_leaf=st.integers(1, 64),
    rails=st.integers(1, 8),
    oversubscription=st.floats(0.001, 100),
    latency_ns=st.none() | st.integers(0, 10**6),
    switch_latency_ns=st.integers(0, 10**6),
    ll128=st.booleans(),
    ll=st.booleans(),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    made = [draw(kinds(name)) for name in draw(st.lists(st.sampled_from("ab"), min_size=1, unique=True))]
    hosts = [
        Hosts(
            kind=draw(st.sampled_from(made)).name,
            count=draw(st.integers(1, 3)),
            port_bytes_per_s=draw(st.none() | RATES),
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    whole = Cluster(
        name=draw(st.text(st.characters(codec="utf-8"), max_size=6)),
        kinds=tuple(made),
        hosts=tuple(hosts),
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
