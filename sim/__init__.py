"""bucketsim: how gradient buckets overlap backward, which assignment is best, and the proof.

The facade is loaded on first use, so that the worker on a measured rank can import its own modules
without anything that only the simulator needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.api import (
        agreement,
        anchor,
        apply,
        assign,
        bucket_indices_json,
        cluster,
        cluster_hardware,
        compare_assignments,
        ddp_logging_data,
        digest,
        explain,
        extrapolate_hardware,
        find_records,
        hardware_beside,
        hardware_on,
        link_loads,
        load_assignment,
        load_cluster,
        load_hardware,
        load_ranks,
        load_record,
        load_workload,
        pareto_front,
        parse_cluster,
        parse_hardware,
        parse_workload,
        perfetto_json,
        play_jobs,
        record,
        scale,
        scaling,
        scaling_csv,
        simulate,
        snippet,
        step_distribution,
        summarize,
        sweep,
        sweep_csv,
        to_text,
        trade_off,
        tune,
    )

__all__ = [
    "agreement",
    "anchor",
    "apply",
    "assign",
    "bucket_indices_json",
    "cluster",
    "cluster_hardware",
    "compare_assignments",
    "ddp_logging_data",
    "digest",
    "explain",
    "extrapolate_hardware",
    "find_records",
    "hardware_beside",
    "hardware_on",
    "link_loads",
    "load_assignment",
    "load_cluster",
    "load_hardware",
    "load_ranks",
    "load_record",
    "load_workload",
    "pareto_front",
    "parse_cluster",
    "parse_hardware",
    "parse_workload",
    "perfetto_json",
    "play_jobs",
    "record",
    "scale",
    "scaling",
    "scaling_csv",
    "simulate",
    "snippet",
    "step_distribution",
    "summarize",
    "sweep",
    "sweep_csv",
    "to_text",
    "trade_off",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    from sim import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
