"""An import without names, paths and hosts, so that it may be given away."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sim.importer.readers import READABLE
from sim.importer.vocabulary import KEYS, VERSION_KEYS, WORDS
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, RankRow, each_sentence
from sim.nouns.measurement import Measurement
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

GONE = "..."
Noun = TypeVar("Noun", Workload, Hardware, Measurement, Assignment)
BACKENDS = ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl")
_VERSION = re.compile(r"v?\d{1,5}(\.\d{1,5}){0,3}([+-](cu|rocm|cpu)\.?[\d.]{0,12})?")
_ADDRESS = re.compile(r"\d+([.-]\d+){3,}")
_DEVICE = re.compile(r"(cuda|cpu|xpu|hip|mps|hpu|npu|meta)(:\d{1,4})?")
_ACCELERATORS = """
NVIDIA AMD Intel Tesla GeForce RTX GTX RX Quadro TITAN Instinct Radeon Gaudi Ada Generation Blackwell Hopper
PRO Pro Server Max-Q Workstation Edition Laptop GPU Graphics Ti D XT XTX Super SUPER PCIe PCIE NVL OAM
"""
_DEVICE_WORDS = frozenset(_ACCELERATORS.split())
_DEVICE_MODEL = re.compile(
    r"((A|B|H|K|L|P|T|V|GB|GH|MI|HL|SXM|HBM)-?\d{1,4}[A-Za-z]{0,3}|\d{3,4}|\d{1,3}GB)"
    r"(-(SXM\d?|PCIE|\d{1,3}GB|PG\d{3}|\d{3}|LS|N))*"
)
_QUOTED = re.compile(r"(?<!\w)(['\"])(.*?)\1(?!\w)")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?(%|x)?")
_RULE = re.compile(r"A\d(\.\d{1,2})?")
_EDGES = "()[]{},;:.!?"


def anonymize(imported: Imported) -> Imported:
    """``imported`` without what tells whose it is.

    Names of parameters, modules, workloads, machines and files give way to numbered ones ("gradient 12",
    "host 1"). Provenance, details, environments and extensions keep the keys listed in ``vocabulary``, and
    under them numbers and booleans, texts of listed words, dtypes, versions of software and models of
    accelerators: sizes, shapes, times, versions and the device model are what a reader needs. In sentences a
    quotation, and what is neither a listed word nor a number, becomes "...".
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
        ranks=tuple(_rank(row, hosts) for row in imported.ranks),
        **each_sentence(imported, _sentence),
        details=_object(imported.details),
    )


def _numbered(what: str, names: Iterable[str | None]) -> dict[str, str]:
    """A new name for each: ``what`` and a number, equal for equal names only."""
    distinct = dict.fromkeys(name for name in names if name is not None)
    return {name: f"{what} {number}" for number, name in enumerate(distinct)}


def _rank(row: RankRow, hosts: Mapping[str, str]) -> RankRow:
    return replace(row, host=None if row.host is None else hosts[row.host])


def _workload(workload: Workload) -> Workload:
    devices = _numbered("device", [gradient.device for gradient in workload.gradients])

    def plain(gradient: Gradient) -> Gradient:
        device = gradient.device
        if device is not None and not _DEVICE.fullmatch(device):
            device = devices[device]
        return replace(gradient, name=f"gradient {gradient.index}", device=device)

    return _stripped(workload, name="workload", gradients=tuple(map(plain, workload.gradients)))


def _measurement(measurement: Measurement, name: str) -> Measurement:
    asked = measurement.asked
    if asked is not None:
        made_for = None if asked.made_for is None else _made_for(asked.made_for)
        asked = _stripped(asked, made_for=made_for)
    backend = measurement.backend if measurement.backend in BACKENDS else "other"
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
    """The members whose keys are listed or are numbers (sizes, ranks), as far as their values name nobody."""
    kept = {}
    for key, item in value.items():
        if isinstance(key, str) and (key in KEYS or (key.isascii() and key.isdigit())):
            kept[key] = _value(item, key)
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}


def _value(value: Any, key: str) -> Any:
    """Numbers and booleans as they are; texts, lists and objects as far as they name nobody, else None."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if _names_nothing(value, key) else None
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        items = [_value(item, key) for item in value]
        return [item for item, own in zip(items, value, strict=True) if item is not None or own is None]
    return None


def _names_nothing(text: str, key: str) -> bool:
    """Whether ``text`` is a device, its model, a version under a version's key, or listed words only."""
    if key in VERSION_KEYS and _VERSION.fullmatch(text) and not _ADDRESS.fullmatch(text):
        return True
    return _DEVICE.fullmatch(text) is not None or _is_device_model(text) or _sentence(text) == text


def _is_device_model(text: str) -> bool:
    words = text.split(" ")
    named = any(word in _DEVICE_WORDS for word in words)
    return named and all(word in _DEVICE_WORDS or _DEVICE_MODEL.fullmatch(word) for word in words)


def _sentence(text: str) -> str:
    """``text`` with each quotation, and each word that is not listed, replaced; runs of them by one "..."."""
    words: list[str] = []
    in_device = False  # "A10" is kept behind a maker's name ("NVIDIA A10"); alone it may be anything
    for chunk in _QUOTED.sub(GONE, text).split():
        core = chunk.strip(_EDGES + "'\"")
        in_device = core in _DEVICE_WORDS or (in_device and _DEVICE_MODEL.fullmatch(core) is not None)
        if chunk != GONE and (not core or in_device or _is_plain(core)):
            words.append(chunk)
        elif words[-1:] != [GONE]:
            words.append(GONE)
    return " ".join(words)


def _is_plain(core: str) -> bool:
    """Whether ``core`` is a number, dtype, backend, device, rule ("A3.5"), or listed words, also joined."""
    if _ADDRESS.fullmatch(core):
        return False
    if core in DTYPE_BYTES or core in BACKENDS:
        return True
    if any(pattern.fullmatch(core) for pattern in (_NUMBER, _RULE, _DEVICE)):
        return True
    parts = [part for part in re.split(r"[-._'=()]", core) if part]
    return all(_is_listed(part.lower()) or (part.isdigit() and len(part) < 4) for part in parts)


def _is_listed(word: str) -> bool:
    return word in WORDS or word.removesuffix("s") in WORDS
