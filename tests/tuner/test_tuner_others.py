"""The best sizes of other systems' buckets: near the best of all sizes, and never behind the default."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.errors import InputError, NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.simulate import simulated_step_ns
from sim.tuner.others import best_of, megatron_settings
from tests.tuner.cases import link, resnet50, transformer

SIZES = {"zero1": "reduce_bucket_size", "zero2": "reduce_bucket_size", "megatron": "bucket_size"}


def equipped(gbit: float) -> Hardware:
    machine = link(gbit, latency_us=300)
    return replace(machine, all_gather=machine.all_reduce)


def step(workload: Workload, hardware: Hardware, policy: str, **options: Any) -> int:
    fixed = megatron_settings(workload) if policy == "megatron" else {}
    return simulated_step_ns(workload, hardware, sim.assign(workload, policy, **fixed, **options))


@pytest.mark.parametrize("gbit", [1, 10])
@pytest.mark.parametrize("workload", [resnet50(), transformer(2)], ids=["resnet50", "gpt"])
@pytest.mark.parametrize("policy", SIZES)
def test_no_size_is_much_better(policy: str, workload: Workload, gbit: float) -> None:
    hardware = equipped(gbit)
    found = best_of(workload, hardware, policy)
    assert found.step_ns == simulated_step_ns(workload, hardware, found.assignment)
    assert found.step_ns <= step(workload, hardware, policy)
    total = sum(gradient.elements for gradient in workload.gradients)
    every = [int(1000 * (total / 1000) ** (k / 150)) for k in range(151)]
    least = min(step(workload, hardware, policy, **{SIZES[policy]: size}) for size in every)
    assert found.step_ns <= 1.01 * least
    assert "sizes on a logarithmic grid" in found.how


def test_the_first_try_is_the_default() -> None:
    found = best_of(resnet50(), equipped(10), "zero2", most=1)
    assert found.assignment.settings["reduce_bucket_size"] == 500_000_000
    assert best_of(resnet50(), link(10), "megatron", most=4).assignment.settings["overlap_grad_reduce"]


def test_what_cannot_be_trained_or_timed_says_why() -> None:
    workload = resnet50()
    with pytest.raises(NotModelledError, match="no all_gather curve"):
        best_of(workload, link(10), "zero1")
    sparse = replace(
        workload, gradients=(replace(workload.gradients[0], sparse=True), *workload.gradients[1:])
    )
    with pytest.raises((InputError, NotModelledError), match="sparse"):
        best_of(sparse, equipped(10), "zero1")
