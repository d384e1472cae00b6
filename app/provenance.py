"""Who said so: versions and digests, for the screen and for every export."""

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any, TypeVar

from app.memo import digest
from app.playing import Inputs
from sim.formats.documents import csv_text
from sim.nouns.assignment import Assignment
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.units import format_number

Noun = TypeVar("Noun", Assignment, Report, Recommendation)


def tool_version() -> str:
    """The version of bucketsim; ``unknown`` where it is not installed."""
    try:
        return version("bucketsim")
    except PackageNotFoundError:
        return "unknown"


def provenance(inputs: Inputs, scaled: Mapping[str, Any], **more: Mapping[str, Any]) -> dict[str, Any]:
    """What a result came from.

    ``scaled`` is what is not as it was measured; of ``more``, ``choice`` is the assignment that was chosen
    and its switches, ``switches`` those under which many assignments were played.
    """
    files = inputs.origin or inputs
    told = {
        "tool": f"bucketsim {tool_version()}",
        "python": platform.python_version(),
        "workload": inputs.workload.name,
        "workload_sha256": digest(files.workload),
        "hardware": inputs.hardware.name,
        "hardware_sha256": digest(files.hardware),
    }
    return told | {name: dict(what) for name, what in {"scaled": scaled, **more}.items() if what}


def origin_words(where_from: Mapping[str, Any]) -> str:
    """An origin in one line, digests cut short: the exports hold them whole."""
    words = [where_from["tool"], f"python {where_from['python']}"]
    for noun in ("workload", "hardware"):
        words.append(f"{noun} {where_from[noun]} (sha256 {where_from[f'{noun}_sha256'][:12]})")
    scaled = where_from.get("scaled", {}).items()
    told = [f"{k} x{format_number(v, 6)}" if isinstance(v, float) else f"{k} {v}" for k, v in scaled]
    return " · ".join([*words, f"scaled {', '.join(told)}"] if told else words)


def signed(noun: Noun, where_from: Mapping[str, Any]) -> Noun:
    """The noun with its origin added to what it says of itself."""
    return replace(noun, provenance={**noun.provenance, **where_from})


def signed_csv(rows: Iterable[Mapping[str, Any]], where_from: Mapping[str, Any]) -> str:
    """Rows as CSV with the origin in columns of its own, behind theirs."""
    told, origin = list(rows), _short(where_from, "scaled", "switches")
    return csv_text([{**row, **origin} for row in told], [*dict.fromkeys(chain.from_iterable(told)), *origin])


def signed_snippet(text: str, where_from: Mapping[str, Any]) -> str:
    """Python lines under a comment that says where they come from."""
    origin = _short(where_from, "scaled", "choice")
    return "".join(f"# {name}: {value}\n" for name, value in origin.items()) + text


def _short(where_from: Mapping[str, Any], *more: str) -> dict[str, str]:
    """Tool and digests, and those of ``more`` that there are, as JSON: each in one line."""
    names = ("tool", "workload_sha256", "hardware_sha256")
    return {name: str(where_from[name]) for name in names} | {
        name: json.dumps(where_from[name], ensure_ascii=True) for name in more if name in where_from
    }
