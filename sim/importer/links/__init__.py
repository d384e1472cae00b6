"""All-reduce times of others: nccl-tests and OSU, as text, JSON and CSV."""

from sim.importer.links.tables import has_table
from sim.importer.trace_format import Keys, Tells, TraceFormat


def _is_report(keys: Keys) -> bool:
    top = keys.top.keys()
    return "average_bus_bandwidth" in top or (
        "args" in top and bool({"nccl_version", "config", "results"} & top)
    )


NCCL_TESTS = TraceFormat(
    name="nccl-tests",
    called="nccl-tests' output or another table of sizes and times",
    tells=Tells.LINK,
    module="sim.importer.links.hardware",
    function="read_nccl_tests",
    by_head=_is_report,
    by_text=has_table,
    keys="num_nodes",
    words="agg algorithm nccl nranks perf",
)
