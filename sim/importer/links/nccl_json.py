"""nccl-tests' ``-J`` report: what its table in text has, and how single iterations scatter."""

from pathlib import PurePosixPath

import msgspec
import numpy as np

from sim.errors import InputError
from sim.importer.imported import plain
from sim.importer.links.columns import LinkTable, collective_in, column_of
from sim.importer.links.text_tables import NCCL, Said, TextBlock, read_block


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
    out_of_place: _Timing = msgspec.field(default_factory=_Timing)
    in_place: _Timing = msgspec.field(default_factory=_Timing)
    out_of_place_per_iter: _Times = msgspec.field(default_factory=_Times)
    in_place_per_iter: _Times = msgspec.field(default_factory=_Times)


class _Device(msgspec.Struct):
    rank: int = 0
    hostname: str = ""
    device_info: str = ""


class _Config(msgspec.Struct):
    nthreads: int = 1
    ngpus: int = 1
    iterations: int | None = None
    devices: list[_Device] = []


class _Report(msgspec.Struct):
    results: list[_Result]
    args: list[str] | str = ""
    config: _Config = msgspec.field(default_factory=_Config)


_TIMED = ("time", "algbw", "busbw", "#wrong", "iters", "min_us", "p10_us", "median_us", "p90_us")
_COLUMNS = tuple(map(column_of, ("size", "count", "type", "redop", *_TIMED, *_TIMED)))


def read_report(text: str, source: str) -> list[LinkTable]:
    """The tables of a report. Raises ``InputError`` naming what is missing or not legal."""
    try:
        report = msgspec.json.decode(text, type=_Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{source}: {plain(str(error))}; give what nccl-tests wrote with -J") from None
    if any(one.cpu_time is not None for each in report.results for one in (each.out_of_place, each.in_place)):
        raise InputError(f"{source}: cpu_time is what a launch takes on the CPU; run nccl-tests without -C")
    config = report.config
    program = report.args[0] if isinstance(report.args, list) and report.args else ""
    said = Said(
        collective=collective_in(PurePosixPath(program).name),
        ranks=_ranks(config),
        iterations=config.iterations if (config.iterations or 0) > 0 else None,
        over=NCCL,
    )
    rows = [(number, _fields(result)) for number, result in enumerate(report.results)]
    return read_block(TextBlock(columns=_COLUMNS, what="result", said=said, rows=rows), source)


def _ranks(config: _Config) -> dict[int, tuple[str, str]]:
    """Host and device by rank; a report lists only the first rank of each process."""
    ranks = {one.rank: (one.hostname, one.device_info) for one in config.devices}
    if ranks and (len(ranks) == 1 or max(ranks) - min(ranks) >= len(ranks)):
        last = max(ranks) + max(1, config.nthreads * config.ngpus) - 1
        ranks.setdefault(last, ("", ""))
    return ranks


def _fields(result: _Result) -> list[str]:
    fields = [str(result.size), str(result.count), str(result.type), str(result.redop)]
    for one, each in (
        (result.out_of_place, result.out_of_place_per_iter.times_us),
        (result.in_place, result.in_place_per_iter.times_us),
    ):
        # nccl-tests writes its doubles with six decimals (its src/util.cu).
        numbers = (one.time, one.alg_bw, one.bus_bw, one.nwrong)
        fields += [f"{number:.6f}" if isinstance(number, float) else "" for number in numbers]
        known = (min(each), *np.quantile(each, [0.1, 0.5, 0.9])) if len(each) > 1 else ()
        fields += [str(len(each)), *(f"{time:.6f}" for time in known)] if known else [""] * 5
    return fields
