"""The plateau: true intervals of caps, told apart by noise where it is known, else by 1 % of the best."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Plateau
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.tuner import gain as gains
from sim.tuner.caps import cap_curve
from sim.tuner.draws import draw
from sim.tuner.problem import Problem
from sim.tuner.sweep import SweepRow
from tests.effort import tries
from tests.strategies import TINY, hardwares, workloads
from tests.tuner.cases import MIB, MS, Case, link, simulated, transformer

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
