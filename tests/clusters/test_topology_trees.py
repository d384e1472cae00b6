"""NCCL's double binary tree: its shape, and what it puts on links."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.topology.presets import (
    dgx_a100,
    dgx_h100,
    gh200_slingshot,
    nvl72,
    p4de,
    pcie_box,
    pcie_hosts,
)
from sim.clusters.topology.rings import rings_of
from sim.clusters.topology.routes import routes_of
from sim.clusters.topology.trees import TREES, TreePlace, binary_tree, by_proxy, second_tree
from sim.nouns.cluster import Cluster
from tests.cluster_strategies import placements
from tests.clusters.whole_graph import cluster_graph
from tests.effort import tries

counts = st.integers(1, 300)


def ways_up(places: list[TreePlace], number: int) -> list[int]:
    """A number, its parent, and so on to the root."""
    way = [number]
    while (up := places[way[-1]].up) is not None:
        way.append(up)
        assert len(way) <= len(places)
    return way


@given(counts, st.sampled_from(TREES))
def test_everyone_but_one_root_has_one_parent(count: int, tree: object) -> None:
    assert callable(tree)
    places = [tree(count, number) for number in range(count)]
    roots = [number for number, place in enumerate(places) if place.up is None]
    assert len(roots) == 1
    children = [child for place in places for child in place.downs if child is not None]
    assert sorted([*children, *roots]) == list(range(count))
    for number, place in enumerate(places):
        assert ways_up(places, number)[-1] == roots[0]
        for which, child in enumerate(place.downs):
            assert child is None or (places[child].up, places[child].child_of) == (number, which)


@given(counts.map(lambda half: 2 * half))
def test_who_passes_on_in_one_tree_is_a_leaf_in_the_other(count: int) -> None:
    """With an even number of hosts: so each sends as much as every other, when both trees have half."""
    for number in range(count):
        inner = [any(child is not None for child in tree(count, number).downs) for tree in TREES]
        assert inner.count(True) == 1


@given(counts)
def test_depth_as_nccl_counts_it(count: int) -> None:
    """connectTrees: log2i of the hosts, "not an exact value but a good approximation"; one more at most."""
    places = [binary_tree(count, number) for number in range(count)]
    levels = max(len(ways_up(places, number)) for number in range(count)) - 1
    counted = count.bit_length() - 1
    assert counted <= levels <= counted + 1
    assert levels == counted or count & (count - 1)  # exact for powers of two


def test_the_trees_of_nccls_own_drawings() -> None:
    """src/graph/trees.cc draws 14 ranks, and both trees of 12 and of 13."""
    first = [binary_tree(14, number) for number in range(14)]
    assert [place.up for place in first] == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    mirrored = [second_tree(12, number).up for number in range(12)]
    assert mirrored == [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, None]
    moved = [second_tree(13, number).up for number in range(13)]
    assert moved == [9, None, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11]


CLUSTERS = [
    dgx_a100(3),
    dgx_h100(4),
    p4de(2),
    gh200_slingshot(5),
    pcie_hosts(4, 4, gbit_per_s=25),
    nvl72(),
    pcie_box(4, sockets=2),
]


@given(placements(CLUSTERS, least=2))
@settings(max_examples=tries(40), deadline=None)
def test_ways_to_the_nic_are_joined_links(case: tuple[Cluster, list[str]]) -> None:
    cluster, ranks = case
    rings = rings_of(cluster, ranks)
    graph = cluster_graph(cluster)
    for place, host in enumerate(rings.hosts):
        routes = routes_of(rings.host_rings[rings.kinds[place]].template)
        for nic in routes.template.of_kind("nic"):
            for gpu in rings.gpus[place]:
                for to in (True, False):
                    way = by_proxy(routes, rings.gpus[place], nic, gpu, to=to)
                    if way is None:
                        continue
                    ends = (way[0][0], way[-1][1])
                    assert ends == ((nic, gpu) if to else (gpu, nic))
                    assert all(before[1] == after[0] for before, after in pairwise(way))
                    assert all(graph.has_edge(f"host{host}.{a}", f"host{host}.{b}") for a, b in way)


def test_a_gpu_reaches_anothers_nic_over_nvlink() -> None:
    """DGX H100 (NCCL's PXN): GPU 1 to NIC 0 goes by GPU 0; not so where a switch has both."""
    routes = routes_of(dgx_h100().templates[0])
    gpus = routes.template.of_kind("gpu")
    way = by_proxy(routes, gpus, "nic0", "gpu1", to=False)
    assert way is not None
    assert [a for a, _ in way] == ["gpu1", "nvswitch", "gpu0", "pcie0"]
    routes = routes_of(dgx_a100().templates[0])
    way = by_proxy(routes, gpus, "nic0", "gpu1", to=False)
    assert way is not None
    assert [a for a, _ in way] == ["gpu1", "pcie0"]
    assert by_proxy(
        routes_of(pcie_hosts(2, 2, gbit_per_s=10).templates[0]), ("gpu0",), "nic0", "gpu1", to=True
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_small_counts(count: int) -> None:
    assert binary_tree(count, 0).downs == (None, None if count == 1 else 1 << (count - 1).bit_length() - 1)
