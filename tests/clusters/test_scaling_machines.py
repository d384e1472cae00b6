"""Machines of a scaling view: one preset or cluster in many sizes, and what is refused."""

from typing import Any

import pytest

import sim
from sim.clusters.machines import preset
from sim.clusters.scaling.sizes import Size, sized
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Hosts
from tests.clusters.scaling_cases import hosts_of, measured, parts, workload_of
from tests.tuner.cases import resnet50


def test_one_group_of_hosts_can_have_any_number() -> None:
    cluster = preset("dgx_a100", hosts=2)
    assert sized(cluster, {}, Size(hosts=40)).hosts == (Hosts(kind="dgx_a100", count=40),)
    assert sized(cluster, {}, Size(hosts=40)).placement is None
    assert sized(cluster, {}, Size()) == cluster
    assert sized("p4de", {}, Size(hosts=40)) == preset("p4de", hosts=40)


def test_otherwise_ranks_are_on_the_first_hosts() -> None:
    cluster = preset("pcie_hosts", hosts=3, gpus=2, gbit_per_s=10)
    placed = Cluster(**{**parts(cluster), "placement": ("host2.gpu0", "host0.gpu1", "host1.gpu0")})
    assert sized(placed, {}, Size(hosts=2)).placement == ("host2.gpu0", "host0.gpu1")
    assert sized(placed, {}, Size(world_size=1)).placement == ("host2.gpu0",)
    fixed = sized(cluster, {}, Size(hosts=2), is_fixed=True)
    assert fixed.host_count == 3
    assert fixed.placement == ("host0.gpu0", "host0.gpu1", "host1.gpu0", "host1.gpu1")
    with pytest.raises(InputError, match=r"hosts: 4 is not legal; .* has ranks on 3, and only"):
        sized(placed, {}, Size(hosts=4))
    with pytest.raises(InputError, match=r"world_size: 4 is not legal; .* has 3 GPUs for it"):
        sized(placed, {}, Size(world_size=4))


@pytest.mark.parametrize("machine", ["dgx_a100", preset("dgx_a100", hosts=7)])
def test_ranks_fill_host_after_host(machine: str | Cluster) -> None:
    rows = sim.scaling(resnet50(), machine, world_size=[1, 2, 8, 16, 24])
    assert [(row.world_size, row.hosts) for row in rows] == [(1, 1), (2, 1), (8, 1), (16, 2), (24, 3)]
    (whole,) = sim.scaling(resnet50(), machine, hosts=[2])
    assert rows[3].cap_step_ns == whole.cap_step_ns
    assert rows[0].cap_efficiency == 1.0
    twelve = sized(machine, {}, Size(world_size=12))
    assert (twelve.host_count, len(twelve.placement or ())) == (2, 12)


@pytest.mark.parametrize(
    ("machine", "arguments", "words"),
    [
        ("dgx_a300", {}, "preset: 'dgx_a300' is not legal; give one of dgx_a100"),
        ("dgx_a100", {"hosts": [2, 2]}, "hosts: 2 occurs twice"),
        ("dgx_a100", {"hosts": [2], "world_size": [8]}, "world_size: not legal with hosts"),
        ("dgx_a100", {"hosts": [1_000_001]}, "hosts: 1000001 is not legal; give at most 1000000"),
        (
            "dgx_a100",
            {"world_size": [100_000_000]},
            "world_size: 100000000 is not legal; give at most 8000000, 8 on each of 1000000 hosts",
        ),
        ("pcie_box", {"world_size": [5]}, "world_size: 5 is not legal; 'pcie_x4' has 4 GPUs"),
        ("dgx_a100", {"hosts": 2}, "hosts: 2 is not legal; give a sequence"),
        ("dgx_a100", {"settings": {"racks": [2]}}, "racks: is not a setting of preset 'dgx_a100'"),
        ("pcie_box", {"hosts": [2]}, "hosts: preset 'pcie_box' is one host"),
        ("dgx_a100", {"hosts": [1, 2], "max_rows": 1}, "2 rows are more than 1; .* max_rows=2"),
        (
            hosts_of(2),
            {"beside": [["host0.gpu0"]], "measured": [(hosts_of(2), measured({1: 1}))]},
            "beside: not legal with measured",
        ),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_it_refuses(machine: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.scaling(workload_of([10, 20], [1, 1]), machine, **arguments)
