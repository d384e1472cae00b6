"""Options: what they take, and those that several commands have. A value that is not legal is a usage error.

``--help`` shows options in groups, whose titles begin this file; what most people need stands before all.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sim.cli.printing import Answer, emit, note, one_document, suggest
from sim.formats import files
from sim.formats.documents import to_text
from sim.formats.record_files import AS_RUN
from sim.nouns.ddp_switches import SWITCHES, Switches
from sim.nouns.settings import settings_of
from sim.systems.fsdp2 import Fsdp2Settings
from sim.systems.megatron import MegatronSettings
from sim.systems.registry import POLICIES
from sim.systems.zero import ZeroSettings
from sim.units import NS_PER_MS, parse_cap_mb, parse_rate_bits

MODEL, WHERE = "The model", "Where ranks run"
SYSTEM, WHAT_IF = "Another system, and its settings", "What if"
NO_SETTINGS = {"workload", "policy", "bucket_cap_mb", "iteration", "iterations", "world_size"}


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


def choice(*legal: str) -> Kind:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in legal:
            raise ValueError(f"{text!r} is not one of {', '.join(legal)}")
        return text

    return Kind("|".join(legal), read)


class Pair(NamedTuple):
    """``KEY=VALUE``: values are JSON or Python's constants, and text where they are neither."""

    key: str
    value: Any


def _pair(text: str) -> Pair:
    key, _, value = text.partition("=")
    if not key or not value:
        raise ValueError(f"{text!r} is not legal; give key=value")
    try:
        constants = {"True": "true", "False": "false", "None": "null"}
        return Pair(key, json.loads(constants.get(value, value), parse_constant=str))
    except json.JSONDecodeError:
        return Pair(key, value)
    except (ValueError, RecursionError):  # Python reads no integer of over 4300 digits
        raise ValueError(f"{key}={value[:20]}... is not legal; it is too long") from None


def _axis(text: str) -> Pair:
    key, _, values = text.partition("=")
    if not key or not all(values.split(",")):
        raise ValueError(f"{text!r} is not legal; give key=value,value")
    return Pair(key, [_pair(f"{key}={value}").value for value in values.split(",")])


def as_dict(pairs: Iterable[Pair] | None, where: str = "KEY=VALUE") -> dict[str, Any]:
    """Pairs as they stand on the command line. Raises ``typer.BadParameter``: a key is given twice."""
    found: dict[str, Any] = {}
    for key, value in pairs or ():
        if key in found:
            raise typer.BadParameter(f"{key} is given twice; give it once", param_hint=where)
        found[key] = value
    return found


def settings(pairs: Iterable[Pair] | None) -> dict[str, Any]:
    """The settings of a system that ``--set`` gives. Raises ``typer.BadParameter``: a name that is none."""
    given = as_dict(pairs, "--set")
    if others := NO_SETTINGS & given.keys():
        raise typer.BadParameter(f"{min(others)} is no setting of a system", param_hint="--set")
    # names of modules, some of which are numbers
    return given | ({"units": str(given["units"])} if "units" in given else {})


class HardwareAt(NamedTuple):
    """``H.json@WHERE``: a hardware file, and the cluster that it was measured on: a file, or settings of a
    preset with so many hosts or ranks."""

    file: Path
    cluster: Path | None
    settings: dict[str, Any]
    sizes: dict[str, int]


def _hardware_at(text: str) -> HardwareAt:
    file, _, where = text.rpartition("@")
    if not file or not where:
        raise ValueError(f"{text!r} is not legal; give a hardware and where it was measured: H.json@hosts=2")
    if where.endswith(".json"):
        return HardwareAt(Path(file), Path(where), {}, {})
    given = as_dict(PAIRS.reader(where))
    sizes: dict[str, int] = {name: given.pop(name) for name in ("hosts", "ranks") if name in given}
    if len(sizes) > 1 or not all(isinstance(count, int) for count in sizes.values()):
        raise ValueError(f"{text!r} is not legal; give one of hosts=N and ranks=N, and settings")
    return HardwareAt(Path(file), None, given, sizes)


def _ns(text: str) -> int:
    ms = float(text)
    if not 0 <= ms <= 1e9:
        raise ValueError(f"{text} is not legal; give milliseconds, 0 to 1e9")
    return round(ms * NS_PER_MS)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not legal; give whole numbers")
    return int(text)


CAPS, FACTORS = commas(Kind("MIB", parse_cap_mb)), commas(Kind("FACTOR", float))
WHOLES, RATES = commas(Kind("N", _whole)), commas(Kind("RATE", parse_rate_bits))
MS = Kind("MS", _ns)  # in ns from here on
PAIR, AXIS = Kind("KEY=VALUE", _pair), Kind("KEY=V,V…", _axis)
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


# An option without a value, and what ``Annotated`` says of options whose defaults stand with their commands.
flag, shared = partial(option, default=False), partial(option, default=...)


def argument(words: str, metavar: str, *, default: Any = ..., kind: Kind | None = None) -> Any:
    """A word that stands alone."""
    return typer.Argument(default, help=words, metavar=metavar, parser=kind.read if kind else None)


def file_option(
    words: str, *names: str, default: Any = ..., check: Callable[[Path, str], Any] = files.check_writable
) -> Any:
    """An option for a file that is written, ``-o`` if no other ``names``; it is looked at beforehand."""

    def look(option: typer.CallbackParam, given: Path | None) -> Path | None:
        if given is not None:
            check(given, max(option.opts, key=len))
        return given

    return typer.Option(default, *(names or ("-o", "--output")), help=words, callback=look)


directory_option = partial(file_option, check=files.check_directory)


def write(path: Path | None, noun: Any, option: str = "--output") -> None:
    """A noun or a text in a file, where one is asked for, and a word about it on stderr."""
    if path is not None:
        files.write_atomically(path, noun if isinstance(noun, str) else to_text(noun), option)
        note(f"wrote {path}")


def write_measured(path: Path, noun: Any) -> None:
    """``write`` of what cannot be had again: where it fails, the error says where it is kept."""
    files.write_measured({path: to_text(noun)}, "--output")
    note(f"wrote {path}")


def answers(command: Callable[..., Answer]) -> Callable[..., None]:
    """``command`` with ``--json``: what it answers is printed as a document, or to people."""

    @wraps(command)
    def run(as_json: bool, **given: Any) -> None:
        with one_document(as_json):
            answer = command(**given)
            emit(answer.document) if as_json else answer.show()
        if answer.ahead and not as_json:
            suggest(answer.ahead)
        if answer.code:
            raise typer.Exit(answer.code)

    told = signature(command)
    as_json = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=_AsJson)
    run.__signature__ = told.replace(parameters=[*told.parameters.values(), as_json])  # type: ignore[attr-defined]
    return run


_SYSTEMS = {"DDP": Switches, "ZeRO": ZeroSettings, "Megatron": MegatronSettings, "fully_shard": Fsdp2Settings}
_SETTINGS = "; ".join(f"{whose}: {', '.join(settings_of(cls))}" for whose, cls in _SYSTEMS.items())
_SET = (
    "A setting of the system, by its own name; repeatable. DDP also: first_bucket_mb (MiB), "
    f"bucket_cap_mb_list (a list). {_SETTINGS}."
)
_SWITCH = f"A switch of the job, by torch's name; repeatable: {', '.join(SWITCHES)}."
_PARTS = f"Predict without the job's own recorded step ({AS_RUN} beside WORKLOAD.json)."
_CAP = "DDP's bucket_cap_mb: MiB, or a size such as 25MiB. Left out: DDP's default."
_MOST = "Largest step error in percent, of a trace median error of bucket ends; beyond it exit 3."

_AsJson = Annotated[bool, shared("One JSON document on stdout.", "--json")]
WorkloadFile = Annotated[
    Path, typer.Argument(metavar="WORKLOAD.json", help="A workload: recorded, imported or estimated.")
]
HardwareFile = Annotated[Path, shared("A hardware file: calibrated or imported.", "--hardware")]
Parts = Annotated[bool, shared(_PARTS, "--parts")]
Policy = Annotated[
    str, shared(f"The system: {', '.join(POLICIES)}.", kind=choice(*POLICIES), metavar="POLICY")
]
BucketCap = Annotated[float | None, shared(_CAP, kind=Kind("MIB", parse_cap_mb))]
Caps = Annotated[Sequence[float] | None, shared("Caps; default: a range, or all.", kind=CAPS)]
AssignmentFile = Annotated[Path | None, shared("An assignment file, such as tune writes.", "--assignment")]
Settings = Annotated[list[Pair] | None, shared(_SET, "--set", kind=PAIR, panel=SYSTEM)]
JobSwitches = Annotated[list[Pair] | None, shared(_SWITCH, "--set", kind=PAIR, panel=SYSTEM)]
Arguments = Annotated[
    list[Pair] | None, shared("An argument for the factory; repeatable.", "--arg", kind=PAIR, panel=MODEL)
]
Dtype = Annotated[str | None, shared("Cast model and batch, such as bfloat16.", panel=MODEL)]
Jobs = Annotated[int | None, shared("Processes, at most one a core; default: 1.", min=1)]
MaxError = Annotated[float | None, shared(_MOST, min=0, max=1e9)]
