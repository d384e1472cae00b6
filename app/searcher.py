"""What a process that searches does; ``app.searching`` starts it. Nothing of streamlit is imported here."""

import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.rows import SweepRow
from sim.nouns.workload import Workload

Progress = Callable[[str], None]
_LESS_URGENT = 10  # than the page: added to the process's niceness


def sweep(workload: Workload, hardware: Hardware, *, progress: Progress) -> tuple[SweepRow, ...]:
    """``sim.sweep`` over caps."""
    return sim.sweep(
        workload, hardware, progress=lambda done, total: progress(f"trying caps, {done} of {total}")
    )


def sweep_under(
    workload: Workload,
    hardware: Hardware,
    slowest: Workload | None,
    options: Mapping[str, Any],
    plain: tuple[SweepRow, ...],
    *,
    progress: Progress,
) -> tuple[SweepRow, ...]:
    """The rows of ``plain``, each cap of it played anew under ``options`` and beside the slowest rank."""
    sizes = [gradient.num_bytes for gradient in workload.gradients]
    known: dict[tuple[tuple[int, ...], ...], SweepRow] = {}
    rows: list[SweepRow] = []
    for row in plain:
        progress(f"trying caps under the switches, {len(rows)} of {len(plain)}")
        assignment = sim.assign(workload, bucket_cap_mb=row.bucket_cap_mb, **options)
        buckets = assignment.bucket_indices
        if buckets not in known:
            report = sim.summarize(sim.simulate(workload, hardware, assignment, "analytic", slowest=slowest))
            known[buckets] = replace(
                row,
                num_buckets=len(buckets),
                largest_bucket_bytes=max(sum(sizes[index] for index in bucket) for bucket in buckets),
                step_ns=report.step_ns,
                sync_end_ns=report.sync_end_ns,
                exposed_comm_ns=report.exposed_comm_ns,
                overlap_ratio=report.overlap_ratio,
            )
        rows.append(replace(known[buckets], label=row.label, bucket_cap_mb=row.bucket_cap_mb))
    return tuple(rows)


def answer(asked: Connection, search: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Search, and tell ``asked`` in words how far it is, and last what was found or raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    if hasattr(os, "nice"):
        os.nice(_LESS_URGENT)
    try:
        found = search(*arguments, progress=lambda words: asked.send(("words", words)))
        asked.send(("found", found))
    except (BrokenPipeError, ConnectionResetError):
        return  # whoever asked has gone
    except Exception as error:  # noqa: BLE001 - whoever asked raises it
        error.add_note(traceback.format_exc())
        asked.send(("raised", error))
