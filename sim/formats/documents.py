"""Our nouns as files: JSON documents, strict on the way in, atomic on the way out; tidy rows as CSV."""

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json

from sim.errors import InputError
from sim.formats.files import read_bytes, write_atomically
from sim.nouns.assignment import Assignment
from sim.nouns.checks import no_duplicates, shown
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import SCALARS, Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload

SCHEMA_VERSION = 1
_LONGEST_MESSAGE = 360


class _Kinded(Protocol):
    KIND: ClassVar[str]


Noun = TypeVar("Noun", bound=_Kinded)
Body = TypeVar("Body")
Number = TypeVar("Number", int, float)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(noun: type[Any]) -> TypeAdapter[Any]:
    """How pydantic reads and writes a dataclass: strict on it and on all that it holds (no unknown keys)."""
    if noun not in _ADAPTERS:
        strict = with_config(ConfigDict(strict=True, extra="forbid"))
        _ADAPTERS[noun] = TypeAdapter(strict(noun))
    return _ADAPTERS[noun]


def parse_json(text: str | bytes, source: str) -> Any:
    """JSON as Python values. Raises ``InputError`` naming ``source`` and the position of the fault."""
    if not text.strip():
        raise InputError(f"{source}: the file is empty")
    try:
        from_json(text, allow_inf_nan=False)  # Python's own reader takes more, such as lone surrogates
        reads: Any = {"parse_float": partial(_finite, float), "parse_int": partial(_finite, int)}
        return json.loads(text, object_pairs_hook=_no_duplicate_keys, **reads)
    except ValueError as error:
        raise InputError(f"{source}: not JSON: {_one_line(str(error))}") from None


def _no_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        no_duplicates("key", [key[:80] for key, _ in pairs])
    return document


def _finite(kind: type[Number], text: str) -> Number:
    if math.isinf(float(text)):  # of a whole number, too: where one with a point is due it is read as that
        raise ValueError(f"{text:.40} is not legal; give a finite number")
    return kind(text)


_UNKNOWN_KEYS = ("unexpected_keyword_argument", "extra_forbidden")


def _explain(error: ValidationError, source: str) -> InputError:
    """The first fault as one line: file, field, value, what is legal. A key that is unknown, such as one that
    is misspelt, comes first: it tells why another is missing."""
    first = min(error.errors(include_url=False), key=lambda fault: fault["type"] not in _UNKNOWN_KEYS)
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    kind = first["type"]
    if kind == "value_error":
        message = str(first["ctx"]["error"])
        text = f"{where}.{message}" if where else message
    elif kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        text = f"{where}: missing; it is required"
    elif kind in _UNKNOWN_KEYS:
        text = f"{where}: unknown key; put additions under 'extensions'"
    else:
        text = f"{where}: {shown(first['input'])} is not legal: {first['msg']}"
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-_LONGEST_MESSAGE // 2 :]}"
    return InputError(f"{source}: {_one_line(text)}{more}")


def _one_line(text: str) -> str:
    """The text with what no terminal should be sent as it is, such as a line break in a key, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def parse_document(document: Any, noun: type[Noun], source: str) -> Noun:
    """A noun from parsed JSON. Raises ``InputError`` naming ``source``, field, value and what is legal."""
    kind = noun.KIND
    if not isinstance(document, dict):
        raise InputError(f"{source}: {shown(document)} is not legal; give a JSON object of kind {kind!r}")
    body: dict[str, Any] = dict(document)
    for key, legal in (("kind", kind), ("schema_version", SCHEMA_VERSION)):
        if key not in body:
            raise InputError(f"{source}: {key}: missing; it must be {legal!r}")
        value = body.pop(key)
        if value != legal or type(value) is not type(legal):
            raise InputError(f"{source}: {key}: {shown(value)} is not legal; it must be {legal!r}")
    if "provenance" not in body:
        raise InputError(f'{source}: provenance: missing; give an object, such as {{"source": "..."}}')
    if noun is Hardware:
        _read_over_reduces(body)
    value = parse_body(body, noun, source)
    if isinstance(value, Workload):
        _check_shapes(value, source)
    if isinstance(value, Hardware):
        _check_ranges(value, source)
    return value


def _read_over_reduces(body: dict[str, Any]) -> None:
    """Of a hardware file: a curve of reduces to one rank, once measured, of which no system sends any."""
    body.pop("reduce", None)
    if isinstance(spread := body.get("spread"), dict):
        spread = body["spread"] = {name: known for name, known in spread.items() if name != "reduce"}
        if isinstance(ranges := spread.get("ranges"), dict):
            spread["ranges"] = {name: ends for name, ends in ranges.items() if name != "reduce"}


def _check_ranges(hardware: Hardware, source: str) -> None:
    """A file says both what a field is and where it lies; in Python it may be changed to ask what would be,
    and a step of the job may have fitted it beyond what was expected of it."""
    ranges = {} if hardware.spread.get("own_step") else hardware.spread.get("ranges", {})
    for name in [name for name in ranges if name in SCALARS]:
        value, low, high = getattr(hardware, name), ranges[name]["low"], ranges[name]["high"]
        if value is None or not low <= value <= high:
            raise InputError(
                f"{source}: {name}: {'null' if value is None else value} is not legal with a "
                f"spread.ranges.{name} of {low:.7g} to {high:.7g}; give a value within it, or leave it out"
            )


def _check_shapes(workload: Workload, source: str) -> None:
    """A file says both of what was recorded; in Python sizes may be changed to ask what would be."""
    for gradient in workload.gradients:
        shape, size = gradient.shape, math.prod(gradient.shape) * DTYPE_BYTES[gradient.dtype]
        if shape and size != gradient.num_bytes:
            raise InputError(
                f"{source}: gradients.{gradient.index}.num_bytes: {gradient.num_bytes} is not legal; "
                f"{list(shape)!s:.100} of {gradient.dtype} are {size!s:.30} bytes (an empty shape is an "
                f"unknown one)"
            )


def parse_body(body: dict[str, Any], noun: type[Body], source: str) -> Body:
    """A dataclass from the members of a JSON object, strictly; errors as in ``parse_document``."""
    try:
        # JSON has no tuples and no int-valued floats of its own: JSON mode accepts arrays for tuples.
        value = _adapter(noun).validate_json(json.dumps(body))
    except ValidationError as error:
        raise _explain(error, source) from None
    except ValueError as error:
        raise InputError(f"{source}: {_one_line(str(error))}") from None
    assert isinstance(value, noun)
    return value


def parse_text(text: str | bytes, noun: type[Noun], source: str) -> Noun:
    """A noun from JSON text; ``source`` is what errors call it."""
    return parse_document(parse_json(text, source), noun, source)


def load(path: str | os.PathLike[str], noun: type[Noun]) -> Noun:
    """A noun from a JSON file."""
    return parse_text(read_bytes(path), noun, str(path))


def to_document(noun: Any) -> dict[str, Any]:
    """A noun as a JSON-ready object with ``schema_version`` and ``kind``; defaults of None left out."""
    body = _adapter(type(noun)).dump_python(noun, mode="json", exclude_none=False)
    assert isinstance(body, dict)
    return {"schema_version": SCHEMA_VERSION, "kind": noun.KIND, **body}


def to_text(noun: Any) -> str:
    """A noun as JSON text."""
    return json_text(to_document(noun))


def json_text(document: Mapping[str, Any] | list[Any]) -> str:
    """JSON for files: one key a line at the top two levels, rows of numbers on one line each."""
    return _lay_out(document, 0) + "\n"


def _lay_out(value: Any, depth: int) -> str:
    flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(flat) <= 100 or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(str(key))}: {_lay_out(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    if all(isinstance(item, (int, float, str)) or item is None for item in value):
        return flat
    rows = [pad + _lay_out(item, depth + 1) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * depth + "]"


def save(path: str | os.PathLike[str], noun: Any) -> None:
    """Write a noun to a JSON file, atomically."""
    write_atomically(path, to_text(noun))


def load_workload(path: str | os.PathLike[str]) -> Workload:
    """A Workload from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return load(path, Workload)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """A Hardware from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return load(path, Hardware)


def load_assignment(path: str | os.PathLike[str]) -> Assignment:
    """An Assignment from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return load(path, Assignment)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """A Cluster from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return load(path, Cluster)


def digest(noun: Any) -> str:
    """SHA-256 of a noun's JSON text, in hex: what tells two of them apart."""
    return hashlib.sha256(to_text(noun).encode()).hexdigest()


def csv_text(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Rows as CSV with the columns ``names``; what is None or missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
