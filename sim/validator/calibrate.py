"""Measures a machine on ranks started here, or by somebody else on real hosts, as a Hardware."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sim.errors import InputError, ReplayError
from sim.formats.files import make_directory
from sim.nouns.hardware import GLOO_CHANNELS, CurvePoint, Hardware
from sim.nouns.measurement import Mode
from sim.nouns.workload import Workload
from sim.units import MIB
from sim.validator.curves import (
    FEWEST_ROUNDS,
    DoubtfulPoint,
    doubtful_points,
    figure_ns,
    interval_ns,
    modes,
)
from sim.validator.jobs import GLOO_ON_HOST, JOB, CalibrationJob, Carrier, ProbeJob, read_job, write_job
from sim.validator.launch import Place, run_ranks
from sim.validator.replay import Progress, place_of, told, why_unfinished

Rounds = dict[str, dict[int, list[list[int]]]]  # samples in ns of each curve, by size and round
Fields = dict[str, Any]

_CURVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_MOST_HELD_UP = 20
BUDGET_S = 120.0


def default_sizes(largest: int = 256 * MIB) -> tuple[int, ...]:
    """4 KiB to ``largest`` in powers of two, bytes."""
    return tuple(1 << power for power in range(12, max(0, largest).bit_length()))


def _spread(samples: Sequence[int]) -> Fields:
    low, high = np.quantile(samples, [0.1, 0.9])
    return {
        "count": len(samples),
        "quantile": "median",
        "p10_ns": round(float(low)),
        "p90_ns": round(float(high)),
        "min_ns": min(samples),
    }


def _curve_spread(rounds: list[list[int]]) -> Fields:
    samples = [sample for one in rounds for sample in one]
    low, high = interval_ns(rounds)
    clean, stalled, share = modes(rounds)
    return {
        **_spread(samples),
        "quantile": "mean without the slowest third of the rounds",
        "median_ns": round(median(samples)),
        "rounds": len(rounds),
        "low_ns": low,
        "high_ns": high,
        "clean_ns": clean,
        **({} if stalled is None else {"stalled_ns": stalled, "stalled_share": round(share, 4)}),
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


def _of_copies(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    num_bytes = found["copy_bytes"]
    fields: Fields = {}
    spread: Fields = {}
    for way in ("copy_in", "copy_out"):
        samples = found[f"{way}_ns"]
        middle = round(median(samples))  # copies too fast to see are free
        fields[f"{way}_bytes_per_s"] = round(num_bytes * 1e9 / middle, 0) if middle > 0 else None
        spread[f"{way}_ns"] = {"num_bytes": num_bytes, **_spread(samples)}
    if "hooked_ns" in found:
        fields["copy_in_slowdown"] = slowdown(found["hooked_ns"], found["hooked_beside_ns"])
        spread["copy_in_slowdown"] = _pairs(found["hooked_ns"], found["hooked_beside_ns"])
    return fields, spread


def _of_launches(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    samples = found["samples_ns"]
    fields = {"launch_cost_ns": max(0, round(median(samples)))}
    return fields | {"launch_blocks_compute": found["blocks_compute"]}, {"launch_cost_ns": _spread(samples)}


def _of_copies_out(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    copies, comm = (found["copy_ns"], found["copy_beside_ns"]), (found["comm_ns"], found["comm_beside_ns"])
    extra = [beside - alone for alone, beside in zip(*comm, strict=True)]
    return (
        {"copy_out_slowdown": slowdown(*copies), "comm_copy_out_slowdown": held_up(copies[1], extra)},
        {"copy_out_slowdown": _pairs(*copies), "comm_copy_out_slowdown": _pairs(*comm)},
    )


def _of_additions(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    num_bytes, samples = found["num_bytes"], found["samples_ns"]
    return (
        {"accumulate_bytes_per_s": round(num_bytes * 1e9 / median(samples), 0)},
        {"accumulate_ns": {"num_bytes": num_bytes, **_spread(samples)}},
    )


def _of_search(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    samples = {"search_unused_ns": found["search_ns"], "mark_used_ns": found["mark_ns"]}
    return (
        {name: max(0, round(median(each))) for name, each in samples.items()},
        {name: _spread(each) for name, each in samples.items()},
    )


def _of_host(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    """What computing on the host and all-reduces take from each other, by size; it is a model's, not a paced
    replay's, so that it is no slow-down of the machine unless that is asked for."""
    return {}, {
        "host_share": {str(size): value for size, value in found["shares"].items()},
        "comm_beside_compute": {str(size): value for size, value in found["slowdowns"].items()},
    }


def _of_compute(found: Mapping[str, Any]) -> tuple[Fields, Fields]:
    pairs = {
        f"{what}_slowdown": (found[f"{what}_ns"], found[f"{what}_beside_ns"]) for what in ("compute", "comm")
    }
    return (
        {name: slowdown(*pair) for name, pair in pairs.items()},
        {name: _pairs(*pair) for name, pair in pairs.items()},
    )


def _pairs(alone: Sequence[int], beside: Sequence[int]) -> Fields:
    """The scatter of one quantity alone and beside another."""
    return {"alone": _spread(alone), "beside": _spread(beside)}


_ON_EACH = {"copies": _of_copies, "launches": _of_launches}
_TOLD: dict[str, dict[str, Callable[[Mapping[str, Any]], tuple[Fields, Fields]]]] = {
    "cpu": {
        **_ON_EACH,
        "copies out": _of_copies_out,
        "additions": _of_additions,
        "search": _of_search,
        "host": _of_host,
    },
    "cuda": {**_ON_EACH, "compute": _of_compute},
}


class CalibrationStory:
    """What the ranks of a calibration told, and the Hardware that it makes.

    ``rounds`` are the samples of each curve.

    Args:
        job: what the ranks were told to do.
        progress: told how far the ranks are, at whatever they tell.
    """

    def __init__(self, job: CalibrationJob, progress: Progress | None = None) -> None:
        self._job = job
        self._progress = progress
        self._at: tuple[int, int, str] | None = None
        self.rounds: Rounds = {name: defaultdict(list) for name in _CURVES}
        self._pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._found: dict[str, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Keep what an event tells; of a probe that is told again, in each round, all samples."""
        kind = event["event"]
        if kind in self.rounds:
            self.rounds[kind][event["num_bytes"]].append(event["samples_ns"])
        elif kind == "pair":
            self._pairs[event["num_bytes"]] += zip(event["alone_ns"], event["both_ns"], strict=True)
        elif kind == "progress":
            self._at = event["done"], event["total"], event["what"]
        elif kind in self._found:
            for name, value in event.items():
                if isinstance(value, list):
                    self._found[kind][name] += value
        else:
            self._found[kind] = event
        if self._progress is not None and self._at is not None:
            self._progress(*self._at)  # each event is a sign of life: a round alone takes long

    def hardware(self, place: Place) -> Hardware:
        """The machine at ``place``. Raises ``ReplayError`` where the ranks did not measure all."""
        job, found = self._job, self._found
        table = _TOLD[job.carrier.device]
        if missing := {"started", *table} - found.keys():
            raise ReplayError(f"calibrate: the ranks ended before {', '.join(sorted(missing))} were measured")
        fields: Fields = {}
        spread: Fields = {name: _scatter(curve) for name, curve in self.rounds.items()}
        for what, of in table.items():
            made, scattered = of(found[what])
            fields |= made
            spread |= scattered
        if job.computes and "host" in table:
            shares, slowed = (spread[name].values() for name in ("host_share", "comm_beside_compute"))
            fields["compute_slowdown"] = round(1 / (1 - min(0.95, median(shares))), 4)
            fields["comm_slowdown"] = median(slowed)
        if ratios := {
            size: median(both for _, both in pairs) / median(alone for alone, _ in pairs)
            for size, pairs in sorted(self._pairs.items())
        }:  # gloo's worker threads send through one connection (A3.8)
            fields["comm_channels"], fields["shared_connection"] = GLOO_CHANNELS, True
            fields["channel_slowdown"] = max(1.0, round(median(ratios.values()), 4))
            spread["channel_slowdown"] = {str(size): round(ratio, 4) for size, ratio in ratios.items()}
        curves = {name: _points(self.rounds[name]) for name in _CURVES}
        return told_doubtful(
            Hardware(
                name=place.describe(),
                world_size=place.world_size,
                **{name: points for name, points in curves.items() if points},  # type: ignore[arg-type]
                **fields,
                spread=spread,
                provenance={
                    "source": "bucketsim calibrate",
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                    "backend": job.carrier.name,
                    "device": job.carrier.device,
                    "world_size": place.world_size,
                    "place": place.describe(),
                    "mode": "model" if job.computes or job.carrier.device != "cpu" else "paced",
                    **place.document(),
                    **found["started"]["environment"],
                },
            )
        )


def _points(curve: Mapping[int, list[list[int]]]) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=figure_ns(rounds)) for size, rounds in sorted(curve.items())
    )


def _scatter(curve: Mapping[int, list[list[int]]]) -> Fields:
    return {str(size): _curve_spread(rounds) for size, rounds in sorted(curve.items())}


def told_doubtful(hardware: Hardware) -> Hardware:
    """``hardware`` with the points of its all-reduce curve that cannot be relied on in ``provenance``."""
    found = [asdict(one) for one in _doubtful(hardware)]
    return replace(hardware, provenance={**hardware.provenance, "doubtful": found})


def _doubtful(hardware: Hardware) -> tuple[DoubtfulPoint, ...]:
    return doubtful_points(hardware.all_reduce, hardware.spread.get("all_reduce"))


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
    Every size is measured in each of ``rounds``, and what stands for it is the mean without the slowest third
    of them (``sim.validator.curves``). All-reduces whose figure is not known to 3 % then are measured on, for
    ``budget_s`` seconds at most. The scatter is kept in ``spread``; points that cannot be relied on all the
    same are named in ``provenance`` (``doubtful``). ``largest`` is the largest message in bytes.
    """
    if rounds < 1:
        raise InputError(f"rounds: {rounds} is not legal; give at least 1")
    if not (sizes := default_sizes(largest)):
        raise InputError(f"largest: {largest} bytes is not legal; give at least 4KiB")
    return CalibrationJob(
        sizes=sizes,
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
    _check_ranks(place.world_size)
    story = CalibrationStory(job, progress)
    run_ranks(place, job, story.take)
    return story.hardware(place)


def _check_ranks(world_size: int) -> None:
    if world_size < 2:
        raise InputError(f"ranks: {world_size} is not legal for calibrate; give at least 2")


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
    sizes = tuple(point.num_bytes for point in _doubtful(hardware))
    if not sizes:
        raise InputError(
            f"{hardware.name}: no point of its curve is doubtful; there is nothing to measure again"
        )
    known = hardware.provenance
    if known.get("place") != place.describe():
        raise InputError(
            f"{hardware.name}: measured on {known.get('place')}, not on {place.describe()}; "
            f"give the options that it was calibrated with"
        )
    carrier = Carrier(device=known.get("device", "cpu"), backend=known.get("backend", "gloo"))
    job = CalibrationJob(sizes=sizes, carrier=carrier, budget_s=budget_s)
    story = CalibrationStory(job, progress)
    run_ranks(place, job, story.take)
    curve = story.rounds["all_reduce"]
    anew = {point.num_bytes: point for point in _points(curve)}
    return told_doubtful(
        replace(
            hardware,
            all_reduce=tuple(anew.get(point.num_bytes, point) for point in hardware.all_reduce),
            spread={**hardware.spread, "all_reduce": hardware.spread["all_reduce"] | _scatter(curve)},
        )
    )


def prepare_calibration(job: CalibrationJob, directory: Path, world_size: int) -> Path:
    """Write ``job`` for ranks that torchrun or srun starts into a new directory; returns its path.

    Raises:
        InputError: fewer than two ranks, or a directory that holds a job already.
    """
    _check_ranks(world_size)
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


def is_calibration(directory: Path) -> bool:
    """Whether ``directory`` holds a job that measures a machine."""
    return (directory / JOB).is_file() and isinstance(read_job(directory / JOB)[0], CalibrationJob)


# An emulated link: this machine's copies and launches under somebody else's wire.


def emulating_place(hardware: Hardware) -> Place:
    """The one rank that emulates the link of ``hardware``."""
    return Place(ranks=1, spread=f"with the emulated link of {hardware.name} ({hardware.world_size} ranks)")


def measure_machine(workload: Workload, hardware: Hardware, device: str) -> Hardware:
    """``hardware``'s link with this machine's copies and launches, measured on one rank.

    Raises:
        ReplayError: the rank failed.
    """
    found: dict[str, dict[str, Any]] = {}
    job = ProbeJob(workload=workload, carrier=Carrier(device=device, emulated=hardware))
    run_ranks(emulating_place(hardware), job, lambda event: found.update({event["event"]: event}))
    return with_local_costs(hardware, found)


def with_local_costs(hardware: Hardware, found: Mapping[str, Mapping[str, Any]]) -> Hardware:
    """``hardware`` with what the events of a ``ProbeJob`` tell.

    Slow-downs beside collectives go, since an emulated one takes nothing away from anybody. A gradient's hook
    is free: on the CPU the copies hold it, and on a GPU the host is ahead. ``channel_slowdown`` stays, as it
    belongs to the link; ``shared_connection`` does not, since an emulated message waits behind no other.
    Broadcasts go too: one rank has none.
    """
    (copies, of_copies), (launches, of_launches) = (_ON_EACH[what](found[what]) for what in _ON_EACH)
    return replace(
        hardware,
        name=f"emulated {hardware.name}",
        shared_connection=False,
        **copies,
        **launches,
        hook_cost_ns=0,
        compute_slowdown=1.0,
        comm_slowdown=1.0,
        copy_in_slowdown=1.0,
        copy_out_slowdown=1.0,
        comm_copy_out_slowdown=1.0,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=0),),
        spread={
            **{key: value for key, value in hardware.spread.items() if key == "all_reduce"},
            **of_copies,
            **of_launches,
        },
        provenance={"source": "bucketsim, emulated link", "link": hardware.provenance},
    )
