"""Cases for real ``fully_shard``: random models, units and settings, by seed."""

import random
from typing import Any

Case = dict[str, Any]


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
    made = random_case(seed)
    return made | {"settings": made["settings"] | {"replicas": 2}}


def random_case(seed: int) -> Case:
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
    made["settings"] = _settings(draw)
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


def _settings(draw: random.Random) -> dict[str, Any]:
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


EVERYDAY: dict[str, Case] = {
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
