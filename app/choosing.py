"""What the knobs ask for: an assignment, and a machine that is not the measured one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sim
from app.words import labels
from app.words.labels import Pick
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which assignment is looked at; ``cap_mb`` and ``first_mb`` count for an explicit cap only.

    ``options`` are switches of the system, by its own names and sorted, as ``sim.assign`` takes them.
    """

    pick: Pick
    cap_mb: float | None = None
    first_mb: float | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def words(self) -> str:
        """The choice in a few words."""
        return labels.choice_words(self.pick, self.cap_mb, self.first_mb)

    @property
    def key(self) -> str:
        """What results are remembered by, beside their inputs."""
        return repr((self.pick, self.cap_mb, self.first_mb, self.options))

    def assignment(self, workload: Workload, recommended: Callable[[], Assignment]) -> Assignment:
        """The buckets that were chosen; ``recommended`` is called only where it is what was asked for."""
        if self.pick == "recommended":
            return recommended()
        if self.pick == "cap":
            return sim.assign(
                workload, bucket_cap_mb=self.cap_mb, first_bucket_mb=self.first_mb, **dict(self.options)
            )
        return sim.assign(workload, "ddp" if self.pick == "default" else self.pick, **dict(self.options))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Factors on what was measured; all 1 is what was measured. ``apply`` says what each changes."""

    bandwidth: float = 1.0
    latency: float = 1.0
    backward: float = 1.0

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed."""
        return self == WhatIf()

    @property
    def key(self) -> str:
        """What results are remembered by, beside their inputs."""
        return repr(self)

    def told(self) -> dict[str, Any]:
        """What is changed, for a provenance: names and values of what is not as measured."""
        factors = {"bandwidth": self.bandwidth, "latency": self.latency, "backward": self.backward}
        return {name: value for name, value in factors.items() if value != 1.0}

    def apply(self, workload: Workload, hardware: Hardware) -> tuple[Workload, Hardware]:
        """Workload and hardware as if the machine were another (``sim.scale``).

        Raises:
            InputError: a factor out of range.
        """
        return sim.scale(
            workload, hardware, bandwidth=self.bandwidth, latency=self.latency, backward=self.backward
        )
