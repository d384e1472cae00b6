"""Cases for real ZeRO: the test vectors, and random models under random settings that DeepSpeed takes."""

import itertools
import random
from typing import Any

Case = dict[str, Any]
M1 = {"kind": "mlp", "dims": [64, 128, 96, 80, 112, 32]}
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


def everyday_cases() -> dict[str, Case]:
    """What the normal suite runs, in one job: all vectors, all refusals and some random cases."""
    return {
        **{name: case for name, (case, _) in VECTORS.items()},
        **{name: {"model": M1, "config": refused} for name, (refused, _) in REFUSED.items()},
        **{f"random {seed}": random_case(seed) for seed in range(12)},
    }


def random_case(seed: int) -> Case:
    """A model, optimizer groups, frozen and unused parameters, and settings, all drawn from ``seed``."""
    draw = random.Random(seed)
    model, count, total = _random_model(draw)
    frozen = sorted(draw.sample(range(count), draw.randint(0, count // 3))) if draw.random() < 0.2 else []
    if model["kind"] == "chain":
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
    """A model, how many parameters it has, and about how many elements."""
    match draw.choice(["mlp", "mlp", "chain", "chain", "norms", "transformer"]):
        case "mlp":
            dims = [draw.randint(1, 60) for _ in range(draw.randint(2, 8))]
            sizes = [a * b + b for a, b in itertools.pairwise(dims)]
            return {"kind": "mlp", "dims": dims}, 2 * len(sizes), sum(sizes)
        case "chain":
            count = draw.randint(3, 14)
            sizes = [
                draw.choice([0, 1, 2, 3, draw.randint(1, 40), draw.randint(1, 400)]) for _ in range(count)
            ]
            used = draw.sample(range(count), draw.randint(max(1, count - 3), count))
            sizes[used[0]] = sizes[used[0]] or 5
            return {"kind": "chain", "sizes": sizes, "used": used}, count, sum(sizes)
        case "norms":
            width = draw.randint(2, 30)
            return {"kind": "norms", "width": width}, 12, 3 * (width * width + 3 * width)
        case _:
            width = 2 * draw.randint(2, 10)
            return {"kind": "transformer", "width": width}, 14, 8 * width * width


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
