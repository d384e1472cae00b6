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
from sim.units import MIB
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier, local_fields
from sim.validator.curve_checks import DoubtfulPoint, doubtful_points
from sim.validator.launch import Place, run_ranks
from sim.validator.prepared import JOB, events, place_of, read_job, why_unfinished, write_job
from sim.validator.ranks.probes.settling import FEWEST_ROUNDS, figure_ns, interval_ns, modes

Progress = Callable[[int, int, str], None]
Rounds = dict[str, dict[int, list[list[int]]]]  # samples in ns of each curve, by size and round

_CURVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_LARGEST_ZERO_BYTES = 64 * MIB  # of the collectives that only sharded systems send
_MOST_HELD_UP = 20
BUDGET_S = 120.0
TASK = "calibrate"


def default_sizes(largest: int = 256 * MIB) -> list[int]:
    """4 KiB to ``largest`` in powers of two, bytes."""
    return [1 << power for power in range(12, max(0, largest).bit_length())]


def _spread(samples: list[int]) -> dict[str, Any]:
    low, high = np.quantile(samples, [0.1, 0.9])
    return {
        "count": len(samples),
        "quantile": "median",
        "p10_ns": round(float(low)),
        "p90_ns": round(float(high)),
        "min_ns": min(samples),
    }


def _curve_spread(rounds: list[list[int]]) -> dict[str, Any]:
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


def _pairs(alone: list[int], beside: list[int]) -> dict[str, Any]:
    """The scatter of one quantity alone and beside another."""
    return {"alone": _spread(alone), "beside": _spread(beside)}


def slowdown(alone_ns: Sequence[int], beside_ns: Sequence[int]) -> float:
    """How many times longer something takes beside something else: ratio of medians, at least 1."""
    return max(1.0, round(median(beside_ns) / max(1, median(alone_ns)), 4))


def _queued(alone_ns: Sequence[int], queued_ns: Sequence[int]) -> float:
    """What a collective takes behind another one, over one alone: a median of ratios, at most 1."""
    ratios = [queued / max(1, alone) for alone, queued in zip(alone_ns, queued_ns, strict=True)]
    return min(1.0, max(0.01, round(median(ratios), 4)))


def _rate(num_bytes: int, samples_ns: Sequence[int]) -> float:
    return round(num_bytes * 1e9 / median(samples_ns), 0)


def held_up(copy_ns: Sequence[int], extra_ns: Sequence[int]) -> float:
    """Stretch of a collective while copies are under way, from how much longer it took in all.

    In ``copy_ns`` of copying it fell behind by ``extra_ns``: it got done what takes the difference, at
    least a part in ``_MOST_HELD_UP``.
    """
    copying = median(copy_ns)
    done = min(copying, max(copying - median(extra_ns), copying / _MOST_HELD_UP))
    return round(copying / done, 4) if done > 0 else 1.0


def calibrate(
    place: Place,
    *,
    largest: int = 256 * MIB,
    rounds: int = FEWEST_ROUNDS,
    budget_s: float = BUDGET_S,
    small_repeats: int = 30,
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
    progress: Progress | None = None,
) -> Hardware:
    """Measure curves, channel sharing, copies, launches and what slows what, on the device of ``carrier``.

    ``mode`` says what computes beside the collectives: ``"paced"`` nothing, the host is as free as under
    an accelerator; ``"model"`` a matrix multiplication on each rank, as when real models train there. On a
    GPU it always multiplies beside.
    Every size is measured in each of ``rounds``, and what stands for it is the mean without the slowest third
    of them (``sim.validator.ranks.probes.settling``). All-reduces whose figure is not known to 3 % then are
    measured on, for ``budget_s`` seconds at most. The scatter is kept in ``spread``; points that cannot be
    relied on all the same are named in ``provenance`` (``doubtful``). ``largest`` is the largest message in
    bytes.

    Raises:
        ReplayError: a rank failed. MachineError: the box cannot be made here.
    """
    job = calibration_job(
        place.world_size,
        largest=largest,
        rounds=rounds,
        budget_s=budget_s,
        small_repeats=small_repeats,
        mode=mode,
        carrier=carrier,
    )
    told = CalibrationStory(job, progress)
    run_ranks(place, job, told.take)
    return told.hardware(place)


def calibration_job(
    world_size: int,
    *,
    largest: int = 256 * MIB,
    rounds: int = FEWEST_ROUNDS,
    budget_s: float = BUDGET_S,
    small_repeats: int = 30,
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
) -> dict[str, Any]:
    """What the ranks of a calibration are told to do; the arguments are those of ``calibrate``."""
    if world_size < 2:
        raise InputError(f"ranks: {world_size} is not legal for calibrate; give at least 2")
    if rounds < 1:
        raise InputError(f"rounds: {rounds} is not legal; give at least 1")
    sizes = default_sizes(largest)
    if not sizes:
        raise InputError(f"largest: {largest} bytes is not legal; give at least 4KiB")
    return {
        **_curve_job(sizes, budget_s, small_repeats, carrier),
        "broadcast_sizes": [size for size in sizes if size <= MIB][::4],
        "zero_sizes": [size for size in sizes if size <= _LARGEST_ZERO_BYTES][::2],
        "pair_sizes": [size for size in (4 * MIB, 8 * MIB, 16 * MIB) if size <= largest] or sizes[-1:],
        "everything": True,
        "rounds": rounds,
        "copies_per_round": 4,
        "copy_repeats": 12,
        "computes": mode == "model" or carrier.device != "cpu",
    }


class CalibrationStory:
    """What the ranks of a calibration told, and the Hardware that it makes.

    ``rounds`` are the samples of each curve.

    Args:
        job: what the ranks were told to do.
        progress: told how far the ranks are, at whatever they tell.
    """

    def __init__(self, job: Mapping[str, Any], progress: Progress | None = None) -> None:
        self._job = job
        self._progress = progress
        self._at: tuple[int, int, str] | None = None

        self.rounds: Rounds = {name: defaultdict(list) for name in _CURVES}
        self._pairs: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._copies: dict[str, Any] = defaultdict(list)
        self._found: dict[str, Any] = {"copies": self._copies}

    def take(self, event: dict[str, Any]) -> None:
        """Keep what an event tells."""
        kind = event["event"]
        if kind in self.rounds:
            self.rounds[kind][event["num_bytes"]].append(event["samples_ns"])
        elif kind == "pair":
            self._pairs[event["num_bytes"]][0].extend(event["alone_ns"])
            self._pairs[event["num_bytes"]][1].extend(event["both_ns"])
        elif kind == "copies":
            for name, value in event.items():
                if name.endswith("_ns"):
                    self._copies[name].extend(value)
            self._copies["copy_bytes"] = event["copy_bytes"]
        elif kind == "progress":
            self._at = event["done"], event["total"], event["what"]
        else:
            self._found[kind] = event
        if self._progress is not None and self._at is not None:
            self._progress(*self._at)  # each event is a sign of life: a round alone takes long

    def hardware(self, place: Place) -> Hardware:
        """The machine at ``place``. Raises ``ReplayError`` where the ranks did not measure all."""
        missing = {"started", "launches", "copies out", "additions", "gathers", "search", "host"}
        if self._job["device"] != "cpu":
            missing = {"started", "local", "compute"}
        missing -= set(self._found)
        if missing:
            raise ReplayError(f"calibrate: the ranks ended before {', '.join(sorted(missing))} were measured")
        job, found = self._job, self._found
        fields, spread = (_host_fields if job["device"] == "cpu" else _device_fields)(found)
        ratios = {size: median(both) / median(alone) for size, (alone, both) in sorted(self._pairs.items())}
        if ratios:  # gloo's worker threads send through one connection (A3.8)
            fields["comm_channels"], fields["shared_connection"] = GLOO_CHANNELS, True
            fields["channel_slowdown"] = max(1.0, round(median(ratios.values()), 4))
            spread["channel_slowdown"] = {str(size): round(ratio, 4) for size, ratio in ratios.items()}
        curves = {name: _points(self.rounds[name]) for name in _CURVES}
        hardware = Hardware(
            name=place.describe(),
            world_size=place.world_size,
            **{name: points for name, points in curves.items() if points},  # type: ignore[arg-type]
            **fields,
            spread={**{name: _scatter(curve) for name, curve in self.rounds.items()}, **spread},
            provenance={
                "source": "bucketsim calibrate",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "backend": "nccl" if "nccl" in job["backend"] else "gloo",
                "device": job["device"],
                "world_size": place.world_size,
                "place": place.describe(),
                "mode": "model" if job["computes"] else "paced",
                **place.document(),
                **found["started"]["environment"],
            },
        )
        return told_doubtful(hardware)


def _device_fields(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a Hardware and their scatter, of what was measured on GPUs; the host is ahead of them."""
    local, compute = found["local"], found["compute"]
    return (
        {**local_fields(local), **_slowed_by_computing(compute)},
        {
            "launch_cost_ns": _spread(local["launch_ns"]),
            "copy_in_ns": {"num_bytes": local["copy_bytes"], **_spread(local["copy_in_ns"])},
            "copy_out_ns": {"num_bytes": local["copy_bytes"], **_spread(local["copy_out_ns"])},
            **_beside_computing(compute),
        },
    )


def _slowed_by_computing(compute: Mapping[str, Any]) -> dict[str, float]:
    return {
        "compute_slowdown": slowdown(compute["compute_ns"], compute["compute_beside_ns"]),
        "comm_slowdown": slowdown(compute["comm_ns"], compute["comm_beside_ns"]),
    }


def _beside_computing(compute: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "compute_slowdown": _pairs(compute["compute_ns"], compute["compute_beside_ns"]),
        "comm_slowdown": _pairs(compute["comm_ns"], compute["comm_beside_ns"]),
    }


def _host_fields(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a Hardware and their scatter, of what was measured on hosts that compute and send at once."""
    copies, launches, out = found["copies"], found["launches"]["samples_ns"], found["copies out"]
    added, gathers = found["additions"], found["gathers"]
    extra = [beside - alone for beside, alone in zip(out["comm_beside_ns"], out["comm_ns"], strict=True)]
    slowed: dict[str, Any] = {
        "copy_in_slowdown": slowdown(copies["hooked_ns"], copies["hooked_beside_ns"]),
        "copy_out_slowdown": slowdown(out["copy_ns"], out["copy_beside_ns"]),
        "comm_copy_out_slowdown": held_up(out["copy_beside_ns"], extra),
    }
    interference: dict[str, Any] = {}
    if "compute" in found:
        interference = _beside_computing(found["compute"])
        slowed |= _slowed_by_computing(found["compute"])
    return (
        {
            "launch_cost_ns": max(0, round(median(launches))),
            "launch_blocks_compute": True,
            "copy_in_bytes_per_s": _rate(copies["copy_bytes"], copies["copy_in_ns"]),
            "copy_out_bytes_per_s": _rate(copies["copy_bytes"], copies["copy_out_ns"]),
            "accumulate_bytes_per_s": _rate(added["num_bytes"], added["samples_ns"]),
            "queued_gather_factor": _queued(gathers["alone_ns"], gathers["queued_ns"]),
            **slowed,
            "search_unused_ns": max(0, round(median(found["search"]["search_ns"]))),
            "mark_used_ns": max(0, round(median(found["search"]["mark_ns"]))),
        },
        {
            "host_share": _by_size(found["host"]["shares"]),
            "comm_beside_compute": _by_size(found["host"]["slowdowns"]),
            "launch_cost_ns": _spread(launches),
            "copy_in_ns": {"num_bytes": copies["copy_bytes"], **_spread(copies["copy_in_ns"])},
            "copy_out_ns": {"num_bytes": copies["copy_bytes"], **_spread(copies["copy_out_ns"])},
            "accumulate_ns": {"num_bytes": added["num_bytes"], **_spread(added["samples_ns"])},
            "queued_gather_factor": {
                "alone": _spread(gathers["alone_ns"]),
                "queued": _spread(gathers["queued_ns"]),
            },
            "copy_in_slowdown": _pairs(copies["hooked_ns"], copies["hooked_beside_ns"]),
            "copy_out_slowdown": _pairs(out["copy_ns"], out["copy_beside_ns"]),
            "comm_copy_out_slowdown": _pairs(out["comm_ns"], out["comm_beside_ns"]),
            "search_unused_ns": _spread(found["search"]["search_ns"]),
            "mark_used_ns": _spread(found["search"]["mark_ns"]),
            **interference,
        },
    )


def _curve_job(sizes: Sequence[int], budget_s: float, small_repeats: int, carrier: Carrier) -> dict[str, Any]:
    return {
        "task": TASK,
        **carrier.order_to_ranks(),
        "sizes": list(sizes),
        "everything": False,
        "computes": False,
        "budget_s": budget_s,
        "small_repeats": small_repeats,
        "bytes_per_round": 64 * MIB,
    }


def measure_again(
    place: Place,
    hardware: Hardware,
    *,
    budget_s: float = BUDGET_S,
    small_repeats: int = 30,
    progress: Progress | None = None,
) -> Hardware:
    """``hardware`` with the points of its all-reduce curve that were doubtful measured anew, and no others.

    Raises:
        InputError: it has none, or was measured at another place. ReplayError, MachineError: as
        ``calibrate``.
    """
    sizes = [point.num_bytes for point in _doubtful(hardware)]
    if not sizes:
        raise InputError(
            f"{hardware.name}: no point of its curve is doubtful; there is nothing to measure again"
        )
    if hardware.provenance.get("place") != place.describe():
        raise InputError(
            f"{hardware.name}: measured on {hardware.provenance.get('place')}, not on {place.describe()}; "
            f"give the options that it was calibrated with"
        )
    known = hardware.provenance
    carrier = Carrier(device=known.get("device", "cpu"), backend=known.get("backend", "gloo"))
    job = _curve_job(sizes, budget_s, small_repeats, carrier)
    told = CalibrationStory(job, progress)
    run_ranks(place, job, told.take)
    curve = told.rounds["all_reduce"]
    anew = {point.num_bytes: point for point in _points(curve)}
    return told_doubtful(
        replace(
            hardware,
            all_reduce=tuple(anew.get(point.num_bytes, point) for point in hardware.all_reduce),
            spread={**hardware.spread, "all_reduce": hardware.spread["all_reduce"] | _scatter(curve)},
        )
    )


def _points(curve: Mapping[int, list[list[int]]]) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=figure_ns(rounds)) for size, rounds in sorted(curve.items())
    )


def _scatter(curve: Mapping[int, list[list[int]]]) -> dict[str, Any]:
    return {str(size): _curve_spread(rounds) for size, rounds in sorted(curve.items())}


def _by_size(found: Mapping[int, float]) -> dict[str, float]:
    return {str(size): value for size, value in found.items()}


def told_doubtful(hardware: Hardware) -> Hardware:
    """``hardware`` with the points of its all-reduce curve that cannot be relied on in ``provenance``."""
    found = [asdict(one) for one in _doubtful(hardware)]
    return replace(hardware, provenance={**hardware.provenance, "doubtful": found})


def _doubtful(hardware: Hardware) -> tuple[DoubtfulPoint, ...]:
    return doubtful_points(hardware.all_reduce, hardware.spread.get("all_reduce"))


def prepare_calibration(
    directory: Path,
    world_size: int,
    *,
    largest: int = 256 * MIB,
    rounds: int = FEWEST_ROUNDS,
    budget_s: float = BUDGET_S,
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
) -> Path:
    """Write the job of ``world_size`` ranks into ``directory``, which is made; returns the job's path.

    They measure what ``calibrate`` measures on local ranks. ``largest`` is the largest message in bytes.

    Raises:
        InputError: fewer than two ranks, an illegal argument, or a directory that holds a job already.
    """
    job = calibration_job(
        world_size, largest=largest, rounds=rounds, budget_s=budget_s, mode=mode, carrier=carrier
    )
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
    job = read_job(directory)
    told = CalibrationStory(job)
    last: dict[str, dict[str, Any]] = {}
    for event in events(directory, job):
        told.take(event)
        last[event["event"]] = event
    if "finished" not in last:
        raise ReplayError(f"{directory}: {why_unfinished(directory)}{_how_far(last)}; no hardware is written")
    return told.hardware(place_of(job, last["started"]))


def is_calibration(directory: Path) -> bool:
    """Whether ``directory`` holds a job that measures a machine."""
    return (directory / JOB).is_file() and read_job(directory)["task"] == TASK


def _how_far(last: dict[str, dict[str, Any]]) -> str:
    if "progress" not in last:
        return ""
    at = last["progress"]
    return f" (at {at['what']}, {at['done']} of {at['total']} parts done)"
