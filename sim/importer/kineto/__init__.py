"""Traces of torch.profiler (Kineto): of one rank, or of all."""

from sim.importer.trace_format import Keys, Tells, TraceFormat


def _is_trace(keys: Keys) -> bool:
    is_event = keys.has(2, "ph", "name") or keys.has(2, "ph", "ts")
    return (
        "traceEvents" in keys.top
        or {"schemaVersion", "deviceProperties"} <= keys.top.keys()
        or (not keys.top and is_event)
    )


KINETO = TraceFormat(
    name="kineto",
    called="a Kineto trace",
    tells=Tells.GRADIENTS,
    module="sim.importer.kineto.trace_import",
    function="read_kineto",
    by_head=_is_trace,
    most_values=2_000_000,
    most_values_of_event=100,  # events are read one by one; those of torch's profiler have 26 to 45 values
    keys="accumulation_steps backward_prefetch barrier behind_others_ns forward_prefetch matched_collectives "
    "p25 p75 param_dtype recv reduce_dtype reshard_after_forward send traced_ranks waited_for_last_ns",
    words="accumulategrad could fsdp2 fully kineto module msccl mscclpp nelems profileractivity profilerstep "
    "put reduction replicate root shard share simulate trained unit",
)
