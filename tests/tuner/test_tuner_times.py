"""How long the tuner takes: printed, not asserted, as the box is shared (``-m slow -s`` shows it)."""

from time import perf_counter

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner import exact
from tests.tuner.cases import link, resnet50, transformer

COPIES = {"copy_in_bytes_per_s": 10e9, "copy_out_bytes_per_s": 10e9}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hardware",
    [
        pytest.param(link(10), id="no copies"),
        pytest.param(link(10, **COPIES), id="copies"),
        pytest.param(link(10, comm_channels=2, channel_slowdown=2.0, **COPIES), id="two channels"),
    ],
)
@pytest.mark.parametrize("workload", [resnet50(), transformer(83, width=256)], ids=["161", "1000"])
def test_times(workload: Workload, hardware: Hardware) -> None:
    started = perf_counter()
    recommendation = sim.tune(workload, hardware)
    seconds = perf_counter() - started
    print(f"\n{len(workload.gradients)} gradients: tune {seconds:.3f} s; {recommendation.proof}")
    if exact.applies(workload, hardware):
        started = perf_counter()
        exact.exact_optimum(workload, hardware, recommendation.baseline.sync_end_ns)
        print(f"  of it the exact search {perf_counter() - started:.3f} s")
