"""The box that a job was measured in."""

from dataclasses import dataclass

from sim.errors import InputError


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
