"""A cluster checks itself, and goes into a file and comes back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link, Network, check_ranks, split_name
from tests.cluster_strategies import clusters
from tests.effort import tries

GPU, NIC, CPU = (
    Device(name="gpu0", kind="gpu"),
    Device(name="nic0", kind="nic"),
    Device(name="cpu", kind="cpu"),
)
LINK = Link(a="gpu0", b="cpu", kind="pcie", bytes_per_s=12e9)
TEMPLATE = HostTemplate(name="t", generation="ampere", devices=(GPU, NIC, CPU), links=(LINK,))
NETWORK = Network(bytes_per_s=1e9, hosts_per_leaf=2)
CLUSTER = Cluster(name="c", templates=(TEMPLATE,), hosts=(Hosts(template="t", count=2),), network=NETWORK)


@given(clusters())
@settings(max_examples=tries(60), deadline=None)
def test_a_cluster_comes_back_from_its_file_as_it_went(cluster: Cluster) -> None:
    text = documents.to_text(cluster)
    assert json.loads(text)["kind"] == "cluster"
    assert documents.parse_text(text, Cluster, "c.json") == cluster


@given(clusters())
@settings(max_examples=tries(30), deadline=None)
def test_all_gpus_are_legal_ranks(cluster: Cluster) -> None:
    gpus = tuple(cluster.all_gpus())
    assert len(gpus) == sum(len(template.of_kind("gpu")) for template in cluster.owners())
    check_ranks(cluster, gpus, "ranks")
    with pytest.raises(InputError, match=f"ranks.{len(gpus)}: 'host0.gpu0' occurs twice"):
        check_ranks(cluster, (*gpus, "host0.gpu0"), "ranks")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Device(name="a.b", kind="gpu"),
            "name: 'a.b' is not legal; give a device a name without dots",
        ),
        (lambda: Device(name="a", kind="tpu"), "kind: 'tpu' is not legal; give one of gpu, nic, "),
        (lambda: replace(LINK, kind="wire"), "kind: 'wire' is not legal; give one of nvlink, "),
        (lambda: replace(LINK, bytes_per_s=0.0), "bytes_per_s: 0.0 is not legal; give bytes/s >= 1"),
        (lambda: replace(LINK, bytes_per_s=float("inf")), "bytes_per_s: inf is not legal"),
        (lambda: replace(LINK, latency_ns=-1), "latency_ns: -1 is not legal; give an integer >= 0"),
        (lambda: replace(LINK, count=0), "count: 0 is not legal; give an integer >= 1"),
        (lambda: replace(LINK, b="gpu0"), "b: 'gpu0' is not legal; a link joins two different parts"),
        (
            lambda: replace(TEMPLATE, generation="kepler"),
            "generation: 'kepler' is not legal; give one of volta",
        ),
        (lambda: replace(TEMPLATE, cpu="via"), "cpu: 'via' is not legal; give one of intel, amd, arm"),
        (lambda: replace(TEMPLATE, devices=(GPU, GPU, CPU)), "devices.1.name: 'gpu0' occurs twice"),
        (
            lambda: replace(TEMPLATE, devices=(GPU, NIC)),
            "links.0.b: 'cpu' is not legal; give a device of template 't': gpu0, nic0",
        ),
        (lambda: replace(TEMPLATE, devices=(NIC, CPU), links=()), "devices: template 't' has no gpu"),
        (lambda: replace(TEMPLATE, peer_to_peer=False), "devices: template 't' has no memory"),
        (lambda: Hosts(template="t", count=0), "count: 0 is not legal; give an integer >= 1"),
        (
            lambda: Hosts(template="t", count=10**7),
            "count: 10000000 is not legal; give an integer 1 to 1000000",
        ),
        (lambda: replace(NETWORK, oversubscription=0.0), "oversubscription: 0.0 is not legal"),
        (lambda: replace(NETWORK, bytes_per_s=0.0), "bytes_per_s: 0.0 is not legal"),
        (lambda: replace(NETWORK, rails=0), "rails: 0 is not legal"),
        (lambda: replace(CLUSTER, hosts=()), "hosts: an empty list is not legal"),
        (lambda: replace(CLUSTER, templates=(TEMPLATE, TEMPLATE)), "templates.1.name: 't' occurs twice"),
        (
            lambda: replace(CLUSTER, hosts=(Hosts(template="u", count=1),)),
            "hosts.0.template: 'u' is not legal; give one of t",
        ),
        (lambda: replace(CLUSTER, switches=("s",)), "network: give it or switches and links of your own"),
        (
            lambda: replace(
                CLUSTER, network=None, links=(Link(a="host9.nic0", b="s", kind="net", bytes_per_s=1e9),)
            ),
            "links.0: 'host9.nic0' is not legal; give a switch of 'switches' or a NIC",
        ),
        (lambda: replace(CLUSTER, network=None, switches=("s", "s")), "switches.1: 's' occurs twice"),
        (
            lambda: replace(CLUSTER, network=None, switches=("s.0",)),
            "switches.0: 's.0' is not legal; give a switch a name without dots",
        ),
        (lambda: replace(CLUSTER, placement=()), "placement: an empty list is not legal"),
        (
            lambda: replace(CLUSTER, placement=("host2.gpu0",)),
            "placement.0: 'host2.gpu0' is not legal; 'c' has host0 to host1",
        ),
        (
            lambda: replace(CLUSTER, placement=("host1.nic0",)),
            "placement.0: 'host1.nic0' is not legal; the GPUs of template 't' are gpu0",
        ),
        (
            lambda: replace(CLUSTER, placement=("gpu0",)),
            "placement.0: 'gpu0' is not legal; give a host's part",
        ),
    ],
)
def test_what_is_not_legal_is_named(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    document = documents.to_document(CLUSTER)
    document["templates"][0]["links"][0]["width"] = 3
    file = tmp_path / "c.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"templates\.0\.links\.0\.width: unknown key"):
        documents.load(file, Cluster)


def test_names_are_taken_apart() -> None:
    assert split_name("host12.gpu3") == (12, "gpu3")
    for wrong in ("", "host.gpu0", "host1gpu0", "node1.gpu0", "host-1.gpu0"):
        with pytest.raises(InputError, match="is not legal; give a host's part such as host0"):
            split_name(wrong)


HUGE = 10**400  # no float holds it
DIGITS = "9" * 5000  # no int is read from so many


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(LINK, bytes_per_s=HUGE), "bytes_per_s: a number of more than 40 digits"),
        (lambda: replace(LINK, bytes_per_s="3"), "bytes_per_s: '3' is not legal"),
        (lambda: replace(NETWORK, oversubscription=HUGE), "oversubscription: a number of more than 40"),
        (lambda: replace(NETWORK, oversubscription="1"), "oversubscription: '1' is not legal"),
        (lambda: replace(NETWORK, sharp=3), "sharp: 3 is not legal; give true or false"),
        (lambda: Device(name=3, kind="gpu"), "name: 3 is not legal; give text"),
        (
            lambda: check_ranks(CLUSTER, "host0.gpu0", "ranks"),
            "ranks: 'host0.gpu0' is not legal; give a list",
        ),
        (lambda: check_ranks(CLUSTER, 3, "ranks"), "ranks: 3 is not legal; give a list"),
        (lambda: check_ranks(CLUSTER, (None,), "ranks"), "ranks.0: None is not legal; give text"),
        (lambda: split_name(f"host{DIGITS}.gpu0"), "'host999"),
    ],
)
def test_what_no_number_and_no_list_can_be(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 250
