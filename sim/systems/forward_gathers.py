"""All-gathers of parameters that run beside forward: in which order they go, and how long forward waits.

A workload has forward's time as one number. It is shared out over modules as backward's is over their
gradients, and modules are run in the order in which backward comes to them, from its end to its beginning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.clock.program import works
from sim.nouns.collective import Collective
from sim.nouns.workload import Workload
from sim.units import divide_half_even, format_ms

SHARED_OUT = (
    "how long forward takes (forward_ns) is one number: it is shared out over modules as backward's time is "
    "over their gradients, and what gathers hide behind forward follows from that"
)


def told_of_forward(gathers: Sequence[Collective], waited_ns: int) -> tuple[str, ...]:
    """What the reader of a report should know where forward gathers parameters, if that takes time."""
    if not any(one.service_ns for one in gathers):
        return ()
    waits = (
        f"forward waits {format_ms(waited_ns)} for gathers of parameters and their copies; exposed "
        f"communication counts backward only"
    )
    return waits, SHARED_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardModule:
    """A module in forward: its own parameters' indices, and its time."""

    indices: tuple[int, ...]
    duration_ns: int


def forward_modules(workload: Workload) -> tuple[ForwardModule, ...]:
    """Modules that hold parameters themselves, in the order in which forward runs them.

    A parameter's module is its name up to the last dot. What has no dot belongs to the root, which comes
    first whenever its gradients are ready; gradients that stand for whole buckets are modules of their own.
    """
    members: dict[str, list[int]] = {}
    work: dict[str, int] = {}
    if not workload.is_of_whole_buckets and any("." not in g.name for g in workload.gradients):
        members[""] = []
    for index, duration_ns in reversed(works(workload)):
        name = workload.gradients[index].name
        module = name if workload.is_of_whole_buckets else name.rpartition(".")[0]
        members.setdefault(module, []).append(index)
        work[module] = work.get(module, 0) + duration_ns
    total, done, modules = sum(work.values()), 0, []
    for module, indices in members.items():
        before = divide_half_even(workload.forward_ns * done, total) if total else 0
        done += work.get(module, 0)
        after = divide_half_even(workload.forward_ns * done, total) if total else 0
        modules.append(ForwardModule(indices=tuple(sorted(indices)), duration_ns=after - before))
    return tuple(modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredForward:
    """``order``: groups of parameters as their gathers are launched; ``waited_ns``: by forward, in all.

    ``queued``: those that began as the gather before them ended.
    """

    order: tuple[int, ...]
    waited_ns: int
    queued: frozenset[int] = frozenset()


def play_chained(
    modules: Sequence[ForwardModule], home: Mapping[int, int], services_ns: Sequence[int]
) -> GatheredForward:
    """Forward under hooks that wait for their own group's gather, then launch the one before it (A9.6).

    Groups are numbered as backward reduces them, so forward comes to the last one first. One gather is under
    way at a time, whatever channels there are; nothing stretches.

    Args:
        modules: as forward runs them.
        home: the group of each gradient.
        services_ns: what each group's gather takes.
    """
    now, channel_ns = 0, 0
    ends: dict[int, int] = {}
    waited: set[int] = set()

    def launch(group: int) -> None:
        nonlocal channel_ns
        channel_ns = max(now, channel_ns) + services_ns[group]
        ends[group] = channel_ns

    for module in modules:
        for index in module.indices:
            group = home[index]
            if group not in ends:
                launch(group)
            if group in waited:
                continue
            waited.add(group)
            now = max(now, ends[group])
            if group and group - 1 not in ends:
                launch(group - 1)
        now += module.duration_ns
    computed = sum(module.duration_ns for module in modules)
    return GatheredForward(order=tuple(ends), waited_ns=now - computed)


def play_prefetched(
    modules: Sequence[ForwardModule],
    home: Mapping[int, int],
    services_ns: Sequence[int],
    queued_ns: Sequence[int],
    copies_ns: Sequence[int],
    ahead: int,
) -> GatheredForward:
    """Forward of units that each wait for their gather, then copy it out (A10.2); unit 0 comes first.

    Gathers go one after the other, in the order in which forward comes to units. The host runs ahead: a
    gather waits for the copy out of the unit that is ``ahead`` + 1 before it, and for nothing else. Nothing
    stretches. Copies out count as waited for. A gather that finds the one before it under way takes
    ``queued_ns``, another one ``services_ns`` (A10.8).
    """
    now, channel_ns = 0, 0
    copied: list[int] = []
    queued: set[int] = set()
    begun: dict[int, None] = {}
    units = [(0, 0), *((home[module.indices[0]], module.duration_ns) for module in modules if module.indices)]
    for unit, duration_ns in units:
        if unit not in begun:
            begun[unit] = None
            before = len(copied) - ahead - 1
            launched = copied[before] if before >= 0 else 0
            if channel_ns > launched:
                queued.add(unit)
                channel_ns += queued_ns[unit]
            else:
                channel_ns = launched + services_ns[unit]
            now = max(now, channel_ns) + copies_ns[unit]
            copied.append(now)
        now += duration_ns
    computed = sum(module.duration_ns for module in modules)
    return GatheredForward(order=tuple(begun), waited_ns=now - computed, queued=frozenset(queued))
