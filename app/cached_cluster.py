"""What the Cluster page remembers between two moves of a knob; keys as in ``cached``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

import sim
from app import cached
from app.cached import Inputs
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.ranks import Ranks
from sim.nouns.scaling_row import ScalingRow
from sim.nouns.step_distribution import AssignmentComparison
from sim.nouns.workload import Workload
from sim.units import format_number

Settings = tuple[tuple[str, Any], ...]
_ALONE = Hardware(name="alone", world_size=1, all_reduce=(CurvePoint(num_bytes=0, duration_ns=0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A cluster, what stands for it, and, where it is ready-made, the preset and settings it came from."""

    cluster: Cluster
    digest: str
    preset: str | None = None
    settings: Settings = ()


def make(preset: str, settings: Mapping[str, Any]) -> Made:
    """A ready-made cluster."""
    return _make(preset, tuple(sorted(settings.items())))


@st.cache_data(max_entries=32, show_spinner=False)
def _make(preset: str, settings: Settings) -> Made:
    cluster = sim.cluster(preset, **dict(settings))
    return Made(cluster=cluster, digest=sim.digest(cluster), preset=preset, settings=settings)


@st.cache_data(max_entries=8, show_spinner="Reading the upload …")
def parse(content: bytes, name: str) -> Made:
    """A cluster from an upload."""
    cluster = sim.parse_cluster(content, name)
    return Made(cluster=cluster, digest=sim.digest(cluster))


def hardware(made: Made) -> Hardware:
    """The collectives of a cluster by the cost model."""
    return _hardware(made, made.digest)


@st.cache_data(max_entries=32, show_spinner="Computing its collectives …")
def _hardware(_made: Made, digest: str) -> Hardware:
    return sim.cluster_hardware(_made.cluster)


def computing(workload: Workload, workload_digest: str, factor: float) -> tuple[Workload, str]:
    """A workload all of whose computing takes ``factor`` times as long, and what stands for it."""
    if factor == 1.0:
        return workload, workload_digest
    return _computing(workload, workload_digest, factor), f"{workload_digest} x {factor!r}"


@st.cache_data(max_entries=32, show_spinner=False)
def _computing(_workload: Workload, digest: str, factor: float) -> Workload:
    changed, _ = sim.scale(_workload, _ALONE, backward=factor)
    return replace(
        changed,
        name=f"{_workload.name}, computing x {format_number(factor, 6)}",
        forward_ns=round(_workload.forward_ns * factor),
        loss_ns=round(_workload.loss_ns * factor),
        optimizer_ns=round(_workload.optimizer_ns * factor),
    )


def scaling(
    workload: Workload, workload_digest: str, made: Made, hosts: tuple[int, ...]
) -> tuple[ScalingRow, ...]:
    """How a workload scales over numbers of hosts of a cluster."""
    return _scaling(workload, made, f"{workload_digest} {made.digest}", hosts)


@st.cache_data(max_entries=32, show_spinner="Searching for the best cap at each world size …")
def _scaling(_workload: Workload, _made: Made, key: str, hosts: tuple[int, ...]) -> tuple[ScalingRow, ...]:
    if _made.preset is None:
        return sim.scaling(_workload, _made.cluster, hosts=hosts)
    settings = {name: [value] for name, value in _made.settings if name != "hosts"}
    return sim.scaling(_workload, _made.preset, hosts=hosts, settings=settings)


def differing(
    workload: Workload, workload_digest: str, made: Made, ranks: Ranks, samples: int
) -> AssignmentComparison:
    """Steps of ranks that differ, under DDP's default, the best cap and the best buckets found."""
    inputs = Inputs(
        workload=workload,
        hardware=hardware(made),
        workload_digest=workload_digest,
        hardware_digest=f"cluster {made.digest}",
    )
    return _differing(inputs, f"{inputs.key} {sim.digest(ranks)}", ranks, samples)


@st.cache_data(max_entries=16, show_spinner="Playing all ranks …")
def _differing(_inputs: Inputs, key: str, _ranks: Ranks, samples: int) -> AssignmentComparison:
    found = cached.tune(_inputs)
    families = found.families
    assignments = {"DDP's default": families["default"].assignment}
    if "bucket_cap_mb" in families:
        assignments["best cap"] = families["bucket_cap_mb"].assignment
    assignments["best buckets"] = found.assignment
    return sim.compare_assignments(_inputs.workload, _inputs.hardware, assignments, _ranks, samples=samples)
