"""The best size of other systems' buckets, for who asks for it: ZeRO's, Megatron's, and what FSDP2 wraps."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.costs.doubts import missing_curve
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import OTHERS, Assignment
from sim.nouns.checks import Legal
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.fsdp2 import blocks_of
from sim.systems.megatron import default_bucket_size, is_all_bf16
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.systems.zero import STAGES, ZeroSettings

_WORK = 20_000  # gradients simulated, in all that is tried of one system
_FEWEST, _MOST = 4, 60  # tries


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSize:
    """The best that was tried, and its step; ``how`` says what was tried, in words."""

    assignment: Assignment
    step_ns: int
    how: str


def best_of(workload: Workload, hardware: Hardware, policy: str) -> BestSize:
    """The setting of ``policy`` (one of ``OTHERS``) with the shortest step, of equal ones that of the fewest
    buckets; all else is the system's default.

    ``zero1`` and ``zero2``: ``reduce_bucket_size``. ``megatron``: ``bucket_size``, with overlap on, without
    which buckets are not cut. ``fully_shard``: ``units``, of ``unit_choices``. Of sizes the default is tried,
    and round ones (of two digits) on a logarithmic grid from the smallest gradient to all together; the fewer
    the more gradients there are.

    Raises:
        InputError, NotModelledError: the system does not train this workload as it is, or the hardware lacks
            the curve of a collective.
    """
    Legal(words=OTHERS).take("policy", policy)
    most = min(_MOST, max(_FEWEST, _WORK // len(workload.gradients)))
    if policy in STAGES and hardware.world_size > 1 and hardware.all_gather is None:
        raise NotModelledError(f"{policy}: {missing_curve(hardware, 'all_gather')}")
    fixed: dict[str, Any] = {}
    kind, values = "sizes on a logarithmic grid", list[Any]()
    if policy == "fully_shard":
        name, values = "units", unit_choices(workload)
        kind = f"of {len(values)} ways to wrap (the root alone, every layer, blocks in groups of one size)"
    elif policy == "megatron":
        name, fixed = "bucket_size", megatron_settings(workload)
        values = _sizes(workload, default_bucket_size(hardware.world_size), most)
    else:
        name, default = "reduce_bucket_size", ZeroSettings(stage=1, dtype="float32").reduce_bucket_size
        values = _sizes(workload, default, most)
    tried: list[tuple[int, int, Assignment]] = []
    for value in values[:most]:
        try:
            made = assign(workload, policy, **{name: value, **fixed})
        except (InputError, NotModelledError):
            if not tried:  # the first, which is plain, says what cannot be trained at all
                raise
            continue  # a module with parameters of its own holds other units, too
        tried.append((simulated_step_ns(workload, hardware, made), len(made.bucket_indices), made))
    step_ns, _, best = min(tried, key=lambda one: one[:2])
    return BestSize(assignment=best, step_ns=step_ns, how=f"{len(tried)} {kind}")


def _sizes(workload: Workload, default: int, most: int) -> list[int]:
    """Sizes in elements: the default, then from the largest down to the smallest."""
    elements = [gradient.elements for gradient in workload.gradients if gradient.elements]
    grid = np.geomspace(max(1, min(elements)), sum(elements) + 1, most - 1)
    return list(dict.fromkeys((default, *(int(float(f"{size:.1e}")) for size in grid[::-1].tolist()))))


def megatron_settings(workload: Workload) -> dict[str, Any]:
    """What is held fixed: bfloat16 parameters have fp32 gradients, as Megatron-LM trains them."""
    return {"overlap_grad_reduce": True} | ({"grad_reduce_in_fp32": True} if is_all_bf16(workload) else {})


def unit_choices(workload: Workload) -> list[str]:
    """Ways to wrap a model, as ``units`` takes them: the root alone, every layer, 1, 2, … blocks a unit."""
    blocks = blocks_of(workload)
    layers = dict.fromkeys(gradient.name.rpartition(".")[0] for gradient in workload.gradients)
    choices = ["", ",".join(filter(None, layers))]
    for size in range(1, len(blocks) + 1):
        groups = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        if size == 1 or len(groups) != -(-len(blocks) // (size - 1)):
            choices.append(",".join("+".join(group) for group in groups))
    return list(dict.fromkeys(choices))
