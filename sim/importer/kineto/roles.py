"""Which of a step's collectives reduced gradients, told from losses, norms, metrics and activations."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from sim.importer.kineto.backwards import of_one_model
from sim.importer.kineto.events import Operator
from sim.importer.kineto.seen import Role, SeenCollective, SeenGradient

_MAP_DTYPES = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward on the CPU: what its thread did, and until when what follows belongs to it.

    ``hooks`` are the engine's calls around AccumulateGrads (none in older traces), ``nodes`` the operators
    of other functions, both by start; ``until_ns`` is when the optimizer, or DDP's first copy out, began.
    """

    thread: str
    start_ns: int
    end_ns: int
    until_ns: int
    accumulated: Sequence[Operator]
    hooks: Sequence[Operator]
    nodes: Sequence[Operator]


def give_all_roles(
    found: Sequence[tuple[SeenCollective, str]],
    gradients: Sequence[Sequence[SeenGradient]],
    backwards: Sequence[Backward],
) -> list[SeenCollective]:
    """The collectives of a step of several backwards, each with its role; ``gradients`` are by backward."""
    roles: dict[int, Role] = {}
    for number, (ready, backward) in enumerate(zip(gradients, backwards, strict=True), 1):
        for place, one in enumerate(give_roles(found, ready, backward)):
            if one.is_ddps:
                earlier = one.role == "gradients" and number < len(backwards)
                roles[place] = "earlier" if earlier else one.role
    return _with_roles(found, roles)


def _with_roles(
    found: Sequence[tuple[SeenCollective, str]], roles: Mapping[int, Role]
) -> list[SeenCollective]:
    """By place; the others are as they were found: of this step, or from before the trace."""
    return [replace(one, role=roles.get(place, one.role)) for place, (one, _) in enumerate(found)]


def count_backwards(
    backwards: Sequence[Backward], collectives: Sequence[SeenCollective], optimizer_at: Sequence[int]
) -> tuple[int, int]:
    """How many backwards were reduced, and how many are no micro-batches of the last one's model.

    Micro-batches have the same gradients, reduce the same sizes, and no optimizer's step lies between them.
    """
    borders = [one.accumulated[0].start_ns for one in backwards[1:]]
    sizes: list[list[int | None]] = [[] for _ in backwards]
    for one in collectives:
        if one.role in ("earlier", "gradients"):
            sizes[bisect.bisect_right(borders, one.launched_ns)].append(one.num_elements)
    last = backwards[-1].accumulated
    stepped = bisect.bisect_left(optimizer_at, last[0].start_ns)
    others = sum(
        (stepped and optimizer_at[stepped - 1] > one.accumulated[-1].end_ns)
        or not of_one_model(one.accumulated, last)
        or bool(reduced and sizes[-1] and reduced != sizes[-1])
        for one, reduced in zip(backwards[:-1], sizes, strict=False)
    )
    return sum(map(bool, sizes)), others


def give_roles(
    found: Sequence[tuple[SeenCollective, str]], gradients: Sequence[SeenGradient], backward: Backward
) -> list[SeenCollective]:
    """The collectives of a step, each with its role.

    DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none is, or
    the trace is too old to show hooks, those after the last gradient are taken as far as their elements are
    the gradients'.
    """
    first, last = backward.accumulated[0].start_ns, backward.accumulated[-1].start_ns
    hooked, after, maps = [], [], []
    for place, (one, thread) in enumerate(found):
        if one.kind not in ("all_reduce", "coalesced") or not first <= one.launched_ns < backward.until_ns:
            continue
        if one.role == "before":
            continue
        if one.dtype in _MAP_DTYPES:
            maps.append(place)
        elif one.launched_ns <= last or backward.hooks:
            if _from_hook(one.launched_ns, thread, backward):
                hooked.append(place)
            elif one.launched_ns > last:
                after.append(place)
        else:
            after.append(place)
    if not (hooked and backward.hooks):
        hooked += _of_gradients([found[place][0] for place in hooked], after, found, gradients)
    if not hooked:
        hooked = _inside_one_node(found, len(backward.accumulated), backward)
    roles: dict[int, Role] = dict.fromkeys(maps, "map")
    roles.update((place, "gradients") for place in hooked)
    return _with_roles(found, roles)


def _from_hook(launched_ns: int, thread: str, backward: Backward) -> bool:
    """Whether an AccumulateGrad's hook launched it; where the engine's calls are not there, no other node."""
    if thread != backward.thread:
        return launched_ns < backward.end_ns
    if backward.hooks:
        return _within(launched_ns, backward.hooks)
    return not _within(launched_ns, backward.nodes)


def _within(time_ns: int, operators: Sequence[Operator]) -> bool:
    place = bisect.bisect_right(operators, time_ns, key=lambda one: one.start_ns)
    return any(one.end_ns >= time_ns for one in operators[max(0, place - 2) : place])


def _of_gradients(
    before: Sequence[SeenCollective],
    after: Sequence[int],
    found: Sequence[tuple[SeenCollective, str]],
    gradients: Sequence[SeenGradient],
) -> list[int]:
    """The places of those collectives after the last gradient that hold gradients.

    With the reductions ``before`` they have as many elements as all gradients together. Where the elements do
    not tell, all are taken but those of a single element, which are a loss or a norm.
    """
    counts = [found[place][0].num_elements for place in after]
    known = [count for count in counts if count is not None]
    reduced = [one for one in gradients if one.reduced is not False]
    shapes = [one.shape for one in reduced if one.shape is not None]
    sent = [one.num_elements for one in before if one.num_elements is not None]
    if len(known) == len(after) and len(shapes) == len(reduced) and len(sent) == len(before):
        # A scalar's shape and that of a gradient which is not there look alike.
        most = sum(map(prod, shapes)) - sum(sent)
        fewest = most - sum(not shape for shape in shapes)
        if most == 0:
            return []
        for begin in range(len(after)):
            total = 0
            for end in range(begin, len(after)):
                total += known[end]
                if total > 0 and fewest <= total <= most:
                    return list(after[begin : end + 1])
    others = [one.num_elements for one in before] + counts
    if all(count == 1 for count in others):
        return list(after)
    return [place for place, count in zip(after, counts, strict=True) if count != 1]


def _inside_one_node(
    found: Sequence[tuple[SeenCollective, str]], gradients: int, backward: Backward
) -> list[int]:
    """One all-reduce a gradient within backward, though no hook sent them: a compiled backward's own."""
    inside = [
        place
        for place, (one, _) in enumerate(found)
        if (one.kind, one.role) == ("all_reduce", "other")
        and backward.start_ns <= one.launched_ns < backward.until_ns
    ]
    return inside if len(inside) == gradients else []
