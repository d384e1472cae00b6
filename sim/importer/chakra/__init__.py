"""Execution traces of torch (Chakra): they tell the gradients' shapes, and no times."""

from sim.importer.trace_format import Tells, TraceFormat

_OF_NODES = ("ctrl_deps", "rf_id", "op_schema", "fw_parent")

CHAKRA = TraceFormat(
    name="chakra",
    called="a Chakra execution trace as JSON",
    tells=Tells.SHAPES,
    module="sim.importer.chakra.execution_trace",
    function="read_chakra",
    by_head=lambda keys: (
        "nodes" in keys.top and ("schema" in keys.top or any(keys.has(3, one) for one in _OF_NODES))
    ),
    keys="all_reduce_bytes",
    words="chakra",
)
