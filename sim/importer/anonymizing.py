"""What may leave the house: an import without names, paths and hosts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sim.importer.vocabulary import vocabulary
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, RankRow
from sim.nouns.measurement import Measurement
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload

GONE = "..."
BACKENDS = ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl")
# Under these keys a version number may stand; elsewhere four numbers with dots are an address.
VERSION_KEYS = frozenset(
    f"{name}{ending}"
    for name in (
        *("torch", "nccl", "rccl", "gloo", "cuda", "cuda_runtime", "cuda_driver", "driver", "hip", "python"),
        *("tool", "comm_lib", "library", "format", "schema", "version"),
    )
    for ending in ("", "_version")
)
# Under these a sentence of ours stands, with numbers in it: how a curve's points were made of samples.
_SENTENCE_KEYS = ("quantile", "statistic", "curve", "made_from")
_VERSION = re.compile(r"v?\d{1,5}(\.\d{1,5}){0,3}([+-](cu|rocm|cpu|chakra)\.?[\d.]{0,12})?")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_DEVICE = re.compile(r"(cuda|cpu|xpu|hip|mps|hpu|npu|meta)(:\d{1,4})?")
_DEVICE_WORDS = frozenset(
    (
        *(
            "NVIDIA",
            "AMD",
            "Intel",
            "Tesla",
            "GeForce",
            "RTX",
            "GTX",
            "Quadro",
            "TITAN",
            "Instinct",
            "Radeon",
        ),
        *("Gaudi", "Ada", "Generation", "Blackwell", "Hopper", "PRO", "Pro", "Server", "Edition", "Ti"),
        *("Workstation", "Super", "SUPER", "PCIe", "PCIE", "NVL", "OAM"),
    )
)
_DEVICE_MODEL = re.compile(
    r"((A|B|H|K|L|P|T|V|GB|GH|MI|HL|SXM|HBM)-?\d{1,4}[A-Za-z]{0,3}|\d{3,4}|\d{1,3}GB)(-(SXM\d?|PCIE|\d{1,3}GB))*"
)
_QUOTED = re.compile(r"(?<!\w)(['\"])(.*?)\1(?!\w)")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?(%|x)?")
_RULE = re.compile(r"A\d(\.\d{1,2})?")
_EDGES = "()[]{},;:.!?"


def anonymize(imported: Imported) -> Imported:
    """``imported`` without what tells whose it is.

    Names of parameters, modules, workloads, machines and files give way to numbered ones ("gradient 12",
    "host 1"). Of provenance, details, environments and extensions only keys and words that stand in our own
    source remain, numbers and booleans under them, dtypes, versions of software and models of accelerators:
    sizes, shapes, times, versions and the device model are what a reader needs. In sentences what is not a
    word of our own or a number becomes "...".
    """
    hosts = _numbered("host", [row.host for row in imported.ranks])
    return replace(
        imported,
        format=_known(imported.format) or "import",
        name="import",
        workload=None if imported.workload is None else _workload(imported.workload),
        hardware=tuple(
            _hardware(hardware, "hardware" if len(imported.hardware) == 1 else f"hardware {number}")
            for number, hardware in enumerate(imported.hardware)
        ),
        measurements=tuple(
            _measurement(measurement, f"measurement {number}")
            for number, measurement in enumerate(imported.measurements)
        ),
        ranks=tuple(_rank(row, hosts) for row in imported.ranks),
        found=tuple(map(_sentence, imported.found)),
        assumed=tuple(map(_sentence, imported.assumed)),
        missing=tuple(map(_sentence, imported.missing)),
        dropped=tuple(map(_sentence, imported.dropped)),
        details=_object(imported.details),
    )


def _numbered(what: str, names: Iterable[str | None]) -> dict[str, str]:
    """Equal names stay equal, and different ones different."""
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

    return replace(
        workload,
        name="workload",
        gradients=tuple(map(plain, workload.gradients)),
        provenance=_object(workload.provenance),
        extensions=_object(workload.extensions),
    )


def _hardware(hardware: Hardware, name: str) -> Hardware:
    return replace(
        hardware,
        name=name,
        spread=_object(hardware.spread),
        provenance=_object(hardware.provenance),
        extensions=_object(hardware.extensions),
    )


def _measurement(measurement: Measurement, name: str) -> Measurement:
    return replace(
        measurement,
        name=name,
        backend=measurement.backend if measurement.backend in BACKENDS else "other",
        asked=None if measurement.asked is None else _assignment(measurement.asked),
        environment=_object(measurement.environment),
        provenance=_object(measurement.provenance),
        extensions=_object(measurement.extensions),
    )


def _assignment(assignment: Assignment) -> Assignment:
    return replace(
        assignment,
        ddp_kwargs=_object(assignment.ddp_kwargs),
        settings=_object(assignment.settings),
        requires=_object(assignment.requires),
        made_for=None if assignment.made_for is None else _made_for(assignment.made_for),
        provenance=_object(assignment.provenance),
        extensions=_object(assignment.extensions),
    )


def _made_for(made_for: MadeFor) -> MadeFor:
    names = tuple(f"gradient {number}" for number in range(len(made_for.names)))
    dtypes = tuple(dtype if dtype in DTYPE_BYTES else GONE for dtype in made_for.dtypes)
    return replace(made_for, workload="workload", names=names, dtypes=dtypes)


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    """The members with known keys, as far as their values are known.

    The fingerprint of a model and lists of names hold nothing else than names, and are left out.
    """
    known = vocabulary()
    kept = {}
    for key, item in value.items():
        if isinstance(key, str) and known.knows_key(key) and key not in ("names", "made_for"):
            kept[key] = _value(item, key)
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}


def _value(value: Any, key: str) -> Any:
    """Numbers and booleans as they are; texts, lists and objects as far as they are known, else None."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _known(value, key)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        items = [_value(item, key) for item in value]
        return [item for item, own in zip(items, value, strict=True) if item is not None or own is None]
    return None


def _known(text: str, key: str = "") -> str | None:
    """``text`` where it is of our own source, a dtype, a device or (under a version's key) a version."""
    if text in vocabulary().literals or text in DTYPE_BYTES or text in BACKENDS or _DEVICE.fullmatch(text):
        return text
    if key in _SENTENCE_KEYS:
        return _sentence(text)
    if key in VERSION_KEYS and _VERSION.fullmatch(text) and not _ADDRESS.fullmatch(text):
        return text
    return text if _is_device_model(text) else None


def _is_device_model(text: str) -> bool:
    words = text.split(" ")
    named = any(word in _DEVICE_WORDS for word in words)
    return named and all(word in _DEVICE_WORDS or _DEVICE_MODEL.fullmatch(word) for word in words)


def _sentence(text: str) -> str:
    """``text`` with each quotation, and each word that is not ours, replaced; runs of them by one "..."."""
    unquoted = _QUOTED.sub(lambda quote: quote[0] if _is_known_word(quote[2]) else GONE, text)
    words: list[str] = []
    for chunk in unquoted.split():
        core = chunk.strip(_EDGES + "'\"")
        if chunk != GONE and (not core or _is_known_word(core)):
            words.append(chunk)
        elif words[-1:] != [GONE]:
            words.append(GONE)
    return " ".join(words)


def _is_known_word(core: str) -> bool:
    """A number, a rule of our own ("A3.5"), or words of ours that hyphens, dots and the like join."""
    if _ADDRESS.fullmatch(core):
        return False
    if _NUMBER.fullmatch(core) or _RULE.fullmatch(core):
        return True
    known = vocabulary()
    parts = [part for part in re.split(r"[-.'=()]", core) if part]
    return all(known.knows_word(part) or (part.isdigit() and len(part) < 4) for part in parts)
