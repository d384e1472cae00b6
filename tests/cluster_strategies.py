"""Hypothesis strategies for clusters: legal ones, of every shape that the noun allows."""

from collections.abc import Sequence

from hypothesis import strategies as st

from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link, Network

RATES = st.floats(1, 1e13)
# What presets cannot be made without.
NEEDED: dict[str, dict[str, int]] = {
    "pcie_hosts": {"hosts": 2, "gpus": 4, "gbit_per_s": 10},
    "hgx_ethernet": {"hosts": 2, "gbit_per_s": 25},
    **{f"ethernet_{speed}g": {"hosts": 2} for speed in (10, 25, 100)},
}


@st.composite
def templates(draw: st.DrawFn, name: str) -> HostTemplate:
    gpus, nics = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    devices = [
        *(Device(name=f"gpu{number}", kind="gpu") for number in range(gpus)),
        *(Device(name=f"nic{number}", kind="nic") for number in range(nics)),
        Device(name="cpu", kind="cpu"),
        Device(name="memory", kind="memory"),
    ]
    links = [
        Link(
            a=device.name,
            b="cpu",
            kind=draw(st.sampled_from(["pcie", "c2c"])),
            bytes_per_s=draw(RATES),
            latency_ns=draw(st.integers(0, 10**6)),
            count=draw(st.integers(1, 18)),
        )
        for device in devices
        if device.name != "cpu" and draw(st.booleans())
    ]
    return HostTemplate(
        name=name,
        generation=draw(st.sampled_from(["volta", "turing", "ampere", "hopper", "blackwell"])),
        devices=tuple(devices),
        links=tuple(links),
        peer_to_peer=draw(st.booleans()),
        gpu_direct=draw(st.booleans()),
        nvls=draw(st.booleans()),
        cpu=draw(st.sampled_from(["intel", "amd", "arm"])),
    )


networks = st.builds(
    Network,
    bytes_per_s=RATES,
    hosts_per_leaf=st.integers(1, 64),
    rails=st.integers(1, 8),
    spines=st.integers(1, 8),
    oversubscription=st.floats(0.001, 100),
    latency_ns=st.none() | st.integers(0, 10**6),
    switch_latency_ns=st.integers(0, 10**6),
    sharp=st.booleans(),
    ll128=st.booleans(),
    ll=st.booleans(),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    made = [draw(templates(name)) for name in draw(st.lists(st.sampled_from("ab"), min_size=1, unique=True))]
    hosts = [
        Hosts(template=draw(st.sampled_from(made)).name, count=draw(st.integers(1, 3)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    network = draw(st.none() | networks)
    plain = Cluster(name="c", templates=tuple(made), hosts=tuple(hosts), network=network)
    gpus = list(plain.all_gpus())
    switches = () if network else tuple(f"switch{number}" for number in range(draw(st.integers(0, 2))))
    nics = [f"host{host}.{nic}" for host, one in enumerate(plain.owners()) for nic in one.of_kind("nic")]
    return Cluster(
        name=draw(st.text(st.characters(codec="utf-8"), max_size=6)),
        templates=plain.templates,
        hosts=plain.hosts,
        network=network,
        switches=switches,
        links=tuple(Link(a=nic, b=switches[0], kind="net", bytes_per_s=draw(RATES)) for nic in nics[:2])
        if switches
        else (),
        placement=draw(st.none() | st.lists(st.sampled_from(gpus), min_size=1, unique=True).map(tuple)),
        provenance={"source": "drawn"},
    )


@st.composite
def placements(draw: st.DrawFn, clusters: Sequence[Cluster], *, least: int = 1) -> tuple[Cluster, list[str]]:
    """Some GPUs of one of these clusters, up to twelve, in any order."""
    cluster = draw(st.sampled_from(clusters))
    gpus = draw(st.permutations(list(cluster.all_gpus())))
    return cluster, gpus[: draw(st.integers(least, min(12, len(gpus))))]
