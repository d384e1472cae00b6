"""The box that a job was measured in, and the job that ran beside it there."""

from dataclasses import dataclass, field
from typing import Any

from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import at_least
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A cluster in a box, and the ``hosts`` of it that a job's ranks are on, in rank order.

    ``rates_bits`` are the links of its hosts in bit/s, ``uplink_bits`` the link that the two halves share.
    """

    rates_bits: tuple[int, ...]
    uplink_bits: int | None
    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InputError("hosts: an empty list is not legal; give those that the ranks are on")
        for host in self.hosts:
            if not 0 <= host < len(self.rates_bits):
                raise InputError(
                    f"hosts: {host} is not legal; the box has hosts 0 to {len(self.rates_bits) - 1}"
                )

    @property
    def ranks(self) -> tuple[str, ...]:
        """Where the ranks are in the box's Cluster."""
        return gpus_of(self.hosts)


def gpus_of(hosts: tuple[int, ...]) -> tuple[str, ...]:
    """The one GPU of each host of a boxed Cluster."""
    return tuple(f"host{host}.gpu0" for host in hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A second job, on other ``hosts`` of the same box, that made step after step beside the one measured.

    ``alone_ns`` are its steps before the other job began, ``beside_ns`` those beside it, from the first
    that was measured there on; ns, on its rank 0, in order.
    """

    workload: Workload
    assignment: Assignment
    hosts: tuple[int, ...]
    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.hosts) < 2:
            raise InputError(f"hosts: {list(self.hosts)} is not legal; a neighbour has two hosts at least")
        for name in ("alone_ns", "beside_ns"):
            for number, step_ns in enumerate(getattr(self, name)):
                at_least(f"{name}.{number}", step_ns, 0)

    @property
    def ranks(self) -> tuple[str, ...]:
        """Where its ranks are in the box's Cluster."""
        return gpus_of(self.hosts)
