"""Steps of every system: worked out by hand, drawn beside another rank, or under any switches of DDP's."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import HOOKS
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload
from sim.systems.simulate import ENGINES
from sim.systems.textbook import BY_SIZE, STYLES
from tests.handmade import handmade, points, wired
from tests.strategies import REAL, TINY, Case, Draw, Scale, hardwares, other_ranks, workloads

POLICIES = tuple(STYLES)
CAP_MB = 250 / 2**20  # buckets [2] and [1, 0]
# Copies in of 10, 20 and 30 ns for gradients 0, 1 and 2, and copies out of half of that.
COPYING = wired({0: 40}, copy_in_bytes_per_s=10e9, copy_out_bytes_per_s=20e9)


def three(*ready_ns: int, backward_ns: int = 35) -> Workload:
    """Gradients of 100, 200 and 300 bytes."""
    return handmade(ready_ns, [100, 200, 300], backward_ns=backward_ns)


def both(workload: Workload, hardware: Hardware, assignment: Assignment, **more: Any) -> Timeline:
    """The step by both engines, which must agree on every field."""
    one, other = (sim.simulate(workload, hardware, assignment, engine, **more) for engine in ENGINES)
    assert one == other
    return one


def simulate(policy: str, workload: Workload, hardware: Hardware = COPYING, **caps: float) -> Timeline:
    given_caps = (caps or {"bucket_cap_mb": CAP_MB}) if policy in BY_SIZE else {}
    return both(workload, hardware, sim.assign(workload, policy, **given_caps))  # type: ignore[arg-type]


FLAT = points({0: 25})
RATES = dict.fromkeys(("copy_in_bytes_per_s", "copy_out_bytes_per_s", "accumulate_bytes_per_s"), 4e10)
HARDWARE = wired({0: 25}, reduce_scatter=FLAT, all_gather=FLAT, **RATES)


def four_gradients(*modules: str) -> Workload:
    """A workload of 100, 30, 50 and 20 elements, in ``modules``; the last is ready first."""
    return handmade(
        [40, 30, 20, 10],
        [400, 120, 200, 80],
        name="four",
        names=[f"{module}.weight" for module in modules],
        forward_ns=40,
        backward_ns=50,
        optimizer_ns=1000,
    )


SMALL = {"reduce_bucket_size": 5}
SYSTEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((policy, {}) for policy in POLICIES),
    ("zero1", SMALL),
    ("zero2", SMALL),
    ("zero2", SMALL | {"accelerator": "cpu"}),
    ("zero2", SMALL | {"overlap_comm": True}),
    ("zero2", SMALL | {"overlap_comm": True, "contiguous_gradients": False}),
    ("megatron", {}),
    ("fully_shard", {}),
    ("megatron", {"overlap_grad_reduce": True, "bucket_size": 5}),
    ("single", {"find_unused_parameters": True}),
    ("per-parameter", {"comm_hook": "bf16_compress", "accumulation_steps": 2}),
    ("per-parameter", {"optimize_ddp": "ddp_optimizer"}),
)


@st.composite
def system_cases(draw: st.DrawFn) -> Case:
    """float32 on one device; all collectives are timed as all-reduces are."""
    workload = draw(workloads(TINY, sparse=False, dtypes=("float32",), devices=(None,), empty=False))
    whole = tuple(
        replace(g, wire_bytes=None, num_bytes=4 * g.num_bytes, shape=(g.num_bytes,))
        for g in workload.gradients
    )
    workload = replace(workload, gradients=whole)
    hardware = draw(hardwares(TINY))
    policy, options = draw(st.sampled_from(SYSTEMS))
    return Case(
        workload=workload,
        hardware=replace(
            hardware, world_size=2, reduce_scatter=hardware.all_reduce, all_gather=hardware.all_reduce
        ),
        assignment=sim.assign(workload, policy, **options),
        slowest=draw(st.none() | other_ranks(workload, TINY)),
    )


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


@st.composite
def jobs(draw: Draw, **fixed: Any) -> Job:
    """A job that DDP would run; ``fixed`` options are the same in all."""
    graph = draw(st.sampled_from(["plain", "find_unused", "static"]))
    switches = ["gradient_as_bucket_view", "batched_grad_copy", "set_to_none", "broadcast_buffers"]
    options: dict[str, Any] = {name: draw(st.booleans()) for name in switches if draw(st.booleans())}
    cap = st.integers(0, 900).map(lambda size: size / MIB)
    match draw(st.sampled_from(["default", "cap", "cap", "list"])):
        case "cap":
            options["bucket_cap_mb"] = draw(cap)
        case "list":
            options["bucket_cap_mb_list"] = draw(st.lists(cap, min_size=1, max_size=3))
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
    scale = draw(st.sampled_from([TINY, TINY, REAL]))
    return Job(
        workload=_partly_used(draw, scale, graph),
        hardware=replace(
            draw(hardwares(scale)),
            search_unused_ns=draw(st.integers(0, 3)),
            mark_used_ns=draw(st.integers(0, 3)),
            accumulate_bytes_per_s=draw(st.none() | st.sampled_from(scale.rates)),
        ),
        options=options | fixed,
    )


def _partly_used(draw: Draw, scale: Scale, graph: str) -> Workload:
    """Up to 8 gradients of up to 81 elements, of which some are unused or used twice as ``graph`` has it."""
    kinds: dict[str, Any] = {"dtypes": ("float32", "float64"), "devices": (None,), "includes": False}
    made, gradients = draw(workloads(scale, max_gradients=8, **kinds)), list[Gradient]()
    for one in made.gradients:
        elements = 1 + one.num_bytes % 81
        is_used = graph == "plain" or one.sparse or draw(st.integers(0, 2)) > 0
        one = replace(one, shape=(elements,), num_bytes=elements * DTYPE_BYTES[one.dtype], wire_bytes=None)
        uses = draw(st.integers(1, 2)) if graph == "static" and is_used else 1
        gradients.append(replace(one, ready_ns=one.ready_ns if is_used else None, uses=uses))
    if not any(one.ready_ns is not None for one in gradients):
        gradients[0] = replace(gradients[0], ready_ns=made.gradients[0].ready_ns)
    return replace(made, gradients=tuple(gradients), ready_order=None, buffers=made.buffers[:1])


def mlp(dims: tuple[int, ...] = M1, **changes: Any) -> Workload:
    """Linear layers; of each the bias is ready first (A6.5)."""
    shapes = [shape for a, b in pairwise(dims) for shape in ((b, a), (b,))]
    names = [f"layers.{index // 2}.{'bias' if index % 2 else 'weight'}" for index in range(len(shapes))]
    return handmade(range(len(shapes), 0, -1), shapes=shapes, name="mlp", names=names, **changes)
