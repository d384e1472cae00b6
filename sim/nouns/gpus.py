"""What GPUs can do at most, from their makers' data sheets: matrix FLOP/s by precision, memory bytes/s."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


# Name, TB/s, and dense TFLOP/s by ``PRECISIONS``: data sheets that state tensor rates "with sparsity" state
# twice these.
_SHEETS: tuple[tuple[str, float, float, float, float | None, float, float | None], ...] = (
    # NVIDIA V100 data sheet (2020): SXM2; no TF32, no bfloat16
    ("v100-sxm2", 0.9, 7.8, 15.7, None, 125, None),
    # NVIDIA A100 data sheet (2022); PCIe and SXM differ in memory alone
    ("a100-40gb-pcie", 1.555, 19.5, 19.5, 156, 312, 312),
    ("a100-40gb-sxm", 1.555, 19.5, 19.5, 156, 312, 312),
    ("a100-80gb-pcie", 1.935, 19.5, 19.5, 156, 312, 312),
    ("a100-80gb-sxm", 2.039, 19.5, 19.5, 156, 312, 312),
    # NVIDIA H100 data sheet (2023)
    ("h100-sxm", 3.35, 67, 67, 494.5, 989.5, 989.5),
    ("h100-pcie", 2.0, 51, 51, 378, 756.5, 756.5),
    # NVIDIA H100 NVL data sheet (2024): one card of 94 GB
    ("h100-nvl", 3.9, 60, 60, 417.5, 835.5, 835.5),
    # NVIDIA H200 and GH200 data sheets (2024)
    ("h200-sxm", 4.8, 67, 67, 494.5, 989.5, 989.5),
    ("gh200-96gb", 4.0, 67, 67, 494.5, 989.5, 989.5),
    # NVIDIA HGX B200 specification (2025)
    ("b200-sxm", 8.0, 37, 75, 1125, 2250, 2250),
    # NVIDIA A40 data sheet (2021); GA102 has 1/64 of its rate in fp64
    ("a40", 0.696, 0.585, 37.4, 74.8, 149.7, 149.7),
    # NVIDIA RTX A5000 data sheet (2021); GA102 as above
    ("rtx-a5000", 0.768, 0.434, 27.8, 55.6, 111.1, 111.1),
    # NVIDIA Ampere GA102 architecture paper (2020): RTX 3090, fp16 with fp32 accumulation
    ("rtx-3090", 0.936, 0.556, 35.6, 35.6, 71, 71),
    # NVIDIA L4 data sheet (2023); AD104 has 1/64 in fp64
    ("l4", 0.3, 0.473, 30.3, 60, 121, 121),
    # NVIDIA RTX Blackwell PRO architecture paper (2025): Workstation Edition, fp16 with fp32 accumulation
    ("rtx-pro-6000-blackwell", 1.792, 1.97, 126, 252, 503.8, 503.8),
    # NVIDIA Ada architecture paper (2022): RTX 4090, fp16 with fp32 accumulation
    ("rtx-4090", 1.008, 1.29, 82.6, 82.6, 165.2, 165.2),
    # NVIDIA Turing architecture paper (2018): RTX 2080 Ti, reference; fp16 with fp32 accumulation
    ("rtx-2080-ti", 0.616, 0.42, 13.4, None, 53.8, None),
    # NVIDIA T4 data sheet (2019); TU104 has 1/32 of its rate in fp64
    ("t4", 0.32, 0.253, 8.1, None, 65, None),
    # AMD Instinct data sheets: MI250X (2021; both dies of the package together), MI300X (2023)
    ("mi250x", 3.277, 95.7, 95.7, None, 383, 383),
    ("mi300x", 5.3, 163.4, 163.4, 653.7, 1307.4, 1307.4),
)
GPUS = {
    name: GpuSheet(
        name=name,
        flops={what: rate * 1e12 for what, rate in zip(PRECISIONS, rates, strict=True) if rate is not None},
        bytes_per_s=tb_per_s * 1e12,
    )
    for name, tb_per_s, *rates in _SHEETS
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
    bytes_per_s = _geometric_mean([gpu.bytes_per_s for gpu in GPUS.values()])
    flops = {}
    for precision in PRECISIONS:
        having = [gpu for gpu in GPUS.values() if precision in gpu.flops]
        ratio = _geometric_mean([gpu.flops[precision] / gpu.bytes_per_s for gpu in having])
        flops[precision] = ratio * bytes_per_s
    return GpuSheet(name="a typical GPU", flops=flops, bytes_per_s=bytes_per_s)


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
