"""Two clusters that others measured, predicted from rows that are not scored.

``python -m tests.contracts.clusters`` prints the manual's tables, from figures in ``tests/published``.
Each cluster is what a user has: a model, one or more times of a single GPU, a link's curve measured beside
the step, one step of the job. Nothing else is read of the rows that are predicted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import Any

import sim
from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.gpus import find_gpu
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from sim.recorder.models import gpt
from sim.truth.fit import Anchored, Factor, apply_factor
from sim.units import NS_PER_MS
from tests.published.figures import curve, figures

A40, RTX = "4x A40, GPT 82M", "8x RTX PRO 6000, nanoGPT 124M"
# The study's counts and bucket sizes leave one architecture: 82,601,472 parameters in 69 tensors. And
# karpathy/nanoGPT at GPT-2's size: 124,475,904 in 148.
_GPT: dict[str, Any] = {"width": 768, "heads": 12, "context": 1024}
GPT_82M = _GPT | {"layers": 8, "vocab": 16384, "batch": 16, "bias": False}
NANOGPT = _GPT | {"layers": 12, "vocab": 50304, "batch": 12, "tied": True}
VIEWS = {"gradient_as_bucket_view": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured step: its options for ``sim.assign``, in ms."""

    label: str
    options: dict[str, Any]
    measured_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A workload and a machine by their parts, the row that anchors them, and the rows to predict.

    ``seen`` are the durations of the given row's all-reduces, by a profile, and how much of them lay after
    backward, in ms. ``second`` is a row that may be given as well, where the first is not enough.
    """

    name: str
    workload: Workload
    beside: Hardware
    given: Row
    rows: tuple[Row, ...]
    seen: tuple[list[float], float] | None = None
    second: Row | None = None

    def anchor(
        self, row: Row | None = None, factor: Factor | None = None, second: Row | None = None
    ) -> Anchored:
        """Anchored on ``row``, by default the given one, whose profile goes with it."""
        row, hardware = row or self.given, self.in_step()
        if second is not None:
            cost_ns = self._launch_cost_ns(hardware, row, second)
            hardware = replace(hardware, launch_cost_ns=round(cost_ns), launch_blocks_compute=True)
        return sim.anchor(self.workload, hardware, *self._measured(row), factor=factor)

    def in_step(self) -> Hardware:
        """The link as it is in the step, by the profile of the given row, if there is one.

        What lay after backward took so many times as long as the curve says: that is the link's own. What
        lay beside backward took longer still, by what computing does to it. One across the end is left out.
        """
        if self.seen is None:
            return self.beside
        durations_ms, left_ms = self.seen
        made = sim.simulate(self.workload, self.beside, self._measured(self.given)[0], "analytic")
        known = [service_ns(self.beside.all_reduce, one.num_bytes) / NS_PER_MS for one in made.buckets]
        after, beside = [], []
        for took, alone in zip(reversed(durations_ms), reversed(known), strict=True):
            within = min(left_ms, took)
            left_ms -= within
            if within >= 0.99 * took or within <= 0.01 * took:
                (after if within >= 0.99 * took else beside).append((took, alone))
        ratio = sum(took for took, _ in after) / sum(alone for _, alone in after)
        slower = median(took / alone for took, alone in beside) / ratio
        return replace(apply_factor(self.beside, "curve", ratio), comm_slowdown=slower)

    def _launch_cost_ns(self, hardware: Hardware, first: Row, second: Row) -> float:
        """What each collective costs the compute lane, so that ``second`` is true where ``first`` is."""
        low, high = 0.0, 1e6
        while high - low > 50:
            middle = (low + high) / 2
            costly = replace(hardware, launch_cost_ns=round(middle), launch_blocks_compute=True)
            try:
                found = sim.anchor(self.workload, costly, *self._measured(first)).hardware
                is_short = self.step_ms(found, second) < second.measured_ms
            except InputError:  # then the first step is longer than it was
                is_short = False
            low, high = (middle, high) if is_short else (low, middle)
        return high

    def _measured(self, row: Row) -> tuple[Assignment, int]:
        assignment = sim.assign(self.workload, **row.options)
        return assignment, round(row.measured_ms * NS_PER_MS)

    def step_ms(self, hardware: Hardware, row: Row) -> float:
        """The predicted step of one row."""
        timeline = sim.simulate(self.workload, hardware, sim.assign(self.workload, **row.options), "analytic")
        return sim.summarize(timeline).step_ns / NS_PER_MS

    def errors(self, hardware: Hardware) -> dict[str, float]:
        """(predicted - measured) / measured of each row that is predicted."""
        return {row.label: self.step_ms(hardware, row) / row.measured_ms - 1 for row in self.rows}


def link(name: str, world_size: int, gpu: str) -> Hardware:
    """A link's curve as ``bucketsim import nccl-tests`` reads it, with the copies of a GPU's memory."""
    points = curve(figures("clusters")[name]["points"])
    memory = find_gpu(gpu).bytes_per_s  # which a copy passes twice, an addition three times
    return Hardware(
        name=name,
        world_size=world_size,
        all_reduce=points,
        copy_in_bytes_per_s=memory / 2,
        copy_out_bytes_per_s=memory / 2,
        accumulate_bytes_per_s=memory / 3,
    )


@cache
def a40() -> Cluster:
    """Given: the single GPU's parts of a step, the link file, the 25 MiB row and its profile."""
    seen = figures("clusters")["a40"]
    rows = {
        cap: Row(label=f"{cap} MiB", options={"bucket_cap_mb": int(cap)}, measured_ms=step_ms)
        for cap, step_ms in seen["step_ms"].items()
    }
    return Cluster(
        name=A40,
        workload=estimate(
            gpt,
            arguments=GPT_82M,
            name="gpt 82M",
            forward_ns=46_650_000,
            backward_ns=87_350_000,
            optimizer_ns=7_130_000,
            gpu="a40",
            autocast="bfloat16",
        ),
        beside=link("a40 link", 4, "a40"),
        given=rows.pop("25"),
        rows=tuple(rows.values()),
        seen=(seen["all_reduce_ms"]["25"], seen["after_backward_ms"]),
    )


@cache
def rtx() -> Cluster:
    """Given: the single GPU's step, the link's curve at 8 ranks, the 25 MiB row; or the 10 MiB row too."""
    rows = {}
    for row in figures("clusters")["rtx"]["steps"]:
        cap, steps = row["bucket_cap_mb"], row["accumulation_steps"]
        label, options = f"{cap:g} MiB", {"bucket_cap_mb": cap, **VIEWS}
        if steps > 1:
            under = row["no_sync"]
            label += f", {steps} micro-batches{' under no_sync' if under else ', each synchronised'}"
            options |= {"accumulation_steps": steps, "no_sync": under}
        rows[label] = Row(label=label, options=options, measured_ms=row["step_ms"])
    return Cluster(
        name=RTX,
        workload=nanogpt(),
        beside=link("rtx link", 8, "rtx-pro-6000-blackwell"),
        given=rows.pop("25 MiB"),
        rows=tuple(rows.values()),
        second=rows["10 MiB"],
    )


@cache
def anchored(cluster: Callable[[], Cluster], *, on_two: bool = False) -> Anchored:
    """``a40`` or ``rtx`` on the given row, or on the second one too, which takes seconds."""
    return cluster().anchor(second=cluster().second if on_two else None)


def nanogpt() -> Workload:
    """The single GPU's step of 122.18 ms, split as the estimate splits its own."""
    gpu, cast = "rtx-pro-6000-blackwell", "bfloat16"
    split = partial(estimate, gpt, arguments=NANOGPT, name="nanoGPT 124M", gpu=gpu, autocast=cast)
    rough = split()
    whole_ns = rough.forward_ns + rough.backward_ns + rough.optimizer_ns
    return split(backward_ns=round(122_180_000 * rough.backward_ns / whole_ns))


def percent(error: float) -> str:
    """A signed error for the manual."""
    return f"{round(error * 100, 1) + 0.0:+.1f} %"  # no -0.0


def prediction_rows() -> Iterator[str]:
    """What was measured, predicted by the parts alone, anchored on the given row, and on a second one too."""
    yield (
        "| cluster | `bucket_cap_mb` | measured, ms | parts alone | anchored on one row | error | "
        "and on a second | error |"
    )
    yield "|---" * 8 + "|"
    for build in (a40, rtx):
        cluster, one = build(), anchored(build).hardware
        two = None if cluster.second is None else anchored(build, on_two=True).hardware
        for row in (cluster.given, *cluster.rows):
            cells = [f"{row.measured_ms:.2f}", f"{cluster.step_ms(cluster.beside, row):.2f}"]
            cells += _predicted(cluster, one, row, {cluster.given.label})
            if two is not None and cluster.second is not None:
                cells += _predicted(cluster, two, row, {cluster.given.label, cluster.second.label})
            else:
                cells += ["", ""]
            yield f"| {cluster.name} | {row.label} | {' | '.join(cells)} |"


def _predicted(cluster: Cluster, hardware: Hardware, row: Row, given: set[str]) -> list[str]:
    """A prediction and its error; of a row that was given none."""
    predicted = cluster.step_ms(hardware, row)
    error = "given" if row.label in given else percent(predicted / row.measured_ms - 1)
    return [f"{predicted:.2f}", error]


def anchor_rows() -> Iterator[str]:
    """The largest error of the other caps when another row, or another factor, is taken."""
    yield "| cluster | anchored on | factor | value | largest error of the other caps | at |"
    yield "|---|---|---|---|---|---|"
    for cluster in (a40(), rtx()):
        for row in single_steps(cluster):
            try:
                found = cluster.anchor(row)
            except InputError:
                yield f"| {cluster.name} | {row.label} | none | | says nothing of interference | |"
                continue
            every = [(one.what, one.value, one.hardware) for one in found.readings]
            for factor, value, hardware in every if row == cluster.given else every[:1]:
                error, label = worst(cluster, hardware, row)
                told = f"{factor} | {value:.3f} | {percent(error)} | {label}"
                yield f"| {cluster.name} | {row.label} | {told} |"


def single_steps(cluster: Cluster) -> tuple[Row, ...]:
    """The rows of one micro-batch, the given one first."""
    rows = (cluster.given, *cluster.rows)
    return tuple(row for row in rows if "accumulation_steps" not in row.options)


def worst(cluster: Cluster, hardware: Hardware, left_out: Row) -> tuple[float, str]:
    """The largest error among the single steps but one, and its row."""
    rows = [row for row in single_steps(cluster) if row != left_out]
    errors = [(cluster.step_ms(hardware, row) / row.measured_ms - 1, row.label) for row in rows]
    return max(errors, key=lambda found: abs(found[0]))


TABLES = (prediction_rows, anchor_rows)

if __name__ == "__main__":
    print("\n\n".join("\n".join(rows()) for rows in TABLES))
