"""Estimates beside backwards that others timed on GPUs: no part of an estimate was fitted to them.

The band on ready times rests on the H100 ones among others; the V100 trace had no part in it.
"""

import csv
import gzip
import json
from bisect import bisect_left, bisect_right

import pytest

from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from tests.public_data import DATA, needs_data

pytestmark = needs_data

Timed = list[tuple[str, float]]  # operators of a backward that make a module's gradients ready, and when (us)


def is_of_a_module(name: str) -> bool:
    return name.startswith(("Convolution", "CudnnConvolution", "CudnnBatchNorm", "Addmm"))


def h100(model: str) -> Timed:
    """Operators end one after the other, each after its own time."""
    path = DATA / "layer_timing" / f"triosim_h100_bs128_{model}_trace.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] == "backward"]
    end = 0.0
    timed = []
    for row in rows:
        end += float(row["Operator_cudatimenooverlap"])
        timed.append((row["OperatorName"].rpartition(" ")[2], end))
    return timed


def v100() -> list[Timed]:
    """Backwards of a traced ResNet-50, a list a step: each operator's last kernel, from the first kernel."""
    path = DATA / "traces" / "kineto" / "kineto_tb_resnet50_nw0_singlegpu.json.gz"
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file) if event.get("ph") == "X"]
    launches = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "Runtime"}
    kernels = sorted(
        (launches[e["args"]["correlation"]], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["cat"] == "Kernel" and e["args"]["correlation"] in launches
    )
    operators = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e["cat"] == "Operator" and "Backward" in e["name"]
    )
    steps: list[Timed] = []
    start = 0
    for begin, end, name in operators:
        first, last = bisect_left(kernels, (begin,)), bisect_right(kernels, (end, end, end))
        if name == "NllLossBackward":
            steps.append([])
            start = kernels[first][1]
        if first < last:
            steps[-1].append((name, max(kernel[2] for kernel in kernels[first:last]) - start))
    return steps


def in_band(timed: Timed, guess: Workload) -> list[bool]:
    """By module, past the first tenth of backward: whether its gradients were ready inside the band."""
    modules: dict[str, int] = {}
    for index in guess.order():
        gradient = guess.gradients[index]
        modules[gradient.name.rpartition(".")[0]] = gradient.ready_ns or 0
    ready = [end * 1e3 for name, end in timed if is_of_a_module(name)]
    assert len(ready) == len(modules)
    assert guess.band is not None
    low, high = guess.band
    return [
        low * guessed <= real <= high * guessed
        for real, guessed in zip(ready, modules.values(), strict=True)
        if real >= 0.1 * guess.backward_ns
    ]


def test_h100() -> None:
    """Both models together: of VGG-13's eight modules one is ready earlier, at 0.65 of the estimate."""
    inside: list[bool] = []
    for model in ("resnet50", "vgg13"):
        timed = [row for row in h100(model) if not row[0].startswith("aten")]
        guess = estimate(
            f"tests.convolutional:{model}",
            name=model,
            arguments={"batch": 128},
            gpu="h100-sxm",
            backward_ns=round(timed[-1][1] * 1e3),
        )
        inside += in_band(timed, guess)
    assert sum(inside) >= 0.9 * len(inside)


@pytest.mark.slow
def test_v100() -> None:
    steps = v100()
    assert len(steps) == 6
    for timed in steps[1:]:
        guess = estimate(
            "tests.convolutional:resnet50",
            name="v100",
            arguments={"batch": 32},
            gpu="v100-sxm2",
            backward_ns=round(timed[-1][1] * 1e3),
        )
        inside = in_band(timed, guess)
        assert sum(inside) >= 0.9 * len(inside)
