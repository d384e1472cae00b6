"""What GPUs can do at most: matrix FLOP/s by precision and memory bytes/s, from data sheets.

``gpus.csv`` is the table: TB/s, dense TFLOP/s by precision (empty: the GPU has none of it), and under what
other names torch knows it. Sheets that state tensor rates "with sparsity" state twice these.
"""

import csv
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

    ``flops`` has ``float32`` at least; a precision that is missing runs at ``float32``'s rate. ``generation``
    is NVIDIA's as NCCL tells them, where the device stands for others of it.
    """

    name: str
    flops: Mapping[str, float]
    bytes_per_s: float
    generation: str = ""


_ROWS = list(csv.DictReader(Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
GPUS = {
    row["name"]: GpuSheet(
        name=row["name"],
        flops={precision: float(row[precision]) * 1e12 for precision in PRECISIONS if row[precision]},
        bytes_per_s=float(row["TB/s"]) * 1e12,
        generation=row["generation"],
    )
    for row in _ROWS
}


def _folded(name: str) -> str:
    """A name without case, dashes, spaces and makers' words."""
    return re.sub(r"nvidia|geforce|tesla|instinct|amd|[^a-z0-9]", "", name.lower())


_KNOWN = {
    _folded(name): row["name"] for row in _ROWS for name in (row["name"], *row["also"].split(";")) if name
}


def find_gpu(name: str) -> GpuSheet:
    """A GPU by its name in the table or as torch calls it (``NVIDIA A100-SXM4-80GB``); case, dashes, spaces
    and makers' words do not matter.

    Raises:
        InputError: the table has no such name.
    """
    if found := gpus_named([name]):
        return found[0]
    alike = [gpu for gpu in GPUS if _folded(name) in _folded(gpu)] or GPUS  # of one that is sold in several
    raise InputError(f"gpu: {name!r} is not in the table; it has: {', '.join(alike)}")


def gpus_named(names: Iterable[str]) -> list[GpuSheet]:
    """Those GPUs of the table that are among ``names``, as a log has its devices; others are left out."""
    return [GPUS[known] for known in dict.fromkeys(_KNOWN.get(_folded(name)) for name in names) if known]


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
