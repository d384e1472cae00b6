"""The band against a known truth: of steps that nobody recorded, 95 of 100 lie in it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.tuner.cases import link, resnet50

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
