"""What things are called on several pages, and sentences that several of them say."""

import re
from typing import Any

from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.textbook import STYLES
from sim.units import format_ms, format_number, format_percent

Pick = str  # one of PICKS
# Buckets of DistributedDataParallel, whose switches each of them takes.
DDP_PICKS = ("default", "cap", "cap-list", "recommended", "single", "per-parameter", "given", "as-run")
PICK_WORDS: dict[str, str] = {
    "default": "DDP's default",
    "cap": "bucket_cap_mb",
    "cap-list": "bucket_cap_mb_list",
    "recommended": "recommended buckets",
    "single": "single bucket",
    "per-parameter": "one per parameter",
    "given": "uploaded assignment",
    "as-run": "buckets of the job itself",
    **{policy: f"not DDP: {style.words}" for policy, style in STYLES.items()},
    "zero1": "DeepSpeed ZeRO-1",
    "zero2": "DeepSpeed ZeRO-2",
    "megatron": "Megatron-Core DDP",
    "fully_shard": "FSDP2 fully_shard",
}
PICKS: tuple[Pick, ...] = tuple(PICK_WORDS)
CARRIED = (
    "Workload and hardware are as this run was measured: carried from where the hardware was calibrated to "
    "the box of the run, backward as that of its slowest rank."
)
_WHAT_IFS = {"world_size": "ranks:", "precision": "gradients in"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-!|~$:&])")


def plain(text: str) -> str:
    """Text as it is, with nothing in it that markdown would read as markup."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def capital(text: str) -> str:
    """Text that begins as a sentence does."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """``plain`` text that begins as a sentence does."""
    return plain(capital(text))


def file_safe(text: str) -> str:
    """A name that is good for a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "bucketsim"


def counted(number: int, noun: str) -> str:
    """So many of a thing: ``1 record``, ``1,024 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return format_percent(part / whole) if whole else "0.0%"


def what_if_words(name: str, value: float | int | str) -> str:
    """A what-if in few words: a factor on what was measured, or a value in place of it."""
    told = f"× {format_number(value, 6)}" if isinstance(value, float) else value
    return f"{_WHAT_IFS.get(name, name)} {f'{told:,}' if isinstance(told, int) else told}"


def interval_words(low_ns: int, high_ns: int, *, told: bool) -> str:
    """From low to high in ms; a dash where too few iterations were measured to tell."""
    return f"{low_ns / 1e6:.2f} to {high_ns / 1e6:.2f}" if told else "-"


def option_words(option: tuple[str, Any]) -> str:
    """A switch in few words: its name where it is on, else its name and value."""
    name, value = option
    if value is True:
        return name
    return f"{name}={format_number(value, 6)}" if isinstance(value, float) else f"{name}={value}"


def is_computed(hardware: Hardware) -> bool:
    """Whether a machine was computed from published figures, so that nobody measured it."""
    return "methods" in hardware.provenance  # by which NCCL sends each size


def estimated_sentence(workload: Workload) -> str | None:
    """A warning where no profile stands behind the times."""
    if not workload.estimated:
        return None
    width, how = "", workload.provenance.get("band")
    if workload.band is not None:
        low, high = (format_number(end, 6) for end in workload.band)
        width = f"; a band of {low} to {high}{f': {how}' if isinstance(how, str) else ''}"
    return f"Estimated: no profile stands behind these times{width}."


def device_sentence(workload: Workload) -> str | None:
    """A warning where GPUs are asked for, and the workload was timed on a CPU; None where it was not."""
    if workload.provenance.get("device") != "cpu":
        return None
    step = workload.forward_ns + workload.loss_ns + workload.backward_ns + workload.optimizer_ns
    return (
        f"This workload was recorded on a CPU, where a step computes for {format_ms(step)}, and not on these "
        f"GPUs. GPUs compute faster, so that less communication hides. Record the workload on one of them."
    )
