"""What the Validate page remembers of records; keys as in ``cached``.

A card is read at once, a score is computed: seconds for all records. So ``score`` is asked for one by one,
and ``known`` says which are there already. Scores stay on the disk, in Streamlit's own cache, as long as
neither the record nor the model changes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import streamlit as st

import sim
from app import cached
from app.cached import Inputs, Stamp
from app.shelf import Card, Score, card_of, score_of
from sim.errors import SimError
from sim.nouns.comparison import Agreement
from sim.nouns.records import Record
from sim.nouns.timeline import Timeline

_MOST_SCORES = 1024  # a record that is being measured leaves one behind at each change


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A record that was read; ``key`` is what results are remembered by."""

    record: Record
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a record cannot be read or scored, in one line."""

    words: str


Source = Path | Opened  # a directory, or what was uploaded


def open_record(source: Source) -> Opened:
    """A record from its directory, read again when a file in it changes; an uploaded one is open already.

    Raises:
        InputError: as ``sim.load_record``.
    """
    if isinstance(source, Opened):
        return source
    return Opened(record=_load(str(source), cached.stamp(source)), key=_key(source))


def _key(source: Source) -> str:
    return source.key if isinstance(source, Opened) else repr((str(source), cached.stamp(source)))


@st.cache_data(max_entries=64, show_spinner=False)
def _load(path: str, when: Stamp) -> Record:
    return sim.load_record(path)


def card(source: Source) -> Card | Trouble:
    """What the files of a record say of it."""
    if isinstance(source, Opened):
        return card_of(source.record)
    return _card(str(source), cached.stamp(source))


@st.cache_data(max_entries=512, show_spinner=False)
def _card(path: str, when: Stamp) -> Card | Trouble:
    try:
        return card_of(sim.load_record(path))
    except SimError as error:
        return Trouble(words=str(error))


def agreement(opened: Opened, copies: bool = True) -> Agreement:
    """A record against today's model.

    Raises:
        SimError: as ``sim.agreement``.
    """
    return _agreement(opened.record, opened.key, copies)


@st.cache_data(max_entries=128, show_spinner=False)
def _agreement(_record: Record, key: str, copies: bool) -> Agreement:
    return sim.agreement(_record, copies)


@st.cache_resource(max_entries=1)
def _scores() -> dict[tuple[str, str], Score | Trouble]:
    """Scores by name and key, for all sessions: they are never changed, only added."""
    return {}


def known(records: Mapping[str, Source]) -> dict[str, Score | Trouble]:
    """The scores that are there already, by name; those of files that have changed are not."""
    scores = _scores()
    keys = {name: (name, _key(source)) for name, source in records.items()}
    return {name: scores[key] for name, key in keys.items() if key in scores}


def score(name: str, source: Source) -> Score | Trouble:
    """Score one record and remember it."""
    key, scores = (name, _key(source)), _scores()
    if key not in scores:
        if len(scores) >= _MOST_SCORES:
            scores.clear()
        scores[key] = _kept(name, source)
    return scores[key]


def _kept(name: str, source: Source) -> Score | Trouble:
    """A score, from the disk if these files were scored before by the same model."""
    if isinstance(source, Path):
        try:
            return _on_disk(name, str(source), cached.stamp(source), _model())
        except OSError:  # a home that is full, or not ours to write to
            pass
    return _score(name, source)


@st.cache_data(max_entries=_MOST_SCORES, persist="disk", show_spinner=False)
def _on_disk(name: str, path: str, when: Stamp, model: str) -> Score | Trouble:
    return _score(name, Path(path))


def _score(name: str, source: Source) -> Score | Trouble:
    try:
        return score_of(_judged(open_record(source)), name)
    except SimError as error:
        return Trouble(words=str(error))


@cache
def _model() -> str:
    """What changes when a file of the model does."""
    package, own = Path(sim.__file__).parent, Path(__file__).parent
    files = [(path, path.stat()) for path in sorted([*package.rglob("*.py"), own / "shelf.py"])]
    told = [(str(path), status.st_mtime_ns, status.st_size) for path, status in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _judged(opened: Opened) -> Agreement:
    """An agreement without where its errors come from: all that a score needs, in a fifth of the time."""
    return sim.agreement(opened.record, attributed=False)


def timeline(opened: Opened, name: str, copies: bool = True) -> Timeline:
    """What the model plays for the candidate ``name``: the very step that ``agreement`` compares.

    Raises:
        SimError: as ``sim.agreement``.
    """
    record = sim.as_measured(opened.record)
    hardware = record.hardware
    if not copies:
        hardware = replace(hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
    asked = next(one.asked for one in record.candidates if one.name == name)
    assert asked is not None
    return sim.simulate(record.workload, hardware, asked, "analytic")


def inputs(opened: Opened) -> Inputs:
    """The workload and hardware of a record as its files have them, with their digests."""
    return _inputs(opened.record, opened.key)


@st.cache_data(max_entries=64, show_spinner=False)
def _inputs(_record: Record, key: str) -> Inputs:
    return Inputs(
        workload=_record.workload,
        hardware=_record.hardware,
        workload_digest=sim.digest(_record.workload),
        hardware_digest=sim.digest(_record.hardware),
    )
