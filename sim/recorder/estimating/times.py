"""The parts of a step in ns, from what is known of them and from the work that each of them is."""

from dataclasses import dataclass

from sim.errors import InputError
from sim.nouns.gpus import GpuSheet, custom_device, find_gpu, typical_device

PARTS = ("forward_ns", "loss_ns", "backward_ns", "optimizer_ns")
PS_PER_NS = 1e3

# Share of a roofline's speed that steps reach: what is assumed, and from where to where. Seen: VGG-13 on H100
# 0.34, nanoGPT on RTX PRO 6000 0.41, ResNet-50 on H100 0.48 and V100 0.75, GPT on A40 0.69; 0.9 where float32
# runs without tensor cores.
EFFICIENCY, EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.5, 0.3, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a step beforehand: some of its times, and the device or None."""

    device: GpuSheet | None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    step_ns: int | None = None

    def __post_init__(self) -> None:
        for what in ("forward_ns", "backward_ns", "optimizer_ns", "step_ns"):
            value = getattr(self, what)
            least = 0 if what == "optimizer_ns" else 1
            if value is not None and value < least:
                raise InputError(f"{what}: {value} is not legal; give {least} or more")
        if (self.backward_ns, self.step_ns, self.forward_ns, self.device) == (None, None, None, None):
            raise InputError(
                "backward_ns: nothing tells how long backward takes; give it, or step_ns, or a gpu (or "
                "device_flops and device_bytes_per_s) to estimate it from"
            )

    @property
    def roofline(self) -> GpuSheet:
        """The device whose rates weigh operators: the one named, else a typical one."""
        return typical_device() if self.device is None else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The parts of a step in ns, by ``PARTS``, how they were found, and factors on their scale."""

    parts: dict[str, int]
    how: dict[str, str]
    scale: tuple[float, float] = (1.0, 1.0)


def find_device(gpu: str | None, flops: float | None, bytes_per_s: float | None) -> GpuSheet | None:
    """The device that was named, by its GPU or by its rates; None: none was.

    Raises:
        InputError: an unknown GPU, one rate without the other, or both ways at once.
    """
    if (flops is None) != (bytes_per_s is None):
        raise InputError("device_flops, device_bytes_per_s: give both or neither")
    if flops is None or bytes_per_s is None:
        return None if gpu is None else find_gpu(gpu)
    if gpu is not None:
        raise InputError(f"gpu: {gpu!r} and device_flops are both given; give one of them")
    return custom_device(flops=flops, bytes_per_s=bytes_per_s)


def split_step(known: Known, work_ps: dict[str, int]) -> Times:
    """Times of all parts: what is known as it is, the rest in proportion to its work.

    The proportion is what is left of the step where that is known, else backward's, else forward's,
    else half the device's roofline.

    Args:
        known: the times known beforehand.
        work_ps: picoseconds of the roofline, by part.

    Raises:
        InputError: the known parts leave nothing of the step.
    """
    parts: dict[str, int | None] = {part: getattr(known, part, None) for part in PARTS}
    unknown = [part for part, value in parts.items() if value is None]
    scale = (1.0, 1.0)
    if known.step_ns is not None:
        left = known.step_ns - sum(value for value in parts.values() if value is not None)
        whole = sum(work_ps[part] for part in unknown)
        if left <= 0 or not whole:
            raise InputError(
                f"step_ns: {known.step_ns} is not legal; the parts given leave {left} ns of it for the others"
            )
        ns_per_ps, how = left / whole, "its share of the work in what is left of the step"
    elif known.backward_ns is not None or known.forward_ns is not None:
        base = "backward_ns" if known.backward_ns is not None else "forward_ns"
        given = parts[base]
        if given is None or not work_ps[base]:
            raise InputError(f"{base}: it holds no operator that works; the model must compute something")
        ns_per_ps, how = given / work_ps[base], f"its work, in proportion to {base}"
    else:
        ns_per_ps = 1 / (PS_PER_NS * EFFICIENCY)
        how = f"the roofline of {known.roofline.name} at {EFFICIENCY:.0%} of its speed"
        scale = (EFFICIENCY / EFFICIENCY_HIGH, EFFICIENCY / EFFICIENCY_LOW)
    return Times(
        parts={
            part: round(ns_per_ps * work_ps[part]) if value is None else value
            for part, value in parts.items()
        },
        how={part: how if value is None else "as given" for part, value in parts.items()},
        scale=scale,
    )
