"""Starts the worker on local ranks through torch.distributed's elastic launch."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sim.errors import InputError
from sim.units import format_number
from sim.validator.hosts.boxed_hosts import Host, box
from sim.validator.hosts.elastic_launch import started
from sim.validator.hosts.second_job import SecondJob, check_lasts, running_beside
from sim.validator.hosts.signals import exit_on_signals
from sim.validator.hosts.watch import watch

_BOX_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: over loopback, one rank a host in a box, or where another launcher put them.

    ``box`` is its number of hosts, ``rate_bits`` their links in bit/s (one for all, or one a host), and
    ``uplink_bits`` the link that the two halves of the hosts share, where there is one. ``on`` are the hosts
    that have a rank, in rank order; None: all. ``spread`` says in words where another launcher put the ranks.
    """

    ranks: int = 2
    box: int | None = None
    rate_bits: int | tuple[int, ...] | None = None
    uplink_bits: int | None = None
    spread: str | None = None
    on: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (self.box is None) != (self.rate_bits is None):
            raise InputError("box: --box and --rate go together; give both, such as --box 2 --rate 4gbit")
        if self.uplink_bits is not None and self.box is None:
            raise InputError("uplink: --uplink is a box's; give --box and --rate too")
        if self.world_size < 1:
            raise InputError(f"ranks: {self.ranks} is not legal; give at least 1")
        if isinstance(self.rate_bits, tuple) and len(self.rate_bits) != self.box:
            raise InputError(
                f"rate: {len(self.rate_bits)} rates are not legal for {self.box} hosts; give one for all, or "
                f"one for each"
            )
        if self.on is not None:
            self._check_on(self.on)

    def _check_on(self, on: tuple[int, ...]) -> None:
        if self.box is None:
            raise InputError("on: --on is a box's; give --box and --rate too")
        if len(on) < 2 or len(set(on)) < len(on) or not all(0 <= host < self.box for host in on):
            raise InputError(
                f"on: {','.join(map(str, on))} is not legal; give two different hosts or more of 0 to "
                f"{self.box - 1}, such as 0,{self.box // 2}"
            )

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts of the box that have a rank, in rank order; empty over loopback."""
        return tuple(range(self.box or 0)) if self.on is None else self.on

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts) or self.ranks

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
        count = "" if self.on is None else f"hosts {' and '.join(map(str, self.on))} of "
        said = (
            f"{count}{self.box} hosts in a box, "
            f"{', '.join(format_number(rate / 1e9, 6) for rate in rates)} Gbit/s"
        )
        return (
            said
            if self.uplink_bits is None
            else f"{said}, uplink {format_number(self.uplink_bits / 1e9, 6)} Gbit/s"
        )

    def document(self) -> dict[str, Any]:
        """The ``box`` that the ranks are in, for later predictions; nothing over loopback."""
        if not self.rates_bits:
            return {}
        hosts = list(self.hosts)
        return {"box": {"rates_bits": list(self.rates_bits), "uplink_bits": self.uplink_bits, "hosts": hosts}}


@contextmanager
def _hosts(place: Place) -> Iterator[list[Host]]:
    if not place.rates_bits:
        yield [Host(address="127.0.0.1", interface="lo")]
        return
    with box(place.rates_bits, place.uplink_bits) as hosts:
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
    beside: SecondJob | None = None,
) -> None:
    """Run a worker job on the ranks of ``place``; events that rank 0 writes are handed to ``on_event``.

    ``timeout_s`` is how long the ranks may be quiet before they make steps; steps then set the measure
    (``sim.validator.ranks.process.beats``). The job ``beside`` is started first, on other hosts of the same
    box, runs until this one is done, and is then ended.

    Raises:
        ReplayError: a rank failed, died, hung or disagreed; named, with its reason. Or the job beside did.
        MachineError: the box cannot be made here.
    """
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
        hosts = stack.enter_context(_hosts(place))
        meanwhile = None
        if beside is not None:
            meanwhile = partial(check_lasts, beside, stack.enter_context(running_beside(beside, hosts)))

        def heard(event: dict[str, Any]) -> None:
            on_event(event)
            if beside is not None:
                beside.see(event)

        ours = [hosts[k] for k in place.hosts] if place.rates_bits else hosts
        port = _free_port() if place.box is None else _BOX_PORT
        job = {**job, "world_size": place.world_size}
        launched, folder = stack.enter_context(started(ours, place.world_size // len(ours), port, job))
        watch(launched, folder, heard, timeout_s, meanwhile)
        if meanwhile is not None:
            meanwhile()  # the job beside must have lasted to the end
