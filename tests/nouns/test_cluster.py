"""A cluster checks itself, and goes into a file and comes back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.cluster import Cluster, HostKind, Hosts, Network, Step, check_ranks, split_name
from tests.cluster_strategies import clusters
from tests.effort import tries

STEP = Step(kind="pcie", bytes_per_s=12e9)
SLOTS = {"gpu_slot_bytes_per_s": 12e9, "nic_slot_bytes_per_s": 12e9}
KIND = HostKind(name="t", gpus=2, generation="ampere", between_gpus=(STEP,), nics=1, **SLOTS)  # type: ignore[arg-type]
NETWORK = Network(bytes_per_s=1e9, hosts_per_leaf=2)
CLUSTER = Cluster(name="c", kinds=(KIND,), hosts=(Hosts(kind="t", count=2),), network=NETWORK)


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
    assert len(gpus) == cluster.gpu_count == sum(kind.gpus for kind in cluster.owners())
    check_ranks(cluster, gpus, "ranks")
    with pytest.raises(InputError, match=f"ranks.{len(gpus)}: 'host0.gpu0' occurs twice"):
        check_ranks(cluster, (*gpus, "host0.gpu0"), "ranks")


HUGE = 10**400  # no float holds it
DIGITS = "9" * 5000  # no int is read from so many


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(STEP, kind="wire"), "kind: 'wire' is not legal; give one of nvlink, "),
        *(
            (lambda rate=rate: replace(STEP, bytes_per_s=rate), f"bytes_per_s: {said}")
            for rate, said in (
                (0.0, "0.0 is not legal; give bytes/s >= 1"),
                (0.5, "0.5 is not legal"),
                (-1.0, "-1.0 is not legal"),
                (float("inf"), "inf is not legal"),
                (float("nan"), "nan is not legal"),
                (True, "True is not legal"),
                ("3", "'3' is not legal"),
                (HUGE, "a number of more than 40 digits"),
            )
        ),
        (lambda: replace(STEP, rings=0), "rings: 0 is not legal; give an integer >= 1"),
        (lambda: replace(KIND, name=3), "name: 3 is not legal; give text"),
        (lambda: replace(KIND, generation="kepler"), "generation: 'kepler' is not legal; give one of volta"),
        (lambda: replace(KIND, cpu="via"), "cpu: 'via' is not legal; give one of intel, amd, arm"),
        (lambda: replace(KIND, gpus=0), "gpus: 0 is not legal; give an integer >= 1"),
        (lambda: replace(KIND, gpus=577), "gpus: 577 is not legal; give an integer 1 to 576"),
        (
            lambda: replace(KIND, parts=2),
            "parts: 2 is not legal; give a divisor of the 2 gpus and the 1 nics",
        ),
        (lambda: replace(KIND, nvls=True), "nvls: true is not legal with ampere; it takes hopper or later"),
        (lambda: replace(KIND, nvls=1), "nvls: 1 is not legal; give true or false"),
        (
            lambda: replace(KIND, gpu_slot_bytes_per_s=None),
            "gpu_slot_bytes_per_s: null is not legal with 1 nics; give bytes/s",
        ),
        (
            lambda: replace(KIND, between_gpus=()),
            "between_gpus: an empty list is not legal with 2 gpus; give what lies between them",
        ),
        (
            lambda: replace(KIND, between_gpus=(STEP, STEP)),
            "between_gpus: 2 steps are not legal; give 1 at most",
        ),
        (lambda: Hosts(kind="t", count=0), "count: 0 is not legal; give an integer >= 1"),
        (
            lambda: Hosts(kind="t", count=10**7),
            "count: 10000000 is not legal; give an integer 1 to 1000000",
        ),
        (lambda: replace(NETWORK, oversubscription=0.0), "oversubscription: 0.0 is not legal"),
        (lambda: replace(NETWORK, oversubscription=HUGE), "oversubscription: a number of more than 40"),
        (lambda: replace(NETWORK, oversubscription="1"), "oversubscription: '1' is not legal"),
        (lambda: replace(NETWORK, bytes_per_s=0.0), "bytes_per_s: 0.0 is not legal"),
        (lambda: replace(NETWORK, rails=0), "rails: 0 is not legal"),
        (lambda: replace(NETWORK, sharp=3), "sharp: 3 is not legal; give true or false"),
        (lambda: replace(CLUSTER, hosts=()), "hosts: an empty list is not legal"),
        (lambda: replace(CLUSTER, kinds=(KIND, KIND)), "kinds.1.name: 't' occurs twice"),
        (
            lambda: replace(CLUSTER, hosts=(Hosts(kind="u", count=1),)),
            "hosts.0.kind: 'u' is not legal; give one of t",
        ),
        (lambda: replace(CLUSTER, placement=()), "placement: an empty list is not legal"),
        (
            lambda: replace(CLUSTER, placement=("host2.gpu0",)),
            "placement.0: 'host2.gpu0' is not legal; 'c' has host0 to host1",
        ),
        (
            lambda: replace(CLUSTER, placement=("host1.gpu2",)),
            "placement.0: 'host1.gpu2' is not legal; kind 't' has gpu0 to gpu1",
        ),
        (
            lambda: replace(CLUSTER, placement=("gpu0",)),
            "placement.0: 'gpu0' is not legal; give a GPU such as",
        ),
        (
            lambda: check_ranks(CLUSTER, "host0.gpu0", "ranks"),
            "ranks: 'host0.gpu0' is not legal; give a list",
        ),
        (lambda: check_ranks(CLUSTER, 3, "ranks"), "ranks: 3 is not legal; give a list"),  # type: ignore[arg-type]
        (lambda: check_ranks(CLUSTER, (None,), "ranks"), "ranks.0: None is not legal; give text"),  # type: ignore[arg-type]
        (lambda: split_name(f"host{DIGITS}.gpu0"), "'host999"),
    ],
)
def test_what_is_not_legal_is_named(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_names_are_taken_apart() -> None:
    assert split_name("host12.gpu3") == (12, 3)
    for wrong in ("", "host.gpu0", "host1gpu0", "node1.gpu0", "host-1.gpu0", "host1.nic0", "host01.gpu0"):
        with pytest.raises(InputError, match="is not legal; give a GPU such as "):
            split_name(wrong)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("kinds", 0, "between_gpus", 0, "bytes_per_s"), 0, "bytes_per_s: 0.* is not legal"),
        (("kinds", 0, "between_gpus", 0, "width"), 3, r"kinds\.0\.between_gpus\.0\.width: unknown key"),
        (("network", "bytes_per_s"), "fast", "bytes_per_s"),
        (("network", "spines"), 2, r"network\.spines: unknown key"),
        (("hosts",), [], "hosts: an empty list is not legal"),
        (("hosts", 0, "count"), 0, "count: 0 is not legal"),
        (("kinds",), [], "kind: 't' is not legal"),
        (("placement",), ["host0.gpu7"], r"placement\.0: 'host0\.gpu7' is not legal"),
        (("templates",), [], "templates: hosts told device by device are read no more; give 'kinds' with"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, path: tuple[Any, ...], value: Any, said: str) -> None:
    whole = documents.to_document(CLUSTER)
    part: Any = whole
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (tmp_path / "c.json").write_text(json.dumps(whole))
    with pytest.raises(InputError, match=said) as caught:
        documents.load(tmp_path / "c.json", Cluster)
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
        documents.load(tmp_path / "c.json", Cluster)
    assert "\n" not in str(caught.value)
