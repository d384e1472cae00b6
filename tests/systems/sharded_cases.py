"""Cases for real ZeRO, Megatron-Core and FSDP2: by name, and random ones that each takes, by seed."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sim.nouns.workload import Workload
from tests.handmade import handmade
from tests.systems.ddp_models import Net

Case = dict[str, Any]

# ZeRO: the test vectors, what it refuses, and random models under settings that DeepSpeed takes.

M1_DIMS = (64, 128, 96, 80, 112, 32)
BF16 = {"enabled": True}
FP16 = {"enabled": True, "initial_scale_power": 4}  # small enough that no step overflows
TOP = (
    "communication_data_type",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "gradient_predivide_factor",
    "prescale_gradients",
    "bf16",
    "fp16",
    "data_types",
)


def config(stage: int = 2, **settings: Any) -> dict[str, Any]:
    """DeepSpeed's configuration: of ``settings``, those in ``TOP`` stand beside ``zero_optimization``."""
    top = {name: value for name, value in settings.items() if name in TOP}
    rest = {name: value for name, value in settings.items() if name not in TOP}
    return {**top, "zero_optimization": {"stage": stage, **rest}}


def linears(dims: Sequence[int]) -> dict[str, Any]:
    return {"layers": [{"kind": "linear", "width": a, "out": b} for a, b in pairwise(dims)]}


M1 = linears(M1_DIMS)


def m1_workload() -> Workload:
    """M1's ten gradients, ready from the last to the first."""
    shapes = [shape for a, b in pairwise(M1_DIMS) for shape in ((b, a), (b,))]
    return handmade(range(10, 0, -1), shapes=shapes, name="M1")


# By name of the vector: a case, and the collectives of gradients: (elements, phase, gradient).
VECTORS: dict[str, tuple[Case, list[tuple[int, str, int | None]]]] = {
    "T6": (
        {"model": M1, "config": config(2, reduce_bucket_size=15000)},
        [
            (12768, "backward", 4),
            (7776, "backward", 2),
            (12416, "backward", 0),
            (8192, "after backward", None),
        ],
    ),
    "T6, stage 1 with overlap_comm": (
        {"model": M1, "config": config(1, reduce_bucket_size=15000, overlap_comm=True)},
        [
            (12768, "backward", 4),
            (7776, "backward", 2),
            (12416, "backward", 0),
            (8192, "after backward", None),
        ],
    ),
    "T7": (
        {"model": M1, "config": config(1, reduce_bucket_size=15000)},
        [(elements, "after backward", None) for elements in (8320, 12384, 7760, 12688)],
    ),
    "T8": (
        {"model": M1, "config": config(2, reduce_bucket_size=9000)},
        [
            (3728, "backward", 6),
            (8960, "backward", 5),
            (7856, "backward", 2),
            (12256, "backward", 1),
            (32, "backward", 1),
            (8320, "after backward", None),
        ],
    ),
}

# By name: a configuration that DeepSpeed refuses, and what stands in its words and in ours.
REFUSED = {
    "predivided in stage 2": (config(2, gradient_predivide_factor=2.0), "gradient_predivide_factor"),
    "prescaled in stage 2": (config(2, prescale_gradients=True), "pre-?scale.gradients"),
    "empty buckets": (config(1, reduce_bucket_size=0), "reduce_bucket_size"),
    "half an element": (config(1, reduce_bucket_size=1.5), "reduce_bucket_size"),
    "double on the wire": (config(2, communication_data_type="fp64"), "communication_data_type"),
    "no norm to clip by": (config(2, compute_grad_norm=False), "compute_grad_norm"),
    "no norm, offloaded": (
        config(1, compute_grad_norm=False, gradient_clipping=0.0, offload_optimizer={"device": "cpu"}),
        "compute_grad_norm",
    ),
    "unknown": (config(2, reduce_bucket_sz=1), "reduce_bucket_sz"),
}


def random_zero(seed: int) -> Case:
    """A model, optimizer groups, frozen and unused parameters, and settings, all drawn from ``seed``."""
    draw = random.Random(seed)
    model, count, total = _random_model(draw)
    frozen = sorted(draw.sample(range(count), draw.randint(0, count // 3))) if draw.random() < 0.2 else []
    if "sizes" in model:
        trained = [place for place in model["used"] if place not in frozen and model["sizes"][place]]
        frozen = frozen if trained else []
    groups = _random_groups(draw, count, frozen, model) if draw.random() < 0.4 else None
    return {
        "model": model,
        "frozen": frozen,
        "groups": groups,
        "config": _random_config(draw, total),
    }


def _random_model(draw: random.Random) -> tuple[dict[str, Any], int, int]:
    """A model, how many parameters it has, and how many elements."""
    match draw.choice(["mlp", "mlp", "chain", "chain", "norms", "transformer"]):
        case "mlp":
            model = linears([draw.randint(1, 60) for _ in range(draw.randint(2, 8))])
        case "chain":
            count = draw.randint(3, 14)
            sizes = [
                draw.choice([0, 1, 2, 3, draw.randint(1, 40), draw.randint(1, 400)]) for _ in range(count)
            ]
            used = draw.sample(range(count), draw.randint(max(1, count - 3), count))
            sizes[used[0]] = sizes[used[0]] or 5
            return {"sizes": sizes, "used": used}, count, sum(sizes)
        case "norms":
            width = draw.randint(2, 30)
            norm = {"kind": "norm", "width": width}
            model = {"layers": [norm, *linears([width, width])["layers"]] * 3}
        case _:
            width = draw.randint(4, 20)
            model = {"layers": [{"kind": "encoder", "width": width}, *linears([width, 3])["layers"]]}
    sizes = [parameter.numel() for parameter in Net(model["layers"], 0).parameters()]
    return model, len(sizes), sum(sizes)


def _random_groups(
    draw: random.Random, count: int, frozen: list[int], model: dict[str, Any]
) -> list[list[int]] | None:
    """Parameters in two or three groups, of which none is without anything to optimise."""
    groups: list[list[int]] = [[] for _ in range(draw.choice([2, 2, 3]))]
    for place in range(count):
        draw.choice(groups).append(place)
    sizes = model.get("sizes", [1] * count)
    trained = [[place for place in group if place not in frozen and sizes[place]] for group in groups]
    return groups if all(trained) else None


def _random_config(draw: random.Random, total: int) -> dict[str, Any]:
    stage = draw.choice([1, 2, 2])
    settings: dict[str, Any] = {
        "reduce_bucket_size": draw.choice([1, max(1, total // 20), max(1, total // 5), total, 500_000_000]),
    }
    if draw.random() < 0.5:
        settings["overlap_comm"] = True
    for name in ("contiguous_gradients", "reduce_scatter"):
        if draw.random() < 0.25:
            settings[name] = False
    if draw.random() < 0.15:
        settings["offload_optimizer"] = {"device": "cpu"}
    elif draw.random() < 0.15:
        settings |= {"compute_grad_norm": False, "gradient_clipping": 0.0}
    if draw.random() < 0.4:
        settings["gradient_accumulation_steps"] = draw.choice([2, 3])
    if draw.random() < 0.2:
        settings["communication_data_type"] = draw.choice(["fp32", "fp16", "bf16"])
    if stage == 1 or settings.get("reduce_scatter") is False:
        if draw.random() < 0.3:
            settings["gradient_predivide_factor"] = draw.choice([2.0, 4.0])
        if draw.random() < 0.2:
            settings["prescale_gradients"] = True
    match draw.choice(["fp32", "fp32", "bf16", "fp16"]):
        case "bf16":
            settings["bf16"] = BF16 | ({"check_grad_overflow": False} if draw.random() < 0.3 else {})
        case "fp16":
            settings["fp16"] = FP16
    return config(stage, **settings)


# What the normal suite runs, in one job: all vectors, all refusals and some random cases.
ZERO: dict[str, Case] = {
    **{name: case for name, (case, _) in VECTORS.items()},
    **{name: {"model": M1, "config": refused} for name, (refused, _) in REFUSED.items()},
    **{f"random {seed}": random_zero(seed) for seed in range(12)},
}

# Megatron-Core.

KINDS = ("linear", "linear", "norm", "embedding")


def layers(width: int, *kinds: str, **of_each: Sequence[Any]) -> list[dict[str, Any]]:
    """Modules of one width (ddp_models), and what else each has; None: nothing."""
    made = []
    for place, kind in enumerate(kinds):
        more = {name: values[place] for name, values in of_each.items() if values[place] is not None}
        shape = {"linear": {"out": width}, "embedding": {"rows": 7}}.get(kind, {})
        made.append({"kind": kind, "width": width} | shape | more)
    return made


def random_megatron(seed: int) -> Case:
    """A case that Megatron trains and the simulator models; the same one for the same seed."""
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    places = list(range(count))
    if draw.random() < 0.4:
        draw.shuffle(places)
    dtypes = draw.choice([("float32",), ("float32",), ("bfloat16",), ("bfloat16", "float32")])
    drawn = [(draw.choice(KINDS), draw.choice(dtypes)) for _ in range(count)]
    config = _random_megatron_config(draw)
    width = draw.choice([8, 16, 24])
    kinds, each = zip(*drawn, strict=True)
    case: Case = {"layers": layers(width, *kinds, declared=places, dtype=each), "config": config}
    if draw.random() < 0.25:
        case["num_microbatches"] = draw.randint(2, 3)
    if count > 1 and draw.random() < 0.15 and not config.get("overlap_param_gather"):
        draw.choice(case["layers"])["used"] = False  # with hooks only what is a bucket of its own
        config["overlap_grad_reduce"] = False
    return case


def _random_megatron_config(draw: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {"overlap_grad_reduce": draw.random() < 0.75}
    if draw.random() < 0.85:
        config["bucket_size"] = int(draw.choice([0, 100, 400, 1500]) * draw.uniform(0.5, 2))
    for name, chance in (("use_distributed_optimizer", 0.5), ("grad_reduce_in_fp32", 0.5)):
        if draw.random() < chance:
            config[name] = True
    shards_and_overlaps = config.get("use_distributed_optimizer") and config["overlap_grad_reduce"]
    if shards_and_overlaps and draw.random() < 0.6:
        config["overlap_param_gather"] = True
    return config


HOOKS = {"overlap_grad_reduce": True, "bucket_size": 300}
MIXED = ("bfloat16", "float32", "bfloat16", "float32")
UNUSED = (None, False, None)
MEGATRON: dict[str, Case] = {
    "all-reduces from hooks": {
        "layers": layers(16, "embedding", "linear", "norm", "linear"),
        "config": HOOKS,
    },
    "fp32 gradients of bf16, declared in another order": {
        "layers": layers(16, *["linear"] * 4, declared=(2, 0, 3, 1), dtype=MIXED),
        "config": HOOKS | {"grad_reduce_in_fp32": True},
    },
    "reduce-scatters, gathers in forward": {
        "layers": layers(24, "embedding", "norm", "linear", "norm", "linear"),
        "config": HOOKS | {"use_distributed_optimizer": True, "overlap_param_gather": True},
        "num_microbatches": 2,
    },
    "after backward, gathers in step": {
        "layers": layers(8, *["linear"] * 3),
        "config": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
    },
    "a bucket that no gradient comes to": {
        "layers": layers(8, *["linear"] * 3, used=UNUSED),
        "config": HOOKS | {"bucket_size": 0},
    },
}
# With ``overlap_grad_reduce`` a bucket that some gradients come to, and some do not.
HALF_USED = "half used"
MEGATRON[HALF_USED] = {
    "layers": layers(8, *["linear"] * 3, used=UNUSED),
    "config": HOOKS | {"bucket_size": 80},
}


# FSDP2.

HYBRID = 12  # cases under HSDP


def case(count: int = 3, **more: Any) -> Case:
    """Blocks of a norm and a linear layer, each a unit, behind an embedding and before a head."""
    made: Case = {
        **{"embeds": True, "has_head": True, "width": 6, "dtype": "float32"},
        "blocks": [["norm", "linear"]] * count,
        "wrapped": [[f"blocks.{number}"] for number in range(count)],
        "units": "blocks",
        "settings": {},
    }
    return made | more


def hybrid_case(seed: int) -> Case:
    """A random case on two replicas (HSDP)."""
    made = random_fsdp2(seed)
    return made | {"settings": made["settings"] | {"replicas": 2}}


def random_fsdp2(seed: int) -> Case:
    """A case that torch trains and the simulator models; the same one for the same seed."""
    draw = random.Random(seed)
    count = draw.randint(1, 6)
    made = case(
        count,
        embeds=draw.random() < 0.6,
        has_head=draw.random() < 0.6,
        width=draw.choice([4, 5, 7, 8]),
        blocks=[[draw.choice(["norm", "linear"]) for _ in range(draw.randint(1, 3))] for _ in range(count)],
        dtype=draw.choice(["float32", "float32", "bfloat16"]),
    )
    made["settings"] = _random_fsdp2_settings(draw)
    match draw.choice(["blocks", "blocks", "root", "some", "grouped", "with the head"]):
        case "root":
            made["wrapped"], made["units"] = [], ""
        case "some":
            made["wrapped"] = [unit for unit in made["wrapped"] if draw.random() < 0.5]
            made["units"] = ",".join(name for unit in made["wrapped"] for name in unit)
        case "grouped":
            size = draw.randint(1, 3)
            names = [f"blocks.{number}" for number in range(count)]
            made["wrapped"] = [names[first : first + size] for first in range(0, count, size)]
            made["units"] = ",".join("+".join(unit) for unit in made["wrapped"])
        case "with the head":
            if made["has_head"]:
                made["wrapped"] = [*made["wrapped"], ["head"]]
                made["units"] = "blocks,head"
    return made


def _random_fsdp2_settings(draw: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if draw.random() < 0.3:
        settings["reshard_after_forward"] = False
    for name in ("forward_prefetch", "backward_prefetch"):
        if draw.random() < 0.3:
            settings[name] = draw.randint(1, 3)
    if draw.random() < 0.3:
        settings["param_dtype"] = "bfloat16"
    if draw.random() < 0.3:
        settings["reduce_dtype"] = "float32"
    if draw.random() < 0.25:
        settings["accumulation_steps"] = draw.randint(2, 4)
    return settings


FSDP2: dict[str, Case] = {
    "fully_shard, block by block": case(),
    "fully_shard, kept after forward": case(settings={"reshard_after_forward": False}),
    "fully_shard, two blocks a unit, nothing before": case(
        embeds=False,
        width=5,
        wrapped=[["blocks.0", "blocks.1"], ["blocks.2"]],
        units="blocks.0+blocks.1,blocks.2",
        settings={"accumulation_steps": 2},
    ),
    "fully_shard, explicit prefetch, mixed precision": case(
        count=4, settings={"backward_prefetch": 2, "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    ),
    "fully_shard, a unit around another one": case(
        count=4,
        wrapped=[["blocks.0", "blocks.2"], ["blocks.1"], ["blocks.3"]],
        units="blocks.0+blocks.2,blocks.1,blocks.3",
    ),
    "fully_shard, the root alone": case(wrapped=[], units=""),
}
