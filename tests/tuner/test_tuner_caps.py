"""The curve of caps and its plateau: every layout is found, once, with the caps that make it, and scored."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Plateau
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import rebuilt_buckets
from sim.systems.registry import assign
from sim.tuner import caps
from sim.tuner import gain as gains
from sim.tuner.caps import cap_curve
from sim.tuner.draws import draw
from sim.tuner.problem import Problem
from sim.tuner.sweep import SweepRow
from sim.units import MIB, cap_bytes
from tests.effort import tries
from tests.handmade import handmade
from tests.strategies import DTYPES, REAL, TINY, hardwares, workloads
from tests.tuner.cases import MS, Case, link, resnet50, simulated, transformer

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


Stretches = tuple[tuple[float, float], ...]
GPT = transformer(4, vocabulary=3000)


def found(workload: Workload, hardware: Hardware, rest_ns: int) -> Plateau:
    """The plateau as ``tune`` asks for it, were the best cap what it recommends."""
    problem = Problem(replace(workload, forward_ns=rest_ns, loss_ns=0, optimizer_ns=0, buffers=()), hardware)
    default, curve = assign(workload), cap_curve(problem)
    best = assign(workload, bucket_cap_mb=curve.cap_mb(curve.best))
    return gains.find_plateau(curve, gains.Paired(draw(problem, 400, seed=0), default), best, default)


def holds(stretches: Stretches, cap_bytes: int) -> bool:
    return any(low <= cap_bytes / MIB <= high for low, high in stretches)


@st.composite
def small(draw: st.DrawFn) -> Case:
    """A few bytes in all, so that every cap can be tried."""
    return draw(workloads(TINY, max_gradients=6)), draw(hardwares(TINY, stretches=False))


@settings(max_examples=tries(100))
@given(small(), st.integers(0, 300))
def test_every_cap_is_where_it_belongs(case: Case, rest_ns: int) -> None:
    workload, hardware = case
    plateau = found(workload, hardware, rest_ns)
    assert plateau.decided_by == "tolerance"
    assert plateau.alike_mb == plateau.stretches_mb
    most = workload.total_bytes + 1
    steps = {
        cap: simulated(workload, hardware, sim.assign(workload, bucket_cap_mb=cap / MIB).bucket_indices)
        + rest_ns
        for cap in range(most + 1)
    }
    best = min(steps.values())
    near = {cap for cap, step in steps.items() if step <= best * 1.01}
    assert {cap for cap in steps if holds(plateau.stretches_mb, cap)} == near
    assert plateau.is_flat == (len(near) == len(steps))
    assert best in {steps[min(round(cap * MIB), most)] for cap in plateau.caps_mb}
    ends = [end for stretch in plateau.stretches_mb for end in stretch]
    assert ends == sorted(ends)
    for (_, last), (first, _) in pairwise(plateau.stretches_mb):
        assert (first - last) * MIB > 1  # otherwise it would be one stretch
    assert (plateau.low_mb, plateau.high_mb) in plateau.stretches_mb
    default = simulated(workload, hardware, sim.assign(workload).bucket_indices) + rest_ns
    assert plateau.holds_default == plateau.alike_holds_default == (default <= best * 1.01)


@pytest.mark.parametrize("noise_ms", [pytest.param(1.0, marks=pytest.mark.slow), 8.0])
def test_noise_widens_the_plateau(noise_ms: float) -> None:
    """Iterations that are faster or slower as a whole: what is lost by no more than they vary is alike."""
    workload, hardware = GPT, link(10, latency_us=300)
    backward = workload.backward_ns
    paces = [1 + noise_ms * MS * z / backward for z in (-1.4826, -0.6, -0.2, 0, 0.2, 0.6, 1.4826)]
    noisy = replace(
        workload,
        samples=tuple(tuple(round(p * (g.ready_ns or 0)) for g in workload.gradients) for p in paces),
    )
    plateau = found(noisy, hardware, 0)
    assert plateau.decided_by == "noise"
    quiet = found(workload, hardware, 0)
    assert plateau.stretches_mb == quiet.stretches_mb  # the zone of 1 % is nominal

    def loss(cap: int) -> int:
        cut = sim.assign(workload, bucket_cap_mb=cap / MIB).bucket_indices
        return simulated(workload, hardware, cut)

    caps = [round(0.25 * 1.3**k * MIB) for k in range(23)]
    best = min(loss(round(mb * MIB)) for mb in quiet.caps_mb)
    alike = [holds(plateau.alike_mb, cap) for cap in caps]
    surely = [loss(cap) - best < 0.5 * noise_ms * MS for cap in caps]
    possibly = [loss(cap) - best < 1.5 * noise_ms * MS for cap in caps]
    assert all(a >= s for a, s in zip(alike, surely, strict=True))
    assert all(a <= p for a, p in zip(alike, possibly, strict=True))
    assert sum(surely) > 0
    assert sum(possibly) < len(caps)


def test_what_is_not_played_is_judged_by_its_nominal_step(monkeypatch: pytest.MonkeyPatch) -> None:
    exactly = {"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}}
    workload, hardware = GPT, replace(link(10, latency_us=300), spread=exactly)
    rows = tuple(tuple(round(p * (g.ready_ns or 0)) for g in workload.gradients) for p in (0.97, 1, 1.03))
    noisy = replace(workload, samples=rows)
    played = found(noisy, hardware, 0)
    monkeypatch.setattr(gains, "MOST_PLAYED", 1)
    nominal = found(noisy, hardware, 0)
    assert nominal.stretches_mb == played.stretches_mb
    assert played.alike_mb[0][0] / 3 <= nominal.alike_mb[0][0] <= 3 * played.alike_mb[0][0]
    assert nominal.alike_holds_default == played.alike_holds_default


# Of a sweep the cap to set: a round one that costs next to nothing against the best.

ROW = SweepRow(
    label="",
    bucket_cap_mb=None,
    world_size=2,
    precision=None,
    bandwidth=1.0,
    latency=1.0,
    backward=1.0,
    num_buckets=3,
    largest_bucket_bytes=MIB,
    step_ns=90_000,
    sync_end_ns=90_000,
    exposed_comm_ns=0,
    overlap_ratio=0.5,
)
PLATEAU = Plateau(
    tolerance=0.01,
    caps_mb=(),
    stretches_mb=((0.25, 4.5),),
    low_mb=0.25,
    high_mb=4.5,
    holds_default=False,
    is_flat=False,
    alike_mb=((0.1, 0.6),),
)


@pytest.mark.parametrize(
    ("steps", "cap"),
    [
        ({0.3: 100_000, 0.5: 100_200, 1: 100_900, 25: 102_000}, 1),  # rounder, and within 1 %
        ({1: 100_900, 4: 100_100, 25: 100_800}, 4),  # equally round: the fastest
        ({2: 100_000, 3.5: 99_900, 1: 102_000}, 2),
        ({3.5: 99_900, 6: 99_800, 1: 102_000}, 6),  # none is round
        ({0: 90_000, 1: 100_000}, 1),  # 0 is one bucket a gradient, no cap
        ({}, None),
    ],
)
def test_the_cap_to_set_is_round_and_costs_next_to_nothing(steps: dict[float, int], cap: float) -> None:
    rows = [ROW, *(replace(ROW, bucket_cap_mb=float(mb), step_ns=ns) for mb, ns in steps.items())]
    found = sim.round_cap(rows)
    assert (None if found is None else found.bucket_cap_mb) == cap


def test_no_cap_that_can_be_told_apart_is_taken_unless_all_can() -> None:
    steps = {0.25: 100_000, 0.5: 100_100, 1: 100_900}
    rows = [replace(ROW, bucket_cap_mb=float(mb), step_ns=ns) for mb, ns in steps.items()]
    for alike, cap in ((((0.1, 0.6),), 0.25), ((), 1), (((0.1, 0.2),), 1)):
        found = sim.round_cap(rows, replace(PLATEAU, alike_mb=alike))
        assert found is not None
        assert found.bucket_cap_mb == cap
