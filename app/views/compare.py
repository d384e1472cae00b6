"""The Compare page: several assignments, systems or machines on one axis, and what sets them apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import streamlit as st

import sim
from app import playing, sources
from app.choosing import Choice, WhatIf, micro_batches
from app.figures.compare import draw_breakdown, draw_parts
from app.figures.timeline import draw_stacked, stacked_data
from app.library import Library
from app.memo import digest, memo
from app.playing import Inputs, Played, round_cap_mb
from app.provenance import provenance, signed_csv
from app.sources import Asked, Machine, Preset, ask_machine, hardware_of
from app.views.tune_knobs import FACTORS, ask_choice
from app.views.tune_step import EXPOSED_WORDS, OVERLAP_WORDS, STEP_WORDS
from app.views.validate import judge, row_of
from app.widgets import Card, ask, chart, downloads, draw_card, factor, mib, table, take_name, told
from app.words import (
    HELP,
    PICK_WORDS,
    PICKS,
    device_sentence,
    estimated_sentence,
    file_safe,
    interval_words,
    is_computed,
    option_words,
    plain,
    share,
    what_if_words,
)
from sim.errors import NotModelledError, SimError
from sim.nouns.timeline import Timeline
from sim.telling import tell_rule
from sim.truth.ladder import Change, Difference, PartName
from sim.truth.scoring import Agreement
from sim.units import MIB, format_ms, format_number, format_size

BEST_CAP = "best-cap"
BEST_CAP_WORDS = "best round bucket_cap_mb"
ALL_PICK_WORDS: dict[str, str] = {**PICK_WORDS, BEST_CAP: BEST_CAP_WORDS}
PART_WORDS: dict[PartName, str] = {
    "compute": "computing alone",
    "copy_in": "copies into buckets",
    "launch": "launches",
    "find_unused": "unused parameters",
    "accumulate": "adding micro-batches",
    "latency": "latency of collectives",
    "bytes": "bytes on the wire",
    "copy_out": "copies back",
    "interference": "interference",
    "straggler": "slowest rank",
}
_CAUSE_WORDS = {
    "assignment": "by the assignment",
    "machine": "by the machine",
    "assignment and machine": "by assignment and machine together",
}
ABOVE = "as above"
_LETTERS = "ABCDEF"
_FIRST_PICKS = ("default", "recommended", BEST_CAP, "single", "per-parameter", "after-backward")
_PICKS = (*_FIRST_PICKS[:3], *(pick for pick in PICKS if pick not in _FIRST_PICKS[:3]))
_CARDS = 3  # a row
_AXIS_LENGTH = 28  # characters: what a narrow window has room for beside a figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment on one machine; with ``is_best_cap`` the cap of ``choice`` is still to be searched.

    ``machine`` None is the one above, and ``what_if`` what of it is changed.
    """

    letter: str
    choice: Choice
    is_best_cap: bool = False
    machine: Machine | None = None
    what_if: WhatIf = field(default_factory=WhatIf)

    @property
    def on(self) -> str:
        """Its machine in a few words; empty where it is that above."""
        named = [self.machine] if isinstance(self.machine, str) else []
        if isinstance(self.machine, Preset):
            turned = (f"{value} {name}" for name, value in self.machine.turned.items())
            named = [self.machine.words, *turned]
        return ", ".join([*named, *(what_if_words(*one) for one in self.what_if.told().items())])

    @property
    def words(self) -> str:
        """The candidate in a few words, without its letter."""
        named = self.choice.words
        if self.is_best_cap:
            cap = "" if self.choice.cap_mb is None else f"={format_number(self.choice.cap_mb, 6)}"
            named = ", ".join([f"{BEST_CAP_WORDS}{cap}", *map(option_words, self.choice.options)])
        return f"{named} on {self.on}" if self.on else named

    @property
    def name(self) -> str:
        """Letter and words."""
        return f"{self.letter} {self.words}"

    @property
    def short(self) -> str:
        """Its name for an axis; its letter keeps it apart from the others."""
        return self.name if len(self.name) <= _AXIS_LENGTH else f"{self.name[: _AXIS_LENGTH - 1]}…"

    def told(self) -> dict[str, Any]:
        """What was asked for, whole: the pick with all its caps and switches, and another machine."""
        pick, machine = (
            {"pick": BEST_CAP} if self.is_best_cap else {},
            {"machine": self.on} if self.on else {},
        )
        return {**self.choice.told(), **pick, **machine}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A candidate that was played, with its best cap found; on what, and what came of it."""

    candidate: Candidate
    inputs: Inputs
    played: Played

    @property
    def step_ns(self) -> int:
        """The predicted step."""
        return self.played.report.step_ns

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step has."""
        return micro_batches(self.played.assignment.settings)

    def numbers(self) -> dict[str, Any]:
        """Its figures, ns and bytes; memory None where the report has none."""
        report, sent = self.played.report, sim.collectives(self.played.timeline)
        return {
            "step_ns": report.step_ns,
            "exposed_comm_ns": report.exposed_comm_ns,
            "overlap_ratio": report.overlap_ratio,
            "buckets": len(report.buckets),
            "largest_bucket_bytes": max(bucket.num_bytes for bucket in report.buckets),
            "collectives": len(sent),
            "sent_bytes": sum(one.num_bytes for one in sent),
            "micro_batches": self.micro_batches,
            "buffer_bytes": report.buffer_bytes,
        }


# Columns of the table: name, the figure it shows, and by what that is divided.
_COLUMNS: tuple[tuple[str, str, float], ...] = (
    ("step, ms", "step_ns", 1e6),
    ("exposed, ms", "exposed_comm_ns", 1e6),
    ("overlap, %", "overlap_ratio", 0.01),
    ("buckets", "buckets", 1),
    ("largest bucket, MiB", "largest_bucket_bytes", MIB),
    ("collectives", "collectives", 1),
    ("sent, MiB", "sent_bytes", MIB),
    ("micro-batches", "micro_batches", 1),
    ("buckets hold, MiB", "buffer_bytes", MIB),
)
_FASTER = ("faster than A, ms", "faster than A, %")
_MEASURED = ("measured, ms", "95 % interval", "error, %", "faster than A, measured, ms")
_COLUMN_HELP: dict[str, str | None] = {
    "step, ms": STEP_WORDS,
    "exposed, ms": EXPOSED_WORDS,
    "overlap, %": OVERLAP_WORDS,
    **dict.fromkeys(_FASTER, "A's step minus this candidate's: positive is faster."),
    "largest bucket, MiB": "In bytes that travel.",
    "collectives": "How many a step launches, in all its micro-batches, before forward and after backward.",
    "sent, MiB": "What all of these collectives carry, each counted once.",
    "buckets hold, MiB": "The most that buckets hold at once on one rank, beside the gradients.",
}


def play_candidate(inputs: Inputs, candidate: Candidate, library: Library) -> Result:
    """A candidate on its own machine.

    Raises:
        SimError: a machine that cannot be read or made, an assignment that cannot be played on it.
    """
    machine, choice = candidate.machine, candidate.choice
    hardware = inputs.hardware if machine is None else hardware_of(library, machine)
    own = playing.scale(Inputs(workload=inputs.workload, hardware=hardware), candidate.what_if)
    if candidate.is_best_cap:  # the round cap of the Tune page, for the switches and ranks of this candidate
        is_plain = not choice.options and own.slowest is None
        cap_mb = round_cap_mb(own, choice, playing.tune(own) if is_plain else None)
        if cap_mb is None:
            raise NotModelledError(f"{BEST_CAP_WORDS}: there is none, as no cap was tried")
        choice = replace(choice, cap_mb=cap_mb)
    played = playing.play(own, choice)
    return Result(candidate=replace(candidate, choice=choice), inputs=own, played=played)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All candidates in their order: those that were played, and why the others were not, by letter."""

    candidates: tuple[Candidate, ...]
    results: tuple[Result, ...]
    errors: Mapping[str, str]

    @property
    def base(self) -> Result | None:
        """A's result, where it was played."""
        return self.results[0] if self.candidates[0].letter not in self.errors else None

    @property
    def are_alike(self) -> bool:
        """Whether all steps have as many micro-batches, so that they are the same work."""
        return len({one.micro_batches for one in self.results}) <= 1

    def of(self, candidate: Candidate) -> Result | None:
        """What came of a candidate, where it was played."""
        return next((one for one in self.results if one.candidate.letter == candidate.letter), None)

    def gain_ns(self, result: Result) -> int | None:
        """How much shorter its step is than A's; None where they are not the same work."""
        if self.base is None or self.base.micro_batches != result.micro_batches:
            return None
        return self.base.step_ns - result.step_ns


def compare(inputs: Inputs, candidates: Sequence[Candidate], library: Library) -> Comparison:
    """Play all candidates; one that cannot be played leaves the others."""
    results, errors = [], {}
    for candidate in candidates:
        try:
            results.append(play_candidate(inputs, candidate, library))
        except SimError as error:
            errors[candidate.letter] = str(error)
    return Comparison(candidates=tuple(candidates), results=tuple(results), errors=errors)


def show(library: Library, asked: Asked) -> None:
    """Draw the page; a candidate that cannot be played is one line, and the others stay."""
    with st.sidebar:
        words = "How many are compared, 2 to 6. All are compared with A."
        count = ask(st.number_input, "Candidates", "candidates", words, 2, len(_LETTERS), 3, 1)
        candidates = [_candidate(place, library) for place in range(count)]
    st.title("Compare")
    given = sources.read(library, asked)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = given.inputs
    sources.tell_inputs(given, asked)
    candidates = [replace(one, choice=one.choice.with_given(given.assignment)) for one in candidates]
    found = compare(inputs, candidates, library)
    results, base = found.results, found.base
    _headline(found)
    if (estimated := estimated_sentence(inputs.workload)) is not None:
        st.warning(plain(estimated))
    _notes(results)
    if results:
        drawn, note = stacked_data(
            [(one.candidate.letter, one.candidate.words, one.played.timeline) for one in results]
        )
        chart(draw_stacked(drawn), "stacked", "Timelines of all candidates on one axis")
        st.caption(
            "All candidates on one axis. The same colour is the same bucket number of a "
            "candidate. Hatched: exposed, after its backward has ended. Hover for a bucket's "
            "life; drag to zoom, double-click to go back."
        )
        if note:
            st.info(note)
    measured, agreement = sources.measured_run(library, given), None
    with told():
        agreement = None if measured is None else judge(sources.open_record(measured))
    _table(found, agreement, inputs)
    verdicts = [plain(f"{one.candidate.name}: {one.played.report.verdict}") for one in results]
    st.markdown("\n".join(f"- {verdict}" for verdict in verdicts))
    if base is not None and len(results) > 1:
        _what_changed(results)
    if results:
        st.subheader("Where does each step's time go?")
        reports = {one.candidate.short: one.played.report for one in results}
        timelines = {one.candidate.short: one.played.timeline for one in results}
        words = "Where a step's time goes, a candidate a bar"
        chart(draw_breakdown(reports, timelines), "compare_breakdown", words)
    st.subheader("Take it home")
    where_from, file = provenance(inputs, {}), f"{file_safe(inputs.workload.name)}-compare.csv"
    rows = partial(signed_csv, csv_rows(found), where_from)
    words = "A row a candidate, times in ns and sizes in bytes"
    downloads({"Comparison CSV": (rows, file, words)}, where_from)


def _candidate(place: int, library: Library) -> Candidate:
    """Draw what is asked of a candidate, where the caller stands, and read it."""
    letter, prefix = _LETTERS[place], f"{_LETTERS[place].lower()}_"
    take_name(f"{prefix}pick", ALL_PICK_WORDS)
    label = f"{letter}{', the base' if letter == _LETTERS[0] else ''}"
    words = (
        "How the gradients are cut. `best buckets found` and `best round bucket_cap_mb` are "
        "searched for on the candidate's own machine."
    )
    first = {"index": _PICKS.index(_FIRST_PICKS[place]), "format_func": ALL_PICK_WORDS.__getitem__}
    with st.container(border=True):
        pick = ask(st.selectbox, label, f"{prefix}pick", words, _PICKS, **first)
        capped = {}
        if pick == "cap":
            capped["cap_mb"] = mib("Cap, MiB", f"{prefix}cap", 25.0, HELP["cap"])
            capped["first_mb"] = mib("First bucket, MiB", f"{prefix}first", None, HELP["first"])
        choice = ask_choice("cap" if pick == BEST_CAP else pick, prefix, **capped)
        with st.expander("Machine"):
            words = "The hardware above, another bundled one, or a ready-made cluster by the cost model."
            place_of = {"key": f"{prefix}machine", "prefix": prefix}
            machine = ask_machine(library, {ABOVE: None}, "Machine", words, **place_of)
            bandwidth = factor("Bandwidth ×", FACTORS, f"{prefix}bw", HELP["bandwidth"])
            latency = factor("Latency ×", FACTORS, f"{prefix}lat", HELP["latency"])
    of = {"is_best_cap": pick == BEST_CAP, "what_if": WhatIf(bandwidth=bandwidth, latency=latency)}
    return Candidate(letter=letter, choice=choice, machine=machine, **of)


def _headline(found: Comparison) -> None:
    """A card a candidate, the sentence that names the fastest, and a line for each that failed."""
    results, base = found.results, found.base
    count = len(found.candidates)
    rows = [st.columns(2)] if count == 2 else [st.columns(_CARDS) for _ in range(0, count, _CARDS)]
    for place, candidate in zip([place for row in rows for place in row], found.candidates, strict=False):
        result = found.of(candidate)
        name, value, below, colour = candidate.name, "-", None, "off"
        if result is not None:
            name, value = result.candidate.name, format_ms(result.step_ns)
            if base is not None and result is not base and found.are_alike:
                gain_ns = base.step_ns - result.step_ns
                below = gain_words(gain_ns, base.step_ns)
                colour = "green" if gain_ns > 0 else "orange" if gain_ns < 0 else "off"
        draw_card(place, Card(label=plain(name), value=value, told=STEP_WORDS, below=below, colour=colour))
    if not found.are_alike:
        each = [(one, format_ms(round(one.step_ns / one.micro_batches))) for one in results]
        steps = [f"{one.candidate.name}: {one.micro_batches} a step, {step} each" for one, step in each]
        words = "These steps have different numbers of micro-batches, so they are not the same work."
        st.warning(plain(f"{words} {'; '.join(steps)}."))
    elif base is not None and len(results) > 1:
        best = min(results, key=lambda one: one.step_ns)
        words = f"None is faster than {base.candidate.name}."
        if best.step_ns < base.step_ns:
            gain = gain_words(base.step_ns - best.step_ns, base.step_ns)
            words = f"{best.candidate.name} is fastest: {gain}."
        st.markdown(f"**{plain(words)}**")
    for letter, error in found.errors.items():
        st.error(plain(f"{letter}: {error}"), icon=":material/error:")


def gain_words(gain_ns: int, base_ns: int) -> str:
    """How much faster, in a few words."""
    if not gain_ns:
        return "as fast as A"
    how = "faster" if gain_ns > 0 else "slower"
    return f"{format_ms(abs(gain_ns))} ({share(abs(gain_ns), base_ns)}) {how} than A"


def _notes(results: Sequence[Result]) -> None:
    """What each report notes, what it sends that no time is known of, and what nobody measured."""
    for one in results:
        name, exposed = one.candidate.name, one.played.report.exposed_by_micro_batch_ns
        if untimed := one.played.untimed_bytes:
            words = f"{name} takes longer than it says here: {format_size(untimed)}"
            st.warning(plain(f"{words} of what it sends have no curve, and are in no timeline."))
        if len(exposed) > 1:
            each = f"{format_ms(sum(exposed))} are exposed, {format_ms(exposed[-1])} in the last"
            words = f"{name} reduces in {len(exposed)} micro-batches: {each}, of which"
            st.info(plain(f"{words} the timeline and the overlap are."))
        for note in one.played.report.notes:
            st.caption(plain(f"{name}: {note}."))
    computed = [one for one in results if is_computed(one.inputs.hardware)]
    if computed and (unlike := device_sentence(computed[0].inputs.workload)) is not None:
        st.warning(plain(unlike))


def _table(found: Comparison, agreement: Agreement | None, measured: Inputs) -> None:
    """All figures, beside those of real ranks where ``agreement``, of the inputs ``measured``, has some."""
    rows = table_rows(found)
    truth = {} if agreement is None else truth_rows(agreement, found, measured)
    rows = [row | truth.get(row["candidate"], {}) for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    # Why something failed must not be out of sight, right of all figures.
    order = sorted(shown, key=lambda name: (name != "candidate", name != "note"))
    signed = ("error, %", _MEASURED[-1])
    table(rows, _COLUMN_HELP, signed=signed, pinned="candidate", column_order=order)
    if agreement is not None:
        words = f"{tell_rule(agreement)} {len(truth)} of {len(found.results)} candidates were measured here."
        st.caption(plain(words))


def table_rows(found: Comparison) -> list[dict[str, Any]]:
    """A row a candidate in their order; behind each but A, where both were played, the row of differences."""
    empty = dict.fromkeys(("candidate", "step, ms", *_FASTER, *(name for name, *_ in _COLUMNS), "note"))
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] | None = None
    for candidate in found.candidates:
        result = found.of(candidate)
        if result is None:
            rows.append(empty | {"candidate": candidate.name, "note": found.errors[candidate.letter]})
            continue
        row, numbers = empty | {"candidate": result.candidate.name}, result.numbers()
        for name, of, unit in _COLUMNS:
            row[name] = numbers[of] if unit == 1 or numbers[of] is None else numbers[of] / unit
        if row["micro-batches"] == 1:
            row["micro-batches"] = None
        if (gain_ns := found.gain_ns(result)) is not None and found.base is not None:
            shares = gain_ns / 1e6, 100 * gain_ns / found.base.step_ns if found.base.step_ns else 0.0
            row |= zip(_FASTER, shares, strict=True)
        rows.append(row)
        if result is found.base:
            first = row
        elif first is not None:
            both = [name for name in row if isinstance(row[name], int | float) and first[name] is not None]
            less = {name: row[name] - first[name] for name in both}
            rows.append(empty | less | {"candidate": f"{candidate.letter} - {_LETTERS[0]}"})
    return rows


def truth_rows(agreement: Agreement, found: Comparison, measured: Inputs) -> dict[str, dict[str, Any]]:
    """By candidate what real ranks took, and gained on A where A was measured too.

    Measured is one with the same buckets and the same prediction to the nanosecond on the inputs
    ``measured``: switches change a step, and another machine does, by whatever name it was chosen.
    """
    pairs = [(one, row_of(agreement, one.played)) for one in found.results if one.inputs == measured]
    rows = [(one, row) for one, row in pairs if row is not None]
    base = next((row for one, row in rows if one is found.base), None)
    told = {}
    for one, row in rows:
        interval = interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval)
        gain_ms = None if base is None else (base.measured_step_ns - row.measured_step_ns) / 1e6
        values = row.measured_step_ns / 1e6, interval, row.step_error * 100, gain_ms
        told[one.candidate.name] = dict(zip(_MEASURED, values, strict=True))
    return told


def _what_changed(results: Sequence[Result]) -> None:
    """Draw the section; ``results`` begin with A's."""
    st.subheader("What changed?")
    others = {one.candidate.letter: one for one in results[1:]}
    words = "Which candidate is held against A below."
    letter = ask(st.selectbox, "A against", "against", words, list(others))
    found: Difference | None = None
    with told():
        found = _difference(results[0].played.timeline, others[letter].played.timeline)
    if found is None:
        return
    if not found.changes:
        st.info("Nothing: both are the same buckets on the same machine.")
        return
    told_each = [change_words(change) for change in found.changes]
    st.markdown(f"**{plain(' and '.join(told_each))}**")
    if found.order:
        st.caption(found.order)
    parts = [
        (change.cause, [(PART_WORDS[part.name], part.change_ns) for part in change.parts])
        for change in found.changes
    ]
    chart(draw_parts(parts), "parts", "The parts of the difference, which add up to it")
    st.caption(
        "Each step is built up from computing alone, one mechanism after the other in a fixed order; a part "
        "is what its mechanism adds beyond what hides behind backward. They add up to the nanosecond."
    )
    left, right = st.columns(2)
    for change, words in zip(found.changes, told_each, strict=True):
        if len(told_each) > 1:
            left.markdown(f"**{plain(words)}**")
        left.markdown("\n".join(f"- {plain(part.sentence)}" for part in change.parts))
    right.markdown("\n".join(f"- {plain(fact)}" for fact in found.facts))


@memo(128)
def _difference(before: Timeline, after: Timeline) -> Difference:
    """Why one step is not as long as another. Raises ``SimError`` as ``sim.difference``."""
    with st.spinner("Taking both steps apart …"):
        return sim.difference(before, after)


def change_words(change: Change) -> str:
    """``-4.20 ms by the assignment``."""
    sign = "+" if change.change_ns > 0 else "-" if change.change_ns < 0 else ""
    return f"{sign}{format_ms(abs(change.change_ns))} {_CAUSE_WORDS[change.cause]}"


def csv_rows(found: Comparison) -> list[dict[str, Any]]:
    """A row a candidate in ns and bytes, with the machine that it was played on and what is changed in it."""
    rows: list[dict[str, Any]] = []
    for candidate in found.candidates:
        result = found.of(candidate)
        asked = candidate if result is None else result.candidate
        row = {"candidate": asked.letter, "assignment": asked.words, "choice": json.dumps(asked.told())}
        if result is None:
            rows.append(row | {"error": found.errors[candidate.letter]})
            continue
        gain_ns, what_if = found.gain_ns(result), asked.what_if.told()
        rows.append(
            row
            | result.numbers()
            | ({} if gain_ns is None else {"gain_ns": gain_ns})
            | {
                "policy": result.played.assignment.policy,
                "assignment_sha256": sim.digest(result.played.assignment),
                "played_on": result.inputs.hardware.name,
                "played_on_sha256": digest((result.inputs.origin or result.inputs).hardware),
                "what_if": json.dumps(what_if, sort_keys=True) if what_if else "",
            }
        )
    return rows
