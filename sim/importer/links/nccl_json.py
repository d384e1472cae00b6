"""nccl-tests' ``-J`` report."""

from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np

from sim.errors import InputError
from sim.importer.imported import plain
from sim.importer.links.around_tables import NCCL
from sim.importer.links.columns import MOST_BYTES, MOST_NS, LinkRow, LinkTable, Timing, Variant, collective_in

# nccl-tests writes its doubles with six decimals, times in us and bandwidths in GB/s (its src/util.cu).
_DIGIT = 1e-6


class _Timing(msgspec.Struct):
    time: float | None = None
    alg_bw: float | None = None
    bus_bw: float | None = None
    nwrong: float | str | None = None
    cpu_time: float | None = None


class _Times(msgspec.Struct):
    times_us: list[float] = []


class _Result(msgspec.Struct):
    size: int
    count: int | None = None
    type: str | None = None
    redop: str | None = None
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None
    out_of_place_per_iter: _Times | None = None
    in_place_per_iter: _Times | None = None


class _Device(msgspec.Struct):
    rank: int | None = None
    hostname: str = ""
    device_info: str = ""


class _Config(msgspec.Struct):
    nthreads: int | None = None
    ngpus: int | None = None
    iterations: int | None = None
    devices: list[_Device] = []


class _Report(msgspec.Struct):
    results: list[_Result]
    args: list[str] | str = ""
    config: _Config = msgspec.field(default_factory=_Config)


def read_report(text: str, source: str) -> LinkTable:
    """The table of a report. Raises ``InputError`` naming what is missing or not legal."""
    try:
        report = msgspec.json.decode(text, type=_Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{source}: {plain(str(error))}; give what nccl-tests wrote with -J") from None
    rows = [_row(result, f"{source}: results.{number}") for number, result in enumerate(report.results)]
    broken = [number for number, row in enumerate(rows) if row is None]
    config, devices = report.config, report.config.devices
    ranks = _ranks(config)
    redops = {one.redop for one in report.results if one.redop}
    program = report.args[0] if isinstance(report.args, list) and report.args else ""
    said = f"{source}: {len(broken)} results that are no whole row (the first: {(*broken, 0)[0]})"
    return LinkTable(
        source=source,
        rows=tuple(row for row in rows if row is not None),
        collective=collective_in(PurePosixPath(program).name),
        ranks=ranks,
        redop=redops.pop() if len(redops) == 1 else None,
        ranks_by="" if ranks is None else "its list of devices",
        iterations=config.iterations if (config.iterations or 0) > 0 else None,
        devices=tuple(dict.fromkeys(plain(one.device_info) for one in devices if one.device_info)),
        hosts=tuple(dict.fromkeys(plain(one.hostname) for one in devices if one.hostname)),
        over=NCCL,
        left_out=(said,) if broken else (),
    )


def _ranks(config: _Config) -> int | None:
    """The number of ranks of a report, which lists only the first rank of each process."""
    numbers = [one.rank for one in config.devices]
    each = (config.nthreads, config.ngpus)
    if not numbers or not all(number is not None and 0 <= number < 10**7 for number in (*numbers, *each)):
        return None
    listed = sorted(number for number in numbers if number is not None)
    one_by_one = len(listed) > 1 and all(after == before + 1 for before, after in pairwise(listed))
    return listed[-1] + (1 if one_by_one else max(1, (each[0] or 0) * (each[1] or 0)))


def _row(result: _Result, where: str) -> LinkRow | None:
    if not 0 <= result.size <= MOST_BYTES:
        return None
    timings: dict[Variant, Timing] = {}
    variants: tuple[tuple[Variant, _Timing | None, _Times | None], ...] = (
        ("out", result.out_of_place, result.out_of_place_per_iter),
        ("in", result.in_place, result.in_place_per_iter),
    )
    for variant, body, each in variants:
        if body is not None and body.cpu_time is not None:
            raise InputError(
                f"{where}: cpu_time is what a launch takes on the CPU; run nccl-tests without -C"
            )
        if body is None or (duration := _ns(body.time)) is None:
            continue
        samples = [time for one in (each.times_us if each else ()) if (time := _ns(one)) is not None]
        rates = (("algbw", body.alg_bw), ("busbw", body.bus_bw))
        timings[variant] = Timing(
            duration_ns=duration,
            slack_ns=1.0,
            rates={name: (rate, _DIGIT) for name, rate in rates if rate is not None and 0 <= rate < 1e12},
            wrong=min(body.nwrong, MOST_BYTES) if isinstance(body.nwrong, float) else 0.0,
            scatter=_scatter(samples) if len(samples) > 1 else {},
        )
    if not timings:
        return None
    return LinkRow(where=where, num_bytes=result.size, timings=timings, count=result.count, dtype=result.type)


def _ns(time_us: float | None) -> int | None:
    """None where it is not above 0, or beyond reach."""
    return round(time_us * 1000) or 1 if time_us is not None and 0 < time_us * 1000 <= MOST_NS else None


def _scatter(samples: list[int]) -> dict[str, int]:
    low, middle, high = (round(float(one)) for one in np.quantile(samples, [0.1, 0.5, 0.9]))
    found: dict[str, Any] = {"count": len(samples), "p10_ns": low, "median_ns": middle, "p90_ns": high}
    return {**found, "min_ns": min(samples)}
