"""A record: measurements with the workload and hardware they belong to, re-scorable by a later model."""

from dataclasses import dataclass

from sim.nouns.box import Box
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ``bucketsim validate`` leaves in a directory: candidates, plain and noop runs, inputs.

    ``box`` is where it was measured and ``calibrated_in`` where the hardware was, as far as they are boxes
    and say so; ``slow`` are the ranks whose backward was so many times as long as the workload says.
    ``own_step`` is what the job itself did when it was recorded, in another run than those measured here:
    predictions are held to it first (``sim.own_step``).
    """

    name: str
    workload: Workload
    hardware: Hardware
    measurements: tuple[Measurement, ...]
    box: Box | None = None
    calibrated_in: Box | None = None
    slow: tuple[tuple[int, float], ...] = ()
    own_step: Measurement | None = None

    @property
    def candidates(self) -> tuple[Measurement, ...]:
        """The measurements of assignments, without the plain and noop runs."""
        return tuple(m for m in self.measurements if m.role == "candidate")
