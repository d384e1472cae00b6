"""Link benchmarks in JSON: nccl-tests' ``-J`` report, and the profiles of nnscaler."""

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.importer.links.around_tables import NCCL
from sim.importer.links.columns import (
    RANKS,
    LinkRow,
    LinkTable,
    Timing,
    Variant,
    collective_in,
    named_collective,
)
from sim.importer.links.text_tables import MOST_BYTES, MOST_NS
from sim.importer.opening import parse_bounded
from sim.importer.wording import plain
from sim.units import MIB

# nccl-tests writes its doubles with six decimals, times in us and bandwidths in GB/s (its src/util.cu).
_DIGIT = 1e-6


def read_json_tables(text: str, source: str) -> list[LinkTable]:
    """The tables of a JSON file. Raises ``InputError`` naming what is missing or not legal."""
    document = parse_bounded(text, source)
    if isinstance(document, dict) and "results" in document:
        return [_report(document, source)]
    if isinstance(document, dict) and document:
        profiles = {"": document} if named_collective(next(iter(document))) else document
        tables = [
            table for ranks, profile in profiles.items() for table in _nnscaler(profile, str(ranks), source)
        ]
        if tables:
            return tables
    raise InputError(f"{source}: results: missing; give what nccl-tests wrote with -J")


def _report(document: dict[str, Any], source: str) -> LinkTable:
    results = document["results"]
    if not isinstance(results, list):
        raise InputError(f"{source}: results: not a list; give what nccl-tests wrote with -J")
    rows = [_row(result, f"{source}: results.{number}") for number, result in enumerate(results)]
    broken = [number for number, row in enumerate(rows) if row is None]
    arguments = document.get("args")
    program = arguments[0] if isinstance(arguments, list) and arguments else ""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    devices = config.get("devices")
    devices = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    ranks = _ranks(config, devices)
    iterations = config.get("iterations")
    redops = {str(one["redop"]) for one in results if isinstance(one, dict) and one.get("redop")}
    return LinkTable(
        source=source,
        rows=tuple(row for row in rows if row is not None),
        collective=collective_in(PurePosixPath(str(program)).name),
        ranks=ranks,
        redop=redops.pop() if len(redops) == 1 else None,
        ranks_by="" if ranks is None else "its list of devices",
        iterations=iterations if isinstance(iterations, int) and iterations > 0 else None,
        devices=_words(devices, "device_info"),
        hosts=_words(devices, "hostname"),
        over=NCCL,
        left_out=(f"{source}: {len(broken)} results that are no whole row (the first: {broken[0]})",)
        if broken
        else (),
    )


def _words(devices: Sequence[dict[str, Any]], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(plain(one[key]) for one in devices if one.get(key) and type(one[key]) is str))


def _ranks(config: dict[str, Any], devices: Sequence[dict[str, Any]]) -> int | None:
    """The number of ranks of a report, which lists only the first rank of each process."""
    listed = [one.get("rank") for one in devices]
    each = [config.get(name) for name in ("nthreads", "ngpus")]
    if not listed or not all(type(number) is int and 0 <= number < 10**7 for number in (*listed, *each)):
        return None
    a_process = each[0] * each[1]  # type: ignore[operator]
    numbers = sorted(number for number in listed if number is not None)
    one_by_one = len(numbers) > 1 and all(after == before + 1 for before, after in pairwise(numbers))
    return int(numbers[-1] + (1 if one_by_one else max(1, a_process)))


def _row(result: Any, where: str) -> LinkRow | None:
    size = result.get("size") if isinstance(result, dict) else None
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        return None
    timings: dict[Variant, Timing] = {}
    names: tuple[tuple[Variant, str], ...] = (("out", "out_of_place"), ("in", "in_place"))
    for variant, name in names:
        body = result.get(name)
        if not isinstance(body, dict):
            continue
        if "cpu_time" in body:
            raise InputError(
                f"{where}: cpu_time is what a launch takes on the CPU; run nccl-tests without -C"
            )
        duration = _ns(body.get("time"), 1000)
        if not duration:
            continue
        wrong, each = body.get("nwrong"), result.get(f"{name}_per_iter")
        times = each.get("times_us") if isinstance(each, dict) else None
        samples = [_ns(one, 1000) for one in times] if isinstance(times, list) else []
        timings[variant] = Timing(
            duration_ns=duration,
            slack_ns=1.0,
            rates={
                name: (float(rate), _DIGIT)
                for name, key in (("algbw", "alg_bw"), ("busbw", "bus_bw"))
                if isinstance(rate := body.get(key), int | float) and 0 <= rate < 1e12
            },
            wrong=float(min(wrong, MOST_BYTES)) if isinstance(wrong, int | float) else 0.0,
            scatter=_scatter([one for one in samples if one]) if len(samples) > 1 and all(samples) else {},
        )
    if not timings:
        return None
    count, dtype = result.get("count"), result.get("type")
    return LinkRow(
        where=where,
        num_bytes=size,
        timings=timings,
        count=count if type(count) is int else None,
        dtype=dtype if isinstance(dtype, str) else None,
    )


def _scatter(samples: Sequence[int]) -> dict[str, int]:
    low, middle, high = (round(float(one)) for one in np.quantile(samples, [0.1, 0.5, 0.9]))
    return {
        "count": len(samples),
        "p10_ns": low,
        "median_ns": middle,
        "p90_ns": high,
        "min_ns": min(samples),
    }


def _nnscaler(profile: Any, ranks: str, source: str) -> list[LinkTable]:
    """One profile: by collective, sizes in MiB (of the whole tensor) and times in s, two lists as long."""
    tables = []
    for name, lists in profile.items() if isinstance(profile, dict) else ():
        collective = named_collective(name)
        if collective is None or not isinstance(lists, list) or len(lists) != 2:
            return []
        sizes, times = lists
        if not isinstance(sizes, list) or not isinstance(times, list) or len(sizes) != len(times):
            raise InputError(f"{source}: {name}: give two lists of one length, sizes in MiB and times in s")
        rows = []
        for number, (size, time) in enumerate(zip(sizes, times, strict=True)):
            num_bytes, duration = _ns(size, MIB), _ns(time, 10**9)
            if not num_bytes or not duration:
                raise InputError(
                    f"{source}: {name}: entry {number}: {size!r:.40} MiB in {time!r:.40} s is not legal"
                )
            rows.append(
                LinkRow(
                    where=f"{source}: {name}.{number}",
                    num_bytes=num_bytes,
                    timings={"only": Timing(duration_ns=duration, slack_ns=1.0)},
                )
            )
        tables.append(
            LinkTable(
                source=source,
                rows=tuple(rows),
                collective=collective,
                ranks=_product(ranks),
                ranks_by="its key" if _product(ranks) else "",
            )
        )
    return tables


def _product(text: str) -> int | None:
    """``4`` or ``2x4``; None where it is neither."""
    return prod(map(int, text.split("x"))) if RANKS.fullmatch(text) else None


def _ns(value: Any, scale: int) -> int | None:
    """A number times ``scale`` as an integer; None where it is none, not above 0, or beyond reach."""
    if type(value) not in (int, float) or not 0 < value * scale <= MOST_NS:
        return None
    return round(Decimal(repr(value)) * scale)
