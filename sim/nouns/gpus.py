"""What GPUs can do at most: matrix FLOP/s by precision and memory bytes/s, from data sheets.

``gpus.csv`` is the table: TB/s, and dense TFLOP/s by precision (empty: the GPU has none of it). Sheets that
state tensor rates "with sparsity" state twice these.
"""

import csv
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from sim.errors import InputError

PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSheet:
    """Peak rates of one device: dense matrix FLOP/s by precision, memory bytes per second.

    ``flops`` has ``float32`` at least; a precision that is missing runs at ``float32``'s rate.
    """

    name: str
    flops: Mapping[str, float]
    bytes_per_s: float

    def __post_init__(self) -> None:
        for what, rate in (("device_bytes_per_s", self.bytes_per_s), ("device_flops", self.flops["float32"])):
            if not 0 < rate < math.inf:
                raise InputError(f"{what}: {rate} is not legal; give a rate above 0")

    def peak(self, precision: str) -> float:
        """Matrix FLOP/s at ``precision``."""
        return self.flops.get(precision, self.flops["float32"])


GPUS = {
    row["name"]: GpuSheet(
        name=row["name"],
        flops={precision: float(row[precision]) * 1e12 for precision in PRECISIONS if row[precision]},
        bytes_per_s=float(row["TB/s"]) * 1e12,
    )
    for row in csv.DictReader(Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines())
}


def find_gpu(name: str) -> GpuSheet:
    """A GPU of the table by its name, its board and memory left out where one row fits.

    Case, dashes, spaces and makers' words do not matter: ``rtx4090``, ``V100``, ``NVIDIA A100-SXM4-80GB``
    as torch calls it.

    Raises:
        InputError: no GPU of the table fits, or several do.
    """
    fits = _fits(name)
    if len(fits) == 1:
        return GPUS[fits[0]]
    if fits:
        raise InputError(f"gpu: {name!r} may be any of {', '.join(fits)}; give one of them")
    near = difflib.get_close_matches(name.lower(), GPUS, n=3, cutoff=0.5)
    raise InputError(
        f"gpu: {name!r} is not in the table; {'near it: ' if near else 'it has: '}"
        f"{', '.join(near or GPUS)}; or give device_flops and device_bytes_per_s"
    )


def _fits(name: str) -> list[str]:
    plain = re.sub(r"nvidia|geforce|tesla|instinct|amd|hbm\d?e?|[^a-z0-9]", "", name.lower())
    exact = [known for known in GPUS if plain == known.replace("-", "")]
    return exact or [known for known in GPUS if re.fullmatch(_pattern(known), plain)]


def _pattern(known: str) -> str:
    """What may be said of a GPU: its model, then any of its board's and memory's words."""
    words = known.split("-")
    extra = [word for word in words if re.fullmatch(r"sxm\d?|pcie|nvl|blackwell|\d+gb", word)]
    model = "".join(word for word in words if word not in extra)
    also = [rf"{word}\d?" if word.isalpha() else word for word in extra]
    if not any(word.endswith("gb") for word in extra):
        also.append(r"\d+gb")  # one board, with more memory or less
    return rf"{re.sub('^rtx', '(?:rtx)?', model)}(?:{'|'.join(also)})*"


def gpus_named(names: Iterable[str]) -> list[GpuSheet]:
    """Those GPUs of the table that ``names`` may be, as a log has its devices; others are left out."""
    return [GPUS[known] for known in dict.fromkeys(known for name in names for known in _fits(name))]


def custom_device(*, flops: float, bytes_per_s: float) -> GpuSheet:
    """A device with one rate for all precisions."""
    return GpuSheet(name="as given", flops={"float32": flops}, bytes_per_s=bytes_per_s)


def typical_device() -> GpuSheet:
    """A device that nobody sells: geometric means of the table, of bandwidth and of FLOPs per byte.

    Only the ratio of its rates is meant: it weighs operators where no device is named. GPUs without a
    precision are left out of that precision's mean.
    """
    bytes_per_s = geometric_mean(gpu.bytes_per_s for gpu in GPUS.values())
    having = {precision: [gpu for gpu in GPUS.values() if precision in gpu.flops] for precision in PRECISIONS}
    flops = {
        precision: bytes_per_s * geometric_mean(gpu.flops[precision] / gpu.bytes_per_s for gpu in gpus)
        for precision, gpus in having.items()
    }
    return GpuSheet(name="a typical GPU", flops=flops, bytes_per_s=bytes_per_s)
