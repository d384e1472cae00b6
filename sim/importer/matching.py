"""Which gradients are in which bucket, told by the sizes of the buckets alone."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from sim.errors import InputError
from sim.nouns.workload import Gradient, Workload

# Several dtypes or many empty tensors can make the search branch; real models need a few states a bucket.
MAX_STATES = 30_000
MAX_NESTED_WORK = 500_000  # gradients looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The gradients of one dtype and device in the order walked; a sparse one is a run of its own (A1.2)."""

    indices: tuple[int, ...]
    places: tuple[int, ...]
    sums: tuple[int, ...]
    is_sparse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A state of the search: how far each run is used up, and the bucket that was cut last."""

    positions: tuple[int, ...]
    place: int = -1
    only_leftovers: bool = False
    bucket: tuple[int, ...] = ()
    before: "_Step | None" = None
    number: int = 0


def match_buckets(
    sizes: Sequence[int], model: Workload, source: str, *, wrapped_apart: bool = True
) -> tuple[tuple[int, ...], ...]:
    """The buckets of DDP that have these sizes: parameter indices, in launch order.

    Within each dtype and device a bucket is a run of the order walked, and buckets come in the order in which
    they are closed, leftovers last (A1.3 to A1.5). Three walks are tried: ready order (A2.4), that from the
    end (``DDP_SET_LAST_BUCKET_CAP``, A2.5) and parameter order (the constructor's buckets, A2.3). Where sizes
    leave a choice (an empty tensor, equal sums of two dtypes), the cut that closes buckets early is taken. If
    no walk fits, the model may have been wrapped in several parts: then a bucket of one part may lie between
    the members of another's, in ready order.

    Args:
        sizes: bytes of each bucket in launch order, as parameters or as they travel.
        model: its gradients, and their ready order.
        source: what errors call the sizes.
        wrapped_apart: whether buckets of a model wrapped in several parts are tried at the end.

    Raises:
        InputError: no such buckets; names the first that fits nowhere and the nearest sum.
    """
    if not sizes:
        raise InputError(f"{source}: no buckets; give the size of at least one")
    for number, size in enumerate(sizes):
        if size < 0:
            raise InputError(f"{source}: bucket {number}: {size} bytes is not legal; give 0 or more")
    ready = model.order()
    walked = ready + tuple(g.index for g in model.gradients if g.ready_ns is None)
    parameters = tuple(range(len(model.gradients)))
    held, sent = tuple(g.num_bytes for g in model.gradients), tuple(g.on_wire for g in model.gradients)
    measures = dict.fromkeys((held, sent))
    walks = ((walked, 1, True), (walked[::-1], -1, True), (parameters, -1, False))
    for measure, (walk, direction, in_order) in product(measures, walks):
        runs = _runs(model, walk, measure)
        if (found := _search(sizes[::direction], runs, closes_in_order=in_order)) is not None:
            return found[::direction]
    for measure in measures if wrapped_apart else ():
        if (found := _search_nested(sizes, model, walked, measure)) is not None:
            return found
    raise InputError(f"{source}: {_why_not(sizes, model, _runs(model, walked, held))}")


def _runs(model: Workload, walked: Sequence[int], measure: Sequence[int]) -> list[_Run]:
    members: dict[object, list[tuple[int, Gradient]]] = {}
    for place, index in enumerate(walked):
        gradient = model.gradients[index]
        members.setdefault(index if gradient.sparse else gradient.key, []).append((place, gradient))
    return [
        _Run(
            indices=tuple(gradient.index for _, gradient in run),
            places=tuple(place for place, _ in run),
            sums=tuple(accumulate((measure[gradient.index] for _, gradient in run), initial=0)),
            is_sparse=run[0][1].sparse,
        )
        for run in members.values()
    ]


def _search(
    sizes: Sequence[int], runs: list[_Run], *, closes_in_order: bool
) -> tuple[tuple[int, ...], ...] | None:
    """The first complete cut that a search in depth finds, or None. ``closes_in_order``: buckets are sorted
    by their last member and leftovers follow (A1.5); otherwise they are sorted by their first (A1.6)."""
    if sum(sizes) != sum(run.sums[-1] for run in runs):
        return None
    full = tuple(len(run.indices) for run in runs)
    stack = [_Step(positions=(0,) * len(runs))]
    seen: set[tuple[int, tuple[int, ...], bool]] = set()
    while stack and len(seen) < MAX_STATES:
        step = stack.pop()
        if step.number == len(sizes):
            if step.positions == full:
                return _buckets(step)
            continue
        state = (step.number, step.positions, step.only_leftovers)
        if state not in seen:
            seen.add(state)
            stack.extend(reversed(list(_cuts(step, sizes[step.number], runs, closes_in_order))))
    return None


def _cuts(step: _Step, size: int, runs: list[_Run], closes_in_order: bool) -> Iterator[_Step]:
    """Every next bucket of ``size`` that the rules allow: those that close in order first, then leftovers."""
    closed: list[_Step] = []
    leftovers: list[_Step] = []
    for number, run in enumerate(runs):
        start = step.positions[number]
        goal = run.sums[start] + size
        for end in range(bisect_left(run.sums, goal, start + 1), bisect_right(run.sums, goal, start + 1)):
            place = run.places[end - 1] if closes_in_order else run.places[start]
            is_last = end == len(run.indices) and not run.is_sparse
            is_leftover = step.only_leftovers or place < step.place
            if is_leftover and not (closes_in_order and is_last):
                continue
            cut = _Step(
                positions=(*step.positions[:number], end, *step.positions[number + 1 :]),
                place=max(place, step.place),
                only_leftovers=is_leftover,
                bucket=run.indices[start:end],
                before=step,
                number=step.number + 1,
            )
            (leftovers if is_leftover else closed).append(cut)
    yield from sorted(closed, key=lambda cut: cut.place)
    yield from reversed(leftovers)  # the dtype seen last comes first (A1.5)


def _buckets(step: _Step) -> tuple[tuple[int, ...], ...]:
    buckets = []
    at: _Step | None = step
    while at is not None and at.before is not None:
        buckets.append(at.bucket)
        at = at.before
    return tuple(reversed(buckets))


def _search_nested(
    sizes: Sequence[int], model: Workload, walked: Sequence[int], measure: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """The buckets of a model wrapped in several parts: each is a run of what the buckets before it left.

    A bucket is launched when its last member is ready (A3.5), so the last members come in ready order.
    """
    if sum(sizes) != sum(measure):
        return None
    gradients, place = model.gradients, {index: number for number, index in enumerate(walked)}
    Left = tuple[tuple[int, ...], int, tuple[tuple[int, ...], ...]]
    stack: list[Left] = [(tuple(walked), -1, ())]
    work = 0
    while stack and work < MAX_NESTED_WORK:
        left, last, buckets = stack.pop()
        if len(buckets) == len(sizes):
            if not left:
                return buckets
            continue
        work += len(left)
        sums = list(accumulate((measure[index] for index in left), initial=0))
        found: list[Left] = []
        for start in range(len(left)):
            end = bisect_left(sums, sums[start] + sizes[len(buckets)], start + 1)
            run = left[start:end]
            if end > len(left) or sums[end] - sums[start] != sizes[len(buckets)] or place[run[-1]] < last:
                continue
            if len({gradients[index].key for index in run}) == 1:
                found.append((left[:start] + left[end:], place[run[-1]], (*buckets, run)))
        stack.extend(reversed(found))
    return None


def _why_not(sizes: Sequence[int], model: Workload, runs: list[_Run]) -> str:
    """Words on the first bucket that no run of gradients in ready order can fill."""
    total, given = model.total_bytes, sum(sizes)
    sums = f"all buckets have {given} bytes, the {len(model.gradients)} gradients of {model.name!r} {total}"
    if given * 2 == total:
        sums += " (half travels: give a model whose gradients say so in wire_bytes)"
    step = _furthest(sizes, runs)
    if step.number == len(sizes):
        left = len(model.gradients) - sum(step.positions)
        return f"{left} gradients are in no bucket; {sums}"
    size = sizes[step.number]
    nearest: tuple[int, str] | None = None
    for number, run in enumerate(runs):
        start = step.positions[number]
        if start == len(run.indices):
            continue
        at = bisect_left(run.sums, run.sums[start] + size, start + 1)
        for end in (at - 1, at):
            if start < end <= len(run.indices):
                found = run.sums[end] - run.sums[start]
                names = [model.gradients[run.indices[place]].name for place in (start, end - 1)]
                text = f"{found} bytes ({names[0]!r} to {names[1]!r})"
                if nearest is None or abs(found - size) < abs(nearest[0] - size):
                    nearest = (found, text)
    where = f"the nearest is {nearest[1]}" if nearest else "all gradients are in the buckets before it"
    return (
        f"bucket {step.number}: {size} bytes fits nowhere: no gradients that follow one another in ready "
        f"order have this sum; {where}; {sums}"
    )


def _furthest(sizes: Sequence[int], runs: list[_Run]) -> _Step:
    best = _Step(positions=(0,) * len(runs))
    stack, seen = [best], 0
    while stack and seen < MAX_STATES:
        step = stack.pop()
        seen += 1
        if step.number > best.number:
            best = step
        if step.number < len(sizes):
            stack.extend(reversed(list(_cuts(step, sizes[step.number], runs, closes_in_order=True))))
    return best
