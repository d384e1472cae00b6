"""Two A100 that train GPT-2: others measured that the cap does not matter there, and so must come out.

The measurement (``tests/published/null_case.json``, with its source): fp32, 16 x 512 tokens a
GPU, four caps from 1 to 500 MB for GPT-2 124M and 774M; the steps differ by 0.5 and 1.2 %, which lies below
the noise from step to step. The link is not stated, so both that it can be are assumed: an NVLink pair as
others measured it, and a PCIe pair, affine, with the latency and the bandwidth of two L4 (7 us, 11 GB/s:
slower than two A100's).

What is not measured is built: backward is two thirds of the step without communication (the single GPU's
where it was measured, else the shortest of the four) and spreads over the operators by their multiply-adds;
the tied ``wte`` is complete last. The noise of a step is the least that the record allows: its largest
difference between two caps, which it calls less than the noise (2.0 and 28 ms). It goes in as 20 iterations
whose backward varies by that standard deviation. With the standard deviation of the four caps' steps instead
(0.9 ms), 124M over PCIe would come out as a gain of 0.2 %; but each of the four is a mean over some 40 steps.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

import pytest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired
from tests.published.figures import figures

TOKENS, SEQUENCE, VOCABULARY = 16 * 512, 512, 50_257
SINGLE_GPU_TOKENS_PER_S = {"gpt2-124M": 19_633.2}  # the file's first line
SHAPES = {"gpt2-124M": (12, 768), "gpt2-774M": (36, 1280)}
ITERATIONS = 20


class Operator(NamedTuple):
    """Its parameters, by name and shape, and the multiply-adds of its forward a token."""

    name: str
    parameters: dict[str, tuple[int, ...]]
    work: int


def operators(blocks: int, width: int) -> list[Operator]:
    """In the order in which Hugging Face's GPT-2 registers and calls them."""

    def norm(name: str) -> Operator:
        return Operator(name, {"weight": (width,), "bias": (width,)}, 0)

    def linear(name: str, inputs: int, outputs: int) -> Operator:
        return Operator(name, {"weight": (inputs, outputs), "bias": (outputs,)}, inputs * outputs)

    made = [
        Operator("wte", {"weight": (VOCABULARY, width)}, 0),
        Operator("wpe", {"weight": (1024, width)}, 0),
    ]
    for number in range(blocks):
        at = f"h.{number}"
        made += [
            norm(f"{at}.ln_1"),
            linear(f"{at}.attn.c_attn", width, 3 * width),
            Operator(f"{at}.attn", {}, 2 * SEQUENCE * width),
            linear(f"{at}.attn.c_proj", width, width),
            norm(f"{at}.ln_2"),
            linear(f"{at}.mlp.c_fc", width, 4 * width),
            linear(f"{at}.mlp.c_proj", 4 * width, width),
        ]
    return [*made, norm("ln_f"), Operator("lm_head", {}, VOCABULARY * width)]


def measured_steps_ns(model: str) -> list[int]:
    return [round(ms * 1e6) for ms in figures("null_case")["steps"]["step_ms"][model].values()]


def gpt2(model: str) -> Workload:
    """One of the two models with the recorded noise: iterations at the quantiles of a normal distribution."""
    steps = measured_steps_ns(model)
    rate = SINGLE_GPU_TOKENS_PER_S.get(model)
    plain = min(steps) if rate is None else round(TOKENS / rate * 1e9)
    backward = round(plain * 2 / 3)
    parts = operators(*SHAPES[model])
    behind = list(accumulate(part.work for part in reversed(parts)))[::-1]  # each operator and those after it
    gradients = [
        (f"{part.name}.{parameter}", shape, round(backward * work / behind[0]))
        for part, work in zip(parts, behind, strict=True)
        for parameter, shape in part.parameters.items()
    ]
    names, shapes, ready = zip(*gradients, strict=True)
    workload = handmade(
        ready, names=names, shapes=shapes, name=model, forward_ns=plain - backward, backward_ns=backward
    )
    noise = NormalDist(1.0, (max(steps) - min(steps)) / backward)
    paces = [noise.inv_cdf((number + 0.5) / ITERATIONS) for number in range(ITERATIONS)]
    samples = tuple(tuple(round(pace * ready) for _, _, ready in gradients) for pace in paces)
    return replace(workload, samples=samples)


def nvlink_pair() -> Hardware:
    """Medians of 3 runs a size, with what is known of their scatter."""
    found = figures("null_case")["nvlink"]["bytes_min_median_max_ns"]
    spread = {
        str(size): {"count": 3, "min_ns": low, "median_ns": middle, "max_ns": high}
        for size, low, middle, high in found
    }
    times = {size: middle for size, _, middle, _ in found}
    return wired(times, name="2 A100, NVLink (vidur)", spread={"all_reduce": spread})


def pcie_pair() -> Hardware:
    """The shortest time and the last slope of a public PCIe pair."""
    pair = figures("null_case")["pcie"]
    return wired({0: pair["least_ns"]} | dict(pair["points"]), name="2 A100, PCIe assumed")


@pytest.mark.parametrize("model", ["gpt2-124M", pytest.param("gpt2-774M", marks=pytest.mark.slow)])
@pytest.mark.parametrize("link", [pytest.param(nvlink_pair, marks=pytest.mark.slow), pcie_pair])
def test_no_significant_difference(model: str, link: Callable[[], Hardware]) -> None:
    gain = sim.tune(gpt2(model), link()).gain
    assert gain.significant is False, gain.sentence
    assert "no significant difference" in gain.sentence
    assert "keep the default" in gain.sentence
    assert 0 <= gain.fraction < 0.005


@pytest.mark.parametrize(("model", "parameters"), [("gpt2-124M", 124_439_808), ("gpt2-774M", 774_030_080)])
def test_the_models_are_gpt2(model: str, parameters: int) -> None:
    workload = gpt2(model)
    assert workload.total_bytes == 4 * parameters
    order = [workload.gradients[index].name for index in workload.order()]
    assert order[-2:] == ["wpe.weight", "wte.weight"]
    assert order[:2] == ["ln_f.bias", "ln_f.weight"]
