"""Cases for real ranks of every system: by name, and random ones, the same for the same seed."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.systems.cases import MIB, POLICIES
from tests.systems.models import Net

Case = dict[str, Any]
Layer = dict[str, Any]
Draw = random.Random


def maybe(draw: Draw, **rows: tuple[Any, ...]) -> dict[str, Any]:
    """Of each row, a chance and values, one of the values at that chance."""
    return {name: draw.choice(values) for name, (chance, *values) in rows.items() if draw.random() < chance}


def linears(*dims: int, dtypes: Sequence[str] = ()) -> list[Layer]:
    """Linear layers (models) from each of ``dims`` to the next."""
    made = [{"kind": "linear", "width": a, "out": b} for a, b in pairwise(dims)]
    return [layer | {"dtype": dtype} for layer, dtype in zip(made, dtypes, strict=False)] if dtypes else made


# DistributedDataParallel: a model (models) and settings (ddp_worker).


def random_ddp(seed: int) -> Case:
    """A case that DDP trains and the simulator models."""
    draw = Draw(seed)
    graph = draw.choice(["plain", "plain", "find_unused", "find_unused", "static"])
    keywords = _keywords(draw, graph)
    by_rank = graph == "find_unused" and "skip_all_reduce_unused_params" not in keywords
    layers = _ddp_model(draw, graph, by_rank)
    hooks = ("allreduce", "builtin_allreduce")
    if not any(layer.get("sparse") for layer in layers):
        hooks += ("noop", "fp16_compress", "fp16_wrapped_allreduce", "builtin_fp16_compress")
    return {
        "layers": layers,
        "ddp": keywords,
        "micro_batches": 1 if graph == "static" else draw.choice([1, 1, 1, 2, 3]),
        "zero_grad_to_none": draw.random() < 0.7,
        **maybe(draw, hook=(0.45, *hooks)),
    }


def _keywords(draw: Draw, graph: str) -> dict[str, Any]:
    cap = draw.choice([1e3, 4e3, 12e3, 5e5]) * draw.uniform(0.5, 2) / MIB
    caps = [draw.uniform(100, 12e3) / MIB for _ in range(draw.randint(1, 5))]
    sized = [{}, {"bucket_cap_mb": 0}, {"bucket_cap_mb_list": caps}, *[{"bucket_cap_mb": cap}] * 3]
    graphs = {"find_unused": {"find_unused_parameters": True}, "static": {"static_graph": True}}
    switches = maybe(
        draw,
        gradient_as_bucket_view=(0.4, True),
        batched_grad_copy=(0.3, True),
        skip_all_reduce_unused_params=(0.3 if graph != "plain" else 0, True),
    )
    buffers = draw.choice([{"forward_sync_buffers": False}, {"broadcast_buffers": False}, *[{}] * 8])
    return draw.choice(sized) | graphs.get(graph, {}) | switches | buffers


def _ddp_model(draw: Draw, graph: str, by_rank: bool) -> list[Layer]:
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
        head = {"kind": "linear", "width": first["width"], "out": first["rows"], "bias": False, "tied": 0}
        layers += [*linears(width, first["width"]), head]
    _decorate(draw, layers, graph, by_rank)
    return layers


def _embedding(draw: Draw, width: int) -> Layer:
    return {"kind": "embedding", "width": width, "rows": draw.randint(5, 60), "sparse": draw.random() < 0.5}


def _block(draw: Draw, family: str, width: int, other: int) -> list[Layer]:
    out, bias = draw.choice([width, other]), draw.random() < 0.8
    linear = {"kind": "linear", "width": width, "out": out, "bias": bias}
    blocks = {
        "transformer": [{"kind": "encoder", "width": width}],
        "conv": [linear | {"kind": "conv"}, {"kind": "batch_norm", "width": out}],
        "norms": [{"kind": "norm", "width": width}, linear],
    }
    return blocks.get(family, [linear])


def _decorate(draw: Draw, layers: list[Layer], graph: str, by_rank: bool) -> None:
    tied = any("tied" in layer for layer in layers)
    other = draw.choice(["bfloat16", "float64"]) if draw.random() < 0.3 and not tied else None
    ordinary = [layer for layer in layers if not layer.get("sparse") and "tied" not in layer]
    for layer in ordinary[1:]:
        keeps_width = layer.get("out", layer["width"]) == layer["width"]
        if other and draw.random() < 0.5:
            layer["dtype"] = other
        if not keeps_width or layer["kind"] == "embedding":
            continue
        chance = draw.random()
        if graph != "plain" and chance < 0.3:
            some = [iteration for iteration in range(1, 5) if draw.random() < 0.5]
            layer["used"] = False if graph == "static" or draw.random() < 0.5 else some
        elif graph == "find_unused" and chance < 0.4:
            layer["outside"] = True
        elif by_rank and chance < 0.6:
            layer["ranks"] = [draw.randint(0, 1)]
        elif chance < 0.75:
            layer |= {"times": 2} | ({"checkpoint": "reentrant"} if graph == "static" else {})
        elif chance < 0.85:
            layer["checkpoint"] = draw.choice(["saved", "reentrant"] if graph == "static" else ["saved"])
    if draw.random() < 0.2 and len(ordinary) > 1:
        draw.choice(ordinary[1:])["frozen"] = draw.choice([["weight"], ["bias"], True])


# ZeRO: the test vectors, what it refuses, and random models under settings that DeepSpeed takes.

BF16 = {"enabled": True}
FP16 = {"enabled": True, "initial_scale_power": 4}  # small enough that no step overflows
TOP = (
    *("communication_data_type", "gradient_accumulation_steps", "gradient_clipping", "bf16", "fp16"),
    *("gradient_predivide_factor", "prescale_gradients"),
)
NO_NORM = {"compute_grad_norm": False, "gradient_clipping": 0.0}
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}


def config(stage: int = 2, **settings: Any) -> dict[str, Any]:
    """DeepSpeed's configuration: of ``settings``, those in ``TOP`` stand beside ``zero_optimization``."""
    top = {name: value for name, value in settings.items() if name in TOP}
    rest = {name: value for name, value in settings.items() if name not in TOP}
    return {**top, "zero_optimization": {"stage": stage, **rest}}


M1 = {"layers": linears(64, 128, 96, 80, 112, 32)}
T6 = [(12768, "backward", 4), (7776, "backward", 2), (12416, "backward", 0), (8192, "after backward", None)]
T8 = [(3728, 6), (8960, 5), (7856, 2), (12256, 1), (32, 1)]
# By name of the vector: a configuration for M1, and the collectives of gradients: elements, phase, gradient.
VECTORS: dict[str, tuple[dict[str, Any], list[tuple[int, str, int | None]]]] = {
    "T6": (config(2, reduce_bucket_size=15000), T6),
    "T6, stage 1 with overlap_comm": (config(1, reduce_bucket_size=15000, overlap_comm=True), T6),
    "T7": (
        config(1, reduce_bucket_size=15000),
        [(elements, "after backward", None) for elements in (8320, 12384, 7760, 12688)],
    ),
    "T8": (
        config(2, reduce_bucket_size=9000),
        [*((elements, "backward", index) for elements, index in T8), (8320, "after backward", None)],
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
    "no norm, offloaded": (config(1, **NO_NORM, **OFFLOADED), "compute_grad_norm"),
    "unknown": (config(2, reduce_bucket_sz=1), "reduce_bucket_sz"),
}


def random_zero(seed: int) -> Case:
    """A model, optimizer groups, frozen and unused parameters, and settings."""
    draw = Draw(seed)
    model, sizes = _zero_model(draw)
    count = len(sizes)
    frozen = sorted(draw.sample(range(count), draw.randint(0, count // 3))) if draw.random() < 0.2 else []
    if not any(sizes[place] for place in model.get("used", range(count)) if place not in frozen):
        frozen = []
    groups: list[list[int]] | None = [[] for _ in range(draw.choice([1, 1, 1, 2, 2, 3]))]
    for place in range(count):
        draw.choice(groups or []).append(place)
    if not all(any(sizes[place] for place in group if place not in frozen) for group in groups or []):
        groups = None  # in one of them there is nothing to optimise
    return model | {"frozen": frozen, "groups": groups, "config": _zero_config(draw, sum(sizes))}


def _zero_model(draw: Draw) -> tuple[dict[str, Any], list[int]]:
    """A model, and how many elements its parameters have."""
    kind, width = draw.choice(["mlp", "mlp", "chain", "chain", "norms", "transformer"]), draw.randint(4, 30)
    if kind == "chain":
        count = draw.randint(3, 14)
        sizes = [draw.choice([0, 1, 2, 3, draw.randint(1, 40), draw.randint(1, 400)]) for _ in range(count)]
        used = draw.sample(range(count), draw.randint(max(1, count - 3), count))
        sizes[used[0]] = sizes[used[0]] or 5
        return {"sizes": sizes, "used": used}, sizes
    layers = {
        "mlp": linears(*(draw.randint(1, 60) for _ in range(draw.randint(2, 8)))),
        "norms": [{"kind": "norm", "width": width}, *linears(width, width)] * 3,
        "transformer": [{"kind": "encoder", "width": width}, *linears(width, 3)],
    }[kind]
    return {"layers": layers}, [parameter.numel() for parameter in Net(layers, 0).parameters()]


def _zero_config(draw: Draw, total: int) -> dict[str, Any]:
    stage = draw.choice([1, 2, 2])
    size = draw.choice([1, max(1, total // 20), max(1, total // 5), total, 500_000_000])
    settings: dict[str, Any] = {"reduce_bucket_size": size} | maybe(
        draw,
        overlap_comm=(0.5, True),
        contiguous_gradients=(0.25, False),
        reduce_scatter=(0.25, False),
        gradient_accumulation_steps=(0.4, 2, 3),
        communication_data_type=(0.2, "fp32", "fp16", "bf16"),
    )
    settings |= draw.choice([OFFLOADED, NO_NORM, {}, {}, {}, {}])
    if stage == 1 or settings.get("reduce_scatter") is False:
        settings |= maybe(draw, gradient_predivide_factor=(0.3, 2.0, 4.0), prescale_gradients=(0.2, True))
    unchecked = BF16 | {"check_grad_overflow": False}
    settings |= draw.choice([{}, {}, {}, {"bf16": BF16}, {"bf16": unchecked}, {"fp16": FP16}])
    return config(stage, **settings)


# Megatron-Core.


def layers(width: int, *kinds: str, **of_each: Sequence[Any]) -> list[Layer]:
    """Modules of one width (models), and what else each has; None: nothing."""
    made = []
    for place, kind in enumerate(kinds):
        more = {name: values[place] for name, values in of_each.items() if values[place] is not None}
        shape = {"linear": {"out": width}, "embedding": {"rows": 7}}.get(kind, {})
        made.append({"kind": kind, "width": width} | shape | more)
    return made


def random_megatron(seed: int) -> Case:
    """A case that Megatron trains and the simulator models."""
    draw = Draw(seed)
    count = draw.randint(1, 9)
    places = list(range(count))
    if draw.random() < 0.4:
        draw.shuffle(places)
    dtypes = draw.choice([("float32",), ("float32",), ("bfloat16",), ("bfloat16", "float32")])
    kinds = [draw.choice(("linear", "linear", "norm", "embedding")) for _ in places]
    settings = {"overlap_grad_reduce": draw.random() < 0.75} | maybe(
        draw,
        bucket_size=(0.85, int(draw.choice([0, 100, 400, 1500]) * draw.uniform(0.5, 2))),
        use_distributed_optimizer=(0.5, True),
        grad_reduce_in_fp32=(0.5, True),
    )
    if settings.get("use_distributed_optimizer") and settings["overlap_grad_reduce"]:
        settings |= maybe(draw, overlap_param_gather=(0.6, True))
    each = [draw.choice(dtypes) for _ in places]
    made = layers(draw.choice([8, 16, 24]), *kinds, declared=places, dtype=each)
    if count > 1 and draw.random() < 0.15 and not settings.get("overlap_param_gather"):
        draw.choice(made)["used"] = False  # with hooks only what is a bucket of its own
        settings["overlap_grad_reduce"] = False
    return {"layers": made, "config": settings} | maybe(draw, micro_batches=(0.25, 2, 3))


HOOKS = {"overlap_grad_reduce": True, "bucket_size": 300}
MIXED = ("bfloat16", "float32", "bfloat16", "float32")
UNUSED = layers(8, *["linear"] * 3, used=(None, False, None))
HALF_USED = "half used"  # with overlap_grad_reduce: a bucket that some gradients come to, and some do not
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
        "micro_batches": 2,
    },
    "after backward, gathers in step": {
        "layers": layers(8, *["linear"] * 3),
        "config": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
    },
    "a bucket that no gradient comes to": {"layers": UNUSED, "config": HOOKS | {"bucket_size": 0}},
    HALF_USED: {"layers": UNUSED, "config": HOOKS | {"bucket_size": 80}},
}

# FSDP2.


def blocks(count: int = 3, **more: Any) -> Case:
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
    """A case that torch trains and the simulator models."""
    draw = Draw(seed)
    count = draw.randint(1, 6)
    made = blocks(
        count,
        embeds=draw.random() < 0.6,
        has_head=draw.random() < 0.6,
        width=draw.choice([4, 5, 7, 8]),
        blocks=[[draw.choice(["norm", "linear"]) for _ in range(draw.randint(1, 3))] for _ in range(count)],
        dtype=draw.choice(["float32", "float32", "bfloat16"]),
        settings=maybe(
            draw,
            reshard_after_forward=(0.3, False),
            forward_prefetch=(0.3, 1, 2, 3),
            backward_prefetch=(0.3, 1, 2, 3),
            param_dtype=(0.3, "bfloat16"),
            reduce_dtype=(0.3, "float32"),
            accumulation_steps=(0.25, 2, 3, 4),
        ),
    )
    names, size = [f"blocks.{number}" for number in range(count)], draw.randint(1, 3)
    match draw.choice(["blocks", "blocks", "root", "some", "grouped", "with the head"]):
        case "root":
            made |= {"wrapped": [], "units": ""}
        case "some":
            some = [name for name in names if draw.random() < 0.5]
            made |= {"wrapped": [[name] for name in some], "units": ",".join(some)}
        case "grouped":
            grouped = [names[first : first + size] for first in range(0, count, size)]
            made |= {"wrapped": grouped, "units": ",".join(map("+".join, grouped))}
        case "with the head" if made["has_head"]:
            made |= {"wrapped": [*made["wrapped"], ["head"]], "units": "blocks,head"}
    return made


MIXED_PRECISION = {"backward_prefetch": 2, "param_dtype": "bfloat16", "reduce_dtype": "float32"}
FSDP2: dict[str, Case] = {
    "fully_shard, block by block": blocks(),
    "fully_shard, kept after forward": blocks(settings={"reshard_after_forward": False}),
    "fully_shard, two blocks a unit, nothing before": blocks(
        embeds=False,
        width=5,
        wrapped=[["blocks.0", "blocks.1"], ["blocks.2"]],
        units="blocks.0+blocks.1,blocks.2",
        settings={"accumulation_steps": 2},
    ),
    "fully_shard, explicit prefetch, mixed precision": blocks(count=4, settings=MIXED_PRECISION),
    "fully_shard, a unit around another one": blocks(
        count=4,
        wrapped=[["blocks.0", "blocks.2"], ["blocks.1"], ["blocks.3"]],
        units="blocks.0+blocks.2,blocks.1,blocks.3",
    ),
    "fully_shard, the root alone": blocks(wrapped=[], units=""),
}

# The textbook systems.

WIDTHS = (8, 12, 20, 33)


def random_textbook(policy: str, seed: int, *, mixed: bool) -> Case:
    """3 to 9 layers: every kind, frozen parameters, a layer used twice, recomputed, or, where ``mixed``, of
    another dtype; and a cap of any size up to 64 KiB, 0, or just the bytes of the last few parameters."""
    draw = Draw(seed)
    width, made = draw.choice(WIDTHS), list[Layer]()
    for _ in range(draw.randint(3, 9)):
        kind = draw.choice(("linear", "linear", "norm", "conv", "batch_norm", "encoder", "embedding"))
        layer: Layer = {"kind": kind, "width": width}
        if kind in ("linear", "conv"):
            layer |= {"out": draw.choice(WIDTHS), "bias": draw.random() < 0.8}
        if kind == "embedding":
            layer["rows"] = draw.randint(2, 40)
        keeps_width = layer.get("out", width) == width
        layer |= maybe(
            draw,
            times=(0.3 if kind in ("linear", "norm", "encoder") and keeps_width else 0, 2),
            checkpoint=(0.15 if kind in ("linear", "norm") else 0, "saved"),
            frozen=(0.15 if kind in ("linear", "norm", "conv") and made else 0, ["weight"]),
            dtype=(
                0.4 if mixed and kind in ("linear", "norm", "embedding") else 0,
                *("float32", "float64", "bfloat16"),
            ),
        )
        width = layer.get("out", width)
        made.append(layer)
    sizes = [p.nbytes for p in Net(made, 0).parameters() if p.requires_grad]
    just = sum(sizes[-draw.randint(1, 3) :])
    cap = draw.choice([2 ** draw.uniform(4, 16), 2 ** draw.uniform(4, 16), just, just, 0])
    return {"policy": policy, "layers": made, "bucket_cap_mb": cap / MIB}


def textbook_cases(seeds: range) -> list[Case]:
    """For each seed a random model under each policy; published last-hook code knows one dtype (A7.5)."""
    return [random_textbook(one, seed, mixed=one != "last-hook") for seed in seeds for one in POLICIES]
