"""Link benchmarks as tools write them, from a curve that is known."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One size in bytes and its times in us, in and out of place."""

    num_bytes: int
    in_us: float
    out_us: float


def bus(num_bytes: int, us: float, ranks: int, collective: str = "all_reduce") -> float:
    """nccl-tests' bus bandwidth in GB/s."""
    return num_bytes / us / 1000 * (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def body(line: Line, ranks: int, collective: str = "all_reduce", wrong: str = "0") -> str:
    """The eight fields behind the root: time, algbw, busbw, #wrong, twice."""
    size = line.num_bytes
    return "  ".join(
        f"{us:7.2f} {size / us / 1000:7.2f} {bus(size, us, ranks, collective):7.2f} {wrong}"
        for us in (line.out_us, line.in_us)
    )


def head(ranks: int, program: str = "all_reduce_perf") -> list[str]:
    """What nccl-tests prints above its table."""
    return [
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {900 + rank:6d} on node{rank // 8} device {rank % 8:2d} "
            f"[0000:0{rank % 8}:00] NVIDIA H100 80GB HBM3"
            for rank in range(ranks)
        ),
        "#",
    ]


_COLUMNS = "time   algbw   busbw #wrong     time   algbw   busbw #wrong"
_UNITS = "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"


def today(lines: Sequence[Line], ranks: int) -> list[str]:
    """The table of nccl-tests 2.10 and later."""
    return [
        *head(ranks),
        "#                                                    out-of-place                in-place",
        f"#       size         count      type   redop    root     {_COLUMNS}",
        _UNITS,
        *(
            f"{one.num_bytes:12d}  {one.num_bytes // 4:12d}     float     sum      -1  {body(one, ranks)}"
            for one in lines
        ),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 12.3456",
        "#",
        "# Collective test concluded: all_reduce_perf",
    ]


def old(lines: Sequence[Line], ranks: int) -> list[str]:
    """The table of nccl-tests 2.0: no root, ``error`` for ``#wrong``."""
    return [
        *head(ranks)[2:],
        f"#    size    count    type   redop     {_COLUMNS.replace('#wrong', ' error')}",
        _UNITS,
        *(
            f"{one.num_bytes:12d}  {one.num_bytes // 4:12d}  float  sum  {body(one, ranks, wrong='1e-06')}"
            for one in lines
        ),
    ]


def comma(lines: Sequence[Line], ranks: int) -> list[str]:
    """nccl-tests' columns as CSV, with its double names and no units."""
    rows = (f"{one.num_bytes},{one.num_bytes // 4},float,sum,-1 {body(one, ranks)} {ranks}" for one in lines)
    names = "size,count,type,redop,root,time,algbw,busbw,#wrong,time,algbw,busbw,#wrong,ranks"
    return [names, *(",".join(row.split()) for row in rows)]


def named(lines: Sequence[Line], ranks: int) -> list[str]:
    """A CSV of somebody's own."""
    return [
        "op,world_size,bytes,time_ms",
        *(f"all_reduce,{ranks},{line.num_bytes},{line.in_us / 1000:.5f}" for line in lines),
    ]


def spaced(lines: Sequence[Line], ranks: int) -> list[str]:
    """A table by hand, with a note behind it."""
    return [
        "# all-reduce",
        "size_B time_us nranks note",
        *(f"{line.num_bytes} {line.in_us:.2f} {ranks} by hand" for line in lines),
    ]


WRITERS = (today, old, comma, named, spaced)


def report(lines: Sequence[Line], ranks: int, program: str = "all_reduce_perf", gpus: int = 1) -> str:
    """What ``-J`` writes: one device a process is listed."""

    def timing(line: Line, us: float) -> dict[str, float]:
        rates = {"alg_bw": line.num_bytes / us / 1000, "bus_bw": bus(line.num_bytes, us, ranks)}
        return {"time": round(us, 6), **{key: round(rate, 6) for key, rate in rates.items()}, "nwrong": 0.0}

    results = [
        {
            **{"size": line.num_bytes, "count": line.num_bytes // 4, "type": "float", "redop": "sum"},
            **{"root": "    -1", "actual_iterations": 20, "experiment_name": ""},
            **{"out_of_place": timing(line, line.out_us), "in_place": timing(line, line.in_us)},
        }
        for line in lines
    ]
    of_each = {"hostname": "node0", "device_info": "NVIDIA H100"}
    devices = [{"rank": rank, **of_each} for rank in range(0, ranks, gpus)]
    return json.dumps(
        {
            **{"version": 2, "start_time": "2026-01-01 00:00:00", "nccl_version": 22807},
            **{"args": [f"./build/{program}", "-b", "8"], "env": ["HOME=/home/somebody"]},
            "config": {"nthreads": 1, "ngpus": gpus, "iterations": 20, "devices": devices},
            "results": results,
            "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        }
    )
