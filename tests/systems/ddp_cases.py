"""Random cases for real DistributedDataParallel, by seed: a model (ddp_models) and settings (ddp_worker)."""

import random
from typing import Any

Case = dict[str, Any]
Layer = dict[str, Any]
MIB = 1 << 20


def random_case(seed: int) -> Case:
    """A case that DDP trains and the simulator models; the same one for the same seed."""
    draw = random.Random(seed)
    graph = draw.choice(["plain", "plain", "find_unused", "find_unused", "static"])
    keywords = _keywords(draw, graph)
    by_rank = graph == "find_unused" and "skip_all_reduce_unused_params" not in keywords
    layers = _model(draw, graph, by_rank)
    has_sparse = any(layer.get("sparse") for layer in layers)
    case: Case = {
        "layers": layers,
        "ddp": keywords,
        "accumulation": 1 if graph == "static" else draw.choice([1, 1, 1, 2, 3]),
        "zero_grad_to_none": draw.random() < 0.7,
    }
    if draw.random() < 0.45:
        case["hook"] = _hook(draw, has_sparse)
    return case


def _keywords(draw: random.Random, graph: str) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    match draw.choice(["default", "cap", "cap", "cap", "zero", "list"]):
        case "cap":
            keywords["bucket_cap_mb"] = draw.choice([1e3, 4e3, 12e3, 5e5]) * draw.uniform(0.5, 2) / MIB
        case "zero":
            keywords["bucket_cap_mb"] = 0
        case "list":
            keywords["bucket_cap_mb_list"] = [
                draw.uniform(100, 12e3) / MIB for _ in range(draw.randint(1, 5))
            ]
    if graph == "find_unused":
        keywords["find_unused_parameters"] = True
    if graph == "static":
        keywords["static_graph"] = True
    for name, chance in (
        ("gradient_as_bucket_view", 0.4),
        ("batched_grad_copy", 0.3),
        ("skip_all_reduce_unused_params", 0.3 if graph != "plain" else 0),
    ):
        if draw.random() < chance:
            keywords[name] = True
    if draw.random() < 0.2:
        keywords[draw.choice(["forward_sync_buffers", "broadcast_buffers"])] = False
    return keywords


def _hook(draw: random.Random, has_sparse: bool) -> str:
    casts = ("noop", "allreduce", "fp16_compress", "fp16_wrapped_allreduce")
    own = ("builtin_allreduce", "builtin_fp16_compress")
    return draw.choice(["allreduce", "builtin_allreduce"] if has_sparse else [*casts, *own])


def _model(draw: random.Random, graph: str, by_rank: bool) -> list[Layer]:
    family = draw.choice(["mlp", "mlp", "norms", "conv", "transformer", "embedding"])
    wide = family == "mlp" and draw.random() < 0.3  # beyond DDP's first bucket of 1 MiB
    widths = (300, 500) if wide else (3, 40)
    width = draw.randint(*widths)
    layers = [_embedding(draw, width)] if family == "embedding" else []
    for _ in range(draw.randint(1, 5)):
        layers += _block(draw, family, width, draw.randint(*widths))
        width = layers[-1].get("out", layers[-1]["width"])
    if family == "embedding" and draw.random() < 0.4:
        place = draw.randrange(1, len(layers))
        layers.insert(place, _embedding(draw, layers[place]["width"]))
    if layers[0].get("sparse") is False and draw.random() < 0.8:
        first = layers[0]
        layers.append({"kind": "linear", "width": width, "out": first["width"]})
        head = {"kind": "linear", "width": first["width"], "out": first["rows"], "bias": False, "tied": 0}
        layers.append(head)
    _decorate(draw, layers, graph, by_rank)
    return layers


def _embedding(draw: random.Random, width: int) -> Layer:
    return {
        "kind": "embedding",
        "width": width,
        "rows": draw.randint(5, 60),
        "sparse": draw.random() < 0.5,
    }


def _block(draw: random.Random, family: str, width: int, other: int) -> list[Layer]:
    out, bias = draw.choice([width, other]), draw.random() < 0.8
    match family:
        case "transformer":
            return [{"kind": "encoder", "width": width}]
        case "conv":
            conv = {"kind": "conv", "width": width, "out": out, "bias": bias}
            return [conv, {"kind": "batch_norm", "width": out}]
        case "norms":
            norm = {"kind": "norm", "width": width}
            return [norm, {"kind": "linear", "width": width, "out": out, "bias": bias}]
    return [{"kind": "linear", "width": width, "out": out, "bias": bias}]


def _decorate(draw: random.Random, layers: list[Layer], graph: str, by_rank: bool) -> None:
    tied = any("tied" in layer for layer in layers)
    other = draw.choice(["bfloat16", "float64"]) if draw.random() < 0.3 and not tied else None
    ordinary = [layer for layer in layers if not layer.get("sparse") and "tied" not in layer]
    for layer in ordinary[1:]:
        keeps_width = layer.get("out", layer["width"]) == layer["width"]
        if other and draw.random() < 0.5:
            layer["dtype"] = other
        if keeps_width and layer["kind"] != "embedding":
            chance = draw.random()
            if graph != "plain" and chance < 0.3:
                layer["used"] = False if graph == "static" or draw.random() < 0.5 else _some_iterations(draw)
            elif graph == "find_unused" and chance < 0.4:
                layer["outside"] = True
            elif by_rank and chance < 0.6:
                layer["ranks"] = [draw.randint(0, 1)]
            elif chance < 0.75:
                layer["times"] = 2
                if graph == "static":
                    layer["checkpoint"] = "reentrant"
            elif chance < 0.85:
                layer["checkpoint"] = draw.choice(["saved", "reentrant"] if graph == "static" else ["saved"])
    if draw.random() < 0.2 and len(ordinary) > 1:
        chosen = draw.choice(ordinary[1:])
        chosen["frozen"] = draw.choice([["weight"], ["bias"], True])


def _some_iterations(draw: random.Random) -> list[int]:
    return [iteration for iteration in range(1, 5) if draw.random() < 0.5]
