"""torch's flight recorder as JSON, one dump a rank: launches, sizes, and with timing on, durations."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.formats.documents import to_document
from sim.importer.bounded_json import parse_bounded
from sim.importer.estimated_times import stretch_backward
from sim.importer.flight_recorder.calls import Call, Dump, read_dump
from sim.importer.flight_recorder.last_arrivers import align, arrivals, common, curve, spread, transfers
from sim.importer.flight_recorder.repeated_steps import Key, RepeatedSteps, find_steps, is_bucket, key_of
from sim.importer.notes import Notes
from sim.importer.opening import read_texts
from sim.importer.wording import count_of, stem_of
from sim.nouns.assignment import Assignment, made_for
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from sim.units import format_ms

MOST_NAMED = 4


def read_flight_recorder(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Buckets, launches and, where timing was on, an all-reduce curve from the dumps of one or all ranks.

    A recorder knows nothing of backward: a workload comes from ``options.model`` alone, which is checked
    against the buckets. ``details["buckets"]`` has a row for each bucket.

    Raises:
        InputError: a file is no dump, holds no all-reduce, or does not fit ``options.model``.
        NotModelledError: gradients are reduce-scattered (FSDP, ZeRO), or ranks form a pipeline.
    """
    dumps = [
        read_dump(parse_bounded(text, str(path)), path, number)
        for number, (path, text) in enumerate(read_texts(paths, options.progress))
    ]
    by_order = len({dump.rank for dump in dumps}) < len(dumps)
    if by_order:
        dumps = [replace(dump, rank=number) for number, dump in enumerate(dumps)]
    dumps.sort(key=lambda dump: dump.rank)
    for dump in dumps:
        _refuse(dump)
    name = options.name or stem_of(Path(dumps[0].source))
    group = _busiest_group(dumps[0])
    ranks = [{key_of(call): call for call in dump.calls if _belongs(call, group)} for dump in dumps]
    first = [ranks[0][key] for key in sorted(ranks[0])]
    steps = find_steps(first, options.model, dumps[0].source)
    world_size = _world_size(dumps, group, options.world_size)
    notes = _opening(dumps, group, first, world_size)
    if by_order:
        notes.assumed.append(
            "ranks are in the order of the files: their names do not end in different numbers"
        )
    if steps is None:
        notes.missing.append("steps: no pattern of all-reduces repeats in the dump")
    else:
        _say_steps(steps, notes)
    notes.found.extend(_unfinished(dumps, ranks))
    hardware = _hardware(name, ranks, dumps[0], world_size, notes)
    in_all = set(common(ranks))
    keys = [key for step in steps.buckets for key in step if key in in_all] if steps else []
    clocks = align(ranks) if len(ranks) > 1 else None
    rows, how = arrivals([dump.rank for dump in dumps], ranks, keys, clocks)
    if len(ranks) > 1 and keys:
        notes.found.append(f"who came last to {count_of(len(keys), 'collective')} is told by {how}")
        if clocks is None and how == "the launch times":
            notes.assumed.append("the clocks of all ranks agree: the recorder has no ends to align them by")
    return Imported(
        format="flight-recorder",
        name=name,
        workload=_workload(options, notes),
        hardware=hardware,
        ranks=rows,
        **notes.each(),
        details=_details(dumps[0], group, world_size, steps, ranks, options.model),
    )


def _belongs(call: Call, group: str) -> bool:
    return call.group == group and not call.is_p2p


def _refuse(dump: Dump) -> None:
    """Raise for systems other than DDP, which are recognised by what they send."""
    sent: dict[str, int] = defaultdict(int)
    for call in dump.calls:
        sent["p2p" if call.is_p2p else call.kind] += max(call.num_bytes, 1)
    scattered = sum(size for kind, size in sent.items() if "reduce_scatter" in kind.lower())
    reduced = sent["all_reduce"]
    if scattered > reduced:
        raise NotModelledError(
            f"{dump.source}: {scattered} bytes reduce-scattered against {reduced} all-reduced: gradients are "
            f"sharded (FSDP, ZeRO); only all-reduced gradients (DDP) are read"
        )
    if sent["p2p"] > reduced:
        raise NotModelledError(
            f"{dump.source}: {sent['p2p']} bytes sent from rank to rank against {reduced} all-reduced: a "
            f"pipeline; only data parallelism is read"
        )
    if not any(is_bucket(call) for call in dump.calls):
        raise InputError(
            f"{dump.source}: entries: no all_reduce of gradients; give a dump of training with DDP"
        )


def _busiest_group(dump: Dump) -> str:
    sent: dict[str, int] = defaultdict(int)
    for call in dump.calls:
        sent[call.group] += call.num_bytes * is_bucket(call)
    return max(sent, key=lambda group: sent[group])


def _world_size(dumps: Sequence[Dump], group: str, given: int | None) -> int | None:
    groups = dumps[0].group_ranks
    members = groups.get(group) or (next(iter(groups.values())) if len(groups) == 1 else ())
    if members and given not in (None, len(members)):
        raise InputError(
            f"--world-size: {given} is not legal here; {dumps[0].source} has {len(members)} in pg_config"
        )
    return len(members) or given or (len(dumps) if len(dumps) > 1 else None)


def _opening(dumps: Sequence[Dump], group: str, calls: Sequence[Call], world_size: int | None) -> Notes:
    backends = ", ".join(sorted({call.backend for call in calls}))
    notes = Notes()
    notes.found.append(
        f"{count_of(len(dumps), 'rank')} of {world_size if world_size is not None else 'an unknown number'}, "
        f"{count_of(len(calls), 'collective')} of {backends} on the first (format {dumps[0].version})"
    )
    notes.assumed.append(
        "launch times are the host's: on a GPU a collective starts when its stream comes to it"
    )
    notes.missing.append("backward and ready times: the recorder sees collectives alone")
    if world_size is None:
        notes.missing.append("the world size; add it, or give the dumps of all ranks")
    elif len(dumps) < world_size:
        notes.missing.append(f"the dumps of {world_size - len(dumps)} of {world_size} ranks")
    others = sum(not _belongs(call, group) for call in dumps[0].calls)
    if others:
        notes.dropped.append(f"{count_of(others, 'call')} outside the group that reduces most, {group!r}")
    return notes


def _say_steps(steps: RepeatedSteps, notes: Notes) -> None:
    every = f", one every {format_ms(median(steps.step_ns))}" if steps.step_ns else ""
    notes.found.append(
        f"{count_of(len(steps.buckets), 'step')} of {count_of(len(steps.sizes), 'bucket')}, "
        f"{sum(steps.sizes)} bytes{every}"
    )
    notes.assumed.append(f"where a step begins is told by {steps.begins}")
    if steps.indices is not None:
        notes.found.append("the buckets are exact sums of the model's gradients")
    if steps.outside:
        notes.dropped.append(
            f"{count_of(steps.outside, 'collective')} in no whole step (start-up, cut off, or other)"
        )
    for kind, count in steps.beside.items():
        notes.dropped.append(f"{count} {kind} a step that reduce no gradients (buffers, metrics, DDP's own)")


def _unfinished(dumps: Sequence[Dump], ranks: Sequence[dict[Key, Call]]) -> list[str]:
    """Sentences on why such a dump is usually made: what did not end, who is behind, where ranks disagree."""
    said = []
    last = {dump.rank: max(calls, default=(0, 0)) for dump, calls in zip(dumps, ranks, strict=True)}
    ahead = max(last.values())
    for dump, calls in zip(dumps, ranks, strict=True):
        if last[dump.rank][0] < ahead[0]:
            said.append(
                f"rank {dump.rank} is behind: its last collective is {last[dump.rank][0]} of {ahead[0]}"
            )
        hanging = [call for _, call in sorted(calls.items()) if not call.is_done]
        said.extend(
            f"rank {dump.rank}: {call.kind} {call.sequence} of {call.num_bytes} bytes: {call.state}, not done"
            for call in hanging[:MOST_NAMED]
        )
        if len(hanging) > MOST_NAMED:
            said.append(f"rank {dump.rank}: {len(hanging) - MOST_NAMED} more are not done")
    first = ranks[0]
    differing = {
        key
        for calls in ranks[1:]
        for key, call in calls.items()
        if key in first and not call.is_like(first[key])
    }
    if differing:
        said.append(f"ranks disagree on what collective {min(differing)[0]} is ({len(differing)} such)")
    return said


def _hardware(
    name: str,
    ranks: Sequence[dict[Key, Call]],
    dump: Dump,
    world_size: int | None,
    notes: Notes,
) -> tuple[Hardware, ...]:
    samples = transfers(ranks)
    if not samples:
        notes.missing.append(
            "durations, and so an all-reduce curve: NCCL records them with TORCH_NCCL_ENABLE_TIMING=1"
        )
        return ()
    if world_size is None:
        notes.missing.append("an all-reduce curve: durations are there, the world size is not")
        return ()
    alone = len(ranks) == 1
    if alone:
        notes.assumed.append(
            "transfer times are the least durations of one rank: upper bounds, as waiting is in them"
        )
    elif len(ranks) < world_size:
        notes.assumed.append(
            f"the last to arrive is among the {len(ranks)} ranks given: else transfers are too long"
        )
    notes.assumed.append("durations are those beside backward, not of a link at rest")
    return (
        Hardware(
            name=name,
            world_size=world_size,
            all_reduce=curve(samples, alone),
            spread={} if alone else {"all_reduce": spread(samples)},
            provenance={
                "source": "flight recorder",
                "file": dump.source,
                "format": dump.version,
                "library": dump.library,
                "statistic": "least of one rank" if alone else "median over steps of the least over ranks",
            },
        ),
    )


def _workload(options: ImportOptions, notes: Notes) -> Workload | None:
    model = options.model
    if model is None:
        notes.missing.append("a workload: give the model (a recorded or estimated workload)")
        return None
    if options.backward_ns is None or model.backward_ns == 0:
        return model
    notes.found.append(f"{model.name!r} stretched to the backward given")
    return stretch_backward(model, options.backward_ns)


def _details(
    dump: Dump,
    group: str,
    world_size: int | None,
    steps: RepeatedSteps | None,
    ranks: Sequence[dict[Key, Call]],
    model: Workload | None,
) -> dict[str, Any]:
    details: dict[str, Any] = {
        "format": dump.version,
        "library": dump.library,
        "group": group,
        "world_size": world_size,
    }
    if steps is None:
        return details
    in_all = set(common(ranks))
    rows = []
    for number, (size, launch) in enumerate(zip(steps.sizes, steps.launch_ns, strict=True)):
        least = []
        for step in steps.buckets:
            times = [calls[step[number]].duration_ns for calls in ranks if step[number] in in_all]
            if times and all(time is not None for time in times):
                least.append(min(time for time in times if time is not None))
        rows.append(
            {
                "index": number,
                "num_bytes": size,
                "launch_after_first_ns": launch,
                "transfer_ns": round(median(least)) if least else None,
            }
        )
    details.update(
        steps=len(steps.buckets),
        step_ns=round(median(steps.step_ns)) if steps.step_ns else None,
        buckets=rows,
    )
    if steps.indices is not None and model is not None:
        details["assignment"] = to_document(
            Assignment(
                bucket_indices=steps.indices,
                bucket_bytes=steps.sizes,
                made_for=made_for(model, world_size),
                provenance={"source": "flight recorder", "file": dump.source},
            )
        )
    return details
