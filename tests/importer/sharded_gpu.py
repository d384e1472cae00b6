"""A real FSDP2 trace of gloo's as NCCL's would be: kernels of known times on two streams of a device.

The host's ranges, calls and shapes stay those of the real ranks.
"""

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

FORWARD_US, BACKWARD_US, COPY_US, REDUCE_US, GATHER_US = 30, 50, 7, 400, 300
MAIN, AUTOGRAD, COMPUTE, COMMUNICATION = 1, 2, 7, 20
NODE = "autograd::engine::evaluate_function: "
_FORWARD = ("aten::addmm", "aten::native_layer_norm", "aten::embedding")
_BACKWARD = tuple(
    NODE + name for name in ("AddmmBackward0", "NativeLayerNormBackward0", "EmbeddingBackward0")
)
_COPIES = ("fsdp::chunk_cat", "fsdp::split_with_sizes_copy")
_CALLS = {
    "c10d::_allgather_base_": ("_allgather_base", "AllGather", GATHER_US),
    "c10d::_reduce_scatter_base_": ("_reduce_scatter_base", "ReduceScatter_Sum_f32", REDUCE_US),
}


def on_gpu(path: Path, folder: Path) -> Path:
    """A rank's trace with a device in it, and backward on a thread of autograd's own."""
    trace = json.loads(path.read_text())
    events = [one for one in trace["traceEvents"] if one.get("ph") == "X" and "ts" in one]
    events = [one for one in events if not one["name"].startswith("gloo:")]
    steps = sorted(one["ts"] for one in events if one["name"].startswith("ProfilerStep"))
    nodes = sorted(one["ts"] for one in events if one["name"].startswith(NODE))
    backwards = [next(ts for ts in nodes if ts > start) for start in steps]
    made: list[dict[str, Any]] = []
    free = {COMPUTE: 0.0, COMMUNICATION: 0.0}
    for one in sorted(events, key=lambda one: one["ts"]):
        name = one["name"]
        place = bisect_right(steps, one["ts"]) - 1
        one["tid"] = MAIN if one["ts"] < backwards[max(place, 0)] else AUTOGRAD
        if name in _CALLS:
            called, kernel, took = _CALLS[name]
            dims = one["args"]["Input Dims"]
            told = {"Collective name": called, "In msg nelems": dims[1][0], "dtype": "Float", "Group size": 2}
            made += _launched(one, f"ncclDevKernel_{kernel}_RING_LL()", COMMUNICATION, took, free, told)
        elif name in _FORWARD and one["tid"] == MAIN:
            made += _launched(one, "gemm", COMPUTE, FORWARD_US, free, {})
        elif name in _BACKWARD:
            made += _launched(one, "gemm", COMPUTE, BACKWARD_US, free, {})
        elif name in _COPIES:
            made += _launched(one, "copy", COMPUTE, COPY_US, free, {})
    rank = trace["distributedInfo"]["rank"]
    out = folder / f"gpu_{rank}.json"
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    out.write_text(json.dumps({"distributedInfo": info, "traceEvents": events + made}))
    return out


def _launched(
    by: dict[str, Any], name: str, stream: int, took: float, free: dict[int, float], told: dict[str, Any]
) -> list[dict[str, Any]]:
    number = 1 + int(sum(free.values()) * 1000) % 10**9
    at = by["ts"] + by["dur"] / 2
    start = max(free[stream], at + 1)
    free[stream] = start + took
    both = {"ph": "X", "pid": 1}
    return [
        both
        | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": by["tid"], "ts": at, "dur": 0.1}
        | {"args": {"correlation": number}},
        both
        | {"cat": "kernel", "name": name, "tid": stream, "ts": start, "dur": took}
        | {"args": {"stream": stream, "correlation": number, **told}},
    ]
