"""All-reduce times of others: nccl-tests and OSU, as text, JSON and CSV."""

from sim.importer.links.columns import RANKS, named_collective
from sim.importer.links.text_tables import has_table
from sim.importer.trace_format import Keys, Tells, TraceFormat


def _is_report(keys: Keys) -> bool:
    top = keys.top.keys()
    return "average_bus_bandwidth" in top or (
        "args" in top and bool({"nccl_version", "config", "results"} & top)
    )


def _is_profile(keys: Keys) -> bool:
    """nnscaler's: lists by collective, or by ranks and collective."""
    is_by_ranks = all(map(RANKS.fullmatch, keys.top))
    names = {key for depth, key in keys.seen if depth == 2} if is_by_ranks else set(keys.top)
    return bool(names) and all(map(named_collective, names))


NCCL_TESTS = TraceFormat(
    name="nccl-tests",
    called="nccl-tests' output or another table of sizes and times",
    tells=Tells.LINK,
    module="sim.importer.links.link_hardware",
    function="read_nccl_tests",
    by_head=_is_report,
    by_keys=_is_profile,
    by_text=has_table,
    keys="curves_without_all_reduce in_place_over_out_of_place num_nodes",
    words="agg algorithm nccl nranks perf",
)
