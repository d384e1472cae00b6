"""What DDP logs of itself: ``_get_ddp_logging_data()``."""

import re

from sim.importer.trace_format import Tells, TraceFormat

# Members of what it returns that nothing else has.
_MEMBERS = frozenset(
    (
        "bucket_sizes",
        "rebuilt_bucket_sizes",
        "avg_backward_comm_time",
        "avg_backward_compute_time",
        "avg_backward_compute_comm_overlap_time",
        "avg_forward_compute_time",
        "prev_iteration_grad_ready_order_indices",
        "rebuilt_per_bucket_param_indices",
        "initial_bucket_sizes",
        "bucket_cap_bytes",
        "has_rebuilt_buckets",
    )
)
_PRINTED = re.compile(r"['\"](?:" + "|".join(sorted(_MEMBERS)) + r")['\"]\s*:")

DDP_LOG = TraceFormat(
    name="ddp-log",
    called="DDP's logging data",
    tells=Tells.BUCKETS,
    module="sim.importer.ddp_log.logged_buckets",
    function="read_ddp_log",
    by_head=lambda keys: any(key in _MEMBERS for _, key in keys.seen),
    by_text=lambda text: _PRINTED.search(text) is not None,
    most_values=1_000_000,  # each log that stands in a text is tried in several ways: 10 us a value
    keys="backward_comm_ns backward_compute_comm_overlap_ns backward_compute_ns first_launch_ns "
    "forward_compute_ns rebuilt",
)
