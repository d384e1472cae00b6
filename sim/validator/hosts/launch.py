"""Starts the worker on local ranks through torch.distributed's elastic launch."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sim.errors import InputError
from sim.units import format_number
from sim.validator.hosts.boxed_hosts import Host, box
from sim.validator.hosts.elastic_launch import started
from sim.validator.hosts.signals import exit_on_signals
from sim.validator.hosts.watch import watch

_BOX_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: over loopback, one rank a host in a box, or where another launcher put them.

    ``box`` is its number of hosts, ``rate_bits`` their links in bit/s (one for all, or one a host).
    ``spread`` says in words where another launcher put the ranks.
    """

    ranks: int = 2
    box: int | None = None
    rate_bits: int | tuple[int, ...] | None = None
    spread: str | None = None

    def __post_init__(self) -> None:
        if (self.box is None) != (self.rate_bits is None):
            raise InputError("box: --box and --rate go together; give both, such as --box 2 --rate 4gbit")
        if self.world_size < 1:
            raise InputError(f"ranks: {self.ranks} is not legal; give at least 1")
        if isinstance(self.rate_bits, tuple) and len(self.rate_bits) != self.box:
            raise InputError(
                f"rate: {len(self.rate_bits)} rates are not legal for {self.box} hosts; give one for all, or "
                f"one for each"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.box or self.ranks

    @property
    def rates_bits(self) -> tuple[int, ...]:
        """The rate of each host of the box, bit/s; empty over loopback."""
        if isinstance(self.rate_bits, tuple):
            return self.rate_bits
        return () if self.box is None or self.rate_bits is None else (self.rate_bits,) * self.box

    def describe(self) -> str:
        """The place in words, for names and provenance."""
        if not self.rates_bits:
            count = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
            return f"{count} {self.spread or 'over loopback'}"
        rates = self.rates_bits[:1] if len(set(self.rates_bits)) == 1 else self.rates_bits
        said = ", ".join(format_number(rate / 1e9, 6) for rate in rates)
        return f"{self.box} hosts in a box, {said} Gbit/s"

    def document(self) -> dict[str, Any]:
        """The ``box`` that the ranks are in, for later predictions; nothing over loopback."""
        if not self.rates_bits:
            return {}
        hosts = list(range(len(self.rates_bits)))
        return {"box": {"rates_bits": list(self.rates_bits), "uplink_bits": None, "hosts": hosts}}


@contextmanager
def _hosts(place: Place) -> Iterator[list[Host]]:
    if not place.rates_bits:
        yield [Host(address="127.0.0.1", interface="lo")]
        return
    with box(place.rates_bits) as hosts:
        yield hosts


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    place: Place,
    job: dict[str, Any],
    on_event: Callable[[dict[str, Any]], None],
    timeout_s: float,
) -> None:
    """Run a worker job on the ranks of ``place``; events that rank 0 writes are handed to ``on_event``.

    ``timeout_s`` is how long the ranks may be quiet before they make steps; steps then set the measure
    (``sim.validator.ranks.process.beats``).

    Raises:
        ReplayError: a rank failed, died, hung or disagreed; named, with its reason.
        MachineError: the box cannot be made here.
    """
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        hosts = stack.enter_context(_hosts(place))
        port = _free_port() if place.box is None else _BOX_PORT
        job = {**job, "world_size": place.world_size}
        launched, folder = stack.enter_context(started(hosts, place.world_size // len(hosts), port, job))
        watch(launched, folder, on_event, timeout_s)
