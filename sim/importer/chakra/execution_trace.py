"""Execution traces of torch's ``ExecutionTraceObserver`` (schema 1.0 and Chakra's 1.1): shapes, not times."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.importer.bounded_json import parse_bounded
from sim.importer.chakra.nodes import Node, TensorRow, read_nodes, world_size_of
from sim.importer.estimated_times import split_backward, split_band
from sim.importer.matching import match_buckets
from sim.importer.notes import Notes
from sim.importer.opening import read_texts
from sim.importer.wording import count_of, stem_of
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Gradient, Workload
from sim.units import format_number

ACCUMULATE = "torch::autograd::AccumulateGrad"
# What lies between two backwards: a forward, the optimizer, a profiled step.
BETWEEN = ("DistributedDataParallel.forward", "Optimizer.", "## optimizer ##", "ProfilerStep#")
SHARDED = ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """What one file shows: the most frequent of its backwards, and the bytes of that one's all-reduces."""

    gradients: tuple[TensorRow, ...]
    all_reduces: tuple[int, ...]
    backwards: int
    others: int
    collectives: dict[str, int]
    world_size: int | None
    schema: str


def read_chakra(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """What execution traces, one a rank, say of gradients and collectives.

    Raises:
        InputError: a file is no execution trace, has no backward, is of another job than the first, or does
            not fit ``options.model``.
        NotModelledError: gradients are reduce-scattered (FSDP, ZeRO).
    """
    read = read_texts(paths, options.progress)
    traces = [_read(parse_bounded(text, str(path)), str(path)) for path, text in read]
    ranks = _ranks_of_job(traces, paths)
    trace, source = traces[0], str(paths[0])
    name = options.name or stem_of(paths[0])
    notes = _sentences(trace, ranks)
    gradients = _as_gradients(trace, options.backward_ns)
    world_size = options.world_size or ranks
    if world_size is None:
        notes.missing.append("the world size: the trace names no process group; give --world-size")
    workload = _workload(name, gradients, trace, options, source, notes)
    _say_buckets(trace, workload or _bare(name, gradients), source, notes)
    return Imported(
        format="chakra",
        name=name,
        workload=workload,
        **notes.each(),
        details={
            "schema": trace.schema,
            "world_size": world_size,
            "backwards": trace.backwards,
            "gradients": [
                {"index": g.index, "shape": list(g.shape), "dtype": g.dtype, "num_bytes": g.num_bytes}
                for g in gradients
            ],
            "ready_order": list(range(len(gradients)))[::-1],
            "all_reduce_bytes": list(trace.all_reduces),
            "collectives": trace.collectives,
        },
    )


def _ranks_of_job(traces: Sequence[_Trace], paths: Sequence[Path]) -> int | None:
    """The ranks of the one job that the traces are of: same gradients, all-reduces and process groups."""
    ranks: int | None = None
    for trace, path in zip(traces, paths, strict=True):
        for what, same in (
            ("gradients", trace.gradients == traces[0].gradients),
            ("all-reduces of gradients", trace.all_reduces == traces[0].all_reduces),
            ("process groups", None in (ranks, trace.world_size) or ranks == trace.world_size),
        ):
            if not same:
                raise InputError(
                    f"{path}: its {what} differ from those of {paths[0]}; give traces of one job"
                )
        ranks = trace.world_size or ranks
    if ranks is not None and len(paths) > ranks:
        raise InputError(
            f"{paths[ranks]}: one of {len(paths)} files, where the process group has "
            f"{count_of(ranks, 'rank')}; give one file a rank"
        )
    return ranks


def _read(document: Any, source: str) -> _Trace:
    nodes = read_nodes(document, source)
    collectives = Counter(kind for node in nodes if (kind := node.collective) is not None)
    sharded = sum(collectives[kind] for kind in SHARDED)
    if sharded:
        raise NotModelledError(
            f"{source}: {sharded} reduce-scatters: gradients are sharded (FSDP, ZeRO); only all-reduced "
            f"gradients (DDP) are read"
        )
    backwards = [part for part in _between(nodes) if any(node.name == ACCUMULATE for node in part)]
    if not backwards:
        raise InputError(
            f"{source}: nodes: no {ACCUMULATE!r}; give a trace of training that was recorded over a backward"
        )
    read = [_backward(part, source) for part in backwards]
    if not any(node.name.startswith(BETWEEN) for node in nodes):
        read = _repeats(*read[0])
    counts = Counter(gradients for gradients, _ in read)
    usual = max(counts, key=lambda gradients: (counts[gradients], len(gradients)))
    reduced = [sizes for gradients, sizes in read if gradients == usual]
    return _Trace(
        gradients=usual,
        all_reduces=Counter(reduced).most_common(1)[0][0],
        backwards=counts[usual],
        others=len(read) - counts[usual],
        collectives=dict(sorted(collectives.items())),
        world_size=world_size_of(nodes, source),
        schema=str(document["schema"]),
    )


def _between(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """The nodes between each two that ``BETWEEN`` names; those of one backward are never parted."""
    part: list[Node] = []
    for node in nodes:
        if node.name.startswith(BETWEEN):
            yield part
            part = []
        else:
            part.append(node)
    yield part


def _backward(part: Sequence[Node], source: str) -> tuple[tuple[TensorRow, ...], tuple[int, ...]]:
    """Gradients in ready order, and the bytes of the all-reduces from the first of them on."""
    gradients: list[TensorRow] = []
    all_reduces: list[int] = []
    # gloo names its collectives from a thread of its own, and not all; the call of c10d is always there.
    calls = "c10d::allreduce_" if any(node.name == "c10d::allreduce_" for node in part) else None
    for node in part:
        if node.name == ACCUMULATE:
            gradients.extend(node.tensors(source)[:1])
        elif gradients and (node.name == calls if calls else node.collective == "all_reduce"):
            all_reduces.append(sum(tensor.num_bytes for tensor in node.tensors(source)))
    return tuple(gradients), tuple(all_reduces)


def _repeats(
    gradients: tuple[TensorRow, ...], all_reduces: tuple[int, ...]
) -> list[tuple[tuple[TensorRow, ...], tuple[int, ...]]]:
    """The backwards in one run without marks: one, unless gradients and all-reduces repeat alike."""
    for times in range(len(gradients), 1, -1):
        period, rest = divmod(len(gradients), times)
        reduced, odd = divmod(len(all_reduces), times)
        if rest or odd or not reduced:
            continue
        if gradients == gradients[:period] * times and all_reduces == all_reduces[:reduced] * times:
            return [(gradients[:period], all_reduces[:reduced])] * times
    return [(gradients, all_reduces)]


def _as_gradients(trace: _Trace, backward_ns: int | None) -> tuple[Gradient, ...]:
    """The gradients of one backward; index 0 is taken to be the one that is ready last.

    A trace has their ready order, not their place among the parameters. ``ready_ns`` splits ``backward_ns``
    by position; if that is None, ``ready_ns`` is the place in ready order.
    """
    rows = trace.gradients
    if backward_ns is None:
        times: Sequence[int] = range(len(rows))
    else:
        times = split_backward([row.num_bytes for row in rows], backward_ns, "position")
    devices = {row.device for row in rows}
    return tuple(
        Gradient(
            index=index,
            name=f"parameter {index}",
            shape=rows[place].shape,
            dtype=rows[place].dtype,
            num_bytes=rows[place].num_bytes,
            ready_ns=times[place],
            device=rows[place].device if len(devices) > 1 else None,
        )
        for index, place in enumerate(reversed(range(len(rows))))
    )


def _bare(name: str, gradients: tuple[Gradient, ...]) -> Workload:
    """A workload of the gradients in their order, which only serves to match buckets."""
    return Workload(
        name=name,
        gradients=gradients,
        forward_ns=0,
        backward_ns=len(gradients),
        optimizer_ns=0,
        estimated=True,
    )


def _sentences(trace: _Trace, ranks: int | None) -> Notes:
    elements = sum(row.num_elements for row in trace.gradients)
    notes = Notes()
    notes.found.append(
        f"{count_of(trace.backwards, 'backward')} of {len(trace.gradients)} gradients, {elements} elements "
        f"(schema {trace.schema})"
    )
    if ranks is not None:
        notes.found.append(f"a process group of {count_of(ranks, 'rank')}")
    kinds = {kind: count for kind, count in trace.collectives.items() if kind != "wait"}
    if kinds:
        notes.found.append("collectives: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    notes.assumed.append(
        "parameters are in the reverse of their ready order: an execution trace does not number them"
    )
    notes.missing += [
        "names of the parameters, and parameters without a gradient: an execution trace has neither",
        "times: an execution trace has none",
    ]
    if trace.others:
        notes.dropped.append(
            f"{count_of(trace.others, 'backward')} with other gradients (the trace began or ended in them)"
        )
    if any(kind.startswith("all_to_all") for kind in kinds):
        notes.dropped.append("all-to-alls: part of the model, not of the synchronisation of gradients")
    return notes


def _workload(
    name: str,
    gradients: tuple[Gradient, ...],
    trace: _Trace,
    options: ImportOptions,
    source: str,
    notes: Notes,
) -> Workload | None:
    if options.model is not None:
        _check_model(gradients, options.model, source)
        notes.found.append(
            f"the gradients are those of {options.model.name!r}, in its ready order; its times are used"
        )
        return options.model
    if options.backward_ns is None:
        notes.missing.append("a workload: give the length of backward (--backward-ms), or a model")
        return None
    sizes = [row.num_bytes for row in trace.gradients]
    band = split_band(sizes, options.backward_ns)
    notes.assumed.append(
        f"ready times split the backward given evenly over the gradients (estimated; a split by bytes "
        f"differs by a factor of {format_number(band[1], 6)} on average)"
    )
    for what in ("forward_ns", "optimizer_ns"):
        if getattr(options, what) is None:
            notes.assumed.append(f"{what} is 0: not given")
    return Workload(
        name=name,
        gradients=gradients,
        forward_ns=options.forward_ns or 0,
        backward_ns=options.backward_ns,
        optimizer_ns=options.optimizer_ns or 0,
        estimated=True,
        band=band,
        band_on="ready",
        provenance={"source": "execution trace", "file": source, "schema": trace.schema},
    )


def _check_model(gradients: tuple[Gradient, ...], model: Workload, source: str) -> None:
    """Raise ``InputError`` unless the model's gradients in ready order have the trace's shapes and dtypes."""
    ready = [model.gradients[index] for index in model.order()]
    traced = gradients[::-1]
    for place, (known, seen) in enumerate(zip(ready, traced, strict=False)):
        if (known.num_bytes, known.dtype) != (seen.num_bytes, seen.dtype):
            raise InputError(
                f"{source}: gradient {place} in ready order is {list(seen.shape)} {seen.dtype}; in the model "
                f"{model.name!r} it is {known.name!r}, {list(known.shape)} {known.dtype}; give the model of "
                f"this trace"
            )
    if len(ready) != len(traced):
        raise InputError(
            f"{source}: {len(traced)} gradients; the model {model.name!r} has {len(ready)}; give the model "
            f"of this trace"
        )


def _say_buckets(trace: _Trace, model: Workload, source: str, notes: Notes) -> None:
    if not trace.all_reduces:
        notes.missing.append("all-reduces of gradients: none lies beside the gradients")
        return
    sizes = ", ".join(map(str, trace.all_reduces))
    try:
        match_buckets(trace.all_reduces, model, source)
        notes.found.append(f"buckets of {sizes} bytes, exact sums of runs of gradients in ready order")
    except InputError as error:
        notes.missing.append(f"which gradients are in which all-reduce ({sizes} bytes): {error}")
