"""Options: what they take, and those that several commands have. A value that is not legal is a usage error.

``--help`` shows options in groups, whose titles begin this file; what most people need stands before all.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from sim.cli.printing import note
from sim.formats import files
from sim.formats.record_files import AS_RUN
from sim.nouns.ddp_switches import Switches
from sim.nouns.settings import settings_of
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.registry import POLICIES
from sim.systems.zero import ZeroSettings
from sim.units import NS_PER_MS, parse_cap_mb, parse_rate_bits

MODEL = "The model"
WHERE = "Where ranks run"
MEASURING = "How it is measured"
PREDICTING = "How it is predicted"
SYSTEM = "Another system, and its settings"
WHAT_IF = "What if"
CANDIDATES = "Which buckets"
TIMES = "Further times, and other devices"
RANKS_DIFFER = "Where ranks differ"
LINK = "What is known of the machine"
FITTING = "What else was measured, and what is fixed by it"
_OUTPUT = ("-o", "--output")


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option takes: ``metavar`` is how ``--help`` writes it, ``reader`` makes the value."""

    metavar: str
    reader: Callable[[str], Any]

    def read(self, text: str) -> Any:
        """The value. Raises ``typer.BadParameter``: it is not legal."""
        try:
            return self.reader(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def commas(kind: Kind) -> Kind:
    """Several values, with commas between them."""

    def read(text: str) -> list[Any]:
        parts = text.split(",")
        if not all(map(str.strip, parts)):
            raise ValueError(f"{text!r} is not legal; give values with commas between them")
        return [kind.reader(part.strip()) for part in parts]

    return Kind(f"{kind.metavar},…", read)


class Pair(NamedTuple):
    """``KEY=VALUE``: values are JSON or Python's constants, and text where they are neither."""

    key: str
    value: Any


def _pair(text: str) -> Pair:
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise ValueError(f"{text!r} is not legal; give key=value")
    try:
        constants = {"True": "true", "False": "false", "None": "null"}
        return Pair(key, json.loads(constants.get(value, value), parse_constant=str))
    except json.JSONDecodeError:
        return Pair(key, value)
    except (ValueError, RecursionError):  # Python reads no integer of over 4300 digits
        raise ValueError(f"{key}={value[:20]}... is not legal; it is too long") from None


def as_dict(pairs: Iterable[Pair] | None, where: str = "KEY=VALUE") -> dict[str, Any]:
    """Pairs as they stand on the command line. Raises ``typer.BadParameter``: a key is given twice."""
    found: dict[str, Any] = {}
    for key, value in pairs or ():
        if key in found:
            raise typer.BadParameter(f"{key} is given twice; give it once", param_hint=where)
        found[key] = value
    return found


def _ns(text: str) -> int:
    ms = float(text)
    if not 0 <= ms <= 1e9:
        raise ValueError(f"{text} is not legal; give milliseconds, 0 to 1e9")
    return round(ms * NS_PER_MS)


class HardwareAt(NamedTuple):
    """``H.json@WHERE``: a hardware file, and the cluster's file or the settings that it was measured with."""

    file: Path
    where: Path | Mapping[str, Any]


def _hardware_at(text: str) -> HardwareAt:
    file, at, where = text.rpartition("@")
    if not file or not at or not where:
        raise ValueError(f"{text!r} is not legal; give a hardware and where it was measured: H.json@hosts=2")
    settings = Path(where) if where.endswith(".json") else as_dict(PAIRS.read(where))
    return HardwareAt(Path(file), settings)


def whole(text: str) -> int:
    """A count. Raises ``ValueError`` for what is none."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not legal; give whole numbers")
    return int(text)


def choice(*legal: str) -> Kind:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in legal:
            raise ValueError(f"{text!r} is not one of {', '.join(legal)}")
        return text

    return Kind("|".join(legal), read)


CAP, FACTOR, WHOLE = Kind("MIB", parse_cap_mb), Kind("FACTOR", float), Kind("N", whole)
CAPS, FACTORS, WHOLES = map(commas, (CAP, FACTOR, WHOLE))
MS = Kind("MS", _ns)  # in ns from here on
RATES = commas(Kind("RATE", parse_rate_bits))
PAIR = Kind("KEY=VALUE", _pair)
PAIRS = commas(PAIR)
HARDWARE_AT = Kind("H.json@WHERE", _hardware_at)


def option(
    words: str,
    *names: str,
    default: Any = None,
    panel: str | None = None,
    kind: Kind | None = None,
    **more: Any,
) -> Any:
    """An option with a value, by its parameter's name or ``names``; ``default=...``: it is required."""
    read: dict[str, Any] = {} if kind is None else {"parser": kind.read, "metavar": kind.metavar}
    return typer.Option(default, *names, help=words, rich_help_panel=panel, **(read | more))


def flag(words: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value, off by default."""
    return typer.Option(False, *names, help=words, rich_help_panel=panel, metavar="")


def argument(words: str, metavar: str, *, default: Any = None, kind: Kind | None = None) -> Any:
    """A word that stands alone."""
    return typer.Argument(default, help=words, metavar=metavar, parser=kind.read if kind else None)


def _looked_at(check: Callable[[Path, str], object]) -> Callable[[typer.CallbackParam, Any], Any]:
    """What is written is looked at before anything is computed."""

    def callback(option: typer.CallbackParam, given: Path | None) -> Path | None:
        if given is not None:
            check(given, max(option.opts, key=len))
        return given

    return callback


def file_option(words: str, *names: str, default: Any = ...) -> Any:
    """An option for a file that is written; ``names``: other than ``-o``, ``--output``."""
    return typer.Option(default, *(names or _OUTPUT), help=words, callback=_looked_at(files.check_writable))


def directory_option(words: str, *, default: Any = ...) -> Any:
    """``-o``, ``--output`` for a directory that files are written to."""
    return typer.Option(default, *_OUTPUT, help=words, callback=_looked_at(files.check_directory))


def write(path: Path, text: str, option: str = "--output") -> None:
    """A file, and a word about it on stderr."""
    files.write_atomically(path, text, option)
    note(f"wrote {path}")


def write_measured(path: Path, text: str) -> None:
    """``write`` of what cannot be had again: where it fails, the error says where it is kept."""
    files.write_measured({path: text}, "--output")
    note(f"wrote {path}")


def _help_of_settings() -> str:
    kinds = {
        "DDP": Switches,
        "ZeRO": ZeroSettings,
        "Megatron": MegatronSettings,
        "fully_shard": Fsdp2Settings,
    }
    told = "; ".join(f"{whose}: {', '.join(settings_of(cls))}" for whose, cls in kinds.items())
    caps = "first_bucket_mb (MiB), bucket_cap_mb_list (a list)"
    return f"A setting of the system, by its own name; repeatable. DDP also: {caps}. {told}."


def shared(words: str, *names: str, **more: Any) -> Any:
    """What ``Annotated`` says of an option that several commands have; their defaults stand with them."""
    return option(words, *names, default=..., **more)


_PARTS = f"Predict without the job's own recorded step ({AS_RUN} beside WORKLOAD.json)."
_CAP = "DDP's bucket_cap_mb: MiB, or a size such as 25MiB. Left out: DDP's default."
_ENGINE = "Which clock runs it; both give the same times."
_MOST = "Largest step error in percent, of a trace median error of bucket ends; beyond it exit 3."

WorkloadFile = Annotated[
    Path, typer.Argument(metavar="WORKLOAD.json", help="A workload: recorded, imported or estimated.")
]
HardwareFile = Annotated[Path, shared("A hardware file: calibrated or imported.", "--hardware")]
AsJson = Annotated[bool, shared("One JSON document on stdout.", "--json", metavar="")]
Parts = Annotated[bool, shared(_PARTS, "--parts", metavar="", panel=PREDICTING)]
Policy = Annotated[
    str, shared(f"The system: {', '.join(POLICIES)}.", kind=choice(*POLICIES), metavar="POLICY")
]
BucketCap = Annotated[float | None, shared(_CAP, kind=CAP)]
Settings = Annotated[list[Pair] | None, shared(_help_of_settings(), "--set", kind=PAIR, panel=SYSTEM)]
Arguments = Annotated[
    list[Pair] | None, shared("An argument for the factory; repeatable.", "--arg", kind=PAIR, panel=MODEL)
]
Dtype = Annotated[str | None, shared("Cast model and batch, such as bfloat16.", panel=MODEL)]
EngineName = Annotated[
    Literal["simpy", "analytic"],
    shared(_ENGINE, "--engine", kind=choice("simpy", "analytic"), panel=PREDICTING),
]
Jobs = Annotated[int | None, shared("Processes, at most one a core; default: 1.", min=1, panel=PREDICTING)]
MaxError = Annotated[float | None, shared(_MOST, min=0, max=1e9)]


def settings(pairs: Iterable[Pair] | None) -> dict[str, Any]:
    """The settings of a system that ``--set`` gives. Raises ``typer.BadParameter``: a name that is none."""
    given = as_dict(pairs, "--set")
    if (
        others := {"workload", "policy", "bucket_cap_mb", "iteration", "iterations", "world_size"}
        & given.keys()
    ):
        raise typer.BadParameter(f"{min(others)} is no setting of a system", param_hint="--set")
    if "units" in given:  # names of modules, some of which are numbers
        given["units"] = str(given["units"])
    return given
