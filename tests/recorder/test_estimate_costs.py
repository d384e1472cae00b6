"""What an operator costs: against sizes that can be counted by hand."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sim.nouns.gpus import GpuSheet
from sim.recorder.estimate import CountingMode, OperatorWork, stand_ins
from tests.effort import tries

aten = torch.ops.aten
SLOW_MEMORY = GpuSheet(name="slow memory", flops={"float32": 1e30}, bytes_per_s=1.0)
SIZES = st.integers(1, 64)


def count(run: Any, device: GpuSheet = SLOW_MEMORY) -> OperatorWork:
    """The work of what ``run`` does to stand-ins that it makes."""
    with stand_ins():
        run_it = run()
        mode = CountingMode(device)
        with mode:
            run_it()
    return mode.work


@given(m=SIZES, k=SIZES, n=SIZES, flops=st.floats(1, 1e9), rate=st.floats(1, 1e9))
@settings(max_examples=tries(10))
def test_a_product_takes_the_longer_of_its_flops_and_bytes(
    m: int, k: int, n: int, flops: float, rate: float
) -> None:
    """It reads both sides, and writes the third."""

    def make() -> Any:
        a, b = torch.empty(m, k), torch.empty(k, n)
        return lambda: a @ b

    work = count(make, GpuSheet(name="two rates", flops={"float32": flops}, bytes_per_s=rate))
    assert (work.flops, work.num_bytes) == (2 * m * n * k, 4 * (m * k + k * n + m * n))
    assert work.seconds == pytest.approx(max(work.flops / flops, work.num_bytes / rate))


@pytest.mark.parametrize(
    ("elements", "run"),
    [
        (0, lambda x: x.view(-1)),
        (0, lambda x: x.t().detach()),
        (0, torch.empty_like),
        (1, lambda x: x.zero_()),
        (1, torch.zeros_like),
        (2, lambda x: x.mul_(2)),
        (2, lambda x: x * 2),
        (2, lambda x: x.clone()),
        (3, lambda x: x.add_(torch.empty(8, 4))),
        (2, lambda x: x.copy_(torch.empty(8, 4))),
        (1 + 1 / 8, lambda x: x.sum(0)),
        (2 + 1 / 8, lambda x: torch.add(x, torch.empty(1, 4).expand(8, 4))),
        (2 * 3 / 8 + 6 / 32, lambda x: functional.embedding(torch.empty(3, dtype=torch.int64), x)),
    ],
)
def test_bytes_of_an_operator(elements: float, run: Any) -> None:
    def make() -> Any:
        x = torch.empty(8, 4)
        return lambda: run(x)

    assert count(make).num_bytes == round(elements * 8 * 4 * 4)


@pytest.mark.parametrize("causal", [False, True])
def test_causal_attention_is_half_the_work_and_dropout_does_not_write_it_out(causal: bool) -> None:
    def make(dropout: float) -> Any:
        parts = [torch.empty(2, 4, 64, 16, requires_grad=True) for _ in range(3)]
        return lambda: functional.scaled_dot_product_attention(*parts, None, dropout, causal)

    work = count(lambda: make(0.0))
    assert work.flops == 2 * 2 * (2 * 4) * 64 * 64 * 16 // (2 if causal else 1)
    assert count(lambda: make(0.1)) == work


def test_convolutions_may_use_tf32_and_products_may_not_by_default() -> None:
    flops = {"float32": 1.0, "tf32": 8.0, "bfloat16": 16.0}
    device = GpuSheet(name="two rates", flops=flops, bytes_per_s=1e30)

    def convolution() -> Any:
        x, w = torch.empty(1, 1, 1, 1), torch.empty(1, 1, 1, 1)
        return lambda: functional.conv2d(x, w)

    def product(dtype: torch.dtype) -> Any:
        x = torch.empty(1, 1, dtype=dtype)
        return lambda: x @ x

    assert count(convolution, device).seconds == 2 / 8
    assert count(convolution, device).is_convolutional
    assert count(lambda: product(torch.float32), device).seconds == 2
    assert count(lambda: product(torch.bfloat16), device).seconds == 2 / 16
    assert not count(lambda: product(torch.bfloat16), device).is_convolutional
