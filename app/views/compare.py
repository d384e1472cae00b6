"""The Compare page: several assignments, systems or machines on one axis, and what sets them apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

import sim
from app import playing, sources
from app.figures.compare import draw_breakdown, draw_parts
from app.figures.timeline import draw_stacked, stacked_data
from app.memo import digest, memo
from app.playing import Choice, Inputs, Played, micro_batches, round_cap_mb
from app.sources import Asked, Library, Machine, Preset, ask_machine, hardware_of
from app.views.tune_knobs import CAP, FIRST, ask_choice
from app.views.tune_step import EXPOSED_WORDS, OVERLAP_WORDS, STEP_WORDS
from app.views.validate import judge, row_of
from app.widgets import (
    Card,
    ask,
    chart,
    downloads,
    draw_card,
    provenance,
    signed_csv,
    table,
    take_name,
    told,
)
from app.words import (
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
)
from sim.columns import Column, ms, percent, records
from sim.columns import plain as figure
from sim.errors import NotModelledError, SimError
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.telling import tell_rule
from sim.truth.ladder import Part
from sim.truth.scoring import Agreement
from sim.units import MIB, NS_PER_MS, format_ms, format_number, format_size

BEST_CAP, BEST_CAP_WORDS = "best-cap", "best round bucket_cap_mb"
ALL_PICK_WORDS: dict[str, str] = {**PICK_WORDS, BEST_CAP: BEST_CAP_WORDS}
PART_WORDS = {
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
ABOVE = "as above"
_LETTERS = "ABCDEF"
_FIRST_PICKS = ("default", "recommended", BEST_CAP, "single", "per-parameter", "after-backward")
_PICKS = (*_FIRST_PICKS[:3], *(pick for pick in PICKS if pick not in _FIRST_PICKS[:3]))
_CARDS = 3  # a row
_AXIS_LENGTH = 28  # characters: what a narrow window has room for beside a figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment on one machine (None: the one above), and what came of it.

    With ``is_best_cap`` the cap of ``choice`` is searched for when it is played. ``sent`` are the bytes of
    each collective of its step. ``error`` says why it could not be: ``inputs`` and ``played`` stay None.
    """

    letter: str
    choice: Choice
    is_best_cap: bool = False
    machine: Machine | None = None
    inputs: Inputs | None = None
    played: Played | None = None
    sent: tuple[int, ...] = ()
    error: str = ""

    @property
    def on(self) -> str:
        """Its machine in a few words; empty where it is that above."""
        if isinstance(self.machine, Preset):
            turned = (f"{value} {name}" for name, value in self.machine.turned.items())
            return ", ".join([self.machine.words, *turned])
        return self.machine if isinstance(self.machine, str) else ""

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

    @property
    def report(self) -> Report:
        """The figures of its step, which was played."""
        assert self.played is not None
        return self.played.report

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step has."""
        assert self.played is not None
        return micro_batches(self.played.assignment.settings)

    def gain_ns(self, base: "Candidate") -> int | None:
        """How much shorter its step is than that of ``base``; None where they are not the same work."""
        if None in (self.played, base.played) or base.micro_batches != self.micro_batches:
            return None
        return base.report.step_ns - self.report.step_ns


# Of one that was played. The same columns are in the table and in its file.
COLUMNS: tuple[Column[Candidate], ...] = (
    ms("step", "report.step_ns", help=STEP_WORDS),
    ms("exposed", "report.exposed_comm_ns", help=EXPOSED_WORDS),
    percent("overlap", "report.overlap_ratio", help=OVERLAP_WORDS),
    Column("buckets", lambda one: len(one.report.buckets)),
    Column(
        "largest bucket, MiB",
        lambda one: max(bucket.num_bytes for bucket in one.report.buckets) / MIB,
        help="In bytes that travel.",
    ),
    Column(
        "collectives",
        lambda one: len(one.sent),
        help="How many a step launches, in all its micro-batches, before forward and after backward.",
    ),
    Column(
        "sent, MiB",
        lambda one: sum(one.sent) / MIB,
        help="What all of these collectives carry, each counted once.",
    ),
    figure("micro-batches", "micro_batches"),
    Column(
        "buckets hold, MiB",
        lambda one: None if one.report.buffer_bytes is None else one.report.buffer_bytes / MIB,
        help="The most that buckets hold at once on one rank, beside the gradients.",
    ),
)
_FASTER = ("faster than A, ms", "faster than A, %")
_MEASURED = ("measured, ms", "95 % interval", "error, %", "faster than A, measured, ms")
_FASTER_WORDS = "A's step minus this candidate's: positive is faster."
_COLUMN_HELP = {one.name: one.help or None for one in COLUMNS} | dict.fromkeys(_FASTER, _FASTER_WORDS)


def play_candidate(inputs: Inputs, candidate: Candidate, library: Library) -> Candidate:
    """A candidate that was played on its own machine, or that says why it cannot be."""
    machine, choice = candidate.machine, candidate.choice
    try:
        own = inputs if machine is None else replace(inputs, hardware=hardware_of(library, machine))
        if candidate.is_best_cap:  # the round cap of the Tune page, for the switches of this candidate
            cap_mb = round_cap_mb(own, choice)
            if cap_mb is None:
                raise NotModelledError(f"{BEST_CAP_WORDS}: there is none, as no cap was tried")
            choice = replace(choice, cap_mb=cap_mb)
        played = playing.play(own, choice)
        sent = tuple(one.num_bytes for one in sim.collectives(played.timeline))
        return replace(candidate, choice=choice, inputs=own, played=played, sent=sent)
    except SimError as error:
        return replace(candidate, error=str(error))


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
    found = [
        play_candidate(inputs, replace(one, choice=one.choice.with_given(given.assignment)), library)
        for one in candidates
    ]
    results = [one for one in found if not one.error]
    timelines = {one.letter: one.played.timeline for one in results if one.played is not None}
    _headline(found, results)
    if (estimated := estimated_sentence(inputs.workload)) is not None:
        st.warning(plain(estimated))
    _notes(results)
    if results:
        drawn, note = stacked_data([(one.letter, one.words, timelines[one.letter]) for one in results])
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
        agreement = None if measured is None else judge(measured)[1]
    truth = {} if agreement is None else truth_rows(agreement, found, inputs)
    rows = [row | truth.get(row["candidate"], {}) for row in table_rows(found)]
    # Why something failed, and what was measured, must not be out of sight, right of all figures.
    first = ("candidate", "note", "step, ms", *_FASTER, *_MEASURED)
    names = dict.fromkeys(name for row in rows for name in row)
    order = sorted(names, key=lambda name: (*first, name).index(name))
    signed = (*_FASTER, "error, %", _MEASURED[-1])
    table(rows, _COLUMN_HELP, signed=signed, pinned="candidate", column_order=order)
    if agreement is not None:
        words = f"{tell_rule(agreement)} {len(truth)} of {len(results)} candidates were measured here."
        st.caption(plain(words))
    verdicts = [plain(f"{one.name}: {one.report.verdict}") for one in results]
    st.markdown("\n".join(f"- {verdict}" for verdict in verdicts))
    if not found[0].error and len(results) > 1:
        _what_changed(timelines)
    if results:
        st.subheader("Where does each step's time go?")
        reports = {one.short: one.report for one in results}
        of_each = {one.short: timelines[one.letter] for one in results}
        words = "Where a step's time goes, a candidate a bar"
        chart(draw_breakdown(reports, of_each), "compare_breakdown", words)
    st.subheader("Take it home")
    where_from, file = provenance(inputs, {}), f"{file_safe(inputs.workload.name)}-compare.csv"
    rows_of = partial(signed_csv, csv_rows(found), where_from)
    downloads({"Comparison CSV": (rows_of, file, "The table, a row a candidate")}, where_from)


def _candidate(place: int, library: Library) -> Candidate:
    """Draw what is asked of a candidate, where the caller stands, and read it."""
    letter, prefix = _LETTERS[place], f"{_LETTERS[place].lower()}_"
    take_name(f"{prefix}pick", ALL_PICK_WORDS)
    label = f"{letter}{', the base' if letter == _LETTERS[0] else ''}"
    words = (
        "How the gradients are cut. `recommended buckets` and `best round bucket_cap_mb` are "
        "searched for on the candidate's own machine."
    )
    first = {"index": _PICKS.index(_FIRST_PICKS[place]), "format_func": ALL_PICK_WORDS.__getitem__}
    with st.container(border=True):
        pick = ask(st.selectbox, label, f"{prefix}pick", words, _PICKS, **first)
        capped = {}
        if pick == "cap":
            capped = {"cap_mb": CAP.draw(f"{prefix}cap"), "first_mb": FIRST.draw(f"{prefix}first")}
        choice = ask_choice("cap" if pick == BEST_CAP else pick, prefix, **capped)
        with st.expander("Machine"):
            words = "The hardware above, another bundled one, or a ready-made cluster by the cost model."
            place_of = {"key": f"{prefix}machine", "prefix": prefix}
            machine = ask_machine(library, {ABOVE: None}, "Machine", words, **place_of)
    return Candidate(letter=letter, choice=choice, is_best_cap=pick == BEST_CAP, machine=machine)


def _headline(found: Sequence[Candidate], results: Sequence[Candidate]) -> None:
    """A card a candidate, the sentence that names the fastest, and a line for each that failed."""
    base, is_same_work = found[0], len({one.micro_batches for one in results}) <= 1
    across = 2 if len(found) == 2 else _CARDS
    rows = [st.columns(across) for _ in range(0, len(found), across)]
    for place, one in zip([place for row in rows for place in row], found, strict=False):
        value, below, colour = "-" if one.error else format_ms(one.report.step_ns), None, "off"
        gain_ns = one.gain_ns(base) if is_same_work and one is not base else None
        if gain_ns is not None:
            below = gain_words(gain_ns, base.report.step_ns)
            colour = "green" if gain_ns > 0 else "orange" if gain_ns < 0 else "off"
        draw_card(
            place, Card(label=plain(one.name), value=value, told=STEP_WORDS, below=below, colour=colour)
        )
    if not is_same_work:
        each = [(one, format_ms(round(one.report.step_ns / one.micro_batches))) for one in results]
        steps = [f"{one.name}: {one.micro_batches} a step, {step} each" for one, step in each]
        words = "These steps have different numbers of micro-batches, so they are not the same work."
        st.warning(plain(f"{words} {'; '.join(steps)}."))
    elif not base.error and len(results) > 1:
        best = min(results, key=lambda one: one.report.step_ns)
        words, gain_ns = f"None is faster than {base.name}.", best.gain_ns(base)
        if gain_ns:
            words = f"{best.name} is fastest: {gain_words(gain_ns, base.report.step_ns)}."
        st.markdown(f"**{plain(words)}**")
    for one in found:
        if one.error:
            st.error(plain(f"{one.letter}: {one.error}"), icon=":material/error:")


def gain_words(gain_ns: int, base_ns: int) -> str:
    """How much faster, in a few words."""
    if not gain_ns:
        return "as fast as A"
    how = "faster" if gain_ns > 0 else "slower"
    return f"{format_ms(abs(gain_ns))} ({share(abs(gain_ns), base_ns)}) {how} than A"


def _notes(results: Sequence[Candidate]) -> None:
    """What each report notes, what it sends that no time is known of, and what nobody measured."""
    for one in results:
        if one.played is not None and (untimed := one.played.untimed_bytes):
            words = f"{one.name} takes longer than it says here: {format_size(untimed)}"
            st.warning(plain(f"{words} of what it sends have no curve, and are in no timeline."))
    for note in dict.fromkeys(note for one in results for note in one.report.notes):  # most are of all
        letters = ", ".join(one.letter for one in results if note in one.report.notes)
        st.caption(plain(f"{letters}: {note}."))
    computed = [one.inputs for one in results if one.inputs and is_computed(one.inputs.hardware)]
    if computed and (unlike := device_sentence(computed[0].workload)) is not None:
        st.warning(plain(unlike))


def table_rows(found: Sequence[Candidate]) -> list[dict[str, Any]]:
    """A row a candidate in their order, or why it cannot be played; behind each the difference to the first.

    Columns that say nothing are left out.
    """
    rows: list[dict[str, Any]] = []
    for one in found:
        row: dict[str, Any] = {"candidate": one.name}
        if one.error:
            rows.append(row | {"note": one.error})
            continue
        (numbers,) = records(COLUMNS, [one])
        gain_ns, base_ns = one.gain_ns(found[0]), 0 if found[0].error else found[0].report.step_ns
        if gain_ns is not None and one is not found[0]:
            shares = gain_ns / NS_PER_MS, 100 * gain_ns / base_ns if base_ns else 0.0
            row |= zip(_FASTER, shares, strict=True)
        rows.append(row | numbers)
        if one is not found[0] and not found[0].error:
            less = {
                name: value - rows[0][name]
                for name, value in numbers.items()
                if None not in (value, rows[0][name])
            }
            rows.append({"candidate": f"{one.letter} - {_LETTERS[0]}", **less})
    several = {name for row in rows for name, value in row.items() if value not in (None, "")}
    if all(one.error or one.micro_batches == 1 for one in found):
        several.discard("micro-batches")
    return [{name: value for name, value in row.items() if name in several} for row in rows]


def truth_rows(
    agreement: Agreement, found: Sequence[Candidate], measured: Inputs
) -> dict[str, dict[str, Any]]:
    """By candidate what real ranks took, and gained on A where A was measured too.

    Measured is one with the same buckets and the same prediction to the nanosecond on the inputs
    ``measured``: switches change a step, and another machine does, by whatever name it was chosen.
    """
    pairs = [(one, row_of(agreement, one.played)) for one in found if one.played and one.inputs == measured]
    rows = [(one, row) for one, row in pairs if row is not None]
    base = next((row for one, row in rows if one is found[0]), None)
    told = {}
    for one, row in rows:
        interval = interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval)
        gain_ms = None if base is None else (base.measured_step_ns - row.measured_step_ns) / NS_PER_MS
        values = row.measured_step_ns / NS_PER_MS, interval, row.step_error * 100, gain_ms
        told[one.name] = dict(zip(_MEASURED, values, strict=True))
    return told


def _what_changed(timelines: dict[str, Timeline]) -> None:
    """Draw the section; ``timelines`` by letter, beginning with A's."""
    st.subheader("What changed?")
    base, *others = timelines
    words = "Which candidate is held against A below."
    letter = ask(st.selectbox, "A against", "against", words, others)
    found: tuple[Part, ...] | None = None
    with told():
        found = _difference(timelines[base], timelines[letter])
        if not found:
            st.info("Nothing: both take the same, part by part.")
    if not found:
        return
    changes = [(PART_WORDS[part.name], part.change_ns) for part in found]
    total_ns = sum(change for _, change in changes)
    how = "more" if total_ns > 0 else "less"
    st.markdown(f"**{letter} takes {format_ms(abs(total_ns))} {how} than {base}**")
    chart(draw_parts(changes), "parts", "The parts of the difference, which add up to it")
    st.caption(
        "Each step is built up from computing alone, one mechanism after the other in a fixed order; a part "
        "is what its mechanism adds beyond what hides behind backward. They add up to the nanosecond."
    )
    became = (
        f"{PART_WORDS[one.name]}: {format_ms(one.before_ns)} became {format_ms(one.after_ns)}"
        for one in found
    )
    st.markdown("\n".join(f"- {plain(line)}" for line in became))


@memo(128)
def _difference(before: Timeline, after: Timeline) -> tuple[Part, ...]:
    """Why one step is not as long as another. Raises ``SimError`` as ``sim.difference``."""
    with st.spinner("Taking both steps apart …"):
        return sim.difference(before, after)


def csv_rows(found: Sequence[Candidate]) -> list[dict[str, Any]]:
    """The rows of the table, with all that was asked for, and what each was played on."""
    rows, of_name = [], {row["candidate"]: row for row in table_rows(found)}
    for one in found:
        row = of_name[one.name] | {"choice": json.dumps(one.choice.told())}
        if one.inputs is not None and one.played is not None:
            row["assignment_sha256"] = sim.digest(one.played.assignment)
            row["played_on"] = one.inputs.hardware.name
            row["played_on_sha256"] = digest(one.inputs.hardware)
        rows.append(row)
    return rows
