"""Every layout of a cap is found, once, with the caps that make it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import sim
from sim.nouns.workload import Workload
from sim.systems.bucketing import rebuilt_buckets
from sim.tuner.reach import cap_layouts as caps
from sim.units import MIB, cap_bytes
from tests.handmade import handmade
from tests.strategies import DTYPES, REAL, TINY, workloads
from tests.tuner.cases import resnet50

SCALES = st.sampled_from([TINY, TINY, REAL])
CASES = SCALES.flatmap(lambda scale: workloads(scale, max_gradients=14))
VARIED = st.sampled_from([caps.ONE_LIMIT, caps.LATER_LIMIT])


def laid_out(workload: Workload, limits: list[int], last: bool) -> list[tuple[int, ...]]:
    return [tuple(bucket) for bucket in rebuilt_buckets(workload, limits, last)]


def sized(*sizes: int, dtypes: Sequence[str] | None = None, sparse: int | None = None) -> Workload:
    """Gradients of these sizes, ready one after another."""
    return handmade(
        range(len(sizes)), sizes, dtypes=dtypes or "float32", sparse=(sparse,), backward_ns=len(sizes)
    )


@given(CASES, st.booleans(), st.data())
def test_a_walk_makes_the_layout_of_the_rebuild(workload, last, data):
    sizes = st.integers(0, workload.total_bytes + 2)
    first, later = data.draw(sizes), data.draw(sizes)
    made = caps.make_layout(caps.make_walk(workload, last), first, later)
    assert list(made) == laid_out(workload, [first, later], last)


@given(workloads(TINY, max_gradients=8), st.booleans(), st.integers(0, 50))
def test_unused_gradients_are_walked_last(workload, last, cap):
    first = replace(workload.gradients[0], dtype="float32", num_bytes=3, ready_ns=None, sparse=False)
    unused = replace(workload, gradients=(first, *workload.gradients[1:]), ready_order=None)
    made = caps.make_layout(caps.make_walk(unused, last), cap, cap)
    assert list(made) == laid_out(unused, [cap], last)


@given(CASES, st.booleans(), VARIED, st.integers(0, 60), st.data())
def test_intervals_tile_all_caps_and_each_is_one_layout(workload, last, varied, fixed, data):
    walk = caps.make_walk(workload, last)
    found = caps.find_intervals(walk, varied, fixed)
    lows, highs = found.low_bytes.tolist(), found.high_bytes.tolist()
    assert found.complete
    assert lows[0] == 0
    assert highs[-1] == caps.NO_LIMIT
    assert all(after == before + 1 for before, after in zip(highs, lows[1:], strict=False))

    def layout(cap: int) -> list[tuple[int, ...]]:
        limits = [cap] if varied == caps.ONE_LIMIT else [fixed, cap]
        return laid_out(workload, limits, last)

    ends = [(layout(low), layout(high)) for low, high in zip(lows, highs, strict=True)]
    assert all(low == high for low, high in ends)
    assert all(before != after for (before, _), (after, _) in pairwise(ends))
    cap = data.draw(st.integers(0, workload.total_bytes + 2))
    at = int(np.searchsorted(found.low_bytes, cap, side="right")) - 1
    assert layout(cap) == ends[at][0]


@given(workloads(TINY, max_gradients=9), st.booleans())
def test_no_cap_makes_a_layout_of_its_own(workload, last):
    found = caps.find_intervals(caps.make_walk(workload, last))
    every = {tuple(laid_out(workload, [cap], last)) for cap in range(workload.total_bytes + 2)}
    assert {tuple(laid_out(workload, [low], last)) for low in found.low_bytes.tolist()} == every


@given(workloads(TINY, max_gradients=9), st.integers(0, 60), st.integers(0, 60))
def test_first_limits_of_one_interval_cut_alike_whatever_the_cap(workload, fixed, later):
    found = caps.find_intervals(caps.make_walk(workload), caps.FIRST_LIMIT, fixed)
    lows, highs = found.low_bytes.tolist(), found.high_bytes.tolist()
    assert (lows[0], highs[-1]) == (0, caps.NO_LIMIT)
    assert all(after == before + 1 for before, after in zip(highs, lows[1:], strict=False))
    for low, high in zip(lows, highs, strict=True):
        assert laid_out(workload, [low, later], False) == laid_out(workload, [high, later], False)


def test_first_limits_that_differ_under_a_large_cap_only():
    """One dtype has 4 and 4 bytes, another 10 and 3 between them. A first bucket of 8 is closed by the last
    gradient, one of 9 is left over: no difference while 3 bytes are a bucket. Left over, they are of the
    dtype seen later, and go ahead of what else is left over, but not of a closed bucket."""
    sizes, dtypes = (4, 10, 3, 4), ("float32", "bfloat16", "bfloat16", "float32")
    workload = sized(*sizes, dtypes=dtypes)
    found = caps.find_intervals(caps.make_walk(workload), caps.FIRST_LIMIT, 0)
    assert {8, 9} <= {*found.high_bytes.tolist(), *found.low_bytes.tolist()}
    walk = caps.make_walk(workload)
    assert caps.make_layout(walk, 8, 0) == caps.make_layout(walk, 9, 0) == ((1,), (2,), (0, 3))
    assert caps.make_layout(walk, 8, 100) == ((1,), (0, 3), (2,))
    assert caps.make_layout(walk, 9, 100) == ((1,), (2,), (0, 3))


@given(CASES, st.booleans(), st.data())
def test_the_shown_cap_gives_ddp_the_layout(workload, last, data):
    walk = caps.make_walk(workload, last)
    found = caps.find_intervals(walk)
    at = data.draw(st.integers(0, len(found.low_bytes) - 1))
    low, high = int(found.low_bytes[at]), int(found.high_bytes[at])
    shown = caps.round_cap_mb(low, high)
    assignment = sim.assign(workload, bucket_cap_mb=shown, set_last_bucket_cap=last)
    assert assignment.bucket_indices == caps.make_layout(walk, low, low)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
@example(0, 0)
@example(0, 1)
def test_a_shown_cap_lies_in_its_interval(one, other):
    low, high = sorted((one, other))
    shown = caps.round_cap_mb(low, high)
    assert low <= cap_bytes(shown) <= high
    assert shown > 0 or high == 0


@pytest.mark.parametrize(
    ("low_mb", "high_mb", "shown"),
    [
        (24.8139, 26.2, 25.0),
        (0.9, 12.0, 10.0),
        (11.2, 14.3, 12.0),
        (97.4563, None, 100.0),
        (0.0, 0.004, 0.001),
        (3.14159, 3.1416, 3.1416),
    ],
)
def test_shown_caps_are_round(low_mb, high_mb, shown):
    high = caps.NO_LIMIT if high_mb is None else int(high_mb * MIB)
    assert caps.round_cap_mb(int(low_mb * MIB), high) == shown


def test_of_all_numbers_none_is_the_roundest():
    assert caps.find_roundest(0, caps.NO_LIMIT, 1) == 1


def test_sparse_gradients_and_dtypes_by_hand():
    """Sizes 4 4 | sparse 9 | 4 4 in two dtypes, interleaved: a limit each, leftovers newest first."""
    dtypes = ("float32", "bfloat16", "float32", "float32", "bfloat16")
    workload = sized(4, 4, 9, 4, 4, dtypes=dtypes, sparse=2)
    walk = caps.make_walk(workload)
    found = caps.find_intervals(walk)
    layouts = [caps.make_layout(walk, low, low) for low in found.low_bytes.tolist()]
    assert list(zip(found.low_bytes.tolist(), found.high_bytes.tolist(), layouts, strict=True)) == [
        (0, 4, ((0,), (1,), (2,), (3,), (4,))),
        (5, 8, ((2,), (0, 3), (1, 4))),
        (9, caps.NO_LIMIT, ((2,), (1, 4), (0, 3))),
    ]


@given(workloads(REAL, max_gradients=14, dtypes=DTYPES[:1], devices=(None,), sparse=False))
def test_too_many_layouts_are_thinned_out_and_say_so(workload):
    walk = caps.make_walk(workload)
    every = caps.find_intervals(walk)
    assume(len(every.low_bytes) > 5)
    few = caps.find_intervals(walk, most=5)
    assert every.complete
    assert not few.complete
    assert 1 <= len(few.low_bytes) <= 5
    known = dict(zip(every.low_bytes.tolist(), every.high_bytes.tolist(), strict=True))
    whole = [(low, high) for low, high in zip(few.low_bytes, few.high_bytes, strict=True)]
    for low, high in whole:  # inside one of them, perhaps without what a last bucket adds
        around = max(known_low for known_low in known if known_low <= low)
        assert high <= known[around]
    assert few.high_bytes[-1] == caps.NO_LIMIT


def test_resnet50_has_as_many_layouts_as_a_fine_grid_finds_at_most():
    workload = resnet50()
    found = caps.find_intervals(caps.make_walk(workload))
    grid = np.geomspace(1, workload.total_bytes, 400).astype(int).tolist()
    assert {len(laid_out(workload, [cap], False)) for cap in grid} <= {
        len(laid_out(workload, [low], False)) for low in found.low_bytes.tolist()
    }
    assert len(found.low_bytes) > 500


def test_an_empty_gradient_is_a_bucket_for_itself_under_no_cap_only():
    found = caps.find_intervals(caps.make_walk(sized(0, 4)))
    assert found.low_bytes.tolist() == [0, 1]
