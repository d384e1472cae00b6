"""Dumps as torch's FlightRecorder::dump_json writes them for NCCL, of a cluster whose truth is known.

Field by field as in torch 2.13's FlightRecorderDetail.hpp: a CPU build cannot record NCCL itself.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Ranks that launch ``elements`` (fp32) a step; times in ns.

    ``late_ns[step][rank]``: how much later than rank 0's plan a rank launches; ``transfer_ns`` by bucket;
    ``clock_ns`` by rank: what its clock shows more.
    """

    elements: Sequence[int]
    transfer_ns: Sequence[int]
    late_ns: Sequence[Sequence[int]]
    clock_ns: Sequence[int]
    timed: bool = True
    step_ns: int = 100 * MS
    apart_ns: int = 2 * MS


def entry(number: int, elements: int, created_ns: int, **changes: Any) -> dict[str, Any]:
    """One completed all-reduce."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "thread_name": "pt_autograd_0",
        "thread_id": "140186239798144",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": created_ns + 1000,
        "time_discovered_completed_ns": created_ns + 2000,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **changes,
    }


def dump(entries: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """A whole dump of one rank."""
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {},
        "entries": entries,
    }


def dumps(cluster: Cluster) -> list[dict[str, Any]]:
    """One dump a rank. A collective ends everywhere once its last rank has come and it was transferred."""
    ranks = range(len(cluster.clock_ns))
    entries: list[list[dict[str, Any]]] = [[] for _ in ranks]
    for step, late in enumerate(cluster.late_ns):
        for bucket, elements in enumerate(cluster.elements):
            plan = 10**18 + step * cluster.step_ns + bucket * cluster.apart_ns
            end = plan + max(late) + cluster.transfer_ns[bucket]
            for rank in ranks:
                created, shift = plan + late[rank], cluster.clock_ns[rank]
                changes = {
                    "time_discovered_started_ns": created + shift,
                    "time_discovered_completed_ns": end + shift,
                }
                if cluster.timed:
                    changes["duration_ms"] = (end - created) / 1e6
                number = step * len(cluster.elements) + bucket
                entries[rank].append(entry(number, elements, created + shift, **changes))
    return [dump(rank_entries, len(ranks)) for rank_entries in entries]


def write(documents: Sequence[Any], folder: Path) -> list[Path]:
    """A file a rank, named as torch names them."""
    paths = []
    for rank, document in enumerate(documents):
        paths.append(folder / f"nccl_trace_rank_{rank}.json")
        paths[-1].write_text(document if isinstance(document, str) else json.dumps(document))
    return paths
