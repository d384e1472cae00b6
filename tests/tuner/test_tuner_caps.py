"""The curve of caps: every layout, once, with the caps that make it, and its step; and what to set by it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain, Plateau
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.ddp_assignment import rebuilt_buckets
from sim.systems.registry import assign
from sim.tuner import caps
from sim.tuner import setting as settling
from sim.tuner.caps import CapCurve, cap_curve, round_cap_mb
from sim.tuner.draws import Draws
from sim.tuner.gain import Paired
from sim.tuner.problem import Problem
from sim.tuner.sweep import SweepRow
from sim.units import MIB, cap_bytes
from tests.effort import tries
from tests.strategies import DTYPES, REAL, TINY, hardwares, workloads
from tests.tuner.cases import MS, link, simulated, transformer

SCALES = st.sampled_from([TINY, TINY, REAL])
CASES = SCALES.flatmap(lambda scale: workloads(scale, max_gradients=14))


def curve_of(workload: Workload) -> CapCurve:
    return cap_curve(Problem(workload, link(4)))


def laid_out(workload: Workload, limit: int) -> list[tuple[int, ...]]:
    return [tuple(bucket) for bucket in rebuilt_buckets(workload, [limit])]


@given(CASES, st.data())
def test_intervals_tile_all_caps_and_each_is_one_layout(workload: Workload, data: st.DataObject) -> None:
    found = curve_of(workload)
    lows, highs = found.low_bytes.tolist(), found.high_bytes.tolist()
    assert found.complete
    assert (lows[0], highs[-1]) == (0, NO_LIMIT)
    assert all(after == before + 1 for before, after in zip(highs, lows[1:], strict=False))
    layouts = [laid_out(workload, low) for low in lows]
    assert layouts == [laid_out(workload, high) for high in highs]
    assert all(before != after for before, after in pairwise(layouts))
    cap = data.draw(st.integers(0, workload.total_bytes + 2))
    assert laid_out(workload, cap) == layouts[int(np.searchsorted(found.low_bytes, cap, side="right")) - 1]
    at = data.draw(st.integers(0, len(lows) - 1))
    assert list(sim.assign(workload, bucket_cap_mb=found.cap_mb(at)).bucket_indices) == layouts[at]


@settings(max_examples=tries(100))
@given(workloads(TINY, max_gradients=8), hardwares(TINY))
def test_the_curve_is_what_each_cap_takes(workload: Workload, hardware: Hardware) -> None:
    """Of several dtypes, sparse and empty gradients too, and where work stretches; every single cap tried."""
    curve = cap_curve(Problem(workload, hardware))
    steps = []
    for cap in range(workload.total_bytes + 2):
        row = int(np.searchsorted(curve.low_bytes, cap, side="right")) - 1
        made = sim.assign(workload, bucket_cap_mb=cap / MIB)
        steps.append(sim.simulate(workload, hardware, made, "analytic").step_ns)
        assert (curve.num_buckets[row], curve.steps_ns[row]) == (len(made.bucket_indices), steps[-1])
    assert curve.steps_ns[curve.best] == curve.best_ns == min(steps)
    assert curve.how.startswith("all ")


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
@example(0, 0)
@example(0, 1)
def test_a_shown_cap_lies_in_its_interval(one: int, other: int) -> None:
    low, high = sorted((one, other))
    shown = round_cap_mb(low, high)
    assert low <= cap_bytes(shown) <= high
    assert shown > 0 or high == 0


@given(workloads(REAL, max_gradients=14, dtypes=DTYPES[:1], devices=(None,), sparse=False))
def test_too_many_layouts_are_thinned_out_and_say_so(workload: Workload) -> None:
    every = curve_of(workload)
    assume(len(every.low_bytes) > 5)
    with mock.patch.multiple(caps, WORK=0, FEWEST=5):
        few = curve_of(workload)
    assert every.complete
    assert not few.complete
    assert 1 <= len(few.low_bytes) <= 5
    for low, high in zip(few.low_bytes, few.high_bytes, strict=True):
        # Inside one of them, perhaps without what a last bucket adds.
        assert high <= every.high_bytes[np.searchsorted(every.low_bytes, low, side="right") - 1]
    assert few.high_bytes[-1] == NO_LIMIT


# The plateau.

GPT, GPT_LINK = transformer(4, vocabulary=3000), link(10, latency_us=300)


def plateau_of(workload: Workload, hardware: Hardware, rest_ns: int = 0) -> Plateau:
    """The plateau as ``tune`` asks for it, were the best cap what it recommends."""
    problem = Problem(replace(workload, forward_ns=rest_ns, loss_ns=0, optimizer_ns=0, buffers=()), hardware)
    curve, paired = cap_curve(problem), Paired(Draws(problem, 400, seed=0), problem.default)
    return settling.find_plateau(curve, paired, assign(workload, bucket_cap_mb=curve.best_mb))


def noisy(paces: Sequence[float]) -> Workload:
    """Iterations that are faster or slower as a whole."""
    ready = [gradient.ready_ns or 0 for gradient in GPT.gradients]
    return replace(GPT, samples=tuple(tuple(round(pace * time) for time in ready) for pace in paces))


@settings(max_examples=tries(100))
@given(workloads(TINY, max_gradients=6), hardwares(TINY, stretches=False), st.integers(0, 300))
def test_every_cap_is_where_it_belongs(workload: Workload, hardware: Hardware, rest_ns: int) -> None:
    """A few bytes in all, so that every cap can be tried; nothing is recorded."""
    plateau = plateau_of(workload, hardware, rest_ns)
    assert plateau.decided_by == "tolerance"
    most = workload.total_bytes + 1

    def step(**cap: float) -> int:
        return simulated(workload, hardware, sim.assign(workload, **cap).bucket_indices) + rest_ns

    steps = {cap: step(bucket_cap_mb=cap / MIB) for cap in range(most + 1)}
    best = min(steps.values())
    near = {cap for cap, one in steps.items() if one <= best * 1.01}
    assert {cap for cap in steps if settling.holds(plateau, cap / MIB)} == near
    assert plateau.is_flat == (len(near) == len(steps))
    assert best in {steps[min(round(cap * MIB), most)] for cap in plateau.caps_mb}
    ends = [end for stretch in plateau.stretches_mb for end in stretch]
    assert ends == sorted(ends)
    for (_, last), (first, _) in pairwise(plateau.stretches_mb):
        assert (first - last) * MIB > 1  # otherwise it would be one stretch
    # Or what it loses, a ns or two, is no more than what is not known of the link.
    assert plateau.holds_default == (step() <= best * 1.01) or "not significant" in plateau.sentence


@pytest.mark.parametrize("noise_ms", [pytest.param(1.0, marks=pytest.mark.slow), 8.0])
def test_noise_widens_the_plateau(noise_ms: float) -> None:
    """What is lost by no more than steps vary is alike."""
    paces = [1 + noise_ms * MS * z / GPT.backward_ns for z in (-1.4826, -0.6, -0.2, 0, 0.2, 0.6, 1.4826)]
    plateau, quiet = plateau_of(noisy(paces), GPT_LINK), plateau_of(GPT, GPT_LINK)
    assert (plateau.decided_by, quiet.decided_by) == ("noise", "tolerance")

    def loss(cap_mb: float) -> int:
        return simulated(GPT, GPT_LINK, sim.assign(GPT, bucket_cap_mb=cap_mb).bucket_indices)

    tried = [0.25 * 1.3**k for k in range(23)]
    best = min(map(loss, quiet.caps_mb))
    for cap in tried:
        if settling.holds(plateau, cap):
            assert loss(cap) - best <= 1.5 * noise_ms * MS
        else:
            assert loss(cap) - best >= 0.5 * noise_ms * MS
    assert 0 < sum(settling.holds(plateau, cap) for cap in tried) < len(tried)


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

NO_PLATEAU = Plateau(
    caps_mb=(), stretches_mb=(), holds_default=False, is_flat=False, decided_by="noise", sentence=""
)


@pytest.mark.parametrize(
    ("steps", "alike_mb", "cap"),
    [
        ({0.3: 100_000, 0.5: 100_200, 1: 100_900, 25: 102_000}, None, 1),  # rounder, and within 1 %
        ({1: 100_900, 4: 100_100, 25: 100_800}, None, 4),  # equally round: the fastest
        ({2: 100_000, 3.5: 99_900, 1: 102_000}, None, 2),
        ({3.5: 99_900, 6: 99_800, 1: 102_000}, None, 6),  # none is round
        ({0: 90_000, 1: 100_000}, None, 1),  # 0 is one bucket a gradient, no cap
        ({}, None, None),
        # None that can be told apart is taken, unless all can.
        ({0.25: 100_000, 0.5: 100_100, 1: 100_900}, ((0.1, 0.6),), 0.25),
        ({0.25: 100_000, 0.5: 100_100, 1: 100_900}, (), 1),
        ({0.25: 100_000, 0.5: 100_100, 1: 100_900}, ((0.1, 0.2),), 1),
    ],
)
def test_the_cap_to_set_is_round_and_costs_next_to_nothing(
    steps: dict[float, int], alike_mb: tuple[tuple[float, float], ...] | None, cap: float | None
) -> None:
    rows = [ROW, *(replace(ROW, bucket_cap_mb=float(mb), step_ns=ns) for mb, ns in steps.items())]
    found = sim.round_cap(rows, None if alike_mb is None else replace(NO_PLATEAU, stretches_mb=alike_mb))
    assert (None if found is None else found.bucket_cap_mb) == cap


@settings(max_examples=tries(4000))
@given(
    steps=st.dictionaries(st.sampled_from([0.25, 1.0, 4.0, 25.0]), st.integers(90, 110), max_size=4),
    default_ns=st.integers(90, 110),
    best_ns=st.integers(85, 100),
    decided_by=st.sampled_from(["noise", "tolerance"]),
)
def test_what_is_to_be_set_saves_something(
    steps: dict[float, int], default_ns: int, best_ns: int, decided_by: Literal["noise", "tolerance"]
) -> None:
    """A round cap where one does, and the best buckets where none comes within 3 % that can be told apart."""
    rows = [replace(ROW, bucket_cap_mb=mb, step_ns=ns) for mb, ns in steps.items()]
    gain = Gain(gain_ns=1, fraction=0.1, low_ns=1, high_ns=1, significant=True, sentence="")
    plateau = replace(NO_PLATEAU, stretches_mb=((0.0, 4.0),), decided_by=decided_by)
    found = settling.find_setting(rows, default_ns=default_ns, best_ns=best_ns, gain=gain, plateau=plateau)
    assert found.saved_ns == default_ns - found.step_ns
    assert (found.saved_ns > 0) == (found.pick != "default")
    cap = sim.round_cap(rows, plateau)
    is_faster = cap is not None and cap.step_ns < default_ns
    assert (found.pick == "default") == (not is_faster and best_ns >= default_ns)
    if is_faster and cap is not None:
        assert (found.cap_mb, found.cap_step_ns) == (cap.bucket_cap_mb, cap.step_ns)
        is_near = cap.step_ns <= best_ns * 1.03
        is_alike = decided_by == "noise" and found.cap_mb in (0.25, 1.0, 4.0)
        assert (found.pick == "cap") == (is_near or is_alike)


def test_under_torch_compile_caps_are_compared_where_they_move_no_cut() -> None:
    """Each cap of DDP's own makes other cuts, and so other times; without cuts none does."""
    with pytest.raises(NotModelledError, match="give compile_cap_mb, or sweep caps"):
        sim.tune(GPT.with_switches({"optimize_ddp": "ddp_optimizer"}), GPT_LINK, draws=4)
    whole = {"optimize_ddp": "no_optimization"}
    for switches in (whole, {"optimize_ddp": "ddp_optimizer", "compile_cap_mb": 25.0}):
        found = sim.tune(GPT.with_switches(switches), GPT_LINK, draws=4)
        best = found.families["bucket_cap_mb"]
        assigned = replace(best.assignment, settings=switches)
        assert sim.simulate(GPT, GPT_LINK, assigned, "analytic").step_ns == best.report.step_ns
