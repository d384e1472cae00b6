"""Random models for the textbook systems, written down as layers of ``ddp_models``."""

import random

from tests.systems.ddp_models import Layer, Net

WIDTHS = (8, 12, 20, 33)
DTYPES = ("float32", "float64", "bfloat16")


def random_layers(seed: int, *, mixed: bool = True) -> list[Layer]:
    """3 to 9 layers: every kind, frozen parameters, a layer used twice, recomputed, or of another dtype.

    With ``mixed`` False all parameters are float32.
    """
    chance = random.Random(seed)
    width = chance.choice(WIDTHS)
    layers: list[Layer] = []
    for _ in range(chance.randint(3, 9)):
        kind = chance.choice(("linear", "linear", "norm", "conv", "batch_norm", "encoder", "embedding"))
        layer: Layer = {"kind": kind, "width": width}
        if kind in ("linear", "conv"):
            layer["out"] = width = chance.choice(WIDTHS)
            layer["bias"] = chance.random() < 0.8
        if kind == "embedding":
            layer["rows"] = chance.randint(2, 40)
        if kind in ("linear", "norm", "encoder") and layer.get("out", layer["width"]) == layer["width"]:
            layer["times"] = chance.choice((1, 1, 2))
        if kind in ("linear", "norm") and chance.random() < 0.15:
            layer["checkpoint"] = "saved"
        if kind in ("linear", "norm", "conv") and layers and chance.random() < 0.15:
            layer["frozen"] = ["weight"]
        if mixed and kind in ("linear", "norm", "embedding") and chance.random() < 0.4:
            layer["dtype"] = chance.choice(DTYPES)
        layers.append(layer)
    return layers


def random_cap_mb(seed: int, layers: list[Layer]) -> float:
    """A cap in MiB: of any size up to 64 KiB, 0, or just the bytes of the last few parameters."""
    chance = random.Random(seed)
    match chance.choice(("any", "any", "just", "just", "none")):
        case "any":
            cap = 2 ** chance.uniform(4, 16)
        case "just":
            sizes = [p.nbytes for p in Net(layers, 0).parameters() if p.requires_grad]
            cap = sum(sizes[-chance.randint(1, 3) :])
        case _:
            cap = 0
    return cap / 2**20
