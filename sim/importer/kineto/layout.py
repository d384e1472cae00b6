"""Which gradients a step reduced in which buckets: by the trace's own shapes, by the model, or by bucket."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from sim.errors import InputError
from sim.importer.kineto.collectives import SeenCollective
from sim.importer.kineto.steps import SeenGradient, SeenStep
from sim.importer.matching import match_buckets
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

ASSUMED_DTYPE = "float32"  # where the trace names none


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
    by_bucket: bool
    buckets: tuple[tuple[int, ...], ...]
    told_by: str
    is_of_whole_buckets: bool = False

    def ready_ns(self, step: SeenStep) -> tuple[int, ...]:
        """By index: when each gradient was ready, from the start of the step's backward."""
        times = [0] * len(self.gradients)
        for gradient, place in zip(self.gradients, self.places, strict=True):
            seen = step.reductions[place] if self.by_bucket else step.gradients[place]
            times[gradient.index] = max(0, (seen.ready_ns or step.backward_start_ns) - step.backward_start_ns)
        return tuple(times)


def size_of(one: SeenCollective) -> int | None:
    """Bytes of a collective; None where the trace does not say how many elements it had."""
    if one.num_elements is None:
        return None
    return one.num_elements * DTYPE_BYTES[one.dtype or ASSUMED_DTYPE]


def lay_out(step: SeenStep, model: Workload | None, source: str) -> Layout | None:
    """The gradients and buckets of a step; None where neither the trace nor a model tells any size.

    Raises:
        InputError: a model that is not the one that was trained.
    """
    sizes = [size_of(one) for one in step.reductions]
    told = [size for size in sizes if size is not None]
    complete = told if len(told) == len(sizes) else None
    before_last = _reduced(step)
    if model is not None:
        return _by_model(step, model, complete, before_last, source)
    why = "no shapes of gradients in the trace (give --model, or profile with record_shapes=True)"
    if before_last and all(one.shape is not None for _, one in before_last):
        made = _by_shapes(before_last, complete, step.reductions, source)
        if isinstance(made, Layout):
            return made
        why = f"the buckets are not made of the gradients whose shapes the trace has ({made}); give --model"
    if not complete:
        return None
    return _by_bucket(step, complete, why)


def _reduced(step: SeenStep) -> list[tuple[int, SeenGradient]]:
    """The gradients that the reductions can hold, with their places.

    They are those that DDP copied, if that can be seen. Gradients that came after the last reduction was
    launched are left out, unless all did: a compiled backward reduces first, and accumulates then.
    """
    placed = list(enumerate(step.gradients))
    if any(one.reduced for _, one in placed):
        placed = [(place, one) for place, one in placed if one.reduced]
    if step.reductions:
        last = step.reductions[-1].launched_ns
        before = [(place, one) for place, one in placed if one.hooked_at_ns <= last]
        placed = before or placed
    return placed


def _by_shapes(
    placed: Sequence[tuple[int, SeenGradient]],
    sizes: Sequence[int] | None,
    reductions: Sequence[SeenCollective],
    source: str,
) -> Layout | str:
    """The layout by the trace's own shapes, or why gradients of these shapes do not make up the buckets."""
    why = ""
    # An empty shape is that of a scalar or of a missing gradient, so gradients with it are left out second.
    for kept in (placed, [(place, one) for place, one in placed if one.shape]):
        plain = tuple(_unnamed(len(kept) - 1 - rank, one) for rank, (_, one) in enumerate(kept))
        for gradients in dict.fromkeys((plain, _on_wire(plain, reductions))) if plain else ():
            buckets: tuple[tuple[int, ...], ...] = ()
            if sizes:
                try:
                    buckets = match_buckets(sizes, _as_model(gradients), source)
                except InputError as error:
                    why = why or str(error).removeprefix(f"{source}: ").split("; ")[0]
                    continue
            return Layout(
                gradients=gradients,
                places=tuple(place for place, _ in kept),
                by_bucket=False,
                buckets=buckets,
                told_by="shapes are the trace's own; names and the order of parameters are not in it: "
                "gradients are numbered against the order in which they were ready",
            )
    return why or "all are empty"


def _on_wire(gradients: tuple[Gradient, ...], reductions: Sequence[SeenCollective]) -> tuple[Gradient, ...]:
    """The gradients as a comm hook sends them, in the one dtype that all reductions have."""
    dtypes = {one.dtype for one in reductions}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None:
        return gradients
    return tuple(
        gradient
        if gradient.dtype == dtype or gradient.wire_bytes is not None
        else replace(gradient, wire_bytes=prod(gradient.shape) * DTYPE_BYTES[dtype])
        for gradient in gradients
    )


def _shape(elements: int | None, dtype: str, num_bytes: int) -> tuple[int, ...]:
    """The shape of a bucket whose number of elements is known and fits its bytes; else empty."""
    return (elements,) if elements and elements * DTYPE_BYTES[dtype] == num_bytes else ()


def _unnamed(index: int, one: SeenGradient) -> Gradient:
    shape = one.shape or ()
    dtype = one.dtype or ASSUMED_DTYPE
    return Gradient(
        index=index,
        name=f"gradient {index}",
        shape=shape,
        dtype=dtype,
        num_bytes=prod(shape) * DTYPE_BYTES[dtype],
        ready_ns=None,
    )


def _as_model(gradients: Sequence[Gradient]) -> Workload:
    """A workload with nothing but the gradients and their order."""
    return Workload(
        name="trace",
        gradients=tuple(replace(gradient, ready_ns=rank) for rank, gradient in enumerate(gradients)),
        forward_ns=0,
        backward_ns=len(gradients),
        optimizer_ns=0,
        ready_order=tuple(gradient.index for gradient in gradients),
    )


def _by_model(
    step: SeenStep,
    model: Workload,
    sizes: Sequence[int] | None,
    placed: Sequence[tuple[int, SeenGradient]],
    source: str,
) -> Layout:
    """The layout by the model's gradients: in the trace's order if the trace has shapes, else the model's."""
    order = model.order()
    if len(order) != len(placed):
        left_out = len(placed) < len(order)
        raise InputError(
            f"{source}: {len(placed)} gradients were reduced in step {step.number}, the model "
            f"{model.name!r} has {len(order)}; give the model that was trained"
            + (", or, of a trace that was sampled, none" if left_out else "")
        )
    ordered = _in_trace_order(model, placed, source)
    sent = replace(model, gradients=_on_wire(model.gradients, step.reductions))
    buckets = match_buckets(sizes, sent, source) if sizes else ()
    by_bucket = False
    if step.reductions and step.gradients[-1].hooked_at_ns > step.reductions[-1].launched_ns:
        by_bucket = len(step.reductions) == len(order)  # sent before AccumulateGrad: ready when sent
    return Layout(
        gradients=tuple(replace(sent.gradients[index], ready_ns=None) for index in ordered),
        places=tuple(range(len(ordered))) if by_bucket else tuple(place for place, _ in placed),
        by_bucket=by_bucket,
        buckets=buckets,
        told_by=f"names, shapes and indices are those of {model.name!r}"
        + ("" if ordered == order else "; the order is the trace's, by shape"),
    )


def _in_trace_order(
    model: Workload, placed: Sequence[tuple[int, SeenGradient]], source: str
) -> tuple[int, ...]:
    """The model's indices in the order in which the trace has their shapes; its own where it has none."""
    order = model.order()
    if any(one.shape is None for _, one in placed):
        return order
    left: dict[tuple[int, ...], list[int]] = {}
    for index in order:
        left.setdefault(model.gradients[index].shape, []).append(index)
    found = []
    for rank, (_, one) in enumerate(placed):
        shape = one.shape or ()
        if not left.get(shape):
            raise InputError(
                f"{source}: gradient {rank} in hook order has the shape {list(shape)}, of which the model "
                f"{model.name!r} has {Counter(g.shape for g in model.gradients)[shape]}; give the model "
                f"that was trained"
            )
        found.append(left[shape].pop(0))
    return tuple(found)


def _by_bucket(step: SeenStep, sizes: Sequence[int], why: str) -> Layout:
    """The layout with one gradient for each bucket; ``why`` says why its gradients cannot be told apart."""
    count = len(sizes)
    gradients = tuple(
        Gradient(
            index=count - 1 - place,
            name=f"bucket {place}",
            shape=_shape(one.num_elements, one.dtype or ASSUMED_DTYPE, size),
            dtype=one.dtype or ASSUMED_DTYPE,
            num_bytes=size,
            ready_ns=None,
        )
        for place, (one, size) in enumerate(zip(step.reductions, sizes, strict=True))
    )
    return Layout(
        gradients=gradients,
        places=tuple(range(count)),
        by_bucket=True,
        buckets=tuple((gradient.index,) for gradient in gradients),
        told_by=f"{why}: each bucket that ran stands for its gradients, so that they can be merged but not "
        f"divided",
        is_of_whole_buckets=True,
    )
