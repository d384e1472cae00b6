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


def _gpu(
    name: str,
    *,
    tb_per_s: float,
    fp64: float,
    fp32: float,
    fp16: float,
    tf32: float | None,
    bf16: float | None,
) -> GpuSheet:
    """A device from its data sheet: TFLOP/s without sparsity, TB/s."""
    rates = {"float64": fp64, "float32": fp32, "tf32": tf32, "float16": fp16, "bfloat16": bf16}
    return GpuSheet(
        name=name,
        flops={precision: rate * 1e12 for precision, rate in rates.items() if rate is not None},
        bytes_per_s=tb_per_s * 1e12,
    )


# Dense rates: data sheets that state tensor rates "with sparsity" state twice these.
GPUS = {
    device.name: device
    for device in (
        # NVIDIA V100 data sheet (2020): SXM2; no TF32, no bfloat16
        _gpu("v100-sxm2", tb_per_s=0.9, fp64=7.8, fp32=15.7, tf32=None, fp16=125, bf16=None),
        # NVIDIA A100 data sheet (2022); PCIe and SXM differ in memory alone
        _gpu("a100-40gb-pcie", tb_per_s=1.555, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        _gpu("a100-40gb-sxm", tb_per_s=1.555, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        _gpu("a100-80gb-pcie", tb_per_s=1.935, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        _gpu("a100-80gb-sxm", tb_per_s=2.039, fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312),
        # NVIDIA H100 data sheet (2023)
        _gpu("h100-sxm", tb_per_s=3.35, fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5),
        _gpu("h100-pcie", tb_per_s=2.0, fp64=51, fp32=51, tf32=378, fp16=756.5, bf16=756.5),
        # NVIDIA H100 NVL data sheet (2024): one card of 94 GB
        _gpu("h100-nvl", tb_per_s=3.9, fp64=60, fp32=60, tf32=417.5, fp16=835.5, bf16=835.5),
        # NVIDIA H200 and GH200 data sheets (2024)
        _gpu("h200-sxm", tb_per_s=4.8, fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5),
        _gpu("gh200-96gb", tb_per_s=4.0, fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5),
        # NVIDIA HGX B200 specification (2025)
        _gpu("b200-sxm", tb_per_s=8.0, fp64=37, fp32=75, tf32=1125, fp16=2250, bf16=2250),
        # NVIDIA A40 data sheet (2021); GA102 has 1/64 of its rate in fp64
        _gpu("a40", tb_per_s=0.696, fp64=0.585, fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7),
        # NVIDIA RTX A5000 data sheet (2021); GA102 as above
        _gpu("rtx-a5000", tb_per_s=0.768, fp64=0.434, fp32=27.8, tf32=55.6, fp16=111.1, bf16=111.1),
        # NVIDIA Ampere GA102 architecture paper (2020): RTX 3090, fp16 with fp32 accumulation
        _gpu("rtx-3090", tb_per_s=0.936, fp64=0.556, fp32=35.6, tf32=35.6, fp16=71, bf16=71),
        # NVIDIA L4 data sheet (2023); AD104 has 1/64 in fp64
        _gpu("l4", tb_per_s=0.3, fp64=0.473, fp32=30.3, tf32=60, fp16=121, bf16=121),
        # NVIDIA RTX Blackwell PRO architecture paper (2025): Workstation Edition, fp16 with fp32 accumulation
        _gpu("rtx-pro-6000-blackwell", tb_per_s=1.792, fp64=1.97, fp32=126, tf32=252, fp16=503.8, bf16=503.8),
        # NVIDIA Ada architecture paper (2022): RTX 4090, fp16 with fp32 accumulation
        _gpu("rtx-4090", tb_per_s=1.008, fp64=1.29, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2),
        # NVIDIA Turing architecture paper (2018): RTX 2080 Ti, reference; fp16 with fp32 accumulation
        _gpu("rtx-2080-ti", tb_per_s=0.616, fp64=0.42, fp32=13.4, tf32=None, fp16=53.8, bf16=None),
        # NVIDIA T4 data sheet (2019); TU104 has 1/32 of its rate in fp64
        _gpu("t4", tb_per_s=0.32, fp64=0.253, fp32=8.1, tf32=None, fp16=65, bf16=None),
        # AMD Instinct data sheets: MI250X (2021; both dies of the package together), MI300X (2023)
        _gpu("mi250x", tb_per_s=3.277, fp64=95.7, fp32=95.7, tf32=None, fp16=383, bf16=383),
        _gpu("mi300x", tb_per_s=5.3, fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4),
    )
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
