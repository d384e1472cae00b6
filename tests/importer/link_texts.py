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
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks}.get(collective, 1.0)
    return num_bytes / us / 1000 * factor


def body(line: Line, ranks: int, collective: str = "all_reduce", wrong: str = "0") -> list[str]:
    """The eight fields behind the root: time, algbw, busbw, #wrong, twice."""
    fields = []
    for us in (line.out_us, line.in_us):
        rates = (line.num_bytes / us / 1000, bus(line.num_bytes, us, ranks, collective))
        fields += [f"{us:.2f}", *(f"{rate:.2f}" for rate in rates), wrong]
    return fields


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
_UNITS = "(us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"


def today(lines: Sequence[Line], ranks: int) -> list[str]:
    """The table of nccl-tests 2.10 and later."""
    return [
        *head(ranks),
        "#                                                    out-of-place                in-place",
        f"#       size         count      type   redop    root     {_COLUMNS}",
        f"#        (B)    (elements)                               {_UNITS}",
        *(
            f"{line.num_bytes:12d}  {line.num_bytes // 4:12d}     float     sum      -1  "
            + "  ".join(f"{field:>7}" for field in body(line, ranks))
            for line in lines
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
        "#    size    count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
        "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
        *(
            f"{line.num_bytes:12d}  {line.num_bytes // 4:12d}   float     sum  "
            + "  ".join(body(line, ranks, wrong="1e-06"))
            for line in lines
        ),
    ]


def comma(lines: Sequence[Line], ranks: int) -> list[str]:
    """nccl-tests' columns as CSV, with its double names and no units."""
    return [
        "size,count,type,redop,root,time,algbw,busbw,#wrong,time,algbw,busbw,#wrong,ranks",
        *(
            ",".join(
                [
                    str(line.num_bytes),
                    str(line.num_bytes // 4),
                    "float,sum,-1",
                    *body(line, ranks),
                    str(ranks),
                ]
            )
            for line in lines
        ),
    ]


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
        "size_B time_us_oop time_us_ip nranks note",
        *(f"{line.num_bytes} {line.out_us:.2f} {line.in_us:.2f} {ranks} by hand" for line in lines),
    ]


def report(lines: Sequence[Line], ranks: int, program: str = "all_reduce_perf", gpus: int = 1) -> str:
    """What ``-J`` writes: one device a process is listed."""

    def timing(line: Line, us: float) -> dict[str, float]:
        return {
            "time": round(us, 6),
            "alg_bw": round(line.num_bytes / us / 1000, 6),
            "bus_bw": round(bus(line.num_bytes, us, ranks), 6),
            "nwrong": 0.0,
        }

    return json.dumps(
        {
            "version": 2,
            "start_time": "2026-01-01 00:00:00",
            "args": [f"./build/{program}", "-b", "8"],
            "env": ["HOME=/home/somebody"],
            "nccl_version": 22807,
            "config": {
                "nthreads": 1,
                "ngpus": gpus,
                "iterations": 20,
                "devices": [
                    {"rank": rank, "hostname": "node0", "device_info": "NVIDIA H100"}
                    for rank in range(0, ranks, gpus)
                ],
            },
            "results": [
                {
                    "size": line.num_bytes,
                    "count": line.num_bytes // 4,
                    "type": "float",
                    "redop": "sum",
                    "root": "    -1",
                    "out_of_place": timing(line, line.out_us),
                    "in_place": timing(line, line.in_us),
                    "actual_iterations": 20,
                    "experiment_name": "",
                }
                for line in lines
            ],
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
        }
    )
