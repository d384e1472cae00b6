"""The cluster of a box: network namespaces as hosts, shaped ports, and an uplink between two switches.

``sim.validator.hosts.boxed_hosts`` builds such boxes of the kernel's parts; this is the same box as a graph.
"""

from collections.abc import Sequence

from sim.clusters.topology.link_figures import HOST_MEMORY
from sim.errors import InputError
from sim.nouns.cluster import Cluster, Device, Hosts, HostTemplate, Link

MOST_HOSTS = 64
_MTU = 1500  # of a veth interface, unless it is set

_HOST = HostTemplate(
    name="namespace",
    generation="ampere",  # no GPU is in it: gloo's collectives are measured, never computed from this
    devices=(Device(name="gpu0", kind="gpu"), Device(name="nic0", kind="nic")),
    links=(Link(a="gpu0", b="nic0", kind="memory", bytes_per_s=HOST_MEMORY),),
)


def shaped_bytes_per_s(rate_bits: int) -> float:
    """Bytes/s of data that TCP gets through a port shaped by tbf to ``rate_bits``.

    tbf counts frames as the kernel hands them over, with their Ethernet header of 14 bytes and without what
    only a wire adds (qdisc_pkt_len_init, Linux net/core/dev.c). Of the 1500 bytes within, 52 are headers
    (IPv4 20, TCP 20 and 12 of time stamps: RFC 791, 9293, 7323).
    """
    return rate_bits / 8 * (_MTU - 52) / (_MTU + 14)


def boxed_cluster(rates_bits: Sequence[int], uplink_bits: int | None = None) -> Cluster:
    """The box of these rates as a cluster: ``host0``, ``host1``, …, each with one rank on its ``gpu0``.

    Each host's ``nic0`` is plugged into ``switch0`` with its rate, in both directions. With ``uplink_bits``
    the first half of the hosts (the smaller, where they are odd) is on ``switch0`` and the rest on
    ``switch1``, with an uplink of that rate between the two, each way.

    Args:
        rates_bits: bit/s of each host's port, as tc is told.
        uplink_bits: bit/s between the two switches; None: one switch for all.

    Raises:
        InputError: a number of hosts other than 2 to 64, or a rate below 1 kbit/s.
    """
    if not 2 <= len(rates_bits) <= MOST_HOSTS:
        raise InputError(f"box: {len(rates_bits)} hosts are not legal; give 2 to {MOST_HOSTS}")
    for rate in (*rates_bits, *(() if uplink_bits is None else (uplink_bits,))):
        if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1000:
            raise InputError(f"box: a rate of {rate!r} is not legal; give an integer of bit/s, 1000 at least")
    half = len(rates_bits) if uplink_bits is None else len(rates_bits) // 2
    links = [
        _port(f"host{host}.nic0", "switch0" if host < half else "switch1", rate)
        for host, rate in enumerate(rates_bits)
    ]
    if uplink_bits is not None:
        links.append(_port("switch0", "switch1", uplink_bits))
    return Cluster(
        name=f"box of {len(rates_bits)} hosts",
        templates=(_HOST,),
        hosts=(Hosts(template=_HOST.name, count=len(rates_bits)),),
        switches=("switch0",) if uplink_bits is None else ("switch0", "switch1"),
        links=tuple(links),
        provenance={"source": "tc-tbf; RFC 791, 9293, 7323; IEEE 802.3"},
    )


def _port(a: str, b: str, rate_bits: int) -> Link:
    return Link(a=a, b=b, kind="net", bytes_per_s=shaped_bytes_per_s(rate_bits))
