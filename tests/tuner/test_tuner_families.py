"""What each knob reaches: as good as trying every setting of it, and what DDP makes of the keywords."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import NotModelledError
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.tuner.reach import cap_search, families
from sim.tuner.reach.cap_layouts import find_intervals, make_layout, make_walk
from sim.tuner.reach.cap_search import CapLimits, Search, best_pair
from sim.tuner.reach.layout_scores import score_layouts
from sim.tuner.search.problem import Problem
from sim.tuner.search.score import Scorer
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import TINY, hardwares, workloads
from tests.tuner.cases import MIB, MS, Case, link, resnet50, simulated

NAMES = {
    "default",
    "bucket_cap_mb",
    "first_bucket_mb+bucket_cap_mb",
    "DDP_SET_LAST_BUCKET_CAP",
    "per-parameter",
    "single",
}


@st.composite
def plain(draw: st.DrawFn, max_gradients: int = 6) -> Case:
    """Nothing stretches, so that every score is to the ns; dtypes, devices, sparse and empty gradients."""
    return draw(workloads(TINY, max_gradients=max_gradients)), draw(hardwares(TINY, stretches=False))


def end(case: Case, **caps: object) -> int:
    workload, hardware = case
    return simulated(workload, hardware, sim.assign(workload, **caps).bucket_indices)  # type: ignore[arg-type]


def every_cap(workload: Workload) -> list[float]:
    return [size / 2**20 for size in range(workload.total_bytes + 2)]


def reach(case: Case, name: str) -> int:
    workload, hardware = case
    found = families.find_families(Scorer(*case)).reached[name]
    assert found.complete
    return simulated(workload, hardware, found.assignment.bucket_indices)


@given(plain())
def test_no_cap_is_better(case):
    assert reach(case, "bucket_cap_mb") == min(end(case, bucket_cap_mb=cap) for cap in every_cap(case[0]))


@settings(max_examples=tries(40))
@given(plain(max_gradients=4))
def test_no_first_bucket_and_cap_are_better(case):
    every = every_cap(case[0])
    best = min(end(case, first_bucket_mb=first, bucket_cap_mb=cap) for first in every for cap in every)
    assert reach(case, "first_bucket_mb+bucket_cap_mb") == best


@given(plain())
def test_no_cap_from_the_last_gradient_on_is_better(case):
    ends = [end(case, bucket_cap_mb=cap, set_last_bucket_cap=True) for cap in every_cap(case[0])]
    best = min([*ends, end(case, set_last_bucket_cap=True)])
    assert reach(case, "DDP_SET_LAST_BUCKET_CAP") == best


def test_ddps_own_caps_may_be_the_best_from_the_last_gradient_on():
    """Five gradients of 10 MiB at 0 ms, one of 1 MiB at 130 ms; a collective takes 30 ms and 1 ms a MiB. Only
    [1, 25] MiB sends the last one alone and the others together: 130 + 31 ms."""
    workload = handmade([0] * 5 + [130 * MS], [10 * MIB] * 5 + [MIB])
    machine = wired({0: 30 * MS, MIB: 31 * MS})
    one = families.find_families(Scorer(workload, machine)).reached["DDP_SET_LAST_BUCKET_CAP"].assignment
    assert not one.ddp_kwargs
    assert simulated(workload, machine, one.bucket_indices) == 161 * MS
    assert min(end((workload, machine), bucket_cap_mb=cap, set_last_bucket_cap=True) for cap in range(60)) > (
        161 * MS
    )


@given(workloads(TINY, max_gradients=8), hardwares(TINY))
def test_assignments_are_what_their_keywords_make(workload, hardware):
    """Whatever the machine does: ``ddp_kwargs`` and the environment alone give the buckets."""
    found = families.find_families(Scorer(workload, hardware))
    assert set(found.reached) | set(found.absent) >= NAMES
    for name, one in found.reached.items():
        one.assignment.check_fits(workload)
        assert one.how
        if one.assignment.policy != "ddp":
            continue
        caps = dict(one.assignment.ddp_kwargs)
        last = "environment" in one.assignment.requires
        assert last == (name == "DDP_SET_LAST_BUCKET_CAP")
        again = sim.assign(workload, set_last_bucket_cap=last, **caps)
        assert again.bucket_indices == one.assignment.bucket_indices


@given(plain(max_gradients=8))
def test_rows_are_all_layouts_of_the_cap_and_their_scores(case):
    workload, hardware = case
    rows = families.find_families(Scorer(workload, hardware)).cap_rows
    assert (rows[0].low_bytes, rows[-1].high_bytes) == (0, None)
    assert all(before.high_bytes == after.low_bytes - 1 for before, after in pairwise(rows))
    for row in rows:
        made = sim.assign(workload, bucket_cap_mb=row.cap_mb)
        assert len(made.bucket_indices) == row.num_buckets
        assert simulated(workload, hardware, made.bucket_indices) == row.sync_end_ns


@given(workloads(TINY, max_gradients=8), hardwares(TINY), st.booleans())
def test_scores_are_those_of_one_layout_at_a_time(workload, hardware, last):
    scorer, walk = Scorer(workload, hardware), make_walk(workload, last)
    lows = find_intervals(walk).low_bytes
    scores = score_layouts(scorer.problem, walk, lows, lows)
    for row, low in enumerate(lows.tolist()):
        buckets = make_layout(walk, low, low)
        assert scores.sync_end_ns[row] == scorer.sync_end_ns(buckets)
        assert scores.num_buckets[row] == len(buckets)


def test_chunks_make_no_difference(monkeypatch):
    problem, walk = Problem(resnet50(), link(10)), make_walk(resnet50())
    lows = find_intervals(walk).low_bytes
    whole = score_layouts(problem, walk, lows, lows).sync_end_ns
    monkeypatch.setattr("sim.tuner.reach.layout_scores.MOST_BUCKETS", 500)
    assert (score_layouts(problem, walk, lows, lows).sync_end_ns == whole).all()


@given(plain(max_gradients=8))
def test_coordinate_descent_is_never_worse_than_one_cap_or_the_default(case):
    workload, hardware = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cap_search, "PAIR_WORK", 0)
        found = families.find_families(Scorer(workload, hardware)).reached
    ends = {name: simulated(workload, hardware, one.assignment.bucket_indices) for name, one in found.items()}
    pair = found["first_bucket_mb+bucket_cap_mb"]
    assert not pair.complete
    assert pair.how.startswith("coordinate descent")
    assert ends["first_bucket_mb+bucket_cap_mb"] <= min(ends["bucket_cap_mb"], ends["default"])


def test_coordinate_descent_keeps_what_it_was_given(monkeypatch):
    monkeypatch.setattr(cap_search, "PAIR_WORK", 0)
    scorer, walk = Scorer(resnet50(), link(10)), make_walk(resnet50())
    best = CapLimits(sync_end_ns=0, num_buckets=1, first_bytes=5, later_bytes=6)
    search = Search(scorer=scorer, walk=walk)
    assert best_pair(search, find_intervals(walk), best)[0] == best


def test_zero_is_absent_with_a_reason_or_there():
    found = families.find_families(Scorer(resnet50(), link(10)))
    assert {name: reason.split(";")[0] for name, reason in found.absent.items()} == {
        f"{stage} reduce_bucket_size": f"{stage}: hardware '10 Gbit/s' has no all_gather curve"
        for stage in ("zero1", "zero2")
    } | {"fully_shard units": "fully_shard: hardware '10 Gbit/s' has no reduce_scatter curve"}
    machine = link(10, all_gather=link(10).all_reduce, reduce_scatter=link(10).all_reduce)
    found = families.find_families(Scorer(resnet50(), machine))
    assert not found.absent
    assert {"ddp-bucket-size", "fully_shard units"} <= set(found.reached)
    assert found.reached["zero2 reduce_bucket_size"].assignment.policy == "zero2"


def test_what_ddp_does_not_train_is_refused():
    unused = handmade([0, None], 4, backward_ns=1)
    with pytest.raises(NotModelledError, match="never ready"):
        families.find_families(Scorer(unused, link(10)))


def test_resnet50_is_scored_in_full():
    """Every distinct layout of ``bucket_cap_mb``, and every pair of first bucket and cap."""
    scorer = Scorer(resnet50(), link(4))
    found = families.find_families(scorer)
    assert found.reached["bucket_cap_mb"].how == f"all {len(found.cap_rows)} layouts"
    assert found.reached["first_bucket_mb+bucket_cap_mb"].complete
    best = scorer.sync_end_ns(found.reached["bucket_cap_mb"].assignment.bucket_indices)
    assert best == min(row.sync_end_ns for row in found.cap_rows)
    pair = scorer.sync_end_ns(found.reached["first_bucket_mb+bucket_cap_mb"].assignment.bucket_indices)
    assert pair <= min(best, scorer.sync_end_ns(found.reached["default"].assignment.bucket_indices))
    assert found.cap_rows[-1].low_bytes < NO_LIMIT


@given(workloads(TINY, max_gradients=6), hardwares(TINY))
def test_where_work_stretches_no_cap_is_better_either(workload, hardware):
    found = families.find_families(Scorer(workload, hardware)).reached["bucket_cap_mb"]
    case = (workload, hardware)
    best = min(end(case, bucket_cap_mb=cap) for cap in every_cap(workload))
    assert simulated(workload, hardware, found.assignment.bucket_indices) == best
