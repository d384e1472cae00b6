"""The optimum alone, the band of steps, and searches that can be stopped."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner import problem as kernels
from sim.tuner import recommend
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.optimum import Optimum, find_optimum
from sim.tuner.problem import Problem
from tests.bench.machines import machine, model
from tests.effort import tries
from tests.tuner.cases import MIB, Case, anything, link, resnet50, transformer

CAPS: tuple[float | None, ...] = (None, 0.0, 4.0)


@settings(max_examples=tries(25))
@given(anything(max_gradients=7))
def test_the_best_alone_is_what_tune_recommends(case: Case) -> None:
    assert sim.best(*case) == sim.tune(*case).assignment


@pytest.mark.parametrize(("name", "most"), [("affine", 2), ("measured", 4)])
def test_where_the_search_is_exact_little_else_is_scored(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found, and the default; with copies, which are rounded, also one bucket a gradient."""
    played: list[int] = []
    play = kernels.play_step
    monkeypatch.setattr(kernels, "play_step", lambda *given: (played.append(1), play(*given))[1])
    sim.best(model(161, name), machine(name))
    assert len(played) <= most


def from_all(problem: Problem) -> Optimum:
    """The search that sets out from the best cap and one bucket in all, whether it needs them or not."""
    curve = cap_curve(problem)
    caps = [curve.cap_mb(curve.best), 1 + problem.workload.total_bytes // MIB]
    known = [sim.assign(problem.compiled, bucket_cap_mb=cap).bucket_indices for cap in caps]
    return find_optimum(problem, [*known, sim.assign(problem.compiled).bucket_indices, problem.singles()])


@settings(max_examples=tries(60))
@given(anything(max_gradients=25))
def test_without_caps_the_best_is_as_good(case: Case) -> None:
    """Never worse; as good where there is a proof; and the same buckets where there is none."""
    problem = Problem(*case)
    before, found = from_all(problem), sim.best(*case).bucket_indices
    assert problem.sync_end_ns(found) <= before.sync_end_ns
    if before.is_proved:
        assert problem.sync_end_ns(found) == before.sync_end_ns
    else:
        assert found == before.buckets


@pytest.mark.parametrize("name", ["affine", "concave", "measured"])
@pytest.mark.parametrize("count", [161, pytest.param(1000, marks=pytest.mark.slow)])
def test_caps_are_not_searched_where_there_is_a_proof_without_them(
    count: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, hardware = model(count, name), machine(name)
    problem = Problem(workload, hardware)
    before = from_all(problem)
    assert before.is_proved

    def search(problem: Problem) -> CapCurve:
        raise AssertionError("caps are searched")

    monkeypatch.setattr(recommend, "cap_curve", search)
    assert problem.sync_end_ns(sim.best(workload, hardware).bucket_indices) == before.sync_end_ns
    with pytest.raises(AssertionError, match="caps are searched"):
        sim.best(workload, replace(hardware, comm_slowdown=1.2))


def test_the_best_alone_where_work_is_stretched() -> None:
    hardware = replace(link(4), compute_slowdown=1.3, comm_slowdown=1.2)
    whole = resnet50()
    workload = replace(whole, gradients=whole.gradients[:40], ready_order=None)
    found = sim.tune(workload, hardware, draws=20)
    assert not found.proved_optimal
    assert sim.best(workload, hardware) == found.assignment


def test_progress_is_told_and_changes_nothing() -> None:
    told: list[str] = []
    workload = transformer(1)
    assert sim.tune(workload, link(4), progress=told.append) == sim.tune(workload, link(4))
    assert {"comparing caps", "playing steps as they vary"} <= set(told)


def test_a_search_ends_when_its_listener_raises() -> None:
    class EnoughError(Exception):
        pass

    def stop(words: str) -> None:
        raise EnoughError

    for search in (sim.tune, sim.best):
        with pytest.raises(EnoughError):
            search(resnet50(), link(4), progress=stop)
    sim.best(resnet50(), link(4))  # and nobody listens any more


EXACT = link(4, spread={"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}})  # nothing of it is open


def symmetric(workload: Workload, share: float) -> Workload:
    """Iterations as much faster as slower than the nominal one, all gradients alike."""
    ready = np.array([gradient.ready_ns or 0 for gradient in workload.gradients])
    factors = (1 - share, 1 - share / 2, 1.0, 1 + share / 2, 1 + share)
    return replace(
        workload, samples=tuple(tuple(np.rint(ready * factor).astype(int).tolist()) for factor in factors)
    )


def nominal_ns(workload: Workload, cap: float | None) -> int:
    return sim.summarize(sim.simulate(workload, link(4), sim.assign(workload, bucket_cap_mb=cap))).step_ns


@settings(max_examples=8)
@given(st.floats(0.01, 0.2), st.floats(0, 0.5))
def test_the_band_holds_the_nominal_step_and_grows_with_the_noise(share: float, smaller: float) -> None:
    wide = sim.step_band(symmetric(resnet50(), share), EXACT, CAPS)
    narrow = sim.step_band(symmetric(resnet50(), share * smaller), EXACT, CAPS)
    assert [point.cap_mb for point in wide] == list(CAPS)
    for outer, inner in zip(wide, narrow, strict=True):
        assert outer.low_ns <= inner.low_ns <= nominal_ns(resnet50(), inner.cap_mb) + 1
        assert outer.high_ns >= inner.high_ns >= nominal_ns(resnet50(), inner.cap_mb) - 1
        assert outer.high_ns > outer.low_ns


def test_the_band_is_that_of_the_draws_of_tune() -> None:
    """The default's noise of a step, as ``tune`` tells it, is narrower than its band."""
    workload = symmetric(resnet50(), 0.1)
    noise_ns = sim.tune(workload, link(4), draws=100).gain.noise_ns
    assert noise_ns is not None
    (point,) = sim.step_band(workload, link(4), [None])
    assert 0 < noise_ns < point.high_ns - point.low_ns


# The band against a known truth: of steps that nobody recorded, 95 of 100 lie in it.

Paces = NDArray[np.float64]
World = Callable[[np.random.Generator, int], Paces]


def normal(generator: np.random.Generator, count: int) -> Paces:
    return generator.normal(1, 0.05, count)


def skewed(generator: np.random.Generator, count: int) -> Paces:
    return generator.lognormal(0, 0.2, count)


def two_speeds(generator: np.random.Generator, count: int) -> Paces:
    return generator.choice([0.9, 1.2], count, p=[0.8, 0.2]) + generator.normal(0, 0.01, count)


def with_paces(workload: Workload, paces: Paces) -> Workload:
    """``workload`` with an iteration recorded a pace; its gradients are ready sooner or later by that."""
    ready = np.array([gradient.ready_ns or 0 for gradient in workload.gradients])
    return replace(
        workload, samples=tuple(tuple(np.rint(ready * pace).astype(int).tolist()) for pace in paces)
    )


def step_at(workload: Workload, hardware: Hardware, pace: float) -> int:
    """One step at a pace, played on its own; its tail is the nominal one's, as that of drawn steps."""
    ready = [round((gradient.ready_ns or 0) * pace) for gradient in workload.gradients]
    tail = workload.backward_ns - max(gradient.ready_ns or 0 for gradient in workload.gradients)
    paced = replace(
        workload,
        gradients=tuple(
            replace(gradient, ready_ns=at) for gradient, at in zip(workload.gradients, ready, strict=True)
        ),
        backward_ns=max(ready) + tail,
    )
    return sim.summarize(sim.simulate(paced, hardware, sim.assign(paced), "analytic")).step_ns


@pytest.mark.parametrize(
    ("world", "recorded"),
    [
        *((normal, 8), (skewed, 12), (two_speeds, 60)),
        *(pytest.param(normal, recorded, marks=pytest.mark.slow) for recorded in (20, 60, 1000)),
        pytest.param(skewed, 200, marks=pytest.mark.slow),
    ],
)
def test_it_holds_95_of_100_steps_that_were_not_recorded(world: World, recorded: int) -> None:
    """By mean over jobs that are alike: which iterations were recorded is luck. Steps grow with the pace."""
    job = resnet50()
    machine = replace(link(4), spread={"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}})  # known exactly
    generator = np.random.default_rng(recorded)
    further = world(generator, 4000)
    paces = np.linspace(further.min(), further.max(), 30)
    steps = np.interp(further, paces, [step_at(job, machine, pace) for pace in paces])
    held = []
    for _ in range(60 if recorded < 500 else 6):
        (point,) = sim.step_band(with_paces(job, world(generator, recorded)), machine, [None])
        assert point.iterations == recorded
        held.append(np.mean((steps >= point.low_ns) & (steps <= point.high_ns)))
    assert 0.93 <= np.mean(held) <= 0.97


@pytest.mark.parametrize("recorded", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_few_iterations_give_the_width_of_many_where_collectives_scatter_too(recorded: int) -> None:
    scatter = {
        "all_reduce": {str(point.num_bytes): spread(point.duration_ns) for point in link(1).all_reduce}
    }
    machine = replace(link(1), spread=scatter)
    generator = np.random.default_rng(recorded)
    (many,) = sim.step_band(with_paces(resnet50(), normal(generator, 400)), machine, [None])
    widths = []
    for seed in range(12):
        job = with_paces(resnet50(), normal(generator, recorded))
        (point,) = sim.step_band(job, machine, [None], seed=seed)
        widths.append(point.high_ns - point.low_ns)
    assert np.mean(widths) == pytest.approx(many.high_ns - many.low_ns, rel=0.1)


def spread(median_ns: int) -> dict[str, int]:
    return {
        "count": 30,
        "min_ns": round(median_ns * 0.9),
        "p10_ns": round(median_ns * 0.95),
        "median_ns": median_ns,
        "p90_ns": round(median_ns * 1.1),
        "max_ns": round(median_ns * 1.2),
    }


@pytest.mark.parametrize("recorded", [1, 2, 3])
def test_too_few_iterations_make_no_band(recorded: int) -> None:
    assert sim.step_band(with_paces(resnet50(), np.linspace(0.9, 1.1, recorded)), link(4), [None]) == ()
