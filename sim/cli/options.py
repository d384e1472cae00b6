"""Options: how a command's parameters are written, those that several commands have, and what they hold.

``--help`` shows options in groups, whose titles begin this file; what most people need stands before all.
"""

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sim.cli.printing import note
from sim.errors import InputError
from sim.formats import files
from sim.formats.files import check_directory, check_writable, write_atomically
from sim.nouns.ddp_switches import Switches
from sim.nouns.settings import settings_of
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.registry import POLICIES
from sim.systems.zero import ZeroSettings
from sim.units import parse_cap_mb

MODEL = "The model"
WHERE = "Where ranks run"
MEASURING = "How it is measured"
PREDICTING = "How it is predicted"
SYSTEM = "Another system, and switches"
WHAT_IF = "What if"
CANDIDATES = "Which buckets"
TIMES = "Further times, and other devices"
RANKS_DIFFER = "Where ranks differ"
LINK = "What is known of the machine"
FITTING = "What else was measured, and what is fixed by it"

Value = TypeVar("Value")
_OUTPUT = ("-o", "--output")


def option(words: str, *names: str, default: Any = None, panel: str | None = None, **more: Any) -> Any:
    """An option with a value, by its parameter's name or ``names``; ``default=...``: it is required."""
    return typer.Option(default, *names, help=words, rich_help_panel=panel, **more)


def flag(words: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value, off by default."""
    return typer.Option(False, *names, help=words, rich_help_panel=panel)


def argument(words: str, metavar: str, *, default: Any = None) -> Any:
    """A word that stands alone."""
    return typer.Argument(default, help=words, metavar=metavar)


def file_option(words: str, *names: str, default: Any = ...) -> Any:
    """An option for a file that is written; ``names``: other than ``-o``, ``--output``. It is looked at
    before anything is computed."""
    return typer.Option(default, *(names or _OUTPUT), help=words, callback=_check_file)


def directory_option(words: str, *, default: Any = ...) -> Any:
    """``-o``, ``--output`` for a directory that files are written to."""
    return typer.Option(default, *_OUTPUT, help=words, callback=_check_directory)


def write(path: Path, text: str, option: str = "--output") -> None:
    """A file, and a word about it on stderr."""
    write_atomically(path, text, option)
    note(f"wrote {path}")


def write_measured(path: Path, text: str, option: str = "--output") -> None:
    """``write`` of what cannot be had again: where it fails, the error says where it is kept."""
    files.write_measured({path: text}, option)
    note(f"wrote {path}")


def _check_file(option: typer.CallbackParam, given: Path | None) -> Path | None:
    if given is not None:
        check_writable(given, _name(option))
    return given


def _check_directory(option: typer.CallbackParam, given: Path | None) -> Path | None:
    if given is not None:
        check_directory(given, _name(option))
    return given


def _name(option: typer.CallbackParam) -> str:
    return max(option.opts, key=len)


WorkloadFile = Annotated[
    Path, typer.Argument(metavar="WORKLOAD.json", help="A workload: recorded, imported or estimated.")
]
HardwareFile = Annotated[Path, typer.Option("--hardware", help="A hardware file: calibrated or imported.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
PolicyName = Annotated[str, typer.Option(help=f"The system: {', '.join(POLICIES)}.", rich_help_panel=SYSTEM)]
BucketCap = Annotated[
    str | None,
    typer.Option(help="DDP's bucket_cap_mb: MiB, or a size such as 25MiB. Left out: DDP's default."),
]
FirstBucket = Annotated[str | None, typer.Option(help="Cap of the first bucket, MiB.")]
BucketCapList = Annotated[
    str | None, typer.Option(help="DDP's bucket_cap_mb_list: a cap for each bucket, MiB, comma-separated.")
]


def _settings(cls: type, whose: str, *names: str) -> Any:
    """The option that gives settings of one system, which its help lists."""
    told = ", ".join(settings_of(cls))
    words = f"A setting of {whose}, by its own name; repeatable: {told}."
    return typer.Option(*names, metavar="KEY=VALUE", help=words, rich_help_panel=SYSTEM)


DdpSwitches = Annotated[list[str] | None, _settings(Switches, "DDP")]
ZeroSwitches = Annotated[list[str] | None, _settings(ZeroSettings, "DeepSpeed")]
ReduceBucketSize = Annotated[
    int | None, typer.Option(help="ZeRO's reduce_bucket_size, elements.", rich_help_panel=SYSTEM)
]
MegatronSwitches = Annotated[list[str] | None, _settings(MegatronSettings, "Megatron-Core")]
Fsdp2Switches = Annotated[list[str] | None, _settings(Fsdp2Settings, "fully_shard", "--fsdp")]


class Engine(StrEnum):
    """The two engines; equal to the nanosecond."""

    SIMPY = "simpy"
    ANALYTIC = "analytic"


EngineName = Annotated[
    Engine, typer.Option(help="Which clock runs it; both give the same times.", rich_help_panel=PREDICTING)
]
MaxRows = Annotated[int, typer.Option(min=1, help="Refuse more rows than these.", rich_help_panel=PREDICTING)]


def caps_of(text: str | None, option: str) -> list[float] | None:
    """Caps in MiB with commas between them; None where none are given."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise InputError(f"{option}: {text!r} is not legal; give caps in MiB, such as 1,25")
    return [parse_cap_mb(part) for part in parts]


def key_values(pairs: list[str], option: str) -> dict[str, Any]:
    """``key=value`` words; values are JSON or Python's constants, and text where they are neither.

    Raises:
        InputError: a word that is no ``key=value``, a key given twice, or a number of thousands of digits.
    """
    return {name: key_value(name, text, option) for name, text in key_texts(pairs, option).items()}


def key_texts(pairs: list[str], option: str) -> dict[str, str]:
    """As ``key_values``, each value as it was written."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{option}: {pair!r} is not legal; give key=value")
        if name in found:
            raise InputError(f"{option}: {name} is given twice; give it once")
        found[name] = value
    return found


def key_value(name: str, text: str, option: str) -> Any:
    """The value of one ``key=value`` word, as ``key_values`` takes it."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError):  # Python reads no integer of over 4300 digits
        raise InputError(f"{option}: {name}={text[:20]}... is not legal; it is too long") from None


def values_of(option: str, text: str, read: Callable[[str], Value]) -> list[Value]:
    """The values of an axis, with commas between them. Raises ``InputError`` naming the option."""
    made = []
    for part in text.split(","):
        if not part.strip():
            raise InputError(f"{option}: {text!r} is not legal; give values with commas between them")
        try:
            made.append(read(part.strip()))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{option}: {part.strip()!r} is not legal; {error}") from error
    return made


def _switches(option: str, pairs: list[str]) -> dict[str, Any]:
    switches = key_values(pairs, option)
    for name in ("workload", "world_size", "iterations"):
        if name in switches:
            raise InputError(f"{option}: {name} is no switch")
    for name in ("policy", "iteration", "bucket_cap_mb", "bucket_cap_mb_list", "first_bucket_mb"):
        if name in switches:
            raise InputError(f"{option}: {name} has an option of its own: --{name.replace('_', '-')}")
    return switches


def ddp_switches(pairs: list[str] | None) -> dict[str, Any]:
    """The switches that ``--ddp`` gives."""
    return _switches("--ddp", pairs or [])
