"""Which gradients a step reduced in which buckets: by the trace's own shapes, by the model, or by bucket.

What is in a bucket is told by the sizes of the buckets alone, as DDP's rules leave few ways to cut gradients.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from sim.errors import InputError
from sim.importer.kineto.collectives import ASSUMED_DTYPE, SeenCollective
from sim.importer.kineto.steps import SeenGradient, SeenStep
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

Buckets = tuple[tuple[int, ...], ...]
_Placed = Sequence[tuple[int, SeenGradient]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The gradients of a step and its buckets.

    ``gradients`` in hook order, without times; ``places`` says where each one's ready time stands in a step:
    its place among the step's gradients, or, where ``by_bucket``, among its reductions. ``buckets`` are
    indices in launch order, empty where nothing was reduced. ``told_by``: a sentence on where all this is
    from; ``is_of_whole_buckets``: each gradient stands for a bucket, as nothing tells apart what is in it.
    """

    gradients: tuple[Gradient, ...]
    places: tuple[int, ...]
    buckets: Buckets
    told_by: str
    by_bucket: bool = False
    is_of_whole_buckets: bool = False

    def ready_ns(self, step: SeenStep) -> tuple[int, ...]:
        """By index: when each gradient was ready, from the start of the step's backward."""
        times = [0] * len(self.gradients)
        for gradient, place in zip(self.gradients, self.places, strict=True):
            seen = step.reductions[place] if self.by_bucket else step.gradients[place]
            times[gradient.index] = max(0, (seen.ready_ns or step.backward_start_ns) - step.backward_start_ns)
        return tuple(times)


def lay_out(step: SeenStep, model: Workload | None, source: str) -> Layout | None:
    """The gradients and buckets of a step; None where neither the trace nor a model tells any size.

    Raises:
        InputError: a model that is not the one that was trained.
    """
    known = [size for one in step.reductions if (size := one.num_bytes) is not None]
    sizes = known if len(known) == len(step.reductions) else []
    placed = _reduced(step)
    if model is not None:
        return _by_model(step, model, sizes, placed, source)
    why = "no shapes of gradients in the trace (give --model, or profile with record_shapes=True)"
    if placed and all(one.shape is not None for _, one in placed):
        made = _by_shapes(placed, sizes, step.reductions)
        if isinstance(made, Layout):
            return made
        why = f"the buckets are not made of the gradients whose shapes the trace has ({made}); give --model"
    return _by_bucket(step, sizes, why) if sizes else None


def _reduced(step: SeenStep) -> _Placed:
    """The gradients that the reductions can hold, with their places.

    They are those that DDP copied, if that can be seen. Gradients that came after the last reduction was
    launched are left out, unless all did: a compiled backward reduces first, and accumulates then.
    """
    placed = list(enumerate(step.gradients))
    placed = [(place, one) for place, one in placed if one.reduced] or placed
    last = step.reductions[-1].launched_ns if step.reductions else step.gradients[-1].hooked_at_ns
    return [(place, one) for place, one in placed if one.hooked_at_ns <= last] or placed


def _by_shapes(placed: _Placed, sizes: Sequence[int], reductions: Sequence[SeenCollective]) -> Layout | str:
    """The layout by the trace's own shapes, or why gradients of these shapes do not make up the buckets."""
    why = ""
    # An empty shape is that of a scalar or of a missing gradient, so gradients with it are left out second.
    for kept in (placed, [(place, one) for place, one in placed if one.shape]):
        plain = tuple(
            _gradient(len(kept) - 1 - rank, f"gradient {len(kept) - 1 - rank}", one.shape or (), one.dtype)
            for rank, (_, one) in enumerate(kept)
        )
        for gradients in dict.fromkeys((plain, _on_wire(plain, reductions))) if plain else ():
            by_index = gradients[::-1]
            buckets = match_buckets(sizes, by_index, range(len(kept) - 1, -1, -1)) if sizes else ()
            if isinstance(buckets, str):
                why = why or buckets
                continue
            return Layout(
                gradients=gradients,
                places=tuple(place for place, _ in kept),
                buckets=buckets,
                told_by="shapes are the trace's own; names and the order of parameters are not in it: "
                "gradients are numbered against the order in which they were ready",
            )
    return why or "all are empty"


def _gradient(
    index: int, name: str, shape: tuple[int, ...], dtype: str | None, num_bytes: int | None = None
) -> Gradient:
    dtype = dtype or ASSUMED_DTYPE
    size = prod(shape) * DTYPE_BYTES[dtype] if num_bytes is None else num_bytes
    return Gradient(index=index, name=name, shape=shape, dtype=dtype, num_bytes=size, ready_ns=None)


def _on_wire(gradients: tuple[Gradient, ...], reductions: Sequence[SeenCollective]) -> tuple[Gradient, ...]:
    """The gradients as a comm hook sends them, in the one dtype that all reductions have."""
    dtypes = {one.dtype for one in reductions}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None:
        return gradients
    return tuple(
        one
        if one.dtype == dtype or one.wire_bytes is not None
        else replace(one, wire_bytes=prod(one.shape) * DTYPE_BYTES[dtype])
        for one in gradients
    )


def _by_model(step: SeenStep, model: Workload, sizes: Sequence[int], placed: _Placed, source: str) -> Layout:
    """The layout by the model's gradients: in the trace's order if the trace has shapes, else the model's."""
    order = model.order()
    if len(order) != len(placed):
        raise InputError(
            f"{source}: {len(placed)} gradients were reduced in step {step.number}, the model "
            f"{model.name!r} has {len(order)}; give the model that was trained"
        )
    ordered = _in_trace_order(model, placed, source)
    sent = _on_wire(model.gradients, step.reductions)
    buckets = match_buckets(sizes, sent, order) if sizes else ()
    if isinstance(buckets, str):
        raise InputError(
            f"{source}: {buckets}; all buckets have {sum(sizes)} bytes, the {len(sent)} gradients of "
            f"{model.name!r} {model.total_bytes}; give the model that was trained"
        )
    # Sent before AccumulateGrad: ready when sent.
    late = bool(step.reductions) and step.gradients[-1].hooked_at_ns > step.reductions[-1].launched_ns
    by_bucket = late and len(step.reductions) == len(order)
    return Layout(
        gradients=tuple(replace(sent[index], ready_ns=None) for index in ordered),
        places=tuple(range(len(ordered))) if by_bucket else tuple(place for place, _ in placed),
        buckets=buckets,
        told_by=f"names, shapes and indices are those of {model.name!r}"
        + ("" if ordered == order else "; the order is the trace's, by shape"),
        by_bucket=by_bucket,
    )


def _in_trace_order(model: Workload, placed: _Placed, source: str) -> tuple[int, ...]:
    """The model's indices in the order in which the trace has their shapes; its own where it has none."""
    order = model.order()
    if any(one.shape is None for _, one in placed):
        return order
    left: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in reversed(order):
        left[model.gradients[index].shape].append(index)
    found = []
    for rank, (_, one) in enumerate(placed):
        if not left[one.shape or ()]:
            raise InputError(
                f"{source}: gradient {rank} in hook order has the shape {list(one.shape or ())}, of which "
                f"the model {model.name!r} has fewer; give the model that was trained"
            )
        found.append(left[one.shape or ()].pop())
    return tuple(found)


def _by_bucket(step: SeenStep, sizes: Sequence[int], why: str) -> Layout:
    """The layout with one gradient for each bucket; ``why`` says why its gradients cannot be told apart."""
    count = len(sizes)
    gradients = tuple(
        _gradient(count - 1 - place, f"bucket {place}", shape, one.dtype, size)
        for place, (one, size) in enumerate(zip(step.reductions, sizes, strict=True))
        for shape in ((one.num_elements or 0,) if size else (),)
    )
    return Layout(
        gradients=gradients,
        places=tuple(range(count)),
        buckets=tuple((gradient.index,) for gradient in gradients),
        told_by=f"{why}: each bucket that ran stands for its gradients, so that they can be merged but not "
        f"divided",
        by_bucket=True,
        is_of_whole_buckets=True,
    )


# ---- buckets by their sizes

# Several dtypes or many empty tensors can make the search branch; real models need a few states a bucket.
MAX_STATES = 30_000
MAX_NESTED_WORK = 500_000  # gradients looked at


@dataclass(frozen=True, slots=True)
class _Run:
    """The gradients of one dtype and device in the order walked; a sparse one is a run of its own (A1.2)."""

    indices: tuple[int, ...]
    places: tuple[int, ...]
    sums: tuple[int, ...]
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class _Cut:
    """A state of the search: how far each run is used up, and the buckets so far; ``place`` is where the last
    of them closed, ``only_leftovers`` whether the runs' ends are being cut already.
    """

    positions: tuple[int, ...]
    buckets: Buckets = ()
    place: int = -1
    only_leftovers: bool = False


def match_buckets(sizes: Sequence[int], gradients: Sequence[Gradient], ready: Sequence[int]) -> Buckets | str:
    """The buckets of DDP that have these sizes: parameter indices, in launch order.

    Within each dtype and device a bucket is a run of the order walked, and buckets come in the order in which
    they are closed, leftovers last (A1.3 to A1.5). Three walks are tried: ready order (A2.4), that from the
    end (``DDP_SET_LAST_BUCKET_CAP``, A2.5) and parameter order (the constructor's buckets, A2.3). Where sizes
    leave a choice (an empty tensor, equal sums of two dtypes), the cut that closes buckets early is taken. If
    no walk fits, the model may have been wrapped in several parts: then a bucket of one part may lie between
    the members of another's, in ready order.

    Args:
        sizes: bytes of each bucket in launch order, as parameters or as they travel; at least one.
        gradients: those of the model, by index.
        ready: the indices of those that become ready, in this order.

    Returns:
        Where there are none a sentence, which names the first bucket that fits nowhere.
    """
    count = len(gradients)
    walked = (*ready, *sorted(set(range(count)) - set(ready)))
    walks = ((walked, 1, True), (walked[::-1], -1, True), (tuple(range(count)), -1, False))
    held, sent = tuple(one.num_bytes for one in gradients), tuple(one.on_wire for one in gradients)
    measures = [one for one in dict.fromkeys((held, sent)) if sum(one) == sum(sizes)]
    for measure in measures:
        for walk, direction, in_order in walks:
            found = _search(sizes[::direction], _runs(gradients, walk, measure), closes_in_order=in_order)
            if len(found.buckets) == len(sizes) and sum(map(len, found.buckets)) == count:
                return found.buckets[::direction]
    for measure in measures:
        if (nested := _search_nested(sizes, gradients, walked, measure)) is not None:
            return nested
    furthest = _search(sizes, _runs(gradients, walked, held), closes_in_order=True).buckets
    if len(furthest) == len(sizes):
        return f"{count - sum(map(len, furthest))} gradients are in no bucket"
    return (
        f"bucket {len(furthest)}: {sizes[len(furthest)]} bytes fits nowhere: no gradients that follow one "
        f"another in ready order have this sum"
    )


def _runs(gradients: Sequence[Gradient], walked: Sequence[int], measure: Sequence[int]) -> list[_Run]:
    members: dict[object, list[int]] = defaultdict(list)  # places
    for place, index in enumerate(walked):
        members[index if gradients[index].sparse else gradients[index].key].append(place)
    return [
        _Run(
            indices=tuple(walked[place] for place in run),
            places=tuple(run),
            sums=tuple(accumulate((measure[walked[place]] for place in run), initial=0)),
            is_sparse=gradients[walked[run[0]]].sparse,
        )
        for run in members.values()
    ]


def _search(sizes: Sequence[int], runs: list[_Run], *, closes_in_order: bool) -> _Cut:
    """The first complete cut that a search in depth finds, or else the one of most buckets.

    ``closes_in_order``: buckets are sorted by their last member and leftovers follow (A1.5); otherwise they
    are sorted by their first (A1.6).
    """
    full = tuple(len(run.indices) for run in runs)
    best = _Cut((0,) * len(runs))
    stack = [best]
    seen: set[tuple[int, tuple[int, ...], bool]] = set()
    while stack and len(seen) < MAX_STATES:
        cut = stack.pop()
        number = len(cut.buckets)
        if number == len(sizes) and cut.positions == full:
            return cut
        best = max(best, cut, key=lambda one: len(one.buckets))
        state = (number, cut.positions, cut.only_leftovers)
        if number < len(sizes) and state not in seen:
            seen.add(state)
            stack.extend(reversed(list(_cuts(cut, sizes[number], runs, closes_in_order))))
    return best


def _cuts(cut: _Cut, size: int, runs: list[_Run], closes_in_order: bool) -> Iterator[_Cut]:
    """Every next bucket of ``size`` that the rules allow: those that close in order first, then leftovers."""
    closed: list[_Cut] = []
    leftovers: list[_Cut] = []
    for number, run in enumerate(runs):
        start = cut.positions[number]
        goal = run.sums[start] + size
        for end in range(bisect_left(run.sums, goal, start + 1), bisect_right(run.sums, goal, start + 1)):
            place = run.places[end - 1] if closes_in_order else run.places[start]
            is_last = end == len(run.indices) and not run.is_sparse
            is_leftover = cut.only_leftovers or place < cut.place
            if is_leftover and not (closes_in_order and is_last):
                continue
            positions = (*cut.positions[:number], end, *cut.positions[number + 1 :])
            buckets = (*cut.buckets, run.indices[start:end])
            found = _Cut(positions, buckets, max(place, cut.place), is_leftover)
            (leftovers if is_leftover else closed).append(found)
    yield from sorted(closed, key=lambda one: one.place)
    yield from reversed(leftovers)  # the dtype seen last comes first (A1.5)


def _search_nested(
    sizes: Sequence[int], gradients: Sequence[Gradient], walked: Sequence[int], measure: Sequence[int]
) -> Buckets | None:
    """The buckets of a model wrapped in several parts: each is a run of what the buckets before it left.

    A bucket is launched when its last member is ready (A3.5), so the last members come in ready order.
    """
    place = {index: number for number, index in enumerate(walked)}
    Left = tuple[tuple[int, ...], int, Buckets]
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
