"""Random models for torch.compile under DistributedDataParallel; ``compiled_worker`` says what a case is."""

import random
from typing import Any

from sim.nouns.workload import Workload
from tests.handmade import handmade

Case = dict[str, Any]
_WIDTHS = (8, 16, 32, 48)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
)


def random_case(seed: int, *, plain: bool, widths: tuple[int, ...] = _WIDTHS) -> Case:
    """A chain of parts; unless ``plain``, with tied parts, residual connections and graph breaks."""
    dice = random.Random(seed)
    width = dice.choice(widths)
    case: Case = {"width": width, "backend": "aot_eager", "optimize_ddp": "ddp_optimizer"}
    parts: list[dict[str, Any]] = []
    opened = None
    for number in range(dice.randint(3, 14)):
        kind = dice.choice(("linear", "linear", "linear", "norm", "scale", "gelu"))
        part: dict[str, Any] = {"kind": kind, "name": f"m{number}", "inputs": width}
        if kind == "linear":
            width = dice.choice(widths)
            part |= {"outputs": width, "spare": dice.choice((0, 0, 0, 4096)) if not plain else 0}
            part["bias"] = dice.random() < 0.7
        parts.append({"kind": kind} if kind == "gelu" else part)
        if plain:
            continue
        fitting = [one["name"] for one in parts if one.get("inputs") == width == one.get("outputs", width)]
        if fitting and dice.random() < 0.15:
            parts.append({"kind": "again", "name": dice.choice(fitting)})
        if dice.random() < 0.1:
            parts.append({"kind": "break"})
        if opened == width and dice.random() < 0.6:
            parts.append({"kind": "close"})
            opened = None
        elif opened is None and dice.random() < 0.3:
            parts.append({"kind": "open"})
            opened = width
    if not any(part["kind"] == "linear" for part in parts):
        return random_case(seed + 1_000_003, plain=plain, widths=widths)
    names = [part["name"] for part in parts if "inputs" in part]
    weights = [f"{name}.weight" for name in names]
    case["parts"] = parts
    case["registered"] = dice.sample(names, len(names))
    case["frozen"] = [name for name in weights if dice.random() < 0.15][: len(names) - 1]
    left = [name for name in weights if name not in case["frozen"]]
    ignored = [name for name in left if dice.random() < 0.1][: len(left) - 1]
    case["ignored"] = [] if plain else ignored
    case["first_cap"] = dice.choice((256, 1024, 4096))
    case["compile_cap"] = case["first_cap"] * dice.choice((1, 2, 5, 20))
    case["options"] = dice.choice(_OPTIONS)
    case["bucket_cap"] = dice.choice((case["compile_cap"], 300, 2048, 10_000))
    return case


def graphs_of(case: Case) -> list[list[list[str]]]:
    """By graph the parameters of each operator that count, in the order of forward.

    Those that DDP ignores count as others do: their mark is not on what the graph shows of them (A11.1).
    """
    biased = {part["name"] for part in case["parts"] if part["kind"] == "norm" or part.get("bias")}
    graphs: list[list[list[str]]] = [[]]
    for part in case["parts"]:
        if part["kind"] == "break":
            graphs.append([])
        elif "name" in part:
            name = part["name"]
            taken = [f"{name}.weight", *([f"{name}.bias"] if name in biased else [])]
            graphs[-1].append([one for one in taken if one not in case["frozen"]])
    return graphs


def eager_workload(answer: Any) -> Workload:
    """What a recording without torch.compile tells of the model, whose gradients came in this order."""
    parameters = [name for name, _, _ in answer["parameters"]]
    return handmade(
        [1 + answer["eager"].index(name) for name in parameters],
        names=parameters,
        shapes=[shape for _, shape, _ in answer["parameters"]],
        backward_ns=1000,
    )
