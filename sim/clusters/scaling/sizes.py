"""A preset or a cluster in another size: so many hosts, or so many ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from itertools import islice
from typing import Any

from sim.clusters.machines import PRESETS, preset
from sim.errors import InputError
from sim.nouns.checks import Checked, Positive
from sim.nouns.cluster import MAX_HOSTS, Cluster, HostCount, split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Checked):
    """How many hosts with all their GPUs, or how many ranks; neither: as many as there are."""

    hosts: HostCount | None = None
    world_size: Positive | None = None

    def hosts_of(self, gpus: int) -> int | None:
        """How many hosts of so many GPUs it takes. Raises ``InputError`` where there cannot be as many."""
        if self.world_size is None:
            return self.hosts
        count = -(-self.world_size // gpus)
        if count > MAX_HOSTS:
            raise InputError(
                f"world_size: {self.world_size} is not legal; give at most {MAX_HOSTS * gpus}, "
                f"{gpus} on each of {MAX_HOSTS} hosts"
            )
        return count


def sized(
    machine: str | Cluster, settings: Mapping[str, Any], size: Size, *, is_fixed: bool = False
) -> Cluster:
    """The preset with these settings, or the cluster, in this size.

    Ranks fill host after host. One group of hosts on a regular network, without a placement, gets as many
    hosts as it needs; otherwise, and where it ``is_fixed``, ranks are on the first of those that it has.

    Raises:
        InputError: a name or a setting that is not known, or a size that cannot be had.
    """
    if isinstance(machine, Cluster):
        if settings:
            raise InputError(
                f"{next(iter(settings))}: is not legal with a cluster; change the cluster itself"
            )
        return _cluster(machine, size, is_fixed)
    if "hosts" in settings:
        raise InputError("hosts: is no setting here; give numbers of hosts as hosts")
    make: Any = PRESETS.get(machine)
    if size == Size() or make is None:
        return preset(machine, **settings)
    if "hosts" not in signature(make).parameters:
        if size.hosts is not None:
            raise InputError(f"hosts: preset {machine!r} is one host; leave them out")
        return _first_ranks(preset(machine, **settings), size)
    hosts = size.hosts_of(preset(machine, **{**settings, "hosts": 1}).gpu_count)
    return _first_ranks(preset(machine, hosts=hosts, **settings), size)


def _cluster(cluster: Cluster, size: Size, is_fixed: bool) -> Cluster:
    if is_fixed or len(cluster.hosts) > 1 or cluster.placement is not None or cluster.network is None:
        return _first_hosts(cluster, size.hosts) if size.hosts is not None else _first_ranks(cluster, size)
    count = size.hosts_of(cluster.kinds[0].gpus)
    if count is None:
        return cluster
    grown = replace(cluster, hosts=(replace(cluster.hosts[0], count=count),))
    return _first_ranks(grown, size)


def _first_hosts(cluster: Cluster, count: int) -> Cluster:
    """``cluster`` with only the ranks on its first ``count`` hosts that have ranks."""
    placed = cluster.placement if cluster.placement is not None else tuple(cluster.all_gpus())
    owners = list(dict.fromkeys(split_name(rank)[0] for rank in placed))
    if count > len(owners):
        raise InputError(
            f"hosts: {count} is not legal; {cluster.name!r} has ranks on {len(owners)}, and only one group "
            "of hosts on a regular network, without a placement, can be had in other numbers"
        )
    kept = set(owners[:count])
    return replace(cluster, placement=tuple(rank for rank in placed if split_name(rank)[0] in kept))


def _first_ranks(cluster: Cluster, size: Size) -> Cluster:
    """``cluster`` with only its first ``size.world_size`` ranks; with all of them if that is None."""
    count = size.world_size
    if count is None or (cluster.placement is None and count == cluster.gpu_count):
        return cluster
    placed = cluster.placement if cluster.placement is not None else tuple(islice(cluster.all_gpus(), count))
    if count > len(placed):
        raise InputError(f"world_size: {count} is not legal; {cluster.name!r} has {len(placed)} GPUs for it")
    return replace(cluster, placement=placed[:count])
