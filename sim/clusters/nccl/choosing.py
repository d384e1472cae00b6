"""What NCCL would choose by its cost model, and how long that takes over links as they are."""

from collections.abc import Iterable
from dataclasses import dataclass

from sim.clusters.nccl.bandwidths import bytes_per_us, corrected, nvls_speed
from sim.clusters.nccl.constants import MOST_NVLS, PROTOCOLS, Algorithm
from sim.clusters.nccl.fabric import NVLINKS, Fabric, Protocol
from sim.clusters.nccl.filling import filling_bytes
from sim.clusters.nccl.latencies import latency_us
from sim.clusters.nccl.paths import as_reached, as_stepped
from sim.errors import InputError, NotModelledError
from sim.nouns.checks import at_least, one_of
from sim.nouns.hardware import CURVES, Curve, CurvePoint

_MOST_DIRECT = 8  # NCCL_MAX_DIRECT_ARITY + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An algorithm with a protocol; in words "ring Simple"."""

    algorithm: Algorithm
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.algorithm} {self.protocol}"


def methods(fabric: Fabric, collective: str) -> tuple[Method, ...]:
    """What NCCL may choose from for ``collective`` on this fabric; none with one rank.

    PAT, which it uses for reduce-scatter and all-gather with one GPU a host, is not modelled.

    Raises:
        InputError: a collective that fills no curve.
    """
    one_of("collective", collective, CURVES)
    if fabric.world_size == 1:
        return ()
    allowed = [protocol for protocol in PROTOCOLS if protocol in fabric.protocols]
    if "LL128" in allowed and fabric.ranks_per_host > 1 and fabric.intra.kind not in NVLINKS:
        allowed.remove("LL128")
    found = [Method(algorithm="ring", protocol=protocol) for protocol in allowed]
    if collective == "all_reduce":
        found += [Method(algorithm="tree", protocol=protocol) for protocol in allowed]
    found += [Method(algorithm=algorithm, protocol="Simple") for algorithm in _in_network(fabric, collective)]
    return tuple(found)


def _in_network(fabric: Fabric, collective: str) -> list[Algorithm]:
    found: list[Algorithm] = []
    nvls = fabric.nvls and fabric.ranks_per_host > 1 and nvls_speed(fabric) > 0
    scattered = collective in ("reduce_scatter", "all_gather") and fabric.ranks_per_host <= MOST_NVLS
    if nvls and fabric.hosts == 1 and (collective == "all_reduce" or scattered):
        found.append("nvls")
    if collective != "all_reduce" or fabric.hosts == 1:
        return found
    if nvls:
        found.append("nvls_tree")
    if fabric.sharp:
        if nvls:
            found.append("nvls")
        if fabric.ranks_per_host <= _MOST_DIRECT:
            found.append("collnet_chain")
            if fabric.intra.kind == "nvswitch":
                found.append("collnet_direct")
    return found


def time_ns(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> int:
    """Time of one collective of ``num_bytes`` (the whole tensor) by ``method``, in ns, half to even.

    NCCL's own time at the bandwidth that links reach (``paths``), and what its pipeline takes to fill
    (``filling``).

    Raises:
        NotModelledError: a method that NCCL would not use there.
    """
    at_least("num_bytes", num_bytes, 0)
    if method not in methods(fabric, collective):
        raise NotModelledError(
            f"{method.algorithm} with {method.protocol}: not for {collective} on {fabric.world_size} ranks "
            f"of {fabric.hosts} hosts; choose from methods()"
        )
    reached = as_reached(fabric, method.algorithm, method.protocol, num_bytes)
    return round(_filled_us(reached, collective, num_bytes, method) * 1000)


def nccl_time_ns(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> int:
    """The time that NCCL itself counts, by which it chooses."""
    return round(_time_us(fabric, collective, num_bytes, method) * 1000)


def nccl_ns(fabric: Fabric, collective: str, num_bytes: int) -> int:
    """The time that NCCL itself counts for what it chooses, and what its pipeline takes to fill; 0 with one
    rank.

    A step takes what it takes, and not what a plugin reports of it (``paths``).
    """
    method = choose(fabric, collective, num_bytes)
    if method is None:
        return 0
    return round(_filled_us(as_stepped(fabric), collective, num_bytes, method) * 1000)


def filling_ns(fabric: Fabric, collective: str, num_bytes: int) -> int:
    """How much of ``collective_ns`` the pipeline takes to fill, in ns."""
    method = choose(fabric, collective, num_bytes)
    if method is None:
        return 0
    reached = as_reached(fabric, method.algorithm, method.protocol, num_bytes)
    return round(_filling_us(reached, collective, num_bytes, method) * 1000)


def _filled_us(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> float:
    return _time_us(fabric, collective, num_bytes, method) + _filling_us(
        fabric, collective, num_bytes, method
    )


def _filling_us(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> float:
    ahead = filling_bytes(fabric, collective, num_bytes, method.algorithm)
    return ahead / bytes_per_us(fabric, collective, method.algorithm, method.protocol) if ahead else 0.0


def _time_us(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> float:
    algorithm, protocol = method.algorithm, method.protocol
    loaded = corrected(num_bytes, protocol) if algorithm == "tree" else float(num_bytes)
    bandwidth = bytes_per_us(fabric, collective, algorithm, protocol)
    return latency_us(fabric, collective, num_bytes, algorithm, protocol) + loaded / bandwidth


def choose(fabric: Fabric, collective: str, num_bytes: int) -> Method | None:
    """What takes least by NCCL's own model; None with one rank, where there is nothing to do."""
    at_least("num_bytes", num_bytes, 0)
    return min(
        methods(fabric, collective),
        key=lambda method: _time_us(fabric, collective, num_bytes, method),
        default=None,
    )


def collective_ns(fabric: Fabric, collective: str, num_bytes: int) -> int:
    """Time of one collective by the method that NCCL chooses; 0 with one rank."""
    method = choose(fabric, collective, num_bytes)
    return 0 if method is None else time_ns(fabric, collective, num_bytes, method)


def curve(fabric: Fabric, collective: str, sizes: Iterable[int]) -> Curve:
    """The curve of ``collective`` at ``sizes`` in bytes, in ascending order, each once."""
    wanted = sorted(set(sizes))
    if not wanted:
        raise InputError("sizes: none; give at least one size in bytes")
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=collective_ns(fabric, collective, size)) for size in wanted
    )
