"""What the knobs ask for: an assignment, and a machine that is not the measured one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import sim
from app.memo import digest
from app.words import DDP_PICKS, PICK_WORDS, Pick, option_words
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import as_the_job
from sim.units import format_number

# How compute, copies and collectives disturb each other; two collectives beside one another are no such pair.
INTERFERING = tuple(name for name in SLOWDOWNS if name != "channel_slowdown")
_MICRO_BATCHES = ("accumulation_steps", "gradient_accumulation_steps", "num_microbatches")
_FOR_UNUSED = ("find_unused_parameters", "static_graph")
Options = tuple[tuple[str, Any], ...]
# By field of WhatIf, the key of its knob in the session and in the address.
KEYS = {
    "bandwidth": "bw",
    "latency": "lat",
    "backward": "bwd",
    "world_size": "ranks",
    "precision": "precision",
    "interference": "interference",
}


def micro_batches(settings: Mapping[str, Any]) -> int:
    """How many micro-batches a step has, by whichever name a system has for them."""
    return next((settings[name] for name in _MICRO_BATCHES if name in settings), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which assignment is looked at.

    ``cap_mb`` and ``first_mb`` count for an explicit cap only, ``caps_mb`` for a list of caps. ``options``
    are switches of the system, by its own names, as ``sim.assign`` takes them; only those that differ from
    their defaults. ``given`` is an uploaded assignment (pick ``given``). ``unreadable`` is why a field that
    was typed in cannot be read; such a choice has no assignment.
    """

    pick: Pick
    cap_mb: float | None = None
    first_mb: float | None = None
    caps_mb: tuple[float, ...] | None = None
    options: Options = ()
    given: Assignment | None = None
    unreadable: str = ""

    @property
    def words(self) -> str:
        """The choice in a few words."""
        named = PICK_WORDS[self.pick]
        if self.pick == "cap" and self.cap_mb is not None:
            first = "" if self.first_mb is None else f", first {format_number(self.first_mb, 6)} MiB"
            named = f"cap {format_number(self.cap_mb, 6)} MiB{first}"
        if self.pick == "cap-list" and self.caps_mb:
            more = f" … {len(self.caps_mb)} in all" if len(self.caps_mb) > 4 else ""
            named = f"caps {', '.join(format_number(cap, 6) for cap in self.caps_mb[:4])} MiB{more}"
        return ", ".join([named, *map(option_words, self.options)])

    def switches(self, workload: Workload) -> Options:
        """DDP's switches under which its buckets do the job of this choice, and are searched for.

        Of a system of its own: as many micro-batches a step, compiled or not, and, where a gradient is never
        ready, the switch without which DDP does not train it.
        """
        if self.pick in DDP_PICKS:
            return self.options
        steps = micro_batches(dict(self.options))
        same: dict[str, Any] = {"accumulation_steps": steps} if steps != 1 else {}
        same |= {name: value for name, value in self.options if name == "optimize_ddp"}
        knows = any(workload.switches.get(name) for name in _FOR_UNUSED)
        if not knows and any(gradient.ready_ns is None for gradient in workload.gradients):
            same["find_unused_parameters"] = True
        return tuple(sorted(same.items()))

    def told(self) -> dict[str, Any]:
        """The choice, for a provenance: the pick, its caps and every switch that is not at its default."""
        told = {
            "pick": self.pick,
            "bucket_cap_mb": self.cap_mb,
            "first_bucket_mb": self.first_mb,
            "bucket_cap_mb_list": None if self.caps_mb is None else list(self.caps_mb),
            "assignment_sha256": None if self.given is None else digest(self.given),
        }
        return {name: value for name, value in told.items() if value is not None} | dict(self.options)

    def with_given(self, given: Assignment | None) -> "Choice":
        """The choice with what was uploaded, where that is what is looked at; else the choice itself."""
        return replace(self, given=given) if self.pick == "given" else self

    def assignment(self, workload: Workload, recommended: Callable[[], Assignment]) -> Assignment:
        """The buckets that were chosen; ``recommended`` is called only where it is what was asked for.

        Raises:
            InputError: a field that cannot be read, or no upload where one is looked at.
            NotModelledError: switches that are not modelled, or not with one another.
        """
        if self.unreadable:
            raise InputError(self.unreadable)
        options = dict(self.options)
        if self.pick == "recommended":
            return as_the_job(workload, recommended(), **options)
        if self.pick == "given":
            if self.given is None:
                raise InputError("uploaded assignment: there is none; upload one, or choose another")
            return as_the_job(workload, self.given, **options)
        if self.pick == "cap":
            return sim.assign(workload, bucket_cap_mb=self.cap_mb, first_bucket_mb=self.first_mb, **options)
        if self.pick == "cap-list":
            return sim.assign(workload, bucket_cap_mb_list=list(self.caps_mb or ()), **options)
        return sim.assign(workload, "ddp" if self.pick == "default" else self.pick, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is not as it was measured; factors of 1 and None are as measured.

    ``interference`` k makes every slow-down s of ``INTERFERING`` 1 + (s - 1) k. ``world_size`` is the number
    of ranks, ``precision`` a torch dtype of all gradients. Provenances have the same names; ``KEYS`` has
    those of the address.
    """

    bandwidth: float = 1.0
    latency: float = 1.0
    backward: float = 1.0
    interference: float = 1.0
    world_size: int | None = None
    precision: str | None = None

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed."""
        return self == WhatIf()

    def beside(self, workload: Workload, hardware: Hardware) -> "WhatIf":
        """The same without what is so already: as many ranks, gradients that are all of this dtype."""
        is_of_it = all(gradient.dtype == self.precision for gradient in workload.gradients)
        ranks = None if self.world_size == hardware.world_size else self.world_size
        return replace(self, world_size=ranks, precision=None if is_of_it else self.precision)

    def told(self) -> dict[str, Any]:
        """What is changed, for a provenance: names and values of what is not as measured."""
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {
            name: float(value) if isinstance(default, float) else value
            for name, (value, default) in given.items()
            if value != default
        }

    def apply(self, workload: Workload, hardware: Hardware) -> tuple[Workload, Hardware]:
        """Workload and hardware as if the machine were another (``sim.scale``).

        Raises:
            InputError: a value out of range.
        """
        names = ("bandwidth", "latency", "backward", "world_size", "precision")
        what_ifs: dict[str, Any] = {name: getattr(self, name) for name in names}
        workload, hardware = sim.scale(workload, hardware, **what_ifs)
        factor = self.interference
        if factor == 1.0:
            return workload, hardware
        if not 0 <= factor <= 1e6:
            raise InputError(f"interference: a factor of {factor!r} is not legal; give a number 0 to 1e6")
        slowdowns = {name: 1.0 + (getattr(hardware, name) - 1.0) * factor for name in INTERFERING}
        return workload, replace(hardware, **slowdowns)

    def on(self, workload: Workload) -> Workload:
        """``workload`` alone, by the what-ifs that change one."""
        nowhere = Hardware(name="none", world_size=1, all_reduce=(CurvePoint(num_bytes=0, duration_ns=0),))
        return self.apply(workload, nowhere)[0]
