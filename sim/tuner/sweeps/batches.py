"""What a sweep's worker does: the figures of one layout of one model on many machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.clock.program import Machine, machine_of
from sim.costs.service_time import all_reduce_ns
from sim.metrics.step import overlap_ratio, step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import read_switches
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.ddp import before_forward
from sim.systems.registry import assign, write
from sim.systems.simulate import Engine, simulate
from sim.tuner.sweeps.axes import Point


class Figures(NamedTuple):
    """What one candidate comes to: the fields of ``SweepRow`` of the same names."""

    num_buckets: int
    largest_bucket_bytes: int
    step_ns: int
    sync_end_ns: int
    exposed_comm_ns: int
    overlap_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One layout of one model, that of ``cap_mb`` (None: DDP's default), on the machines of ``points``.

    The points differ in the machine only.
    """

    cap_mb: float | None
    points: tuple[Point, ...]


def play_batches(
    workload: Workload, hardware: Hardware, engine: Engine, batches: Sequence[Batch]
) -> Iterator[list[Figures]]:
    """The figures of each batch by ``engine``: the analytic one plays all machines of a batch at once."""
    machines: dict[Point, Hardware] = {}
    for batch in batches:
        scaled, _ = batch.points[0].of_workload.applied(workload, hardware)
        assignment = assign(scaled, bucket_cap_mb=batch.cap_mb)
        for machine in (point.of_machine for point in batch.points):
            if machine not in machines:
                _, machines[machine] = machine.applied(workload, hardware)
        chosen = [machines[point.of_machine] for point in batch.points]
        if engine == "analytic":
            figures: list[Figures | None] = [None] * len(chosen)
            for places in _alike(workload, chosen):
                some = _play_compiled(scaled, [chosen[place] for place in places], assignment)
                for place, figure in zip(places, some, strict=True):
                    figures[place] = figure
            yield [figure for figure in figures if figure is not None]
        else:
            yield [_play(scaled, one, assignment, engine) for one in chosen]


def play_task(
    workload: Workload, hardware: Hardware, engine: Engine, batches: Sequence[Batch]
) -> list[list[Figures]]:
    """``play_batches`` as one task for a worker."""
    return list(play_batches(workload, hardware, engine, batches))


def _alike(workload: Workload, machines: Sequence[Hardware]) -> list[list[int]]:
    """Places of machines in groups, each of which differs in service times only, not in what is small."""
    found: dict[Machine, list[int]] = {}
    for place, machine in enumerate(machines):
        found.setdefault(machine_of(workload, machine), []).append(place)
    return list(found.values())


def _play(workload: Workload, hardware: Hardware, assignment: Assignment, engine: Engine) -> Figures:
    timeline = simulate(workload, hardware, assignment, engine)
    return Figures(
        *_sizes(assignment),
        step_ns=step_ns(timeline),
        sync_end_ns=timeline.sync_end_ns,
        exposed_comm_ns=timeline.exposed_ns,
        overlap_ratio=overlap_ratio(timeline),
    )


def _play_compiled(workload: Workload, machines: Sequence[Hardware], assignment: Assignment) -> list[Figures]:
    from sim.clock.play import COMM, END, OVERLAPPED, play_on_machines  # numba, which SimPy does without

    program, *more = write(workload, machines[0], assignment)
    if more:  # micro-batches
        return [_play(workload, machine, assignment, "analytic") for machine in machines]
    services = [
        [all_reduce_ns(machine, one.num_bytes) for one in program.collectives] for machine in machines
    ]
    for machine, times in zip(machines, services, strict=True):
        program.check_length(machine.name, times)
    states = play_on_machines(program, services)
    switches = read_switches(assignment)
    made = []
    columns = (states[:, column].tolist() for column in (END, COMM, OVERLAPPED))
    for machine, sync_end, comm, overlapped in zip(machines, *columns, strict=True):
        ahead, _ = before_forward(workload, machine, assignment, switches, "steady", 0)
        before = program.before_forward_ns + sum(collective.service_ns for collective in ahead)
        made.append(
            Figures(
                *_sizes(assignment),
                step_ns=before + workload.forward_ns + workload.loss_ns + sync_end + program.optimizer_ns,
                sync_end_ns=sync_end,
                exposed_comm_ns=sync_end - workload.backward_ns,
                overlap_ratio=overlapped / comm if comm else 0.0,
            )
        )
    return made


def _sizes(assignment: Assignment) -> tuple[int, int]:
    """Number of buckets, and bytes of the largest."""
    return len(assignment.bucket_indices), max(assignment.bucket_bytes or (0,))
