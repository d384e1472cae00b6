"""The double binary tree of NCCL: who sends to whom.

After ncclGetBtree, ncclGetDtree (src/graph/trees.cc), ncclTopoPreset and connectTrees (src/graph/connect.cc)
of NVIDIA/nccl, commits 18a07eee and 0f900e1b. Hosts are the nodes of two binary trees; every channel runs
both, each with half of its bytes. Within a host the GPUs are a chain in the order of the channel's ring. Its
first GPU has the parent and the second child, its second GPU the first child (NCCL_TOPO_PATTERN_BALANCED_TREE
of src/include/graph.h), all through one NIC.
"""

from dataclasses import dataclass

from sim.clusters.topology.packing import LocalRing
from sim.clusters.topology.routes import Route, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlace:
    """Where one of ``count`` stands in one tree: numbers of its parent and children, None where it has none.

    ``child_of`` says which of its parent's children it is.
    """

    up: int | None
    downs: tuple[int | None, int | None]
    child_of: int = 0

    @property
    def role(self) -> tuple[bool, bool, bool]:
        """Whether it has a parent, a first child and a second child."""
        return self.up is not None, self.downs[0] is not None, self.downs[1] is not None


def binary_tree(count: int, number: int) -> TreePlace:
    """The first tree: odd numbers are leaves; others have children as far off as their lowest bit, halved."""
    if number == 0:
        # The highest power of two below count; it is above the root, so it is the second child.
        return TreePlace(up=None, downs=(None, 1 << (count - 1).bit_length() - 1 if count > 1 else None))
    bit = number & -number
    up = (number ^ bit) | (bit << 1)
    if up >= count:
        up = number ^ bit
    reach = bit >> 1
    below = number - reach if reach else None
    while reach and number + reach >= count:
        reach >>= 1
    return TreePlace(up=up, downs=(below, number + reach if reach else None), child_of=int(number > up))


def second_tree(count: int, number: int) -> TreePlace:
    """The first tree mirrored, or with an odd ``count`` moved on by one, so that its leaves are others."""
    if count % 2:
        place, back = binary_tree(count, (number - 1) % count), 1
        names = [None if each is None else (each + back) % count for each in (place.up, *place.downs)]
    else:
        place = binary_tree(count, count - 1 - number)
        names = [None if each is None else count - 1 - each for each in (place.up, *place.downs)]
    return TreePlace(up=names[0], downs=(names[1], names[2]), child_of=place.child_of)


TREES = (binary_tree, second_tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A channel's chain in one host: the ways down it, and from the NIC to the GPUs that have edges there.

    ``to_first`` and ``to_second`` lead from the NIC to the first and the second GPU, ``from_first`` and
    ``from_second`` back.
    """

    nic: str
    down: tuple[Route, ...]
    up: tuple[Route, ...]
    to_first: Route = ()
    from_first: Route = ()
    to_second: Route = ()
    from_second: Route = ()

    def edges(self, role: tuple[bool, bool, bool]) -> list[Route]:
        """All ways that one tree takes in a host of that role; each carries the tree's bytes once."""
        parent, first_child, second_child = role
        ways = [*self.down, *self.up]
        for there in (parent, second_child):
            ways += [self.to_first, self.from_first] if there else []
        return ways + ([self.to_second, self.from_second] if first_child else [])


def chain_of(routes: Routes, ring: LocalRing) -> Chain:
    """The chain that goes with a ring through a host. Raises ``InputError`` where a step has no way."""
    steps = list(zip(ring.gpus, ring.gpus[1:], strict=False))
    down = tuple(routes.needed(a, b) for a, b in steps)
    up = tuple(routes.needed(b, a) for a, b in steps)
    if ring.gate is None:
        return Chain(nic="", down=down, up=up)
    nic, first = ring.gate[0], ring.gpus[0]
    to_first, from_first = routes.needed(nic, first), routes.needed(first, nic)
    to_second, from_second = to_first, from_first
    if len(ring.gpus) > 1:
        second = ring.gpus[1]
        to_second = by_proxy(routes, ring.gpus, nic, second, to=True) or to_first
        from_second = by_proxy(routes, ring.gpus, nic, second, to=False) or from_first
    return Chain(
        nic=nic,
        down=down,
        up=up,
        to_first=to_first,
        from_first=from_first,
        to_second=to_second,
        from_second=from_second,
    )


def by_proxy(routes: Routes, gpus: tuple[str, ...], nic: str, gpu: str, *, to: bool) -> Route | None:
    """The way between a NIC and a GPU that is not beside it: ``to`` the GPU, or from it.

    Where the direct way crosses a socket, it is over NVLink and a GPU that has the NIC without one (NCCL's
    PXN, ncclTopoComputePaths of src/graph/paths.cc); where there is none such, the direct way.
    """
    direct = routes.route(nic, gpu) if to else routes.route(gpu, nic)
    sockets = {*routes.template.of_kind("cpu"), *routes.template.of_kind("memory")}
    if direct and not _crosses(direct, sockets):
        return direct
    for proxy in gpus:
        link = routes.route(proxy, gpu) if to else routes.route(gpu, proxy)
        beside = routes.route(nic, proxy) if to else routes.route(proxy, nic)
        if link and beside and not _crosses(beside, sockets) and routes.kind(link) in ("nvlink", "nvswitch"):
            return beside + link if to else link + beside
    return direct


def _crosses(route: Route, sockets: set[str]) -> bool:
    return any(a in sockets for a, _ in route)
