"""DDP's own figures of a simulated step, to hold against ``ddp._get_ddp_logging_data()`` (A4)."""

from typing import Any

from sim.errors import NotModelledError
from sim.nouns.assignment import DDP_POLICIES, bucket_bytes
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.timeline import Timeline
from sim.systems.ddp_assignment import constructed_in, ddp_limits


def ddp_logging_data(timeline: Timeline) -> dict[str, Any]:
    """What DDP's logger would say of this step, under its names; times in ns, sizes in parameter bytes.

    Forward runs from the start of the wrapper's forward to its end, with the rebuild and buffers; the search
    for unused parameters counts as backward. Backward compute runs on to the callback that ends backward,
    with the loss, copies and launches. Backward communication runs from just before bucket 0 is launched to
    the last copy back, whatever lies between; the overlap is the time from that launch to the end of
    backward, whether anything is busy or not. In iteration 1 of a static graph, communication begins
    where backward ends, no bucket is counted as reduced, and no ready order is known yet (A3.15). Averages
    are those of this one step. What is absent in the real log is absent here.

    Raises:
        NotModelledError: the step is not DistributedDataParallel's.
    """
    assignment, workload = timeline.assignment, timeline.workload
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} has no DDP logger; {', '.join(DDP_POLICIES)} have"
        )
    switches = read_switches(assignment)
    reduces_afterwards = switches.static_graph and timeline.iteration == 1
    times = _times(timeline, switches, reduces_afterwards)
    unused = {gradient.index for gradient in workload.gradients if gradient.ready_ns is None}
    data: dict[str, Any] = {
        **times,
        **{f"avg_{name}": time for name, time in times.items()},
        "world_size": timeline.hardware.world_size,
        "num_parameter_tensors": len(workload.gradients),
        "total_parameter_size_bytes": workload.total_bytes,
        "unused_parameter_size": sum(workload.gradients[index].num_bytes for index in unused),
        "find_unused_parameters": int(switches.find_unused_parameters),
        "gradient_as_bucket_view": int(switches.gradient_as_bucket_view),
        "broadcast_buffers": int(switches.syncs_buffers),
        "num_buckets_reduced": 0 if reduces_afterwards else _num_reduced(timeline, switches, unused),
        **_buckets(timeline, switches),
    }
    if not reduces_afterwards:
        data["prev_iteration_grad_ready_order_indices"] = ", ".join(map(str, workload.order()))
    if switches.static_graph:
        data["static_graph"] = 1
    if switches.comm_hook is not None:
        data["comm_hook"] = f"{switches.comm_hook}_hook"
    if timeline.iteration != "steady":
        data["iteration"] = timeline.iteration
    return data


def _times(timeline: Timeline, switches: Switches, reduces_afterwards: bool) -> dict[str, int]:
    workload, hardware = timeline.workload, timeline.hardware
    search = hardware.search_unused_ns * len(workload.gradients) * switches.searches
    first = timeline.backward_end_ns if reduces_afterwards else timeline.buckets[0].ready_ns
    return {
        "forward_compute_time": timeline.pre_forward_ns - search + workload.forward_ns,
        "backward_compute_time": search + workload.loss_ns + timeline.backward_end_ns,
        "backward_comm_time": timeline.sync_end_ns - first,
        "backward_compute_comm_overlap_time": timeline.backward_end_ns - first,
    }


def _num_reduced(timeline: Timeline, switches: Switches, unused: set[int]) -> int:
    """All buckets, but those that are skipped (A3.14); a hook that sends nothing counts all the same."""
    buckets = timeline.assignment.bucket_indices
    skipped = sum(unused.issuperset(bucket) for bucket in buckets)
    return len(buckets) - skipped * switches.skip_all_reduce_unused_params


def _buckets(timeline: Timeline, switches: Switches) -> dict[str, Any]:
    """The constructor's buckets, and the rebuilt ones once there are any (A2.6); injected ones stay."""
    workload, assignment = timeline.workload, timeline.assignment
    limits = ddp_limits(assignment.ddp_kwargs)
    used, since = assignment.bucket_indices, switches.rebuilt_from
    is_rebuilt = (
        assignment.by_keywords
        and since is not None
        and (timeline.iteration == "steady" or timeline.iteration >= since)
    )
    initial = used
    if is_rebuilt:
        initial = tuple(map(tuple, constructed_in(workload, assignment)))
    data: dict[str, Any] = {
        "bucket_cap_bytes": max(limits),
        "bucket_sizes": ", ".join(map(str, bucket_bytes(workload, initial))),
        "has_rebuilt_buckets": int(is_rebuilt),
    }
    if is_rebuilt:
        data["rebuilt_bucket_sizes"] = ", ".join(map(str, bucket_bytes(workload, used)))
        data["rebuilt_per_bucket_param_indices"] = ", ".join(" ".join(map(str, bucket)) for bucket in used)
    return data
