"""Measures a machine on ranks started here, or by somebody else on real hosts, as a Hardware."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sim.costs.doubts import OWN_COSTS, UNMEASURED_COSTS, with_own_costs
from sim.errors import InputError, ReplayError
from sim.formats.files import make_directory
from sim.nouns.checks import Legal
from sim.nouns.gpus import gpus_named
from sim.nouns.hardware import CURVES, SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.validator.curves import Fields, doubtful_points
from sim.validator.jobs import JOB, CalibrationJob, Carrier, emulated_channels, read_job, write_job
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Progress, gather_events


class CalibrationStory:
    """What the ranks of a calibration told: fields of a Hardware, and their scatter; ``progress`` is told how
    far the ranks are, at whatever they tell."""

    def __init__(self, job: CalibrationJob, progress: Progress | None = None) -> None:
        self._job, self._progress = job, progress
        self.at: tuple[int, int, str] | None = None
        self._environment: dict[str, Any] = {}
        self.fields: Fields = {}
        self.spread: Fields = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep what an event tells."""
        if event["event"] == "progress":
            self.at = event["done"], event["total"], event["what"]
        elif event["event"] == "started":
            self._environment = event["environment"]
        elif event["event"] == "measured":
            told, self.spread = event["fields"], event["spread"]
            curves = {name: tuple(CurvePoint(**one) for one in told[name]) for name in CURVES if name in told}
            self.fields = told | curves
        if self._progress is not None and self.at is not None:
            self._progress(*self.at)  # each event is a sign of life: a round alone takes long

    def hardware(self, place: Place) -> Hardware:
        """The machine at ``place``; of a GPU what was not measured is as others have it."""
        carrier = self._job.carrier
        doubtful = doubtful_points(self.fields["all_reduce"], self.spread["all_reduce"])
        made = Hardware(
            name=place.describe(),
            world_size=place.world_size,
            **self.fields,
            spread=self.spread,
            provenance={
                "source": "bucketsim calibrate",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "backend": carrier.name,
                "device": carrier.device,
                "world_size": place.world_size,
                "place": place.describe(),
                "mode": "model" if self._job.computes else "paced",
                **place.document(),
                **self._environment,
                "doubtful": [{"num_bytes": size, "why": why} for size, why in doubtful.items()],
            },
        )
        if carrier.device == "cpu":
            return made
        measured = UNMEASURED_COSTS if "launch_cost_ns" in self.fields else ()
        names = [name for name in OWN_COSTS if name not in measured]
        return with_own_costs(made, gpus_named([self._environment["gpu"]]), names)


def calibrate(job: CalibrationJob, place: Place, *, progress: Progress | None = None) -> Hardware:
    """Measure the machine at ``place``.

    Raises:
        InputError: a single rank.
        ReplayError: a rank failed. MachineError: the box cannot be made here.
    """
    Legal(least=2).take("ranks", place.world_size)
    story = CalibrationStory(job, progress)
    run_ranks(place, job, story.take)
    return story.hardware(place)


def prepare_calibration(job: CalibrationJob, directory: Path, world_size: int) -> Path:
    """Write ``job`` for ranks that torchrun or srun starts into a new directory; returns its path.

    Raises:
        InputError: fewer than two ranks, or a directory that holds a job already.
    """
    Legal(least=2).take("ranks", world_size)
    make_directory(directory)
    if (directory / JOB).exists():
        raise InputError(f"{directory}: holds a job already; give a new or empty directory")
    return write_job(directory, job, world_size)


def gather_calibration(directory: Path) -> Hardware:
    """The Hardware that the ranks of a prepared calibration measured.

    Raises:
        InputError: no job or no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    job, _ = read_job(directory / JOB)
    story = CalibrationStory(job)
    place, unfinished = gather_events(directory, story.take)
    if unfinished is not None:
        how_far = "" if story.at is None else " (at {2}, {0} of {1} parts done)".format(*story.at)
        raise ReplayError(f"{directory}: {unfinished}{how_far}; no hardware is written")
    return story.hardware(place)


# An emulated link: this machine's copies and launches under somebody else's wire.


def emulating_place(hardware: Hardware) -> Place:
    """The one rank that emulates the link of ``hardware``."""
    return Place(ranks=1, spread=f"with the emulated link of {hardware.name} ({hardware.world_size} ranks)")


def measure_machine(workload: Workload, hardware: Hardware, device: str) -> Hardware:
    """``hardware``'s link with this machine's copies and launches, measured on one rank.

    Raises:
        ReplayError: the rank failed.
    """
    carrier = Carrier(device=device, emulated=hardware)  # type: ignore[arg-type]
    job = CalibrationJob(workload=workload, carrier=carrier, copy_repeats=6)
    story = CalibrationStory(job)
    run_ranks(emulating_place(hardware), job, story.take)
    return with_local_costs(hardware, story.fields, story.spread)


def with_local_costs(hardware: Hardware, fields: Fields, spread: Fields) -> Hardware:
    """``hardware`` with what copies and launches cost on one rank.

    Slow-downs beside collectives go, since an emulated one takes nothing away from anybody. A gradient's hook
    is free: on the CPU the copies hold it, and on a GPU the host is ahead. What shares a wire is sent one
    after the other. Broadcasts go too: one rank has none.
    """
    kept = {key: value for key, value in hardware.spread.items() if key == "all_reduce"}
    here: Fields = fields | dict.fromkeys(SLOWDOWNS, 1.0)
    return replace(
        hardware,
        name=f"emulated {hardware.name}",
        shared_connection=False,
        comm_channels=emulated_channels(hardware),
        hook_cost_ns=0,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=0),),
        spread=kept | spread,
        provenance={"source": "bucketsim, emulated link", "link": hardware.provenance},
        **here,
    )
