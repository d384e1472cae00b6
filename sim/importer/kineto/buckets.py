"""Which gradients a step reduced in which buckets: by the trace's own shapes, by the model, or by bucket.

What is in a bucket is told by the sizes of the buckets alone, as DDP's rules leave few ways to cut gradients.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Literal

from sim.errors import InputError
from sim.importer.kineto.steps import ASSUMED_DTYPE, Collective, SeenGradient, Step
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

Buckets = tuple[tuple[int, ...], ...]
_Placed = Sequence[tuple[int, SeenGradient]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The gradients of a step and its buckets.

    ``gradients`` in hook order, without times; ``places`` says where each one's ready time stands in a step:
    its place among the step's gradients, or, where ``by_bucket``, among its reductions. ``buckets`` are
    indices in launch order, empty where nothing was reduced. ``told_by``: a sentence on where all this is
    from; ``is_of_whole_buckets``: each gradient stands for a bucket, as nothing tells apart what is in it.
    """

    gradients: tuple[Gradient, ...]
    places: Sequence[int]
    buckets: Buckets
    told_by: str
    by_bucket: bool = False
    is_of_whole_buckets: bool = False

    def ready_ns(self, step: Step) -> tuple[int, ...]:
        """By index: when each gradient was ready, from the start of the step's backward."""
        seen = [one.ready_ns for one in (step.reductions if self.by_bucket else step.gradients)]
        times = {
            gradient.index: max(0, seen[place] - step.backward_start_ns)
            for gradient, place in zip(self.gradients, self.places, strict=True)
        }
        return tuple(times.get(index, 0) for index in range(len(self.gradients)))


def lay_out(step: Step, model: Workload | None, source: str) -> Layout | None:
    """The gradients and buckets of a step; None where neither the trace nor a model tells any size.

    Raises:
        InputError: a model that is not the one that was trained.
    """
    known = [size for one in step.reductions if (size := one.num_bytes) is not None]
    sizes = known if len(known) == len(step.reductions) else []
    # The gradients that the reductions can hold: those that DDP copied, if that can be seen. Those that came
    # after the last reduction was launched are left out, unless all did: a compiled backward reduces first.
    placed = list(enumerate(step.gradients))
    placed = [(place, one) for place, one in placed if one.reduced] or placed
    last = step.reductions[-1].launched_ns if step.reductions else step.gradients[-1].hooked_at_ns
    placed = [(place, one) for place, one in placed if one.hooked_at_ns <= last] or placed
    if model is not None:
        return _by_model(step, model, sizes, placed, source)
    why = "no shapes of gradients in the trace (give --model, or profile with record_shapes=True)"
    if all(one.shape is not None for _, one in placed):
        made = _by_shapes(placed, sizes, step.reductions)
        if isinstance(made, Layout):
            return made
        why = f"the buckets are not made of the gradients whose shapes the trace has ({made}); give --model"
    return _by_bucket(step, sizes, why) if sizes else None


def _by_shapes(placed: _Placed, sizes: Sequence[int], reductions: Sequence[Collective]) -> Layout | str:
    """The layout by the trace's own shapes, or why gradients of these shapes do not make up the buckets."""
    why = ""
    # An empty shape is that of a scalar or of a missing gradient, so gradients with it are left out second.
    for kept in (placed, [(place, one) for place, one in placed if one.shape]):
        indices = range(len(kept) - 1, -1, -1)
        plain = tuple(
            _gradient(index, f"gradient {index}", one.shape or (), one.dtype)
            for index, (_, one) in zip(indices, kept, strict=True)
        )
        for gradients in dict.fromkeys((plain, _on_wire(plain, reductions))) if plain else ():
            buckets = match_buckets(sizes, gradients[::-1], indices) if sizes else ()
            if isinstance(buckets, str):
                why = why or buckets
                continue
            told_by = (
                "shapes are the trace's own; names and the order of parameters are not in it: gradients are "
                "numbered against the order in which they were ready"
            )
            return Layout(gradients, [place for place, _ in kept], buckets, told_by)
    return why or "all are empty"


def _gradient(
    index: int, name: str, shape: tuple[int, ...], dtype: str | None, num_bytes: int | None = None
) -> Gradient:
    dtype = dtype or ASSUMED_DTYPE
    size = prod(shape) * DTYPE_BYTES[dtype] if num_bytes is None else num_bytes
    return Gradient(index=index, name=name, shape=shape, dtype=dtype, num_bytes=size, ready_ns=None)


def _on_wire(gradients: Sequence[Gradient], reductions: Sequence[Collective]) -> tuple[Gradient, ...]:
    """The gradients as a comm hook sends them, in the one dtype that all reductions have."""
    dtypes = {one.dtype for one in reductions}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return tuple(
        one
        if dtype in (None, one.dtype) or one.wire_bytes is not None
        else replace(one, wire_bytes=prod(one.shape) * DTYPE_BYTES[dtype or one.dtype])
        for one in gradients
    )


def _by_model(step: Step, model: Workload, sizes: Sequence[int], placed: _Placed, source: str) -> Layout:
    """The layout by the model's gradients: in the trace's order if the trace has shapes, else the model's."""
    order, advice = model.order(), "give the model that was trained"
    if len(order) != len(placed):
        raise InputError(
            f"{source}: {len(placed)} gradients were reduced in step {step.number}, the model "
            f"{model.name!r} has {len(order)}; {advice}"
        )
    ordered = order
    if all(one.shape is not None for _, one in placed):
        left = defaultdict[object, list[int]](list)
        for index in reversed(order):
            left[model.gradients[index].shape].append(index)
        missing = next((one.shape for _, one in placed if not left[one.shape]), None)
        ordered = tuple(left[one.shape].pop() for _, one in placed if left[one.shape])
        if len(ordered) != len(order):
            raise InputError(
                f"{source}: the trace has gradients of the shape {list(missing or ())}, of which the model "
                f"{model.name!r} has fewer; {advice}"
            )
    sent = _on_wire(model.gradients, step.reductions)
    buckets = match_buckets(sizes, sent, order) if sizes else ()
    if isinstance(buckets, str):
        raise InputError(
            f"{source}: {buckets}; all buckets have {sum(sizes)} bytes, the {len(sent)} gradients of "
            f"{model.name!r} {model.total_bytes}; {advice}"
        )
    # Sent before AccumulateGrad: ready when sent.
    late = bool(step.reductions) and step.gradients[-1].hooked_at_ns > step.reductions[-1].launched_ns
    by_bucket = late and len(step.reductions) == len(order)
    return Layout(
        tuple(replace(sent[index], ready_ns=None) for index in ordered),
        range(len(ordered)) if by_bucket else [place for place, _ in placed],
        buckets,
        f"names, shapes and indices are those of {model.name!r}"
        + ("" if ordered == order else "; the order is the trace's, by shape"),
        by_bucket,
    )


def _by_bucket(step: Step, sizes: Sequence[int], why: str) -> Layout:
    """The layout with one gradient for each bucket; ``why`` says why its gradients cannot be told apart."""
    last = len(sizes) - 1
    gradients = tuple(
        _gradient(last - place, f"bucket {place}", (one.num_elements or 0,) if size else (), one.dtype, size)
        for place, (one, size) in enumerate(zip(step.reductions, sizes, strict=True))
    )
    told_by = (
        f"{why}: each bucket that ran stands for its gradients, so that they can be merged but not divided"
    )
    buckets = tuple((gradient.index,) for gradient in gradients)
    return Layout(gradients, range(len(sizes)), buckets, told_by, by_bucket=True, is_of_whole_buckets=True)


# ---- buckets by their sizes

# Several dtypes or many empty tensors can make the search branch; real models need a few cuts a bucket.
_MOST_CUTS = 300_000
_Cut = tuple[Buckets, Buckets, int, bool]


def match_buckets(sizes: Sequence[int], gradients: Sequence[Gradient], ready: Sequence[int]) -> Buckets | str:
    """The buckets of DDP that have these sizes: parameter indices, in launch order.

    Within each dtype and device a bucket is a run of the order walked, and buckets come in the order in which
    they are closed, leftovers last (A1.3 to A1.5). Two walks are tried: ready order (A2.4) and, from its end,
    parameter order (the constructor's buckets, A2.3). Where sizes leave a choice (an empty tensor, equal sums
    of two dtypes), the cut that closes buckets early is taken. If no walk fits, the model may have been
    wrapped in several parts: then a bucket of one part may lie between the members of another's, in ready
    order.

    Args:
        sizes: bytes of each bucket in launch order, as parameters or as they travel; at least one.
        gradients: those of the model, by index.
        ready: the indices of those that become ready, in this order.

    Returns:
        Where there are none a sentence, which names the first bucket that fits nowhere.
    """
    count = len(gradients)
    walked = (*ready, *sorted(set(range(count)) - set(ready)))
    held, sent = tuple(one.num_bytes for one in gradients), tuple(one.on_wire for one in gradients)
    measures = [one for one in dict.fromkeys((held, sent)) if sum(one) == sum(sizes)]
    for way in ("ready", "constructor", "apart"):
        walk, direction = (range(count), -1) if way == "constructor" else (walked, 1)
        for measure in measures:
            found = _search(sizes[::direction], gradients, walk, measure, way)
            if len(found) == len(sizes) and sum(map(len, found)) == count:
                return found[::direction]
    furthest = _search(sizes, gradients, walked, held, "ready")
    if len(furthest) == len(sizes):
        return f"{count - sum(map(len, furthest))} gradients are in no bucket"
    return (
        f"bucket {len(furthest)}: {sizes[len(furthest)]} bytes fits nowhere: no gradients that follow one "
        f"another in ready order have this sum"
    )


def _search(
    sizes: Sequence[int],
    gradients: Sequence[Gradient],
    walk: Sequence[int],
    measure: Sequence[int],
    way: Literal["ready", "constructor", "apart"],
) -> Buckets:
    """The first complete cut that a search in depth finds, or else the one of most buckets.

    Buckets of the constructor are sorted by their first member (A1.6), others by their last, and leftovers
    follow (A1.5). Of parts wrapped ``apart`` a bucket may begin anywhere in what the buckets before it left:
    it is launched when its last member is ready (A3.5).
    """
    runs = defaultdict[object, list[int]](list)  # of one dtype and device; a sparse one is alone (A1.2)
    for index in walk:
        runs[index if gradients[index].sparse else gradients[index].key].append(index)
    places = {index: place for place, index in enumerate(walk)}
    best: Buckets = ()
    seen, cuts = set[object](), 0
    # What is left of each run, the buckets so far, where the last of them closed, and whether only the ends
    # of runs are being cut.
    stack: list[_Cut] = [(tuple(map(tuple, runs.values())), best, -1, False)]
    while stack and cuts < _MOST_CUTS:
        left, buckets, last, is_over = stack.pop()
        best = max(best, buckets, key=len)
        if len(buckets) == len(sizes):
            if not any(left):
                return buckets
            continue
        if (state := (len(buckets), left, is_over)) in seen:
            continue
        seen.add(state)
        closed, leftovers = list[_Cut](), list[_Cut]()
        for number, run in enumerate(left):
            sums = list(accumulate((measure[index] for index in run), initial=0))
            for start in range(len(run) if way == "apart" else min(1, len(run))):
                cuts += 1
                goal = sums[start] + sizes[len(buckets)]
                for end in range(bisect_left(sums, goal, start + 1), bisect_right(sums, goal, start + 1)):
                    place = places[run[start if way == "constructor" else end - 1]]
                    is_leftover = is_over or place < last
                    is_end = way == "ready" and end == len(run) and not gradients[run[0]].sparse
                    if is_leftover and not is_end:
                        continue
                    rest = (*left[:number], run[:start] + run[end:], *left[number + 1 :])
                    cut = (rest, (*buckets, run[start:end]), max(place, last), is_leftover)
                    (leftovers if is_leftover else closed).append(cut)
        # Those that close early first; of leftovers the dtype seen last (A1.5).
        stack += [*leftovers, *sorted(closed, key=lambda one: -one[2])]
    return best
