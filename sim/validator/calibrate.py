"""Measures a machine on ranks started here, or by somebody else on real hosts, as a Hardware."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sim.errors import InputError, ReplayError
from sim.formats.files import make_directory
from sim.nouns.checks import at_least
from sim.nouns.hardware import GLOO_CHANNELS, SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.measurement import Mode
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.curves import FEWEST_ROUNDS, doubtful_points, figure_ns, interval_ns
from sim.validator.jobs import (
    GLOO_ON_HOST,
    JOB,
    CalibrationJob,
    Carrier,
    emulated_channels,
    read_job,
    write_job,
)
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Progress, place_of, told, why_unfinished

Rounds = dict[str, dict[int, list[list[int]]]]  # samples in ns of each curve, by size and round
Fields = dict[str, Any]
Found = Mapping[str, Any]  # what a probe told

_CURVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_MOST_HELD_UP = 20
BUDGET_S = 120.0


def _spread(samples: Sequence[int]) -> Fields:
    low, high = np.quantile(samples, [0.1, 0.9])
    return {
        "count": len(samples),
        "quantile": "median",
        "p10_ns": round(float(low)),
        "p90_ns": round(float(high)),
        "min_ns": min(samples),
    }


def _point_spread(rounds: list[list[int]]) -> Fields:
    samples = [sample for one in rounds for sample in one]
    low, high = interval_ns(rounds)
    return {
        **_spread(samples),
        "quantile": "mean without the slowest third of the rounds",
        "median_ns": round(median(samples)),
        "rounds": len(rounds),
        "low_ns": low,
        "high_ns": high,
    }


def slowdown(alone_ns: Sequence[int], beside_ns: Sequence[int]) -> float:
    """How many times longer something takes beside something else: ratio of medians, at least 1."""
    return max(1.0, round(median(beside_ns) / max(1, median(alone_ns)), 4))


def held_up(copy_ns: Sequence[int], extra_ns: Sequence[int]) -> float:
    """Stretch of a collective while copies are under way, from how much longer it took in all.

    In ``copy_ns`` of copying it fell behind by ``extra_ns``: it got done what takes the difference, at
    least a part in ``_MOST_HELD_UP``.
    """
    copying = median(copy_ns)
    done = min(copying, max(copying - median(extra_ns), copying / _MOST_HELD_UP))
    return round(copying / done, 4) if done > 0 else 1.0


# What each probe of ``sim.validator.ranks.probes`` says of a machine: fields of a Hardware, their scatter.


def _of_copies(found: Found) -> tuple[Fields, Fields]:
    num_bytes = found["copy_bytes"]
    rates, spread = {}, {}
    for way in ("copy_in", "copy_out"):
        rates[f"{way}_bytes_per_s"] = _rate(num_bytes, found[f"{way}_ns"])
        spread[f"{way}_ns"] = {"num_bytes": num_bytes, **_spread(found[f"{way}_ns"])}
    if "hooked_ns" not in found:
        return rates, spread
    pair = found["hooked_ns"], found["hooked_beside_ns"]
    return rates | {"copy_in_slowdown": slowdown(*pair)}, spread | {"copy_in_slowdown": _pair(*pair)}


def _of_launches(found: Found) -> tuple[Fields, Fields]:
    fields, spread = _of_costs(found, launch_cost_ns="samples_ns")
    return fields | {"launch_blocks_compute": found["blocks_compute"]}, spread


def _of_copies_out(found: Found) -> tuple[Fields, Fields]:
    copies, comm = (found["copy_ns"], found["copy_beside_ns"]), (found["comm_ns"], found["comm_beside_ns"])
    extra = [beside - alone for alone, beside in zip(*comm, strict=True)]
    return (
        {"copy_out_slowdown": slowdown(*copies), "comm_copy_out_slowdown": held_up(copies[1], extra)},
        {"copy_out_slowdown": _pair(*copies), "comm_copy_out_slowdown": _pair(*comm)},
    )


def _of_additions(found: Found) -> tuple[Fields, Fields]:
    num_bytes, samples = found["num_bytes"], found["samples_ns"]
    spread = {"accumulate_ns": {"num_bytes": num_bytes, **_spread(samples)}}
    return {"accumulate_bytes_per_s": _rate(num_bytes, samples)}, spread


def _of_search(found: Found) -> tuple[Fields, Fields]:
    return _of_costs(found, search_unused_ns="search_ns", mark_used_ns="mark_ns")


def _of_host(found: Found) -> tuple[Fields, Fields]:
    """What computing and all-reduces take from each other, by size.

    On the host that is a model's, not a paced replay's: no slow-down of the machine unless it is asked for.
    """
    told = {"host_share": found["shares"], "comm_beside_compute": found["slowdowns"]}
    return {}, {name: {str(size): value for size, value in one.items()} for name, one in told.items()}


def _of_costs(found: Found, **names: str) -> tuple[Fields, Fields]:
    fields = {field: max(0, round(median(found[name]))) for field, name in names.items()}
    return fields, {field: _spread(found[name]) for field, name in names.items()}


def _rate(num_bytes: int, samples: Sequence[int]) -> float | None:
    """Bytes a second; what is too fast to be seen is free."""
    middle = round(median(samples))
    return round(num_bytes * 1e9 / middle, 0) if middle > 0 else None


def _pair(alone: Sequence[int], beside: Sequence[int]) -> Fields:
    """The scatter of one quantity alone and beside another."""
    return {"alone": _spread(alone), "beside": _spread(beside)}


_ANYWHERE: dict[str, Callable[[Found], tuple[Fields, Fields]]] = {
    "copies": _of_copies,
    "launches": _of_launches,
}
_TOLD = {
    "cpu": {
        **_ANYWHERE,
        "copies out": _of_copies_out,
        "additions": _of_additions,
        "search": _of_search,
        "host": _of_host,
    },
    "cuda": {**_ANYWHERE, "host": _of_host},
}


class CalibrationStory:
    """What the ranks of a calibration told, and the Hardware that it makes.

    ``rounds`` are the samples of each curve, ``found`` what probes told.

    Args:
        job: what the ranks were told to do.
        progress: told how far the ranks are, at whatever they tell.
    """

    def __init__(self, job: CalibrationJob, progress: Progress | None = None) -> None:
        self._job, self._progress = job, progress
        self._at: tuple[int, int, str] | None = None
        self.rounds: Rounds = {name: defaultdict(list) for name in _CURVES}
        self._pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.found: dict[str, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Keep what an event tells; of a probe that is told again, in each round, all samples."""
        kind = event["event"]
        if kind in self.rounds:
            self.rounds[kind][event["num_bytes"]].append(event["samples_ns"])
        elif kind == "pair":
            self._pairs[event["num_bytes"]] += zip(event["alone_ns"], event["both_ns"], strict=True)
        elif kind == "progress":
            self._at = event["done"], event["total"], event["what"]
        elif kind in self.found:
            for name, value in event.items():
                if isinstance(value, list):
                    self.found[kind][name] += value
        else:
            self.found[kind] = event
        if self._progress is not None and self._at is not None:
            self._progress(*self._at)  # each event is a sign of life: a round alone takes long

    def hardware(self, place: Place) -> Hardware:
        """The machine at ``place``. Raises ``ReplayError`` where the ranks did not measure all."""
        device = self._job.carrier.device
        if missing := {"started", *_TOLD[device]} - self.found.keys():
            raise ReplayError(f"calibrate: the ranks ended before {', '.join(sorted(missing))} were measured")
        fields: Fields = {}
        spread: Fields = {name: self.scatter(name) for name in _CURVES}
        for what, of in _TOLD[device].items():
            made, scattered = of(self.found[what])
            fields |= made
            spread |= scattered
        computes = self._job.computes or device == "cuda"
        if computes:
            shares, slowed = (spread[name].values() for name in ("host_share", "comm_beside_compute"))
            fields["compute_slowdown"] = round(1 / (1 - min(0.95, median(shares))), 4)
            fields["comm_slowdown"] = median(slowed)
        if device == "cuda":  # a job's steps on a GPU take their slow-downs from the fields above
            del spread["host_share"], spread["comm_beside_compute"]
        if ratios := {
            size: median(both for _, both in pairs) / median(alone for alone, _ in pairs)
            for size, pairs in sorted(self._pairs.items())
        }:  # gloo's worker threads send through one connection (A3.8)
            fields["comm_channels"], fields["shared_connection"] = GLOO_CHANNELS, True
            fields["channel_slowdown"] = max(1.0, round(median(ratios.values()), 4))
            spread["channel_slowdown"] = {str(size): round(ratio, 4) for size, ratio in ratios.items()}
        return _told_doubtful(
            Hardware(
                name=place.describe(),
                world_size=place.world_size,
                **{name: self.points(name) for name in _CURVES if self.rounds[name]},  # type: ignore[arg-type]
                **fields,
                spread=spread,
                provenance={
                    "source": "bucketsim calibrate",
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                    "backend": self._job.carrier.name,
                    "device": device,
                    "world_size": place.world_size,
                    "place": place.describe(),
                    "mode": "model" if computes else "paced",
                    **place.document(),
                    **self.found["started"]["environment"],
                },
            )
        )

    def points(self, curve: str) -> tuple[CurvePoint, ...]:
        """A curve."""
        rows = sorted(self.rounds[curve].items())
        return tuple(CurvePoint(num_bytes=size, duration_ns=figure_ns(rounds)) for size, rounds in rows)

    def scatter(self, curve: str) -> Fields:
        """What is known of the points of a curve, by size."""
        return {str(size): _point_spread(rounds) for size, rounds in sorted(self.rounds[curve].items())}


def _told_doubtful(hardware: Hardware) -> Hardware:
    """``hardware`` with the points of its all-reduce curve that cannot be relied on in ``provenance``."""
    doubtful = [{"num_bytes": size, "why": why} for size, why in _doubtful(hardware).items()]
    return replace(hardware, provenance={**hardware.provenance, "doubtful": doubtful})


def _doubtful(hardware: Hardware) -> dict[int, str]:
    return doubtful_points(hardware.all_reduce, hardware.spread.get("all_reduce", {}))


def calibration_job(
    *,
    largest: int = 256 * MIB,
    rounds: int = FEWEST_ROUNDS,
    budget_s: float = BUDGET_S,
    small_repeats: int = 30,
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
) -> CalibrationJob:
    """Measure curves, channel sharing, copies, launches and what slows what, on the device of ``carrier``.

    ``mode`` says what computes beside the collectives: ``"paced"`` nothing, the host is as free as under
    an accelerator; ``"model"`` a matrix multiplication on each rank, as when real models train there. On a
    GPU it always multiplies beside.
    Sizes are powers of two from 4 KiB to ``largest``, bytes. Every size is measured in each of ``rounds``,
    and what stands for it is the mean without the slowest third of them (``sim.validator.curves``).
    All-reduces whose figure is not known to 3 % then are measured on, for ``budget_s`` seconds at most. The
    scatter is kept in ``spread``; points that cannot be relied on all the same are named in ``provenance``
    (``doubtful``).
    """
    at_least("rounds", rounds, 1)
    at_least("largest", largest, 4096)
    return CalibrationJob(
        sizes=tuple(1 << power for power in range(12, largest.bit_length())),
        carrier=carrier,
        rounds=rounds,
        budget_s=budget_s,
        small_repeats=small_repeats,
        computes=mode == "model",
    )


def calibrate(job: CalibrationJob, place: Place, *, progress: Progress | None = None) -> Hardware:
    """Measure the machine at ``place``.

    Raises:
        InputError: a single rank.
        ReplayError: a rank failed. MachineError: the box cannot be made here.
    """
    at_least("ranks", place.world_size, 2)
    story = CalibrationStory(job, progress)
    run_ranks(place, job, story.take)
    return story.hardware(place)


def measure_again(
    place: Place,
    hardware: Hardware,
    *,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> Hardware:
    """``hardware`` with the points of its all-reduce curve that were doubtful measured anew, and no others.

    Raises:
        InputError: it has none, or was measured at another place. ReplayError, MachineError: as
            ``calibrate``.
    """
    known, sizes = hardware.provenance, tuple(_doubtful(hardware))
    if not sizes:
        raise InputError(
            f"{hardware.name}: no point of its curve is doubtful; there is nothing to measure again"
        )
    if known.get("place") != place.describe():
        raise InputError(
            f"{hardware.name}: measured on {known.get('place')}, not on {place.describe()}; "
            f"give the options that it was calibrated with"
        )
    carrier = Carrier(device=known.get("device", "cpu"))
    job = CalibrationJob(sizes=sizes, carrier=carrier, budget_s=budget_s)
    story = CalibrationStory(job, progress)
    run_ranks(place, job, story.take)
    anew = {point.num_bytes: point for point in story.points("all_reduce")}
    scatter = hardware.spread["all_reduce"] | story.scatter("all_reduce")
    return _told_doubtful(
        replace(
            hardware,
            all_reduce=tuple(anew.get(point.num_bytes, point) for point in hardware.all_reduce),
            spread={**hardware.spread, "all_reduce": scatter},
        )
    )


def prepare_calibration(job: CalibrationJob, directory: Path, world_size: int) -> Path:
    """Write ``job`` for ranks that torchrun or srun starts into a new directory; returns its path.

    Raises:
        InputError: fewer than two ranks, or a directory that holds a job already.
    """
    at_least("ranks", world_size, 2)
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
    job, world_size = read_job(directory / JOB)
    story = CalibrationStory(job)
    last: dict[str, dict[str, Any]] = {}
    for event in told(directory, world_size):
        story.take(event)
        last[event["event"]] = event
    if "finished" not in last:
        at = last.get("progress")
        how_far = f" (at {at['what']}, {at['done']} of {at['total']} parts done)" if at else ""
        raise ReplayError(f"{directory}: {why_unfinished(directory)}{how_far}; no hardware is written")
    return story.hardware(place_of(world_size, last["started"]))


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
    return with_local_costs(hardware, story.found)


def with_local_costs(hardware: Hardware, found: Mapping[str, Found]) -> Hardware:
    """``hardware`` with what the probes of one rank tell.

    Slow-downs beside collectives go, since an emulated one takes nothing away from anybody. A gradient's hook
    is free: on the CPU the copies hold it, and on a GPU the host is ahead. What shares a wire is sent one
    after the other. Broadcasts go too: one rank has none.
    """
    (copies, of_copies), (launches, of_launches) = (of(found[what]) for what, of in _ANYWHERE.items())
    fields: Fields = copies | launches | dict.fromkeys(SLOWDOWNS, 1.0)
    scatter = {key: value for key, value in hardware.spread.items() if key == "all_reduce"}
    return replace(
        hardware,
        name=f"emulated {hardware.name}",
        shared_connection=False,
        comm_channels=emulated_channels(hardware),
        **fields,
        hook_cost_ns=0,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=0),),
        spread={**scatter, **of_copies, **of_launches},
        provenance={"source": "bucketsim, emulated link", "link": hardware.provenance},
    )
