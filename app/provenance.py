"""Who said so: versions and digests, for the screen and for every export."""

import csv
import io
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from app.cached import Inputs
from sim.nouns.assignment import Assignment
from sim.nouns.report import Report

Noun = TypeVar("Noun", Assignment, Report)


def tool_version() -> str:
    """The version of bucketsim; ``unknown`` where it is not installed."""
    try:
        return version("bucketsim")
    except PackageNotFoundError:
        return "unknown"


def provenance(inputs: Inputs, scaled: Mapping[str, Any]) -> dict[str, Any]:
    """What a result came from; ``scaled`` is what is not as it was measured."""
    return {
        "tool": f"bucketsim {tool_version()}",
        "python": platform.python_version(),
        "workload": inputs.workload.name,
        "workload_sha256": inputs.workload_digest,
        "hardware": inputs.hardware.name,
        "hardware_sha256": inputs.hardware_digest,
        **({"scaled": dict(scaled)} if scaled else {}),
    }


def origin_words(where_from: Mapping[str, Any]) -> str:
    """An origin in one line, digests cut short: the exports hold them whole."""
    words = [where_from["tool"], f"python {where_from['python']}"]
    for noun in ("workload", "hardware"):
        words.append(f"{noun} {where_from[noun]} (sha256 {where_from[f'{noun}_sha256'][:12]})")
    if "scaled" in where_from:
        words.append("scaled " + ", ".join(f"{name} x{by:g}" for name, by in where_from["scaled"].items()))
    return " · ".join(words)


def signed(noun: Noun, where_from: Mapping[str, Any]) -> Noun:
    """The noun with its origin added to what it says of itself."""
    return replace(noun, provenance={**noun.provenance, **where_from})


def signed_csv(text: str, where_from: Mapping[str, Any]) -> str:
    """CSV with the origin in columns of its own, so that any reader of CSV still reads it."""
    names = ("tool", "workload_sha256", "hardware_sha256")
    header, *rows = csv.reader(io.StringIO(text))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*header, *names])
    writer.writerows([*row, *(where_from[name] for name in names)] for row in rows)
    return out.getvalue()


def signed_snippet(text: str, where_from: Mapping[str, Any]) -> str:
    """Python lines under a comment that says where they come from."""
    names = ("tool", "workload_sha256", "hardware_sha256")
    return "".join(f"# {name}: {where_from[name]}\n" for name in names) + text
