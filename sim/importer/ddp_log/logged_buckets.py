"""Imports DDP's own logger, ``ddp._get_ddp_logging_data()`` (A4): exact buckets, and averages of times."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from sim.errors import AssignmentError, InputError
from sim.formats.documents import to_document
from sim.importer.ddp_log.log_lines import DdpLog, read_logs
from sim.importer.dtypes import torch_dtype
from sim.importer.estimated_times import bounds_band, split_backward, stretch_backward
from sim.importer.matching import match_buckets
from sim.importer.notes import Notes
from sim.importer.opening import read_texts
from sim.importer.recorded.job_settings import switches_told
from sim.importer.wording import count_of, stem_of
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.imported import Imported, ImportOptions, RankRow
from sim.nouns.workload import DTYPE_BYTES, AsRun, Gradient, Workload
from sim.units import format_ms

Indices = tuple[tuple[int, ...], ...]

# What DDP's backward_compute_time holds besides backward (A4); the loss is subtracted if a model tells it.
INCLUDES = ("copy_in", "launch", "interference")


def read_ddp_log(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Buckets as they ran, and a workload whose times are estimated from the logged averages.

    ``details["layouts"]`` has one entry per bucket layout, with its assignment where parameter indices can be
    told, and the logged times. There is no measurement: averages over the first ten iterations (A4.2) are
    not steps, and the log has no plain backward beside them.

    Raises:
        InputError: no log in a file, an illegal value, or a log that does not fit ``options.model``.
    """
    with_buckets: list[tuple[str, DdpLog]] = []
    notes = Notes()
    for path, text in read_texts(paths, options.progress):
        logs, broken = read_logs(text, str(path))
        with_buckets += [(str(path), log) for log in logs if log.buckets]
        if broken:
            notes.dropped.append(f"{path}: {count_of(broken, 'line')} with DDP's keys but no whole object")
    if not with_buckets:
        raise InputError(f"{paths[0]}: bucket_sizes: missing; give a log of a step that was synchronised")
    layouts = [list(group) for _, group in groupby(sorted(with_buckets, key=_layout), key=_layout)]
    for source, log in with_buckets:
        if log.world_size is not None and options.world_size not in (None, log.world_size):
            raise InputError(
                f"--world-size: {options.world_size} is not legal here; {source} is of {log.world_size} ranks"
            )
    entries = []
    for layout in layouts:
        source, log = layout[0]
        indices = _indices(log, options.model, source)
        entries.append(_entry(layout, indices, options.model))
        notes.found.append(_say_layout(log, indices))
    finest = max(layouts, key=lambda layout: len(layout[0][1].buckets))
    source, log = finest[0]
    name = options.name or stem_of(Path(source))
    notes.missing += [
        "the duration of each collective, and so an all-reduce curve: DDP's logger sums them up",
        "a measured step: the logger has averages, and no backward without DDP beside them",
    ]
    notes.assumed += _contradictions(log)
    if len(layouts) > 1:
        notes.assumed.append(f"the workload is told by the finest of {len(layouts)} layouts")
    workload = _workload(name, log, options, source, notes)
    return Imported(
        format="ddp-log",
        name=name,
        workload=workload,
        ranks=_ranks(finest),
        **notes.each(),
        details={"world_size": log.world_size or options.world_size, "layouts": entries},
    )


def _contradictions(log: DdpLog) -> list[str]:
    """Averages that cannot be true together: the overlap is a part of both, backward and communication."""
    return [
        f"WARNING: cannot be: backward_compute_comm_overlap_time of {format_ms(log.overlap_ns)} is a part of "
        f"{name}, of {format_ms(whole)}"
        for name, whole in (("backward_compute_time", log.backward_ns), ("backward_comm_time", log.comm_ns))
        if log.overlap_ns and whole and log.overlap_ns > whole
    ]


def _layout(item: tuple[str, DdpLog]) -> tuple[int, tuple[int, ...], str]:
    log = item[1]
    return (log.bucket_cap_bytes or 0, log.buckets, repr(log.rebuilt_indices))


def _indices(log: DdpLog, model: Workload | None, source: str) -> Indices | None:
    """Parameter indices by bucket: as logged, else told by the sizes and the model's ready order."""
    logged = log.rebuilt_indices if log.rebuilt_bucket_sizes else None
    if model is None:
        return logged
    _check_totals(log, model, source)
    if logged is None:
        return match_buckets(log.buckets, model, source)
    count = len(model.gradients)
    for number, bucket in enumerate(logged):
        for index in bucket:
            if index >= count:
                raise InputError(
                    f"{source}: rebuilt_per_bucket_param_indices: bucket {number} has index {index}; the "
                    f"model {model.name!r} has gradients 0 to {count - 1}"
                )
    sizes = log.rebuilt_bucket_sizes or ()
    for number, (size, real) in enumerate(zip(sizes, bucket_bytes(model, logged), strict=False)):
        if size != real:
            raise InputError(
                f"{source}: rebuilt_bucket_sizes: bucket {number} has {size} bytes; its gradients in "
                f"the model {model.name!r} have {real}"
            )
    if len(sizes) != len(logged):
        raise InputError(f"{source}: {len(sizes)} rebuilt_bucket_sizes for {len(logged)} lists of indices")
    return logged


def _check_totals(log: DdpLog, model: Workload, source: str) -> None:
    for field, logged, known in (
        ("num_parameter_tensors", log.num_parameters, len(model.gradients)),
        ("total_parameter_size_bytes", log.total_bytes, model.total_bytes),
    ):
        if logged is not None and logged != known:
            raise InputError(f"{source}: {field}: {logged}; the model {model.name!r} has {known}")


def _entry(
    layout: Sequence[tuple[str, DdpLog]], indices: Indices | None, model: Workload | None
) -> dict[str, Any]:
    """One layout for the summary: what all its ranks share, and the times of each."""
    source, log = layout[0]
    assignment = None
    if indices is not None:
        assignment = to_document(_assignment(log, indices, model, source))
    return {
        "bucket_bytes": list(log.buckets),
        "rebuilt": log.rebuilt_bucket_sizes is not None,
        "bucket_cap_bytes": log.bucket_cap_bytes,
        "backend": log.backend,
        "world_size": log.world_size,
        "comm_hook": log.comm_hook,
        **log.switches,
        "assignment": assignment,
        "times": [
            {
                "rank": rank.rank,
                "iteration": rank.iteration,
                "forward_compute_ns": rank.forward_ns,
                "backward_compute_ns": rank.backward_ns,
                "backward_comm_ns": rank.comm_ns,
                "backward_compute_comm_overlap_ns": rank.overlap_ns,
                "first_launch_ns": rank.first_launch_ns,
                "after_backward_ns": rank.after_backward_ns,
            }
            for _, rank in layout
        ],
    }


def _assignment(log: DdpLog, indices: Indices, model: Workload | None, source: str) -> Assignment:
    try:
        return Assignment(
            bucket_indices=indices,
            bucket_bytes=log.buckets,
            ddp_kwargs=dict(log.switches),
            settings={} if log.comm_hook is None else {"comm_hook": log.comm_hook},
            made_for=made_for(model, log.world_size) if model is not None else None,
            provenance={"source": "DDP's logger", "file": source},
        )
    except AssignmentError as error:
        raise InputError(f"{source}: rebuilt_per_bucket_param_indices: {error}") from None


def _say_layout(log: DdpLog, indices: Indices | None) -> str:
    words = [f"{count_of(len(log.buckets), 'bucket')} of {sum(log.buckets)} bytes"]
    words.append("rebuilt from the ready order" if log.rebuilt_bucket_sizes else "the constructor's")
    if log.bucket_cap_bytes is not None:
        words.append(f"bucket_cap_bytes {log.bucket_cap_bytes}")
    if log.world_size is not None:
        words.append(f"{log.world_size} ranks" + (f" over {log.backend}" if log.backend else ""))
    words.extend(key for key, value in log.switches.items() if value and key != "broadcast_buffers")
    if log.comm_hook is not None:
        words.append(f"hook {log.comm_hook}")
    if log.backward_ns:
        words.append(f"{format_ms(log.backward_ns)} of backward on average")
    if (late := log.after_backward_ns) is not None:
        words.append(f"{format_ms(late)} behind it")
    if indices is None:
        words.append("no parameter indices (give the model)")
    return ", ".join(words)


def _workload(
    name: str,
    log: DdpLog,
    options: ImportOptions,
    source: str,
    notes: Notes,
) -> Workload | None:
    loss_ns = options.model.loss_ns if options.model is not None else 0
    backward_ns = options.backward_ns
    is_logged = backward_ns is None
    if backward_ns is None:
        if not log.backward_ns or log.backward_ns <= loss_ns:
            notes.missing.append(
                "a workload: the log has no backward_compute_time; give the length of backward"
            )
            return None
        backward_ns = log.backward_ns - loss_ns
        notes.assumed.append(
            "backward is the logged backward_compute_time"
            + (f" less the model's loss of {format_ms(loss_ns)}" if loss_ns else " with the loss in it")
            + "; copies into buckets, launches and interference are in it (A4)"
        )
    forward_ns = options.forward_ns if options.forward_ns is not None else log.forward_ns
    if options.forward_ns is None:
        notes.assumed.append(
            "forward is 0: not logged"
            if not forward_ns
            else "forward is the logged forward_compute_time, with the broadcast of buffers in it (A4)"
        )
    common: dict[str, Any] = {
        "name": name,
        "forward_ns": forward_ns or 0,
        "ready_includes": INCLUDES if is_logged else (),
        "estimated": True,
        "band_on": "ready",
        "job": AsRun(switches=switches_told(log.switches, log.comm_hook)),
        "provenance": {"source": "DDP's logger", "file": source},
    }
    if options.model is not None:
        if options.optimizer_ns is not None:
            common["optimizer_ns"] = options.optimizer_ns
        return _scaled(options.model, backward_ns, common, log, notes)
    if options.optimizer_ns is None:
        notes.assumed.append("optimizer_ns is 0: not logged")
    common["optimizer_ns"] = options.optimizer_ns or 0
    return _by_bucket(log, backward_ns, common, is_logged, notes)


def _scaled(
    model: Workload,
    backward_ns: int,
    common: dict[str, Any],
    log: DdpLog,
    notes: Notes,
) -> Workload:
    """``model`` with its backward stretched to the logged one; ``band`` reaches back to its own times."""
    if model.backward_ns == 0:
        raise InputError(f"model {model.name!r}: backward_ns: 0 cannot be scaled; give a recorded model")
    factor = backward_ns / model.backward_ns
    low, high = model.band or (1.0, 1.0)
    notes.assumed.append(
        f"ready times are those of {model.name!r} times {factor:.3f}, not logged (estimated)"
    )
    band = (round(min(low, 1 / factor), 3), round(max(high, 1 / factor), 3))
    workload = replace(stretch_backward(model, backward_ns), band=band, **common)
    buckets = _indices(log, model, "log")
    if buckets and (launch := log.first_launch_ns) is not None:
        times = [workload.gradients[index].ready_ns for index in buckets[0]]
        ready = max((time for time in times if time is not None), default=0)
        notes.found.append(
            f"bucket 0 was launched {format_ms(launch - model.loss_ns)} into backward; the scaled model has "
            f"it ready at {format_ms(ready)}"
        )
    return workload


def _by_bucket(
    log: DdpLog, backward_ns: int, common: dict[str, Any], is_logged: bool, notes: Notes
) -> Workload:
    """A workload with a gradient for each bucket: the first is ready when the log says that bucket 0 was
    launched, and the others share the rest of backward by their bytes."""
    sizes = log.buckets
    launch = log.first_launch_ns
    first = (launch,) if is_logged and launch is not None and len(sizes) > 1 else ()
    done = sum(first)
    rest = sizes[len(first) :]
    times = first + tuple(done + t for t in split_backward(rest, backward_ns - done, "bytes"))
    known = [dtype for word in log.dtypes if (dtype := torch_dtype(word)) is not None]
    notes.assumed.append(
        "one gradient a bucket, as the log names no parameters: layouts that cut finer cannot be told"
        + (", bucket 0 ready as it was launched" if first else "")
        + ", ready times in proportion to bytes (estimated)"
    )
    if len(known) != 1:
        notes.assumed.append("dtype: float32, the log does not tell which bucket has which")
    dtype = known[0] if len(known) == 1 else "float32"
    gradients = []
    for place, (size, ready_ns) in enumerate(zip(sizes, times, strict=True)):
        elements, rest_bytes = divmod(size, DTYPE_BYTES[dtype])
        gradients.append(
            Gradient(
                index=len(sizes) - 1 - place,
                name=f"bucket {place}",
                shape=(size if rest_bytes else elements,),
                dtype="uint8" if rest_bytes else dtype,
                num_bytes=size,
                ready_ns=ready_ns,
            )
        )
    return Workload(
        gradients=tuple(gradients),
        backward_ns=backward_ns,
        ready_order=tuple(range(len(sizes)))[::-1],
        band=bounds_band(sizes, times, len(first)),
        whole_buckets=True,
        **common,
    )


def _ranks(layout: Sequence[tuple[str, DdpLog]]) -> tuple[RankRow, ...]:
    """One row for each rank that says which it is; of several logs of a rank the first counts."""
    rows = {
        log.rank: RankRow(rank=log.rank, collectives=len(log.buckets), backward_ns=log.backward_ns)
        for _, log in reversed(layout)
        if log.rank is not None and log.rank >= 0
    }
    return tuple(rows[rank] for rank in sorted(rows))
