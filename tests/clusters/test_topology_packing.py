"""Best rings within one host, against all orders that there are."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.topology.link_figures import NVLINK, SOCKETS, pcie
from sim.clusters.topology.packing import LocalRing, best_rings, bottleneck, local_ring, uses
from sim.clusters.topology.presets import dgx_v100, pcie_box
from sim.clusters.topology.routes import LinkEnds, Routes
from sim.nouns.cluster import Device, HostTemplate, Link
from tests.effort import tries

WIDTHS = (10.0, 20.0, 30.0, 40.0)


def host(count: int, links: list[Link], *, p2p: bool = True) -> HostTemplate:
    return HostTemplate(
        name="h",
        generation="ampere",
        devices=(
            *(Device(name=f"gpu{number}", kind="gpu") for number in range(count)),
            Device(name="top0", kind="pcie_switch"),
            Device(name="top1", kind="pcie_switch"),
            Device(name="cpu", kind="cpu"),
            Device(name="memory", kind="memory"),
        ),
        links=tuple(links),
        peer_to_peer=p2p,
    )


@st.composite
def hosts(draw: st.DrawFn, most: int = 6) -> HostTemplate:
    """GPUs below two PCIe switches, and NVLinks between some."""
    count = draw(st.integers(2, most))
    width = st.sampled_from(WIDTHS)
    links = [
        Link(a=f"gpu{number}", b=f"top{draw(st.integers(0, 1))}", kind="pcie", bytes_per_s=draw(width))
        for number in range(count)
        if draw(st.integers(0, 5))
    ]
    links += [Link(a=f"top{side}", b="cpu", kind="pcie", bytes_per_s=draw(width)) for side in (0, 1)]
    links.append(Link(a="cpu", b="memory", kind="memory", bytes_per_s=draw(width)))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    for a, b in draw(st.lists(st.sampled_from(pairs), unique=True)):
        links.append(Link(a=f"gpu{a}", b=f"gpu{b}", kind="nvlink", bytes_per_s=draw(width)))
    return host(count, links, p2p=draw(st.booleans()))


def capacity_of(routes: Routes) -> dict[LinkEnds, float]:
    return {(a, b): edge["bytes_per_s"] for a, b, edge in routes.graph.edges(data=True)}


def brute(routes: Routes, gpus: tuple[str, ...], capacity: dict[LinkEnds, float]) -> float:
    """The best bottleneck of all orders, 0 where no order is joined."""
    best = 0.0
    for rest in permutations(gpus[1:]):
        order = (gpus[0], *rest, gpus[0])
        if all(routes.route(a, b) for a, b in pairwise(order)):
            best = max(best, bottleneck(local_ring(routes, order[:-1], None), capacity))
    return best


def fits(rings: list[tuple[LocalRing, float]], capacity: dict[LinkEnds, float]) -> bool:
    used = dict.fromkeys(capacity, 0.0)
    for ring, speed in rings:
        for link, times in uses(ring).items():
            used[link] += speed * times
    return all(used[link] <= capacity[link] * (1 + 1e-6) for link in capacity)


@pytest.mark.parametrize("seed", range(3))
def test_rings_of_eight_gpus_carry_at_least_what_the_best_of_all_orders_does(seed: int) -> None:
    links = [
        Link(a=f"gpu{n}", b=f"top{(n * (seed + 3)) % 8 // 4}", kind="pcie", bytes_per_s=20.0)
        for n in range(8)
    ]
    links += [Link(a=f"top{side}", b="cpu", kind="pcie", bytes_per_s=10.0) for side in (0, 1)]
    links += [
        Link(a=f"gpu{n}", b=f"gpu{(n + seed + 1) % 8}", kind="nvlink", bytes_per_s=40.0) for n in (0, 2, 5)
    ]
    routes = Routes(host(8, links))
    gpus, capacity = routes.template.of_kind("gpu"), capacity_of(routes)
    rings = best_rings(routes, gpus, capacity)
    assert fits(rings, capacity)
    assert sum(speed for _, speed in rings) >= brute(routes, gpus, capacity) * (1 - 1e-6)


@given(hosts())
@settings(max_examples=tries(100), deadline=None)
def test_rings_side_by_side_fit_and_carry_at_least_what_the_best_one_does(template: HostTemplate) -> None:
    routes = Routes(template)
    gpus, capacity = template.of_kind("gpu"), capacity_of(routes)
    rings = best_rings(routes, gpus, capacity)
    assert fits(rings, capacity)
    assert all(sorted(ring.gpus) == sorted(gpus) for ring, _ in rings)
    assert sum(speed for _, speed in rings) >= brute(routes, gpus, capacity) * (1 - 1e-6)
    # No GPU sends more than its links carry: a bound from outside of the search.
    for gpu in gpus:
        out = sum(width for (a, _), width in capacity.items() if a == gpu)
        assert sum(speed for _, speed in rings) <= out * (1 + 1e-6)


def test_four_gpus_all_to_all_use_every_link() -> None:
    """K4 has six directed rings; each directed link lies on two: at half speed they fill all three a GPU."""
    links = [
        Link(a=f"gpu{a}", b=f"gpu{b}", kind="nvlink", bytes_per_s=10.0) for b in range(4) for a in range(b)
    ]
    routes = Routes(host(4, links))
    rings = best_rings(routes, routes.template.of_kind("gpu"), capacity_of(routes))
    assert sum(speed for _, speed in rings) == pytest.approx(30.0)


def test_rings_fill_a_cube_mesh_of_eight_v100() -> None:
    """DGX-1V (NVIDIA DGX-1 with V100 whitepaper, figure 4): all six NVLinks of every GPU are used."""
    routes = Routes(dgx_v100().templates[0])
    capacity = capacity_of(routes)
    rings = best_rings(routes, routes.template.of_kind("gpu"), capacity)
    assert fits(rings, capacity)
    assert sum(speed for _, speed in rings) == pytest.approx(6 * NVLINK["volta"])


@pytest.mark.parametrize("p2p", [True, False])
def test_a_ring_crosses_between_sockets_once_each_way(p2p: bool) -> None:
    cluster = pcie_box(8, sockets=2, socket_link="skylake", pcie_gen=4, peer_to_peer=p2p)
    routes = Routes(cluster.templates[0])
    rings = best_rings(routes, cluster.templates[0].of_kind("gpu"), capacity_of(routes))
    assert sum(speed for _, speed in rings) == min(SOCKETS["skylake"], pcie(4))
    for ring, _ in rings:
        assert uses(ring)["cpu0", "cpu1"] == uses(ring)["cpu1", "cpu0"] == 1
    kinds = {routes.kind(leg) for ring, _ in rings for leg in ring.legs}
    assert kinds == ({"pcie", "qpi"} if p2p else {"shm"})


def test_without_peer_to_peer_data_goes_through_the_receivers_memory() -> None:
    routes = Routes(pcie_box(2, sockets=2, peer_to_peer=False).templates[0])
    names = [a for a, _ in routes.needed("gpu0", "gpu1")]
    assert names == ["gpu0", "cpu0", "cpu1", "memory1", "cpu1"]
