"""The neighbour of a measurement, a second job in the same box: what it does, and on which hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.box import Neighbour
from sim.nouns.workload import Workload
from sim.units import format_size
from sim.validator.candidates.candidate import ZERO_POLICIES, Candidate
from sim.validator.candidates.replay_jobs import paced_job
from sim.validator.candidates.replayable import check_replayable
from sim.validator.hosts.launch import Place
from sim.validator.hosts.second_job import SecondJob


def place_two(place: Place) -> tuple[Place, tuple[int, ...]]:
    """The place of the measured job, and the hosts of its neighbour: every other one, so that both use the
    uplink. If ``place`` says which hosts the ranks are on, the neighbour has the rest.

    Raises:
        InputError: no box, or fewer than two hosts for one of the two.
    """
    if place.box is None:
        raise InputError("neighbour: --neighbour is a box's; give --box and --rate, such as --box 4")
    ours = place.on or tuple(range(0, place.box, 2))
    rest = tuple(host for host in range(place.box) if host not in ours)
    if min(len(ours), len(rest)) < 2:
        raise InputError(
            f"neighbour: {len(ours)} and {len(rest)} of {place.box} hosts are not legal; each job takes two "
            f"hosts at least"
        )
    return Place(box=place.box, rate_bits=place.rate_bits, uplink_bits=place.uplink_bits, on=ours), rest


def endless_all_reduce(num_bytes: int, hosts: Sequence[int]) -> SecondJob:
    """A second job on ``hosts`` that makes all-reduces of ``num_bytes``, one after the other."""
    if num_bytes < 4:
        raise InputError(f"neighbour: {num_bytes} bytes is not legal; give at least 4, such as 16MiB")
    job = {"task": "occupy", "backend": "gloo", "num_bytes": num_bytes, "world_size": len(hosts)}
    return SecondJob(hosts=tuple(hosts), job=job, said=f"endless all-reduces of {format_size(num_bytes)}")


@dataclass(slots=True, kw_only=True)
class PacedNeighbour(SecondJob):
    """A second job that makes paced steps of ``workload`` under ``assignment``."""

    workload: Workload
    assignment: Assignment

    def noun(self) -> Neighbour:
        """What the record keeps of it."""
        return Neighbour(
            workload=self.workload,
            assignment=self.assignment,
            hosts=self.hosts,
            alone_ns=tuple(self.alone_ns),
            beside_ns=tuple(self.beside_ns),
            provenance={
                "source": "bucketsim validate",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "what": self.describe(),
            },
        )


def paced_neighbour(workload: Workload, assignment: Assignment, hosts: Sequence[int]) -> PacedNeighbour:
    """Paced steps of ``workload`` under one assignment, one after the other, with nothing between them.

    Raises ``NotModelledError`` for an assignment that cannot be replayed, or that is ZeRO's.
    """
    if assignment.policy in ZERO_POLICIES:
        raise NotModelledError(
            f"neighbour: policy {assignment.policy!r} is not replayed beside another job; give one of DDP's"
        )
    candidates = [Candidate(name="neighbour", assignment=assignment)]
    check_replayable(workload, candidates)
    job = paced_job(workload, candidates, rounds=1, warmup=0, seed=0)
    told = [candidate | {"traced": False} for candidate in job["candidates"]]
    return PacedNeighbour(
        hosts=tuple(hosts),
        job={**job, "task": "occupy", "candidates": told, "world_size": len(hosts)},
        said=f"steps of {workload.name} in {len(assignment.bucket_indices)} buckets",
        workload=workload,
        assignment=assignment,
    )
