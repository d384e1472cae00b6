"""Rules of other systems: held against a second reading of each, and cases worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.units import MIB
from tests.handmade import handmade
from tests.strategies import REAL, TINY, curves, hardwares, workloads
from tests.tuner import peers
from tests.tuner.cases import cuttings, link, simulated

US = 1000
ANY = st.sampled_from([TINY, REAL]).flatmap(lambda scale: workloads(scale, max_gradients=12))
LAYERS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=9)
COSTS = st.tuples(st.integers(0, 15), st.integers(0, 3))


def layered(layers: Sequence[tuple[int, int]]) -> Workload:
    """(ns of backward before it, bytes) of each gradient, in ready order."""
    ready = list(accumulate(work for work, _ in layers))
    sizes = [num_bytes for _, num_bytes in layers]
    return handmade(ready, sizes, ready_order=tuple(range(len(layers))))


def end_in_model(layers: Sequence[tuple[int, int]], buckets: Sequence[Sequence[int]], cost) -> int:
    """When the last collective ends: alpha + beta * M each, one at a time, from when the last is ready."""
    alpha, beta = cost
    ready = [sum(work for work, _ in layers[: at + 1]) for at in range(len(layers))]
    end = 0
    for bucket in buckets:
        end = max(end, ready[bucket[-1]]) + alpha + beta * sum(layers[at][1] for at in bucket)
    return end


def as_published(layers: Sequence[tuple[int, int]], cost) -> list[tuple[int, ...]]:
    """In the paper's terms: layers L to 1, sizes p, times t_c, starts tau_c; a merged layer has no size and
    takes no time, and all starts are computed anew after each merge."""
    alpha, beta = cost
    count = len(layers)
    done = {count - at: sum(work for work, _ in layers[: at + 1]) for at in range(count)}  # tau_b + t_b
    p = {count - at: size for at, (_, size) in enumerate(layers)}
    t_c = {layer: alpha + beta * size for layer, size in p.items()}
    merged = set()
    for layer in range(count, 1, -1):
        tau_c, before = {}, 0
        for above in range(count, layer - 1, -1):
            tau_c[above] = max(before, done[above])
            before = tau_c[above] + t_c[above]
        if done[layer - 1] < tau_c[layer] + alpha:
            merged.add(layer)
            p[layer - 1] += p[layer]
            t_c[layer - 1] = alpha + beta * p[layer - 1]
            p[layer] = t_c[layer] = 0
    buckets, bucket = [], []
    for at in range(count):
        bucket.append(at)
        if count - at not in merged:
            buckets.append(tuple(bucket))
            bucket = []
    return buckets


@given(LAYERS, COSTS)
def test_mg_wfbp_is_the_published_algorithm(layers, cost):
    assert list(peers.merge_wisely(layered(layers), *cost)) == as_published(layers, cost)


@given(LAYERS, COSTS)
def test_mg_wfbp_is_never_worse_than_no_merging_in_its_model(layers, cost):
    made = peers.merge_wisely(layered(layers), *cost)
    alone = [(at,) for at in range(len(layers))]
    assert end_in_model(layers, made, cost) <= end_in_model(layers, alone, cost)


@given(LAYERS.filter(lambda layers: len(layers) <= 2), COSTS)
def test_of_two_gradients_mg_wfbp_makes_the_best(layers, cost):
    made = peers.merge_wisely(layered(layers), *cost)
    best = min(end_in_model(layers, cut, cost) for cut in cuttings(range(len(layers))))
    assert end_in_model(layers, made, cost) == best


def test_mg_wfbp_is_not_always_the_optimum_of_its_model():
    """Alpha 10, one ns a byte; ready at 0, 9 and 19 ns with 10, 0 and 0 bytes. The first could start at 0, so
    the second, ready before 10, is merged and delays both to 9; the third comes at 9 + 10, not before, and
    pays a start-up of its own: 9 + 20 + 10. Left alone, the first would end at 20 and the rest at 30."""
    layers, cost = [(0, 10), (9, 0), (10, 0)], (10, 1)
    made = peers.merge_wisely(layered(layers), *cost)
    assert made == ((0, 1), (2,))
    assert end_in_model(layers, made, cost) == 39
    assert end_in_model(layers, [(0,), (1, 2)], cost) == 30
    assert min(end_in_model(layers, cut, cost) for cut in cuttings(range(3))) == 30


@given(ANY, curves(REAL), st.integers(1, 4))
def test_every_baseline_is_a_legal_assignment(workload, curve, world_size):
    hardware = replace(link(10), all_reduce=curve, world_size=world_size)
    for buckets in (
        peers.merge_wisely(workload, *peers.fit_alpha_beta(hardware)),
        peers.fuse_in_cycles(workload),
        peers.fuse_in_cycles(workload, threshold_bytes=8, cycle_time_ns=3),
    ):
        Assignment(bucket_indices=buckets).check_fits(workload)
        places = {index: place for place, index in enumerate(workload.order())}
        assert all(list(bucket) == sorted(bucket, key=places.__getitem__) for bucket in buckets)
    merged = peers.merge_wisely(workload, *peers.fit_alpha_beta(hardware))
    assert list(merged) == sorted(merged, key=lambda bucket: places[bucket[-1]])  # as they become ready


@given(curves(REAL), st.sampled_from([1, 2, 8]))
def test_a_fitted_line_never_falls_and_never_starts_below_zero(curve, world_size):
    alpha, beta = peers.fit_alpha_beta(replace(link(10), all_reduce=curve, world_size=world_size))
    assert alpha >= 0
    assert beta >= 0


def test_an_affine_curve_is_its_own_fit():
    alpha, beta = peers.fit_alpha_beta(link(10, latency_us=50))
    assert alpha == pytest.approx(50 * US, rel=1e-4)
    assert beta == pytest.approx(0.8, rel=1e-4)


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(100, 7)], (7, 0)),
        ([(0, 9), (100, 3)], (3.6, 0)),  # falling: flat, by relative errors nearer to the 3
        ([(100, 10), (200, 40)], (0, 0.12)),  # convex: through 0, (100 / 10 + 200 / 40) / (10² + 5²)
    ],
)
def test_curves_that_no_line_with_latency_fits(points, line):
    curve = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in points)
    found = peers.fit_alpha_beta(Hardware(name="h", world_size=2, all_reduce=curve))
    assert found == pytest.approx(line, abs=0.01)


def dressed(rows: Sequence[tuple[int, int, str]], sparse: int | None = None) -> Workload:
    """(ready ns, bytes, dtype) of each gradient, in ready order; one may be sparse."""
    ready, sizes, dtypes = zip(*rows, strict=True)
    order = tuple(range(len(rows)))
    return handmade(ready, sizes, dtypes=dtypes, sparse=(sparse,), backward_ns=100, ready_order=order)


F, B = "float32", "bfloat16"


def test_horovods_cycles_by_hand():
    """Ticks every 10 ns, 10 bytes a buffer. Ready at 0: by the tick at 0. At 1 to 10: by the one at 10, cut
    where the buffer is full. At 11: by the one at 20."""
    workload = dressed([(0, 1, F), (1, 4, F), (5, 6, F), (10, 1, F), (11, 2, F)])
    made = peers.fuse_in_cycles(workload, threshold_bytes=10, cycle_time_ns=10)
    assert made == ((0,), (1, 2), (3,), (4,))


@pytest.mark.parametrize(
    ("sizes", "made"),
    [
        ("F4 B3 F2 B1", ((0, 2), (1, 3))),  # passed over while 4 + 3 + ... fit into 10
        ("F4 B6 F1", ((0, 2), (1,))),  # and be exactly full
        ("F4 B7 F2 B1", ((0,), (1, 3), (2,))),  # 4 + 7 do not: the buffer is sent as it is
        ("F12 F1 F1", ((0,), (1, 2))),  # larger than a buffer: alone
        ("F9 F1 F1", ((0, 1), (2,))),  # exactly full
    ],
)
def test_horovod_looks_past_other_dtypes_while_the_buffer_could_hold_them(sizes, made):
    rows = [(1, int(word[1:]), F if word[0] == "F" else B) for word in sizes.split()]
    assert peers.fuse_in_cycles(dressed(rows), threshold_bytes=10, cycle_time_ns=10) == made


def test_horovod_sends_sparse_gradients_alone():
    workload = dressed([(1, 1, F), (1, 1, F), (1, 1, F)], sparse=1)
    assert peers.fuse_in_cycles(workload) == ((0, 2), (1,))


def test_horovods_defaults_are_those_of_its_documentation():
    assert peers.FUSION_THRESHOLD_BYTES == 128 * MIB
    assert peers.CYCLE_TIME_NS == 1_000_000


@given(
    workloads(TINY, max_gradients=8, sparse=False, dtypes=("float32",), devices=(None,)),
    hardwares(TINY, stretches=False),
)
def test_the_best_buckets_beat_the_rule_that_cuts_ready_order_as_they_do(workload, hardware):
    made = peers.merge_wisely(workload, *peers.fit_alpha_beta(hardware))
    best = sim.best(workload, hardware).bucket_indices
    assert simulated(workload, hardware, best) <= simulated(workload, hardware, made)
