"""The nouns check themselves, whoever makes them."""

import dataclasses
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clusters.ranks import Ranks, SlowRanks
from sim.errors import AssignmentError, InputError
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.cluster import Cluster, HostKind, Hosts, Network, Step, check_ranks
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredIteration
from sim.nouns.timeline import BucketTimes, Span, Timeline
from sim.nouns.workload import DTYPE_BYTES, Buffer, Gradient, Workload
from sim.units import (
    cap_bytes,
    format_mib_range,
    format_number,
    format_percent,
    format_size,
    parse_cap_mb,
    parse_rate_bits,
    parse_size,
)
from tests.cluster_strategies import clusters
from tests.effort import tries
from tests.handmade import wired
from tests.strategies import KINDS, assignments, hardwares, workloads

NOUNS = [*KINDS.values(), *(Gradient, Buffer, CurvePoint, MeasuredIteration, Span, Timeline, BucketTimes)]

HARDWARE = wired({0: 1})


@pytest.mark.parametrize("noun", NOUNS)
def test_nouns_are_frozen_slotted_and_by_keyword(noun: Any) -> None:
    """House rule: frozen, slotted, keyword-only dataclasses."""
    parameters = noun.__dataclass_params__
    assert parameters.frozen
    assert "__slots__" in vars(noun)
    assert all(field.kw_only for field in dataclasses.fields(noun))


@given(workloads(), st.randoms())
def test_gradients_may_be_given_in_any_order(made: Workload, random: Any) -> None:
    """``gradients[i].index`` is i afterwards: what ``bucket_indices`` refers to."""
    shuffled = list(made.gradients)
    random.shuffle(shuffled)
    again = replace(made, gradients=tuple(shuffled))
    assert again == made
    assert [g.index for g in again.gradients] == list(range(len(again.gradients)))


@given(workloads())
def test_ready_order_is_by_time_then_descending_index(made: Workload) -> None:
    """CONTRACT, Workload: ``ready_order`` absent: ascending ready_ns, ties by descending index."""
    order = replace(made, ready_order=None).order()
    assert sorted(order) == list(range(len(made.gradients)))
    moments = [(made.gradients[index].ready_ns, -index) for index in order]
    assert moments == sorted(moments)
    if made.ready_order is not None:
        assert made.order() == made.ready_order


def test_dtypes_have_torchs_sizes() -> None:
    import torch

    assert {name: getattr(torch, name).itemsize for name in DTYPE_BYTES} == DTYPE_BYTES


@given(st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_curves_ascend_without_repeats(sizes: list[int]) -> None:
    """CONTRACT, Hardware: sorted, unique, at least one."""
    points = tuple(CurvePoint(num_bytes=size, duration_ns=1) for size in sizes)
    if sizes == sorted(set(sizes)):
        assert replace(HARDWARE, all_reduce=points, broadcast=points).broadcast == points
    else:
        with pytest.raises(InputError, match=r"broadcast\.\d+\.num_bytes"):
            replace(HARDWARE, broadcast=points)


@given(st.data())
def test_legal_assignments_fit(data: st.DataObject) -> None:
    """A8.3: every index once, no empty bucket, one dtype and device a bucket, a sparse gradient alone."""
    made = data.draw(workloads())
    data.draw(assignments(made)).check_fits(made)


@given(st.data())
def test_a_broken_assignment_does_not_fit(data: st.DataObject) -> None:
    """A8.3: an index lost, an index too many, buckets of two keys, company for a sparse gradient."""
    made = data.draw(workloads())
    legal = data.draw(assignments(made)).bucket_indices
    flat = [index for bucket in legal for index in bucket]
    count = len(flat)
    broken = [(*legal, (count,))]  # an index that is not there
    if count > 1:
        lost = data.draw(st.sampled_from(flat))
        kept = (tuple(index for index in bucket if index != lost) for bucket in legal)
        broken.append(tuple(bucket for bucket in kept if bucket))
    for indices in broken:
        with pytest.raises(AssignmentError, match="bucket_indices"):
            Assignment(bucket_indices=indices).check_fits(made)
    one = Assignment(bucket_indices=(tuple(flat),))
    mixed = len({g.key for g in made.gradients}) > 1
    if mixed or (count > 1 and any(g.sparse for g in made.gradients)):
        with pytest.raises(AssignmentError, match=r"bucket_indices\.0"):
            one.check_fits(made)
    else:
        one.check_fits(made)
    wrong = list(bucket_bytes(made, legal))
    wrong[-1] += 1
    with pytest.raises(AssignmentError, match="bucket_bytes"):
        Assignment(bucket_indices=legal, bucket_bytes=tuple(wrong)).check_fits(made)


@given(workloads(dressed=True), hardwares(dressed=True))
def test_nouns_may_be_pickled_and_not_changed(made: Workload, machine: Hardware) -> None:
    """They travel to worker processes and cannot be changed under way."""
    assert pickle.loads(pickle.dumps((made, machine))) == (made, machine)
    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]


# Ranks that differ: what is legal, and what an error says.


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 5))
def test_ranges_end_where_ranks_do(world_size: int, first: int, count: int) -> None:
    ranks = Ranks(name="r", slow=(SlowRanks(first=first, count=count, pace=2.0),))
    if first + count <= world_size:
        ranks.check_fits(world_size)
        return
    with pytest.raises(InputError, match=rf"slow.0: ranks {first} to .* world_size {world_size}, "):
        ranks.check_fits(world_size)


# What is not legal is named.

STEP = Step(kind="pcie", bytes_per_s=12e9)
SLOTS = {"gpu_slot_bytes_per_s": 12e9, "nic_slot_bytes_per_s": 12e9}
KIND = HostKind(name="t", gpus=2, generation="ampere", between_gpus=(STEP,), nics=1, **SLOTS)  # type: ignore[arg-type]
NETWORK = Network(bytes_per_s=1e9, hosts_per_leaf=2)
CLUSTER = Cluster(name="c", kinds=(KIND,), hosts=(Hosts(kind="t", count=2),), network=NETWORK)


@given(clusters())
@settings(max_examples=tries(30), deadline=None)
def test_all_gpus_are_legal_ranks(cluster: Cluster) -> None:
    gpus = tuple(cluster.all_gpus())
    assert len(gpus) == cluster.gpu_count == sum(kind.gpus for kind in cluster.owners())
    check_ranks(cluster, gpus, "ranks")
    with pytest.raises(InputError, match=r"ranks: 'host0\.gpu0' occurs twice"):
        check_ranks(cluster, (*gpus, "host0.gpu0"), "ranks")


EQUAL = Ranks(name="r")
_HALF = {"what": "a", "weight": 0.5}
ILLEGAL: list[tuple[Any, dict[str, Any], str]] = [
    (STEP, {"kind": "wire"}, "kind: 'wire' is not legal; give one of nvlink, "),
    (STEP, {"bytes_per_s": 0.0}, "bytes_per_s: 0.0 is not legal; give a number >= 1, at most 2**62"),
    (STEP, {"bytes_per_s": float("nan")}, "bytes_per_s: nan is not legal"),
    (STEP, {"bytes_per_s": True}, "bytes_per_s: True is not legal"),
    (STEP, {"bytes_per_s": 10**400}, "bytes_per_s: a number of more than 40 digits"),
    (KIND, {"gpus": 577}, "gpus: 577 is not legal; give an integer >= 1, at most 576"),
    (KIND, {"parts": 2}, "parts: 2 is not legal; it divides 2 gpus and 1 nics"),
    (KIND, {"nvls": True}, "nvls: true is not legal with ampere; it takes hopper or later"),
    (KIND, {"gpu_slot_bytes_per_s": None}, "gpu_slot_bytes_per_s: null is not legal with 1 nics"),
    (KIND, {"between_gpus": ()}, "between_gpus: an empty list is not legal with 2 gpus"),
    (NETWORK, {"oversubscription": 0.0}, "oversubscription: 0.0 is not legal"),
    (CLUSTER, {"kinds": (KIND, KIND)}, "kinds: name: 't' occurs twice"),
    (
        CLUSTER,
        {"placement": ("host2.gpu0",)},
        "placement.0: 'host2.gpu0' is not legal; 'c' has host0 to host1",
    ),
    (CLUSTER, {"placement": ("host1.gpu2",)}, "placement.0: 'host1.gpu2' is not legal; kind 't' has gpu0 to"),
    (CLUSTER, {"placement": "host0.gpu0"}, "placement.0: 'h' is not legal; give a GPU such"),
    (CLUSTER, {"placement": ("host01.gpu0",)}, "placement.0: 'host01.gpu0' is not legal; give a GPU such as"),
    (CLUSTER, {"placement": (f"host{'9' * 5000}.gpu0",)}, "placement.0: 'host999"),
    (EQUAL, {"stall_probability": 0.1}, "stall_ns: "),
    (EQUAL, {"stall_ns": 5}, "stall_ns: "),
    *(
        (HARDWARE, {"spread": spread}, f"spread.{message}")
        for spread, message in (
            ({"ranges": {"name": {"low": 1, "high": 2}}}, "ranges.name: not a field; give launch_cost_ns"),
            ({"ranges": {"launch_cost_ns": {"low": 9, "high": 2}}}, "ranges.launch_cost_ns.low: 9"),
            ({"ranges": {"all_reduce": {"low": 0, "high": 2}}}, "ranges.all_reduce.low: 0 is not legal"),
            ({"readings": [{"what": "interference", "weight": 0.5}]}, "readings: weights of 0.5"),
            ({"readings": [{"what": "link", "weight": 1, "curve": 2}]}, "readings.0: the first"),
            ({"readings": [_HALF, {**_HALF, "set": {"name": "x"}}]}, "readings.1.set.name: not a field"),
        )
    ),
]


@pytest.mark.parametrize(("noun", "changes", "message"), ILLEGAL)
def test_what_is_not_legal_is_named(noun: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(noun, **changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


# The only conversions.

MIB = 1 << 20


@given(st.floats(0, 1e9), st.integers(0, 2**50))
def test_caps_are_cut_as_torch_cuts_them(cap: float, size: int) -> None:
    """A2.1: int(mb * 2**20); B(i): division by 2**20 is exact, so that restores the bytes."""
    assert cap_bytes(cap) == int(cap * 1024 * 1024)
    assert cap_bytes(size / MIB) == size


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_cap_mb, text, mb) for text, mb in (("25", 25), ("25MiB", 25), ("1GiB", 1024), (" 7 ", 7))),
        *((parse_cap_mb, text, mb) for text, mb in (("1e3KiB", 1000 / 1024), ("1MB", 10**6 / MIB))),
        *(
            (parse_size, text, size)
            for text, size in (("4096", 4096), ("256MiB", 256 * MIB), ("1.5KB", 1500))
        ),
        *((parse_rate_bits, text, bits) for text, bits in (("4gbit", 4 * 10**9), ("1.5Gbit", 15 * 10**8))),
    ],
)
def test_sizes_and_rates(parse: Any, text: str, value: float) -> None:
    """CONTRACT, Command line: sizes accept 25MiB; a bare bucket_cap_mb is MiB."""
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_cap_mb, parse_size, parse_rate_bits])
@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1 2", "5apples", "0x10", "nan", "inf", "1,5", "²", "1e999"]
)
def test_what_is_no_size_is_refused_by_value(parse: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, 1 << 60))
def test_no_size_is_told_in_powers_of_ten_or_as_1024_of_a_smaller_unit(size: int) -> None:
    number, unit = format_size(size).split()
    assert "e" not in number
    assert unit == "GiB" or float(number) < 1024
    assert parse_size(format_size(size).replace(" ", "")) == pytest.approx(size, rel=6e-3, abs=0.5)


@given(st.floats(0, 1e6), st.floats(1, 1e3))
def test_the_ends_of_a_range_lie_in_it(low: float, factor: float) -> None:
    low, high = round(low, 6), round(low * factor + 1e-6, 6)
    ends = [float(end) for end in format_mib_range(low, high).split(" to ")]
    assert all(low <= end <= high for end in ends)
    assert low <= float(format_mib_range(low, None).removesuffix(" up"))


def test_ranges_read_as_people_write_them() -> None:
    ranges = [(25.015, 282.4), (25, 25), (24.99, 25.2), (0.25, 1024), (1000.4, 1000.6)]
    assert [format_mib_range(*one) for one in ranges] == [
        *("25.1 to 282", "25", "25 to 25.2", "0.25 to 1020", "1000.4 to 1000.6")
    ]


@given(st.floats(-2, 2), st.integers(0, 2), st.booleans())
def test_what_is_not_quite_nothing_or_all_does_not_read_so(share: float, digits: int, sign: bool) -> None:
    text = format_percent(share, digits, sign=sign)
    figure = text.removeprefix("more than ").removeprefix("less than ")
    is_edge = abs(float(figure.rstrip("%"))) in (0, 100)
    assert "e" not in figure
    assert not is_edge or share in (-1, 0, 1) or text == "more than 100%" or abs(share) > 1
    if text == figure and not is_edge:
        assert float(figure.rstrip("%")) / 100 == pytest.approx(share, abs=0.51 * 10.0 ** -(digits + 2))


@given(st.floats(1e-12, 1e15), st.integers(1, 6))
def test_no_number_is_told_in_powers_of_ten(value: float, digits: int) -> None:
    text = format_number(value, digits)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits), abs=0)
