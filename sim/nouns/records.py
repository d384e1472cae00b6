"""A record: measurements with the workload and hardware they belong to, re-scorable by a later model."""

from dataclasses import dataclass

from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ``bucketsim validate`` leaves in a directory: candidates, plain and noop runs, inputs."""

    name: str
    workload: Workload
    hardware: Hardware
    measurements: tuple[Measurement, ...]

    @property
    def candidates(self) -> tuple[Measurement, ...]:
        """The measurements of assignments, without the plain and noop runs."""
        return tuple(m for m in self.measurements if m.role == "candidate")
