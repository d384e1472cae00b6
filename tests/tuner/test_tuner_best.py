"""The optimum alone, the band of steps, and searches that can be stopped."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import NotModelledError, SimError
from sim.nouns.workload import Workload
from sim.tuner import recommend
from sim.tuner.reach.families import Families, default_buckets, find_ddp_families
from sim.tuner.search import kernels
from sim.tuner.search.optimum import Optimum, find_optimum
from sim.tuner.search.problem import Problem
from sim.tuner.search.score import Scorer
from tests.bench.machines import machine, model
from tests.effort import tries
from tests.tuner.cases import Case, anything, link, resnet50, transformer

CAPS: tuple[float | None, ...] = (None, 0.0, 4.0)


@settings(max_examples=tries(25))
@given(anything(max_gradients=7))
def test_the_best_alone_is_what_tune_recommends(case: Case) -> None:
    assert sim.best(*case) == sim.tune(*case).assignment


@settings(max_examples=tries(60))
@given(anything(max_gradients=25))
def test_the_default_alone_is_what_assign_makes(case: Case) -> None:
    assert default_buckets(Problem(*case)) == sim.assign(case[0]).bucket_indices


def test_what_assign_refuses_is_refused_alone_too() -> None:
    whole = resnet50()
    gradients = (replace(whole.gradients[0], ready_ns=None), *whole.gradients[1:])
    workload = replace(whole, gradients=gradients, ready_order=None)
    with pytest.raises(NotModelledError, match="is never ready") as told:
        sim.best(workload, link(4))
    with pytest.raises(NotModelledError) as by_assign:
        sim.assign(workload)
    assert str(told.value) == str(by_assign.value)


@pytest.mark.parametrize(("name", "most"), [("affine", 2), ("measured", 4)])
def test_where_the_search_is_exact_little_else_is_scored(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found, and the default; with copies, which are rounded, also one bucket a gradient."""
    played: list[int] = []
    play = kernels.play_surely
    monkeypatch.setattr(kernels, "play_surely", lambda *given: (played.append(1), play(*given))[1])
    sim.best(model(161, name), machine(name))
    assert len(played) <= most


def from_all_families(scorer: Scorer) -> Optimum:
    """The search that sets out from the best of every family, whether it needs them or not."""
    families = [reach.assignment.bucket_indices for reach in find_ddp_families(scorer).reached.values()]
    return find_optimum(scorer, [*families, tuple((index,) for index in scorer.problem.order)])


@settings(max_examples=tries(60))
@given(anything(max_gradients=25))
def test_without_families_the_best_is_as_good(case: Case) -> None:
    """Never worse; as good where there is a proof; and the same buckets where there is none."""
    scorer = Scorer(*case)
    before, found = from_all_families(scorer), sim.best(*case).bucket_indices
    assert scorer.sync_end_ns(found) <= before.sync_end_ns
    if before.is_proved:
        assert scorer.sync_end_ns(found) == before.sync_end_ns
    else:
        assert found == before.buckets


@pytest.mark.parametrize("name", ["affine", "concave", "measured"])
@pytest.mark.parametrize("count", [161, pytest.param(1000, marks=pytest.mark.slow)])
def test_families_are_not_searched_where_there_is_a_proof_without_them(
    count: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, hardware = model(count, name), machine(name)
    scorer = Scorer(workload, hardware)
    before = from_all_families(scorer)
    assert before.is_proved

    def search(scorer: Scorer) -> Families:
        raise AssertionError("families are searched")

    monkeypatch.setattr(recommend, "find_ddp_families", search)
    assert scorer.sync_end_ns(sim.best(workload, hardware).bucket_indices) == before.sync_end_ns
    with pytest.raises(AssertionError, match="families are searched"):
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


def test_without_anything_that_varies_there_is_no_band() -> None:
    assert sim.step_band(resnet50(), link(4), CAPS) == ()


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


def test_iterations_that_are_alike_make_a_band_of_no_width() -> None:
    for point in sim.step_band(symmetric(resnet50(), 0.0), EXACT, CAPS):
        step = nominal_ns(resnet50(), point.cap_mb)
        assert (point.low_ns, point.high_ns) == (step, step)
        assert (point.iterations, point.draws >= 4000) == (5, True)


def test_the_band_is_that_of_the_draws_of_tune() -> None:
    """The default's mean step of ``robust`` lies in its band, and its 95th percentile below the upper end."""
    workload = symmetric(resnet50(), 0.1)
    robust = sim.tune(workload, link(4), draws=100).robust
    assert robust is not None
    (point,) = sim.step_band(workload, link(4), [None])
    row = robust.row("default")
    assert point.low_ns < row.mean_step_ns < row.p95_step_ns <= point.high_ns


def test_an_illegal_cap_is_refused() -> None:
    with pytest.raises(SimError):
        sim.step_band(symmetric(resnet50(), 0.1), link(4), [-1.0])
