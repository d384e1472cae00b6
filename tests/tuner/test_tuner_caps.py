"""Every layout of a cap is found, once, with the caps that make it, and scored."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import sim
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import rebuilt_buckets
from sim.tuner import caps
from sim.tuner.problem import Problem
from sim.units import MIB, cap_bytes
from tests.handmade import handmade
from tests.strategies import DTYPES, REAL, TINY, hardwares, workloads
from tests.tuner.cases import Case, link, resnet50, simulated

SCALES = st.sampled_from([TINY, TINY, REAL])
CASES = SCALES.flatmap(lambda scale: workloads(scale, max_gradients=14))


def laid_out(workload: Workload, limits: list[int]) -> list[tuple[int, ...]]:
    return [tuple(bucket) for bucket in rebuilt_buckets(workload, limits)]


def sized(*sizes: int, dtypes: Sequence[str] | None = None, sparse: int | None = None) -> Workload:
    """Gradients of these sizes, ready one after another."""
    return handmade(
        range(len(sizes)), sizes, dtypes=dtypes or "float32", sparse=(sparse,), backward_ns=len(sizes)
    )


@given(CASES, st.data())
def test_intervals_tile_all_caps_and_each_is_one_layout(workload, data):
    found = caps.find_intervals(caps.make_walk(workload))
    lows, highs = found.low_bytes.tolist(), found.high_bytes.tolist()
    assert found.complete
    assert lows[0] == 0
    assert highs[-1] == caps.NO_LIMIT
    assert all(after == before + 1 for before, after in zip(highs, lows[1:], strict=False))
    ends = [
        (laid_out(workload, [low]), laid_out(workload, [high])) for low, high in zip(lows, highs, strict=True)
    ]
    assert all(low == high for low, high in ends)
    assert all(before != after for (before, _), (after, _) in pairwise(ends))
    cap = data.draw(st.integers(0, workload.total_bytes + 2))
    at = int(np.searchsorted(found.low_bytes, cap, side="right")) - 1
    assert laid_out(workload, [cap]) == ends[at][0]


@given(workloads(TINY, max_gradients=9))
def test_no_cap_makes_a_layout_of_its_own(workload):
    found = caps.find_intervals(caps.make_walk(workload))
    every = {tuple(laid_out(workload, [cap])) for cap in range(workload.total_bytes + 2)}
    assert {tuple(laid_out(workload, [low])) for low in found.low_bytes.tolist()} == every


@given(CASES, st.data())
def test_the_shown_cap_gives_ddp_the_layout(workload, data):
    found = caps.find_intervals(caps.make_walk(workload))
    at = data.draw(st.integers(0, len(found.low_bytes) - 1))
    low, high = int(found.low_bytes[at]), int(found.high_bytes[at])
    shown = caps.round_cap_mb(low, high)
    assignment = sim.assign(workload, bucket_cap_mb=shown)
    assert list(assignment.bucket_indices) == laid_out(workload, [low])


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


def test_sparse_gradients_and_dtypes_by_hand():
    """Sizes 4 4 | sparse 9 | 4 4 in two dtypes, interleaved: a limit each, leftovers newest first."""
    dtypes = ("float32", "bfloat16", "float32", "float32", "bfloat16")
    workload = sized(4, 4, 9, 4, 4, dtypes=dtypes, sparse=2)
    found = caps.find_intervals(caps.make_walk(workload))
    layouts = [tuple(laid_out(workload, [low])) for low in found.low_bytes.tolist()]
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
    assert {len(laid_out(workload, [cap])) for cap in grid} <= {
        len(laid_out(workload, [low])) for low in found.low_bytes.tolist()
    }
    assert len(found.low_bytes) > 500


def test_an_empty_gradient_is_a_bucket_for_itself_under_no_cap_only():
    found = caps.find_intervals(caps.make_walk(sized(0, 4)))
    assert found.low_bytes.tolist() == [0, 1]


# The curve on one machine: what each layout takes.


@st.composite
def plain(draw: st.DrawFn, max_gradients: int = 6) -> Case:
    """Nothing stretches; dtypes, devices, sparse and empty gradients."""
    return draw(workloads(TINY, max_gradients=max_gradients)), draw(hardwares(TINY, stretches=False))


def end(case: Case, cap_mb: float) -> int:
    workload, hardware = case
    return simulated(workload, hardware, sim.assign(workload, bucket_cap_mb=cap_mb).bucket_indices)


@given(plain() | st.tuples(workloads(TINY, max_gradients=6), hardwares(TINY)))
def test_no_cap_is_better_than_the_best_of_the_curve(case):
    """Also where work stretches."""
    curve = caps.cap_curve(Problem(*case))
    assert curve.how.startswith("all ")
    every = [end(case, size / MIB) for size in range(case[0].total_bytes + 2)]
    assert end(case, curve.cap_mb(curve.best)) == curve.sync_end_ns[curve.best] == min(every)


@given(workloads(TINY, max_gradients=8), hardwares(TINY))
def test_rows_are_all_layouts_of_the_cap_and_their_scores(workload, hardware):
    problem = Problem(workload, hardware)
    curve = caps.cap_curve(problem)
    for row, low in enumerate(curve.low_bytes.tolist()):
        made = sim.assign(workload, bucket_cap_mb=curve.cap_mb(row)).bucket_indices
        assert list(made) == laid_out(workload, [low])
        assert len(made) == curve.num_buckets[row]
        assert simulated(workload, hardware, made) == problem.sync_end_ns(made) == curve.sync_end_ns[row]
    ends = (sim.assign(workload, name).bucket_indices for name in ("per-parameter", "single"))
    assert [len(one) for one in ends] == curve.num_buckets[[0, -1]].tolist()


def test_given_caps_have_a_row_each():
    curve, problem = caps.cap_curve(Problem(resnet50(), link(4))), Problem(resnet50(), link(4))
    given_bytes = [MIB, 2 * MIB, 2 * MIB + 1]
    found = caps.cap_curve(problem, given_bytes)
    at = np.searchsorted(curve.low_bytes, given_bytes, side="right") - 1
    assert found.sync_end_ns.tolist() == curve.sync_end_ns[at].tolist()
    assert found.num_buckets.tolist() == curve.num_buckets[at].tolist()
