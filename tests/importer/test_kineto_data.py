"""Public traces of real clusters: what is known of each comes out of it. Nothing is fitted."""

from functools import cache
from statistics import median

import pytest

from sim.importer.imported import ImportOptions
from tests.effort import DATA, needs_data
from tests.importer.built_traces import Traced, read_kineto

pytestmark = needs_data

A100X2 = ("hta/hta_nccl_data_a100x2.json.gz",)
A100X8 = ("hta/hta_trace_diff_control_a100x8_r3.json.gz",)
UNBUCKETED = ("hta/hta_df_index_resolver_v100x2_r1.json.gz",)
ALONE = ("hta/hta_ns_resolution_v100_ws1.json.gz",)
DLRM = tuple(f"param/param_dlrm_v100x8_r{rank}.pt.trace.json.gz" for rank in range(8))
RESNET50_BUCKETS = [2049000, 7875584, 6563840, 6637568, 2431040]
RESNET50_ELEMENTS = 25_557_032


@cache
def imported(names: tuple[str, ...]) -> Traced:
    return read_kineto([DATA / "traces" / name for name in names], ImportOptions())


def bucket_elements(found: Traced) -> list[int | None]:
    return [row["num_elements"] for row in found.buckets]


def step_ms(found: Traced) -> float:
    return median(row["step_ns"] for row in found.steps) / 1e6


@pytest.mark.parametrize(
    ("names", "steps", "length_ms", "buckets"),
    [
        (A100X2, 3, 220, RESNET50_BUCKETS),
        (A100X8, 6, 76.5, [45310188, 267040, 4432073]),
        (ALONE, 5, 95.7, RESNET50_BUCKETS),
        (DLRM, 1, 16.5, [394241, 112, 226960]),
    ],
)
def test_steps_and_buckets(names: tuple[str, ...], steps: int, length_ms: float, buckets: list[int]) -> None:
    found = imported(names)
    assert len(found.steps) == steps
    assert step_ms(found) == pytest.approx(length_ms, rel=0.02)
    assert bucket_elements(found) == buckets
    assert {row["dtype"] for row in found.buckets} == {"float32"}
    assert found.workload.total_bytes == 4 * sum(buckets)


def test_all_reduces_of_a_compiled_backward_are_seen_though_no_size_is_told() -> None:
    found = imported(UNBUCKETED)
    assert len(found.buckets) == 404
    assert len(found.steps) == 5
    assert found.workload is None
    assert any("a compiled backward" in line for line in found.missing)


@pytest.mark.parametrize("how", ["nw0", pytest.param("autogradapi_nw0", marks=pytest.mark.slow)])
def test_one_gpu_alone_shows_the_gradients(how: str) -> None:
    found = imported((f"kineto/kineto_tb_resnet50_{how}_singlegpu.json.gz",))
    workload = found.workload
    assert len(workload.gradients) == 161
    assert workload.total_bytes == 4 * RESNET50_ELEMENTS
    assert len(found.steps) == (
        6 if how == "nw0" else 5
    )  # of steps without numbers the first has no beginning
    order = workload.ready_order
    # The classifier's weight and bias first, the first convolution last.
    assert {workload.gradients[index].shape for index in order[:2]} == {(1000, 2048), (1000,)}
    assert (64, 3, 7, 7) in {workload.gradients[index].shape for index in order[-3:]}
    times = [workload.gradients[index].ready_ns or 0 for index in order]
    assert times == sorted(times)
    assert 0.95 * workload.backward_ns < times[-1] <= workload.backward_ns
    assert not workload.ready_includes
    assert any("buckets" in line for line in found.missing)


def test_eight_ranks_are_laid_on_one_clock() -> None:
    found = imported(DLRM)
    assert [row.rank for row in found.ranks] == list(range(8))
    for row in found.ranks:
        assert row.clock_scatter_ns is not None
        assert row.clock_scatter_ns <= 10_000
        assert abs(row.clock_offset_ns or 0) <= 10_000  # one machine
    # One of the three came too close to tell: within what the clocks are known to.
    assert sum(row.came_last or 0 for row in found.ranks) == found.ranks[0].collectives == 2
    waited = {row.rank: row.waited_ns or 0 for row in found.ranks}
    slow = {row.rank for row in found.ranks if (row.backward_ns or 0) > 4_500_000}
    assert slow == {4, 5}
    assert 10 * max(waited[rank] for rank in slow) < min(waited[rank] for rank in set(waited) - slow)


def test_a_transfer_is_the_shortest_kernel_of_all_ranks() -> None:
    """Early ranks' kernels of the 112 elements last up to 30 times as long: they wait."""
    together, alone = imported(DLRM), [imported((name,)) for name in DLRM]
    for place, row in enumerate(together.buckets):
        each = [found.buckets[place]["transfer_ns"][0] for found in alone]
        assert row["transfer_ns"] == [min(each)]
    each = [found.buckets[1]["transfer_ns"][0] for found in alone]
    assert max(each) / min(each) == pytest.approx(30, rel=0.1)
    assert all("upper bound" in " ".join(found.assumed) for found in alone)
    assert "upper bound" not in " ".join(together.assumed)


def test_collectives_that_are_not_modelled_are_told() -> None:
    found = " ".join(imported(A100X8).found)
    assert "7 other collectives a step (all_to_all)" in found
