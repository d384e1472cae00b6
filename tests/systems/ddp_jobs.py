"""Jobs under any legal combination of DDP's switches: workloads with unused parameters and repeated hooks."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import HOOKS
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Buffer, Workload
from tests.handmade import handmade
from tests.strategies import REAL, TINY, Draw, Scale, hardwares

ITERATIONS: tuple[Iteration, ...] = (1, 2, 3, "steady")
MIB = 1 << 20
M1 = (64, 128, 96, 80, 112, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A workload on a machine, with options as ``sim.assign`` takes them."""

    workload: Workload
    hardware: Hardware
    options: dict[str, Any]

    def assign(self, iteration: Iteration) -> Assignment:
        return sim.assign(self.workload, iteration=iteration, **self.options)

    def simulate(self, iteration: Iteration, engine: str = "analytic") -> Timeline:
        return sim.simulate(self.workload, self.hardware, self.assign(iteration), engine, iteration=iteration)

    def has(self, name: str) -> Any:
        return self.options.get(name, False)

    @property
    def searches(self) -> bool:
        return bool(self.has("find_unused_parameters") and not self.has("static_graph"))

    @property
    def unused(self) -> set[int]:
        return {gradient.index for gradient in self.workload.gradients if gradient.ready_ns is None}


def _workload(draw: Draw, scale: Scale, graph: str) -> Workload:
    places = range(draw(st.integers(1, 8)))
    sizes, kinds = (
        st.lists(st.integers(1, 9), min_size=1, max_size=2),
        st.sampled_from(["float32", "float64"]),
    )
    dtypes = draw(st.lists(kinds, min_size=1, max_size=2, unique=True))
    sparse = {place for place in places if draw(st.integers(0, 5)) == 0}
    ready: dict[int, int | None] = {}
    now, uses = 0, dict.fromkeys(places, 1)
    for index in draw(st.permutations(places)):
        now += draw(st.integers(0, scale.work_ns))
        is_used = graph == "plain" or index in sparse or draw(st.integers(0, 2)) > 0
        ready[index] = now if is_used else None
        uses[index] = draw(st.integers(1, 2)) if graph == "static" and is_used else 1
    if not any(time is not None for time in ready.values()):
        ready[0] = now
    made = handmade(
        [ready[place] for place in places],
        shapes=[tuple(draw(sizes)) for _ in places],
        dtypes=[draw(st.sampled_from(dtypes)) for _ in places],
        sparse=sparse,
        backward_ns=now + draw(st.integers(0, scale.work_ns)),
        buffers=tuple(draw(st.lists(st.just(Buffer(dtype="float32", num_bytes=8)), max_size=2))),
        **{name: draw(st.integers(0, scale.work_ns)) for name in ("forward_ns", "optimizer_ns", "loss_ns")},
    )
    return replace(made, gradients=tuple(replace(one, uses=uses[one.index]) for one in made.gradients))


def _caps(draw: Draw) -> dict[str, Any]:
    bytes_ = st.integers(0, 900)
    match draw(st.sampled_from(["default", "cap", "cap", "list"])):
        case "cap":
            return {"bucket_cap_mb": draw(bytes_) / MIB}
        case "list":
            return {
                "bucket_cap_mb_list": [size / MIB for size in draw(st.lists(bytes_, min_size=1, max_size=3))]
            }
        case _:
            return {}


@st.composite
def jobs(draw: Draw, **fixed: Any) -> Job:
    """A job that DDP would run; ``fixed`` options are the same in all."""
    graph = draw(st.sampled_from(["plain", "find_unused", "static"]))
    switches = ["gradient_as_bucket_view", "batched_grad_copy", "set_to_none", "broadcast_buffers"]
    options = {name: draw(st.booleans()) for name in switches if draw(st.booleans())}
    options |= _caps(draw)
    if graph == "find_unused":
        options["find_unused_parameters"] = True
    if graph == "static":
        options |= {"static_graph": True, "find_unused_parameters": draw(st.booleans())}
    if graph != "plain" and draw(st.booleans()):
        options["skip_all_reduce_unused_params"] = True
    if graph != "static":
        options["accumulation_steps"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        options["comm_hook"] = draw(st.sampled_from(list(HOOKS)))
    options |= fixed
    scale = draw(st.sampled_from([TINY, TINY, REAL]))
    hardware = draw(hardwares(scale))
    return Job(
        workload=_workload(draw, scale, graph),
        hardware=replace(
            hardware,
            search_unused_ns=draw(st.integers(0, 3)),
            mark_used_ns=draw(st.integers(0, 3)),
            accumulate_bytes_per_s=draw(st.none() | st.sampled_from(scale.rates)),
        ),
        options=options,
    )


def mlp(dims: tuple[int, ...] = M1, **changes: Any) -> Workload:
    """Linear layers; of each the bias is ready first (A6.5)."""
    shapes = [shape for a, b in pairwise(dims) for shape in ((b, a), (b,))]
    names = [f"layers.{index // 2}.{'bias' if index % 2 else 'weight'}" for index in range(len(shapes))]
    return handmade(range(len(shapes), 0, -1), shapes=shapes, name="mlp", names=names, **changes)
