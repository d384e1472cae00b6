"""An import without names, paths, hosts and sentences, so that it may be given away."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sim.importer.imported import Imported
from sim.importer.readers import READABLE
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.ddp_switches import HOOKS, SWITCHES
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import DTYPE_BYTES, Workload

Noun = TypeVar("Noun", Workload, Hardware, Measurement, Assignment)
# Keys of spreads, provenance, environments and extensions that name nobody, beside those of DDP's switches.
_KEYS = """
accumulation_steps all_gather all_reduce assumed backend backward_ns band broadcast buckets buffers bytes
clock comm_slowdown compute_slowdown copy_in_bytes_per_s copy_out_bytes_per_s count device device_type
devices dropped_warmup_steps end_ns forward_ns high hook_cost_ns index last_arriver launch_cost_ns launch_ns
level low max max_ns mean_ns median median_ns min min_ns missing_ranks no_sync_backward_ns num_bytes
optimizer_ns optimizer_seen p10_ns p25 p75 p90_ns parameters place quantile ranges rank ranks ready_ns
recorded_ranks reduce_scatter slow statistic step_ns steps sync_end_ns torch_compile torn_ranks traced_ranks
value world_size
"""
KEYS = frozenset(_KEYS.split()) | set(SWITCHES)
_TEXTS = re.compile(
    r"(cuda|cpu|xpu|hip|mps|hpu|npu|meta)(:\d{1,4})?|nccl|rccl|gloo|mpi|ucc|xccl|hccl|host|median|"
    r"mean( of \d+ iterations)?|median over steps of the shortest over ranks|upper bound"
)
_ACCELERATORS = """
NVIDIA AMD Intel Tesla GeForce RTX GTX RX Quadro TITAN Instinct Radeon Gaudi Ada Generation Blackwell Hopper
PRO Pro Server Max-Q Workstation Edition Laptop GPU Graphics Ti D XT XTX Super SUPER PCIe PCIE NVL OAM
"""
_DEVICE_WORDS = frozenset(_ACCELERATORS.split())
_DEVICE_MODEL = re.compile(
    r"((A|B|H|K|L|P|T|V|GB|GH|MI|HL|SXM|HBM)-?\d{1,4}[A-Za-z]{0,3}|\d{3,4}|\d{1,3}GB)"
    r"(-(SXM\d?|PCIE|\d{1,3}GB|PG\d{3}|\d{3}|LS|N))*"
)
_BACKENDS = ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl")
_HOOKS = frozenset(HOOKS)
GONE = "..."


def anonymize(imported: Imported) -> Imported:
    """``imported`` without what tells whose it is.

    Names of parameters, modules, workloads, machines and files give way to numbered ones ("gradient 12",
    "host 1"); sentences leave. Provenance, spreads, environments and extensions keep numbers, a few words and
    models of accelerators, under ``KEYS`` and under numbers (sizes, ranks).
    """
    hosts = _numbered("host", [row.host for row in imported.ranks])
    return replace(
        imported,
        format=imported.format if imported.format in READABLE else "import",
        name="import",
        workload=None if imported.workload is None else _workload(imported.workload),
        hardware=tuple(
            _stripped(hardware, name="hardware" if len(imported.hardware) == 1 else f"hardware {number}")
            for number, hardware in enumerate(imported.hardware)
        ),
        measurements=tuple(
            _measurement(measurement, f"measurement {number}")
            for number, measurement in enumerate(imported.measurements)
        ),
        ranks=tuple(replace(row, host=row.host and hosts[row.host]) for row in imported.ranks),
        notes=(),
    )


def _numbered(what: str, names: Iterable[str | None]) -> dict[str, str]:
    """A new name for each: ``what`` and a number, equal for equal names only."""
    distinct = dict.fromkeys(name for name in names if name is not None)
    return {name: f"{what} {number}" for number, name in enumerate(distinct)}


def _workload(workload: Workload) -> Workload:
    devices = _numbered("device", [gradient.device for gradient in workload.gradients])
    devices |= {name: name for name in devices if _TEXTS.fullmatch(name)}
    gradients = tuple(
        replace(
            gradient, name=f"gradient {gradient.index}", device=gradient.device and devices[gradient.device]
        )
        for gradient in workload.gradients
    )
    return _stripped(workload, name="workload", gradients=gradients)


def _measurement(measurement: Measurement, name: str) -> Measurement:
    asked = measurement.asked
    if asked is not None:
        asked = _stripped(asked, made_for=None if asked.made_for is None else _made_for(asked.made_for))
    backend = measurement.backend if measurement.backend in _BACKENDS else "other"
    return _stripped(measurement, name=name, backend=backend, asked=asked)


def _made_for(made_for: MadeFor) -> MadeFor:
    names = tuple(f"gradient {number}" for number in range(len(made_for.names)))
    dtypes = tuple(dtype if dtype in DTYPE_BYTES else GONE for dtype in made_for.dtypes)
    return replace(made_for, workload="workload", names=names, dtypes=dtypes)


def _stripped(noun: Noun, **changes: Any) -> Noun:
    """``noun`` with ``changes``; its dicts, which may hold anything, keep only what names nobody."""
    held = {one.name: getattr(noun, one.name) for one in fields(noun)}
    kept: dict[str, Any] = {name: _object(value) for name, value in held.items() if isinstance(value, dict)}
    return replace(noun, **kept, **changes)


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        key: _value(item)
        for key, item in value.items()
        if isinstance(key, str) and (key in KEYS or (key.isascii() and key.isdigit()))
    }
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}


def _value(value: Any) -> Any:
    """Numbers, booleans and listed words as they are; lists and objects as far as they hold those."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if _names_nobody(value) else None
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value]
        return [item for item, own in zip(items, value, strict=True) if item is not None or own is None]
    return None


def _names_nobody(text: str) -> bool:
    words = text.split(" ")
    is_device = any(word in _DEVICE_WORDS for word in words)  # "A10" alone may be anything
    is_model = is_device and all(word in _DEVICE_WORDS or _DEVICE_MODEL.fullmatch(word) for word in words)
    return is_model or text in _HOOKS or _TEXTS.fullmatch(text) is not None
