"""Cases for real Megatron-Core: random models and settings that it takes, by seed, and what it refuses."""

import random
from typing import Any

Case = dict[str, Any]
KINDS = ("linear", "linear", "norm", "embedding")


def layer(number: int, kind: str = "linear", **more: Any) -> dict[str, Any]:
    """One module, declared where it is used unless ``declared`` says otherwise."""
    return {"name": f"m{number}", "kind": kind, "declared": number, "dtype": "float32"} | more


def random_case(seed: int) -> Case:
    """A case that Megatron trains and the simulator models; the same one for the same seed."""
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    places = list(range(count))
    if draw.random() < 0.4:
        draw.shuffle(places)
    dtypes = draw.choice([("float32",), ("float32",), ("bfloat16",), ("bfloat16", "float32")])
    layers = [
        layer(number, draw.choice(KINDS), declared=places[number], dtype=draw.choice(dtypes))
        for number in range(count)
    ]
    config = _config(draw)
    case: Case = {"layers": layers, "width": draw.choice([8, 16, 24]), "config": config}
    if draw.random() < 0.25:
        case["num_microbatches"] = draw.randint(2, 3)
    if count > 1 and draw.random() < 0.15 and not config.get("overlap_param_gather"):
        _leave_out(draw, layers, config)
    return case


def _config(draw: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {"overlap_grad_reduce": draw.random() < 0.75}
    if draw.random() < 0.85:
        config["bucket_size"] = int(draw.choice([0, 100, 400, 1500]) * draw.uniform(0.5, 2))
    for name, chance in (("use_distributed_optimizer", 0.5), ("grad_reduce_in_fp32", 0.5)):
        if draw.random() < chance:
            config[name] = True
    if config.get("use_distributed_optimizer"):
        if draw.random() < 0.15:
            config["pad_buckets_for_high_nccl_busbw"] = True
        if config["overlap_grad_reduce"] and draw.random() < 0.6:
            config["overlap_param_gather"] = True
    return config


def _leave_out(draw: random.Random, layers: list[dict[str, Any]], config: dict[str, Any]) -> None:
    """One module that forward leaves out: from hooks only if its parameters are buckets of their own."""
    draw.choice(layers)["unused"] = True
    if config["overlap_grad_reduce"]:
        config["overlap_grad_reduce"] = False


EVERYDAY: dict[str, Case] = {
    "all-reduces from hooks": {
        "layers": [layer(n, kind) for n, kind in enumerate(("embedding", "linear", "norm", "linear"))],
        "width": 16,
        "config": {"overlap_grad_reduce": True, "bucket_size": 300},
    },
    "fp32 gradients of bf16, declared in another order": {
        "layers": [
            layer(n, "linear", declared=(2, 0, 3, 1)[n], dtype=("bfloat16", "float32")[n % 2])
            for n in range(4)
        ],
        "width": 16,
        "config": {"overlap_grad_reduce": True, "bucket_size": 300, "grad_reduce_in_fp32": True},
    },
    "reduce-scatters, gathers in forward": {
        "layers": [
            layer(n, kind) for n, kind in enumerate(("embedding", "norm", "linear", "norm", "linear"))
        ],
        "width": 24,
        "config": {
            "overlap_grad_reduce": True,
            "bucket_size": 300,
            "use_distributed_optimizer": True,
            "overlap_param_gather": True,
        },
        "num_microbatches": 2,
    },
    "after backward, gathers in step": {
        "layers": [layer(n) for n in range(3)],
        "width": 8,
        "config": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
    },
    "a bucket that no gradient comes to": {
        "layers": [layer(0), layer(1, unused=True), layer(2)],
        "width": 8,
        "config": {"overlap_grad_reduce": True, "bucket_size": 0},
    },
}
# With ``overlap_grad_reduce`` a bucket that some gradients come to, and some do not.
HALF_USED: Case = {
    "layers": [layer(0), layer(1, unused=True), layer(2)],
    "width": 8,
    "config": {"overlap_grad_reduce": True, "bucket_size": 80},
}
