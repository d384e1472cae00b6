"""DDP's own figures from a simulated step, to hold against ``ddp._get_ddp_logging_data()`` (A4)."""

from typing import Any

from sim.errors import NotModelledError
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload

_DDP_POLICIES = ("ddp", "per-parameter", "single", "explicit")


def ddp_logging_data(timeline: Timeline) -> dict[str, Any]:
    """What DDP's logger would say of this step, under its names; times in ns, sizes in parameter bytes.

    Forward runs from the start of the wrapper's forward to its end, with the rebuild and buffers. Backward
    compute runs on to the callback that ends backward, with the loss, copies and launches. Backward
    communication runs from just before bucket 0 is launched to the last copy back, whatever lies between; the
    overlap is the time from that launch to the end of backward, not one in which anything need be busy. Where
    bucket 0 is launched after the end of backward, the logger leaves the overlap at 0 (A4.2).

    Raises:
        NotModelledError: the step is not DistributedDataParallel's.
    """
    assignment, workload = timeline.assignment, timeline.workload
    if assignment.policy not in _DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} has no DDP logger; {', '.join(_DDP_POLICIES)} have"
        )
    first = timeline.buckets[0].ready_ns
    times = {
        "forward_compute_time": timeline.pre_forward_ns + workload.forward_ns,
        "backward_compute_time": workload.loss_ns + timeline.backward_end_ns,
        "backward_comm_time": timeline.sync_end_ns - first,
        "backward_compute_comm_overlap_time": max(0, timeline.backward_end_ns - first),
    }
    kwargs = assignment.ddp_kwargs
    static, finds = kwargs.get("static_graph", False), kwargs.get("find_unused_parameters", False)
    return {
        **times,
        **{f"avg_{name}": time for name, time in times.items()},
        "world_size": timeline.hardware.world_size,
        "num_parameter_tensors": len(workload.gradients),
        "total_parameter_size_bytes": workload.total_bytes,
        **_buckets(timeline, is_rebuilt=static or not finds),
        "prev_iteration_grad_ready_order_indices": ", ".join(map(str, workload.order())),
        "unused_parameter_size": _unused_bytes(workload) if finds and not static else 0,
        "num_buckets_reduced": len({c.collective.bucket for c in timeline.collectives} - {None}),
        "find_unused_parameters": int(finds),
        "gradient_as_bucket_view": int(kwargs.get("gradient_as_bucket_view", False)),
    }


def _buckets(timeline: Timeline, *, is_rebuilt: bool) -> dict[str, Any]:
    sizes = ", ".join(
        str(sum(timeline.workload.gradients[index].num_bytes for index in bucket))
        for bucket in timeline.assignment.bucket_indices
    )
    rebuilt_from = 3 if timeline.assignment.ddp_kwargs.get("static_graph", False) else 2
    now = timeline.iteration == "steady" or timeline.iteration >= rebuilt_from
    if not (is_rebuilt and now):
        return {"bucket_sizes": sizes, "has_rebuilt_buckets": 0}
    indices = (" ".join(map(str, bucket)) for bucket in timeline.assignment.bucket_indices)
    return {
        "rebuilt_bucket_sizes": sizes,
        "rebuilt_per_bucket_param_indices": ", ".join(indices),
        "has_rebuilt_buckets": 1,
    }


def _unused_bytes(workload: Workload) -> int:
    return sum(gradient.num_bytes for gradient in workload.gradients if gradient.ready_ns is None)
