"""The nouns check themselves, whoever makes them."""

import dataclasses
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import AssignmentError, InputError
from sim.formats.documents import KINDS
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredIteration
from sim.nouns.path import PathSpan
from sim.nouns.ranks import RankGroup, Ranks, SlowRanks
from sim.nouns.timeline import BucketTimes, ComputeSpan, Timeline
from sim.nouns.workload import DTYPE_BYTES, Buffer, Gradient, Workload
from tests.strategies import assignments, hardwares, workloads

NOUNS = [
    *KINDS.values(),
    *(Gradient, Buffer, CurvePoint, MeasuredIteration, PathSpan, Timeline, BucketTimes, ComputeSpan),
]


@pytest.mark.parametrize("noun", NOUNS)
def test_nouns_are_frozen_slotted_and_by_keyword(noun: Any) -> None:
    """House rule: frozen, slotted, keyword-only dataclasses."""
    parameters = noun.__dataclass_params__
    assert parameters.frozen
    assert "__slots__" in vars(noun)
    assert all(field.kw_only for field in dataclasses.fields(noun))


def gradient(**changes: Any) -> Gradient:
    given: dict[str, Any] = {
        "index": 0,
        "name": "p",
        "shape": (2,),
        "dtype": "float32",
        "num_bytes": 8,
        "ready_ns": 5,
    }
    return Gradient(**{**given, **changes})


def workload(*gradients: Gradient, **changes: Any) -> Workload:
    given: dict[str, Any] = {"name": "w", "forward_ns": 1, "backward_ns": 10, "optimizer_ns": 1}
    return Workload(gradients=gradients or (gradient(),), **{**given, **changes})


def hardware(**changes: Any) -> Hardware:
    point = CurvePoint(num_bytes=0, duration_ns=1)
    return Hardware(**{"name": "h", "world_size": 2, "all_reduce": (point,), **changes})


def test_a_workload_without_gradients_is_refused() -> None:
    with pytest.raises(InputError, match="gradients: an empty list"):
        Workload(name="w", gradients=(), forward_ns=1, backward_ns=1, optimizer_ns=1)


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


def test_an_unused_parameter_is_in_no_order() -> None:
    made = workload(gradient(), gradient(index=1, ready_ns=None))
    assert made.order() == (0,)
    assert workload(gradient(), gradient(index=1, ready_ns=None), ready_order=(0,)).order() == (0,)
    with pytest.raises(InputError, match=r"ready_order: wrong or missing indices \[1\]"):
        workload(gradient(), gradient(index=1, ready_ns=None), ready_order=(0, 1))


def test_wire_bytes_are_what_travels() -> None:
    assert gradient().on_wire == 8
    assert gradient(wire_bytes=0).on_wire == 0
    assert gradient(wire_bytes=4).on_wire == 4


def test_dtypes_have_torchs_sizes() -> None:
    import torch

    assert {name: getattr(torch, name).itemsize for name in DTYPE_BYTES} == DTYPE_BYTES


@given(st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_curves_ascend_without_repeats(sizes: list[int]) -> None:
    """CONTRACT, Hardware: sorted, unique, at least one."""
    points = tuple(CurvePoint(num_bytes=size, duration_ns=1) for size in sizes)
    if sizes == sorted(set(sizes)):
        assert hardware(all_reduce=points, broadcast=points).broadcast == points
    else:
        with pytest.raises(InputError, match=r"broadcast\.\d+\.num_bytes"):
            hardware(broadcast=points)


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


@pytest.mark.parametrize(
    ("spread", "message"),
    [
        ({"ranges": []}, "spread.ranges: .* is not legal"),
        ({"ranges": {"name": {"low": 1, "high": 2}}}, "spread.ranges.name: not a field with a range"),
        ({"ranges": {"launch_cost_ns": {"low": 1}}}, "spread.ranges.launch_cost_ns: .* low and high"),
        ({"ranges": {"launch_cost_ns": {"low": 9, "high": 2}}}, "spread.ranges.launch_cost_ns.low: 9"),
        ({"ranges": {"launch_cost_ns": {"low": 0.5, "high": 2}}}, "launch_cost_ns.low: 0.5 is not legal"),
        ({"ranges": {"comm_slowdown": {"low": 0.5, "high": 2}}}, "comm_slowdown.low: 0.5 is not legal"),
        ({"ranges": {"copy_in_bytes_per_s": {"low": 0, "high": 2}}}, "copy_in_bytes_per_s.low: 0 is not"),
        ({"ranges": {"all_reduce": {"low": 0, "high": 2}}}, "spread.ranges.all_reduce.low: 0 is not legal"),
        ({"ranges": {"all_reduce": {"low": True, "high": 2}}}, "spread.ranges.all_reduce.low: True"),
        ({"readings": {}}, "spread.readings: .* is not legal"),
        ({"readings": [{"weight": 1}]}, "spread.readings.0: .* is not legal"),
        ({"readings": [{"what": "interference", "weight": 0.5}]}, "spread.readings: weights of 0.5"),
        ({"readings": [{"what": "link", "weight": 1, "curve": 2}]}, "spread.readings.0: the first"),
        ({"readings": [{"what": "link", "weight": 1, "cap": 2}]}, "spread.readings.0: cap is not known"),
        (
            {"readings": [{"what": "a", "weight": 0.5}, {"what": "b", "weight": 0.5, "set": {"name": "x"}}]},
            "spread.readings.1.set.name: not a field",
        ),
        (
            {"readings": [{"what": "a", "weight": 0.5}, {"what": "b", "weight": 0.5, "curve": -1}]},
            "spread.readings.1.curve: -1 is not legal",
        ),
    ],
)
def test_what_is_not_known_is_checked(spread: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1),), spread=spread)


# Ranks that differ: what is legal, and what an error says.


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_a_rank_is_in_one_group(first: int, count: int, other: int, many: int) -> None:
    groups = (
        RankGroup(first=first, count=count, workload="a.json"),
        RankGroup(first=other, count=many, workload="b.json"),
    )
    both = set(range(first, first + count)) & set(range(other, other + many))
    if not both:
        assert Ranks(name="r", groups=groups).groups == groups
        return
    with pytest.raises(InputError, match=rf"groups: rank {min(both)} is in two groups"):
        Ranks(name="r", groups=groups)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 5))
def test_ranges_end_where_ranks_do(world_size: int, first: int, count: int) -> None:
    for ranks, name in (
        (Ranks(name="r", slow=(SlowRanks(first=first, count=count, pace=2.0),)), "slow"),
        (Ranks(name="r", groups=(RankGroup(first=first, count=count, workload="w"),)), "groups"),
    ):
        if first + count <= world_size:
            ranks.check_fits(world_size)
            continue
        with pytest.raises(InputError, match=rf"{name}.0: ranks {first} to .* world_size {world_size}, "):
            ranks.check_fits(world_size)


def test_a_group_names_its_workload() -> None:
    with pytest.raises(InputError, match="workload: an empty name"):
        RankGroup(first=0, workload="")


@pytest.mark.parametrize(("probability", "stall"), [(0.1, 0), (0.0, 5)])
def test_a_stall_has_a_probability_and_a_length(probability: float, stall: int) -> None:
    with pytest.raises(
        InputError, match=r"stall_ns: \d with stall_probability .*give both above 0, or neither"
    ):
        Ranks(name="r", stall_probability=probability, stall_ns=stall)


@pytest.mark.parametrize("pace", [0.0, -1.0, 1e-4, 1e4, float("nan"), float("inf")])
def test_a_pace_is_a_factor_within_reason(pace: float) -> None:
    with pytest.raises(InputError, match=r"pace: .* is not legal; give a factor, 0.001 to 1000"):
        SlowRanks(first=0, pace=pace)
