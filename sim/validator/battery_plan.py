"""What a battery records and replays: models, links and assignments."""

from dataclasses import dataclass
from typing import Any

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.units import MIB, format_number
from sim.validator.candidates.candidate import Candidate

_CAPS_MIB = (2, 10, 50)
_LATENCY_NS = 30_000
_EMULATED_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model to record: a factory of ``sim.recorder.models``, its arguments, and the dtype."""

    name: str
    factory: str
    arguments: dict[str, Any]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a battery does.

    ``slowness``, one for each emulated link, is the time of one all-reduce of all gradients over the time of
    backward. ``shared`` is what real ranks replay; ``largest`` the largest message of their curve, bytes.
    """

    recipes: tuple[Recipe, ...]
    shared: Recipe
    slowness: tuple[float, ...]
    rounds: int
    record_repeats: int
    probe_repeats: int
    largest: int


def gpu_plan() -> Plan:
    """Three kinds of models in two dtypes, with batches that keep the host ahead of a fast GPU."""
    encoder = {"layers": 12, "width": 768, "heads": 12, "vocab": 16384, "context": 512}
    kinds = [
        ("gpt", encoder, {"float32": 4, "bfloat16": 16}),
        ("resnet50", {"image": 224}, {"float32": 64, "bfloat16": 128}),
        ("bert", encoder, {"float32": 4, "bfloat16": 16}),
    ]
    recipes = tuple(
        Recipe(
            name=f"{kind}-{dtype}",
            factory=kind,
            arguments={**sizes, "batch": batches[dtype]},
            dtype=dtype,
        )
        for dtype in ("float32", "bfloat16")
        for kind, sizes, batches in kinds
    )
    return Plan(
        recipes=recipes,
        shared=Recipe(name="gpt-small-float32", factory="gpt", arguments={"batch": 64}, dtype="float32"),
        slowness=(1.0, 3.0, 0.5),
        rounds=6,
        record_repeats=8,
        probe_repeats=5,
        largest=64 * MIB,
    )


def quick_plan() -> Plan:
    """One small model, once through everything: for trying the battery out, also on a CPU."""
    small = {"layers": 2, "width": 128, "heads": 2, "vocab": 1024, "context": 64, "batch": 4}
    tiny = Recipe(name="gpt-tiny-float32", factory="gpt", arguments=small, dtype="float32")
    return Plan(
        recipes=(tiny,),
        shared=tiny,
        slowness=(3.0,),
        rounds=2,
        record_repeats=4,
        probe_repeats=2,
        largest=MIB,
    )


def battery_candidates(workload: Workload) -> list[Candidate]:
    """What every replay of a battery runs: DDP's default, three caps, caps that double, one bucket."""
    doubling = [float(2**power) for power in range(max(1, (workload.total_bytes // MIB).bit_length()))]
    return [
        Candidate(name="DDP default", assignment=assign(workload)),
        *(
            Candidate(name=f"bucket_cap_mb={cap}", assignment=assign(workload, bucket_cap_mb=cap))
            for cap in _CAPS_MIB
        ),
        Candidate(name="caps doubling from 1", assignment=assign(workload, bucket_cap_mb_list=doubling)),
        Candidate(name="single", assignment=assign(workload, "single")),
    ]


def emulated_hardware(workload: Workload, slowness: float) -> Hardware:
    """A link that reduces all gradients in ``slowness`` times backward and a latency, linearly in bytes."""
    top = workload.total_bytes
    return Hardware(
        name=f"a link {format_number(slowness, 6)} backwards long",
        world_size=_EMULATED_RANKS,
        all_reduce=(
            CurvePoint(num_bytes=0, duration_ns=_LATENCY_NS),
            CurvePoint(num_bytes=top, duration_ns=_LATENCY_NS + round(slowness * workload.backward_ns)),
        ),
        provenance={"source": "battery: latency and bandwidth, made up", "slowness": slowness},
    )
