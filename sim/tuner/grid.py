"""Sweeps: the same workload and hardware under many caps."""

from collections.abc import Sequence
from dataclasses import replace

from sim.engine.run import run
from sim.engine.systems import assign
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.rows import SweepRow
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.verdict.metrics import overlap_ratio, step_ns


def default_caps(workload: Workload, count: int = 40) -> list[float]:
    """Caps in MiB from 0.25 to what holds everything, evenly spaced on a logarithmic axis, and 25."""
    largest = max(1.0, -(-workload.total_bytes // MIB) + 1)
    smallest = 0.25
    ratio = (largest / smallest) ** (1 / (count - 1))
    caps = {round(smallest * ratio**k, 3) for k in range(count - 1)} | {float(largest)}
    return sorted(caps | {25.0} if largest > 25 else caps)


def sweep_row(
    workload: Workload, hardware: Hardware, assignment: Assignment, label: str, cap: float | None, engine: str
) -> SweepRow:
    """One candidate, simulated."""
    timeline = run(workload, hardware, assignment, engine)
    return SweepRow(
        label=label,
        bucket_cap_mb=cap,
        num_buckets=len(assignment.bucket_indices),
        largest_bucket_bytes=max(assignment.bucket_bytes or (0,)),
        step_ns=step_ns(timeline),
        sync_end_ns=timeline.sync_end_ns,
        exposed_comm_ns=timeline.sync_end_ns - workload.backward_ns,
        overlap_ratio=overlap_ratio(timeline),
    )


def sweep(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float] | None = None,
    engine: str = "analytic",
) -> tuple[SweepRow, ...]:
    """DDP under each explicit ``bucket_cap_mb`` (MiB), and ahead of them DDP's default as its own row.

    Caps that cut alike are simulated once. ``engine`` is ``analytic`` or ``simpy``; equal to the ns.
    """
    rows = [sweep_row(workload, hardware, assign(workload), "DDP default", None, engine)]
    known: dict[tuple[tuple[int, ...], ...], SweepRow] = {}
    for cap in default_caps(workload) if caps_mb is None else caps_mb:
        assignment = assign(workload, bucket_cap_mb=cap)
        row = known.get(assignment.bucket_indices)
        if row is None:
            row = sweep_row(workload, hardware, assignment, "", cap, engine)
            known[assignment.bucket_indices] = row
        rows.append(replace(row, label=f"bucket_cap_mb={cap:g}", bucket_cap_mb=cap))
    return tuple(rows)
