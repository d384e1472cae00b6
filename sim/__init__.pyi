"""What ``import sim`` offers, and where each name lives: the one list, for people, mypy and Python."""

from sim.autotuner.loop import autotune
from sim.clusters.computed import cluster_hardware
from sim.clusters.distribution import compare_assignments, step_distribution
from sim.clusters.extrapolation import extrapolate_hardware
from sim.clusters.links import hardware_beside, hardware_on, link_loads
from sim.clusters.machines import preset as cluster
from sim.clusters.ranks import load_ranks
from sim.clusters.scaling import scaling, scaling_csv
from sim.costs.service_time import scale
from sim.formats.documents import (
    digest,
    load_assignment,
    load_cluster,
    load_hardware,
    load_workload,
    parse_cluster,
    parse_hardware,
    to_text,
)
from sim.formats.record_files import find_records, load_record
from sim.importer.uploads import read_uploads
from sim.live.calibration import calibrate_live, latest_window, live_gain, live_window
from sim.live.follower import Follower as follow
from sim.live.follower import find_recordings
from sim.live.held import judge as judge_live
from sim.metrics.critical_path import critical_path
from sim.metrics.step import summarize
from sim.recorder.live_recording import record
from sim.systems.compile_cuts import torch_compiled
from sim.systems.ddp_assignment import with_switches
from sim.systems.ddp_logging import ddp_logging_data
from sim.systems.registry import assign, collectives, explain
from sim.systems.simulate import simulate
from sim.systems.snippets import bucket_indices_json, deepspeed_config, megatron_flags, snippet
from sim.truth.anchor import anchor
from sim.truth.differences import difference
from sim.truth.perfetto import perfetto_json
from sim.truth.recorded_step import own_step
from sim.truth.scoring import agreement, as_measured, error_limit
from sim.tuner.frameworks import nearest_setting
from sim.tuner.gain import step_band
from sim.tuner.others import best_of
from sim.tuner.recommend import best, gain, tune
from sim.tuner.setting import round_cap
from sim.tuner.sweep import sweep, sweep_csv
from sim.validator.applying import apply

__all__ = [
    "agreement",
    "anchor",
    "apply",
    "as_measured",
    "assign",
    "autotune",
    "best",
    "best_of",
    "bucket_indices_json",
    "calibrate_live",
    "cluster",
    "cluster_hardware",
    "collectives",
    "compare_assignments",
    "critical_path",
    "ddp_logging_data",
    "deepspeed_config",
    "difference",
    "digest",
    "error_limit",
    "explain",
    "extrapolate_hardware",
    "find_recordings",
    "find_records",
    "follow",
    "gain",
    "hardware_beside",
    "hardware_on",
    "judge_live",
    "latest_window",
    "link_loads",
    "live_gain",
    "live_window",
    "load_assignment",
    "load_cluster",
    "load_hardware",
    "load_ranks",
    "load_record",
    "load_workload",
    "megatron_flags",
    "nearest_setting",
    "own_step",
    "parse_cluster",
    "parse_hardware",
    "perfetto_json",
    "read_uploads",
    "record",
    "round_cap",
    "scale",
    "scaling",
    "scaling_csv",
    "simulate",
    "snippet",
    "step_band",
    "step_distribution",
    "summarize",
    "sweep",
    "sweep_csv",
    "to_text",
    "torch_compiled",
    "tune",
    "with_switches",
]
