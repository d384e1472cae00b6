"""The Compare page: several assignments, systems or machines on one axis, and what sets them apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import streamlit as st

import sim
from app import playing, sources
from app.choosing import Choice, WhatIf, micro_batches
from app.figures.compare import draw_breakdown, draw_deltas, draw_map, draw_parts, map_data
from app.figures.timeline import draw_stacked, stacked_data
from app.library import Library
from app.memo import digest, memo
from app.playing import Inputs, Played, round_cap_mb
from app.provenance import origin_words, provenance, signed_csv
from app.sources import PRESETS, Asked, Given, Preset
from app.views.tune_knobs import FACTORS, ask_caps, ask_switches, standing
from app.views.tune_knobs import caps as caps_of
from app.views.validate import judge, row_of
from app.widgets import Card, ask, chart, download, draw_card, factor, mib, table, take_name, told
from app.words import (
    HELP,
    MACHINE_WORDS,
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
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.assignment import DDP_POLICIES
from sim.nouns.measurement import Record
from sim.nouns.timeline import Timeline
from sim.telling import tell_rule
from sim.truth.ladder import Change, Difference, PartName
from sim.truth.scoring import Agreement, CandidateAgreement
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
NOT_MEASURED = (
    "No candidate was measured here: no measured run belongs to this workload and hardware with these very "
    "buckets. Start from a measured run, or measure your own with `bucketsim validate`."
)
_LETTERS = "ABCDEF"
_FIRST_PICKS = ("default", "recommended", BEST_CAP, "single", "per-parameter", "after-backward")
_PICKS = (*_FIRST_PICKS[:3], *(pick for pick in PICKS if pick not in _FIRST_PICKS[:3]))
_CARDS = 3  # a row
_AXIS_LENGTH = 28  # characters: what a narrow window has room for beside a figure
_FASTER = "A's step minus this candidate's: positive is faster."
_COLUMN_HELP: dict[str, str | None] = {
    "step, ms": "Forward, loss, backward with synchronisation, optimizer, and what comes before forward.",
    "faster than A, ms": _FASTER,
    "faster than A, %": _FASTER,
    "speed-up": "A's step over this candidate's.",
    "exposed, ms": "End of synchronisation minus a plain backward: all that synchronising gradients "
    "adds. Of several micro-batches it is that of the last.",
    "overlap, %": "Time in which the compute lane and a collective are busy, over the time in which a "
    "collective is busy; of several micro-batches, in the last.",
    "buckets": None,
    "largest bucket, MiB": "The largest bucket, in bytes that travel.",
    "collectives": "How many a step launches: in all its micro-batches, before forward, and after "
    "synchronisation such as ZeRO's all-gather.",
    "sent, MiB": "What all of these collectives carry, each counted once.",
    "micro-batches": "How many forward and backward passes a step has. Steps of different numbers are not "
    "the same work.",
    "buckets hold, MiB": "The most that buckets hold at once on one rank, beside the gradients.",
    "note": "Why a candidate could not be played.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a candidate runs: as above, on bundled hardware, or on a ready-made cluster, and what if.

    One of ``hardware`` (a name in the library) and ``preset`` (with ``settings`` of it), or neither.
    """

    hardware: str | None = None
    preset: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    what_if: WhatIf = field(default_factory=WhatIf)

    @property
    def words(self) -> str:
        """The machine in a few words; empty where it is that above."""
        named = [self.hardware] if self.hardware else []
        if self.preset is not None:
            named = [MACHINE_WORDS[self.preset], *(f"{value} {name}" for name, value in self.settings)]
        factors = [f"{name} × {format_number(value, 6)}" for name, value in self.what_if.told().items()]
        return ", ".join([*named, *factors])


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assignment on one machine; with ``is_best_cap`` the cap of ``choice`` is still to be searched."""

    letter: str
    choice: Choice
    is_best_cap: bool = False
    machine: Machine = field(default_factory=Machine)

    @property
    def words(self) -> str:
        """The candidate in a few words, without its letter."""
        named = self.choice.words
        if self.is_best_cap:
            cap = "" if self.choice.cap_mb is None else f"={format_number(self.choice.cap_mb, 6)}"
            named = ", ".join([f"{BEST_CAP_WORDS}{cap}", *map(option_words, self.choice.options)])
        return f"{named} on {self.machine.words}" if self.machine.words else named

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
        one = self.machine
        machine = {"hardware": one.hardware, "preset": one.preset, **dict(one.settings), **one.what_if.told()}
        machine = {name: value for name, value in machine.items() if value is not None}
        pick = {"pick": BEST_CAP} if self.is_best_cap else {}
        return {**self.choice.told(), **pick, **({"machine": machine} if machine else {})}


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

    def is_like(self, base: "Result | None") -> bool:
        """Whether its step is as many micro-batches as that of ``base``: else they are not the same work."""
        return base is not None and base.micro_batches == self.micro_batches

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


def play_candidate(inputs: Inputs, candidate: Candidate, library: Library) -> Result:
    """A candidate on its own machine.

    Raises:
        SimError: a machine that cannot be read or made, an assignment that cannot be played on it.
    """
    hardware, machine, choice = inputs.hardware, candidate.machine, candidate.choice
    if machine.hardware is not None:
        if machine.hardware not in library.hardware:
            raise InputError(f"machine: there is no bundled hardware {machine.hardware!r} any more")
        hardware = playing.load_hardware(library.hardware[machine.hardware])
    elif machine.preset is not None:
        preset = Preset(name=machine.preset, settings=machine.settings)
        hardware = sources.cluster_hardware(sources.make_cluster(preset))
    own = playing.scale(Inputs(workload=inputs.workload, hardware=hardware), machine.what_if)
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
        candidates = _ask(library)
    st.title("Compare")
    given = sources.read(library, asked)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = given.inputs
    sources.tell_inputs(given, asked)
    elsewhere = standing().beside(inputs.workload, inputs.hardware)
    if not elsewhere.is_none:
        names = ", ".join(what_if_words(*one) for one in elsewhere.told().items())
        words = f"Not in force here: Tune's what-ifs ({names}). Each candidate has a machine of its own, "
        st.info(plain(f"{words}with its what-ifs, under Machine."), icon=":material/tune:")
    sources.tell_as_run(given)
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
    _machines(results)
    _table(found)
    verdicts = [plain(f"{one.candidate.name}: {one.played.report.verdict}") for one in results]
    st.markdown("\n".join(f"- {verdict}" for verdict in verdicts))
    for one in results:
        exposed = one.played.report.exposed_by_micro_batch_ns
        if len(exposed) > 1:
            each = f"{format_ms(sum(exposed))} are exposed, {format_ms(exposed[-1])} in the last"
            words = f"{one.candidate.name} reduces in {len(exposed)} micro-batches: {each}, of which"
            st.info(plain(f"{words} the timeline and the overlap are."))
    if base is not None and len(results) > 1:
        _what_changed(results)
    if results:
        _breakdown(found)
        st.subheader("Where are the cuts?")
        cuts = [(one.candidate.short, one.inputs.workload, one.played.assignment) for one in results]
        words = "Gradients in ready order, coloured by bucket, a candidate a row"
        chart(draw_map(map_data(cuts)), "compare_map", words)
        st.caption(
            "Gradients in the order in which they become ready, as wide as they are large; a "
            "colour is a bucket. One sees the cuts."
        )
    _is_it_true(given, library, found)
    _take_home(inputs, found)


def _ask(library: Library) -> list[Candidate]:
    """Draw the sidebar and read it, below what is looked at."""
    words = "How many are compared, 2 to 6. All are compared with A."
    count = ask(st.number_input, "Candidates", "candidates", words, 2, len(_LETTERS), 3, 1)
    return [
        _candidate(letter, first, library)
        for letter, first in zip(_LETTERS[:count], _FIRST_PICKS, strict=False)
    ]


def _candidate(letter: str, first_pick: str, library: Library) -> Candidate:
    prefix = f"{letter.lower()}_"
    take_name(f"{prefix}pick", ALL_PICK_WORDS)
    label = f"{letter}{', the base' if letter == _LETTERS[0] else ''}"
    words = (
        "How the gradients are cut. `best buckets found` and `best round bucket_cap_mb` are "
        "searched for on the candidate's own machine."
    )
    first = {"index": _PICKS.index(first_pick), "format_func": ALL_PICK_WORDS.__getitem__}
    with st.container(border=True):
        pick = ask(st.selectbox, label, f"{prefix}pick", words, _PICKS, **first)
        chosen: dict[str, Any] = {"pick": "cap" if pick == BEST_CAP else pick}
        if pick == "cap":
            chosen["cap_mb"] = mib("Cap, MiB", f"{prefix}cap", 25.0, HELP["cap"])
            chosen["first_mb"] = mib("First bucket, MiB", f"{prefix}first", None, HELP["first"])
        caps = ask_caps(f"{prefix}caps") if pick == "cap-list" else None
        try:
            with st.popover("Switches", width="stretch"):
                chosen["options"] = ask_switches(chosen["pick"], prefix)
            chosen["caps_mb"] = None if caps is None else caps_of(caps)
        except InputError as error:
            chosen["unreadable"] = str(error)
        with st.popover("Machine", width="stretch"):
            machine = _machine(prefix, library)
    return Candidate(letter=letter, choice=Choice(**chosen), is_best_cap=pick == BEST_CAP, machine=machine)


def _machine(prefix: str, library: Library) -> Machine:
    clusters = {f"cluster {preset}": preset for preset in PRESETS}
    words = "The hardware above, another bundled one, or a ready-made cluster by the cost model."
    names = [ABOVE, *library.hardware, *clusters]
    shown = {"format_func": lambda name: MACHINE_WORDS[clusters[name]] if name in clusters else name}
    name = ask(st.selectbox, "Machine", f"{prefix}machine", words, names, **shown)
    preset = clusters.get(name)
    settings: tuple[tuple[str, Any], ...] = ()
    if preset is not None:  # how large it is: the first of its settings, hosts or GPUs
        setting = replace(PRESETS[preset][0], help="How many of them the cluster has.")
        settings = ((setting.name, sources.ask_setting(f"{prefix}{preset}_{setting.name}", setting)),)
    return Machine(
        hardware=None if name == ABOVE or preset is not None else name,
        preset=preset,
        settings=settings,
        what_if=WhatIf(
            bandwidth=factor("Bandwidth ×", FACTORS, f"{prefix}bw", HELP["bandwidth"]),
            latency=factor("Latency ×", FACTORS, f"{prefix}lat", HELP["latency"]),
        ),
    )


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
        card = Card(label=plain(name), value=value, told=_COLUMN_HELP["step, ms"], below=below, colour=colour)
        draw_card(place, card)
    if not found.are_alike:
        steps = [
            f"{one.candidate.name}: {one.micro_batches} a step, "
            f"{format_ms(round(one.step_ns / one.micro_batches))} each"
            for one in results
        ]
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
    """What each report notes; and how much its step sends that no time is known of."""
    for one in results:
        if untimed := one.played.untimed_bytes:
            words = f"{one.candidate.name} takes longer than it says here: {format_size(untimed)}"
            st.warning(plain(f"{words} of what it sends have no curve, and are in no timeline."))
        for note in one.played.report.notes:
            st.caption(plain(f"{one.candidate.name}: {note}."))


def _machines(results: Sequence[Result]) -> None:
    """What to keep in mind of machines that nobody measured."""
    if results and any(is_computed(one.inputs.hardware) for one in results):
        unlike = device_sentence(results[0].inputs.workload, None)
        if unlike is not None:
            st.warning(plain(unlike))
    presets = {one.candidate.machine.preset for one in results} - {None}
    computed = ", ".join(sorted(MACHINE_WORDS[preset] for preset in presets if preset is not None))
    if computed:
        st.caption(
            plain(
                f"Nobody measured {computed}: collectives are computed by the cost model, backward "
                "stays as recorded, and copies, launches and interference are free there."
            )
        )


def _table(found: Comparison) -> None:
    rows = table_rows(found)
    shown = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    # Why something failed must not be out of sight, right of all figures.
    order = sorted(shown, key=lambda name: (name != "candidate", name != "note"))
    config = st.column_config
    columns = {
        "candidate": config.TextColumn(pinned=True, width="medium"),
        "speed-up": config.NumberColumn(format="%.4f", help=_COLUMN_HELP["speed-up"]),
    }
    table(rows, _COLUMN_HELP, columns=columns, column_order=order, placeholder="")


def table_rows(found: Comparison) -> list[dict[str, Any]]:
    """A row a candidate in their order; behind each but A, where both were played, the row of differences."""
    base, rows = found.base, []
    first = None if base is None else _row(base, base)
    for candidate in found.candidates:
        result = found.of(candidate)
        if result is None:
            rows.append(_empty(candidate.name) | {"note": found.errors[candidate.letter]})
            continue
        row = _row(result, base)
        rows.append(row)
        if first is not None and result is not base:
            less = {
                key: row[key] - first[key]
                for key in row
                if key != "speed-up" and isinstance(row[key], int | float) and first[key] is not None
            }
            rows.append(_empty(f"{candidate.letter} - {found.candidates[0].letter}") | less)
    return rows


def _empty(name: str) -> dict[str, Any]:
    return {"candidate": name, **dict.fromkeys(_COLUMN_HELP), "note": ""}


def _row(result: Result, base: Result | None) -> dict[str, Any]:
    report, figures = result.played.report, result.numbers()
    row = _empty(result.candidate.name) | {
        "step, ms": report.step_ns / 1e6,
        "exposed, ms": report.exposed_comm_ns / 1e6,
        "overlap, %": report.overlap_ratio * 100,
        "buckets": figures["buckets"],
        "largest bucket, MiB": figures["largest_bucket_bytes"] / MIB,
        "collectives": figures["collectives"],
        "sent, MiB": figures["sent_bytes"] / MIB,
        "micro-batches": figures["micro_batches"] if figures["micro_batches"] > 1 else None,
        "buckets hold, MiB": None if figures["buffer_bytes"] is None else figures["buffer_bytes"] / MIB,
    }
    if base is not None and result.is_like(base):
        step = base.step_ns
        row["faster than A, ms"] = (step - report.step_ns) / 1e6
        row["faster than A, %"] = (step - report.step_ns) / step * 100 if step else 0.0
        row["speed-up"] = step / report.step_ns if report.step_ns else None
    return row


def _what_changed(results: Sequence[Result]) -> None:
    """Draw the section; ``results`` begin with A's."""
    st.subheader("What changed?")
    others = {one.candidate.letter: one for one in results[1:]}
    words = "Which candidate is held against A below."
    letter = ask(st.selectbox, "A against", "against", words, list(others))
    with told():
        _tell(_difference(results[0].played.timeline, others[letter].played.timeline))


@memo(128)
def _difference(before: Timeline, after: Timeline) -> Difference:
    """Why one step is not as long as another. Raises ``SimError`` as ``sim.difference``."""
    with st.spinner("Taking both steps apart …"):
        return sim.difference(before, after)


def _tell(found: Difference) -> None:
    if not found.changes:
        st.info("Nothing: both are the same buckets on the same machine.")
        return
    st.markdown(f"**{plain(' and '.join(map(change_words, found.changes)))}**")
    if found.order:
        st.caption(found.order)
    parts = [
        (change.cause, [(PART_WORDS[part.name], part.change_ns) for part in change.parts])
        for change in found.changes
    ]
    chart(draw_parts(parts), "parts", "The parts of the difference, which add up to it")
    st.caption(
        "Each step is built up from computing alone by one mechanism after the other, in a "
        "fixed order; a part is what its mechanism adds to the step beyond what hides behind "
        "backward. The bars add up to the difference, to the nanosecond. Left: shorter."
    )
    left, right = st.columns(2)
    for change in found.changes:
        if len(found.changes) > 1:
            left.markdown(f"**{plain(change_words(change))}**")
        left.markdown("\n".join(f"- {plain(part.sentence)}" for part in change.parts))
    right.markdown("\n".join(f"- {plain(fact)}" for fact in found.facts))


def change_words(change: Change) -> str:
    """``-4.20 ms by the assignment``."""
    sign = "+" if change.change_ns > 0 else "-" if change.change_ns < 0 else ""
    return f"{sign}{format_ms(abs(change.change_ns))} {_CAUSE_WORDS[change.cause]}"


def _breakdown(found: Comparison) -> None:
    st.subheader("Where does each step's time go?")
    reports = {one.candidate.short: one.played.report for one in found.results}
    timelines = {one.candidate.short: one.played.timeline for one in found.results}
    words = "Where a step's time goes, a candidate a bar"
    chart(draw_breakdown(reports, timelines), "compare_breakdown", words)
    if found.base is not None and len(found.results) > 1 and found.are_alike:
        steps = {name: report.step_ns for name, report in reports.items()}
        chart(draw_deltas(steps), "compare_delta", "Each candidate's step against A's")


def _is_it_true(given: Given, library: Library, found: Comparison) -> None:
    """Draw the section, for the measured run that belongs to the page's inputs, if one does."""
    st.subheader("Is it true?")
    measured = sources.measured_run(library, given)
    with told():
        record = None if measured is None else sources.open_record(measured)
        agreement = None if record is None else judge(record)
        rows = [] if agreement is None else truth_rows(agreement, found, given.inputs)
        if rows:
            signed = ("error, %", "faster than A, measured, ms", "faster than A, predicted, ms")
            table(rows, signed=signed, pinned="candidate")
        else:
            st.info(NOT_MEASURED)
        if record is not None and agreement is not None:
            shown = {row["candidate"] for row in rows}
            missing = [one for one in found.results if one.candidate.name not in shown]
            reasons = [
                f"{one.candidate.name} {why_not_measured(record, one, given.inputs)}" for one in missing
            ]
            if reasons:
                st.caption(plain(f"Not among what was measured: {'; '.join(reasons)}."))
            st.caption(plain(tell_rule(agreement)))


def why_not_measured(record: Record, result: Result, measured: Inputs) -> str:
    """Why a candidate has no row among those that were measured on the inputs ``measured``."""
    own = result.played.assignment
    if result.inputs != measured:
        return "(on another machine)"
    asked = [
        one.asked for one in record.candidates if one.asked is not None and one.asked.policy == own.policy
    ]
    if own.policy in DDP_POLICIES or not asked:
        return "(no run had these buckets and switches)"
    settings = [one for one in asked[0].settings.items() if own.settings.get(one[0]) != one[1]]
    turned_off = [name for name in own.settings if name not in asked[0].settings]
    told = [*map(option_words, settings), *(f"without {name}" for name in turned_off)]
    return f"(it was measured with {', '.join(told) or 'other buckets'})"


def _measured_of(agreement: Agreement, result: Result, measured: Inputs) -> CandidateAgreement | None:
    """The measured candidate that is this one: the same buckets, and the same prediction to the nanosecond.

    Buckets alone would not do: switches change a step, and a machine does that is not that of ``measured``,
    by whatever name it was chosen.
    """
    row = row_of(agreement, result.played)
    same = row is not None and row.predicted_step_ns == result.step_ns
    return row if same and result.inputs == measured else None


def truth_rows(agreement: Agreement, found: Comparison, measured: Inputs) -> list[dict[str, Any]]:
    """A row a measured candidate, of those on the inputs that were ``measured``; what it gains on A where A
    was measured too.
    """
    rows = [
        (one, row) for one in found.results if (row := _measured_of(agreement, one, measured)) is not None
    ]
    base = next((row for one, row in rows if one is found.base), None)
    told_each = []
    for one, row in rows:
        told: dict[str, Any] = {
            "candidate": one.candidate.name,
            "measured as": row.name,
            "measured, ms": row.measured_step_ns / 1e6,
            "95 % interval": interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval),
            "predicted, ms": row.predicted_step_ns / 1e6,
            "error, %": row.step_error * 100,
        }
        if base is not None:
            told["faster than A, measured, ms"] = (base.measured_step_ns - row.measured_step_ns) / 1e6
            told["faster than A, predicted, ms"] = (base.predicted_step_ns - row.predicted_step_ns) / 1e6
        told_each.append(told)
    return told_each


def _take_home(inputs: Inputs, found: Comparison) -> None:
    st.subheader("Take it home")
    where_from = provenance(inputs, {})
    file = f"{file_safe(inputs.workload.name)}-compare.csv"
    words = "A row a candidate, times in ns and sizes in bytes"
    download("Comparison CSV", lambda: signed_csv(csv_rows(found), where_from), file, words)
    if st.context.url is not None:
        st.markdown("This comparison, as a link (uploads are not in it):")
        link = address(st.context.url, st.query_params.to_dict(), found.candidates)
        st.code(link, language=None, wrap_lines=True)
    st.caption(plain(origin_words(where_from)))


def address(url: str, query: Mapping[str, str], candidates: Sequence[Candidate]) -> str:
    """The page's address with every pick in it: what stands at its default today may not tomorrow."""
    picks = {
        f"{one.letter.lower()}_pick": ALL_PICK_WORDS[BEST_CAP if one.is_best_cap else one.choice.pick]
        for one in candidates
    }
    return f"{url}?{urlencode({'candidates': len(candidates), **picks, **query})}"


def csv_rows(found: Comparison) -> list[dict[str, Any]]:
    """A row a candidate in ns and bytes, with the machine that it was played on and what is changed in it."""
    rows: list[dict[str, Any]] = []
    for candidate in found.candidates:
        result = found.of(candidate)
        asked = candidate if result is None else result.candidate
        row: dict[str, Any] = {
            "candidate": candidate.letter,
            "assignment": asked.words,
            "choice": json.dumps(asked.told()),
        }
        if result is None:
            rows.append(row | {"error": found.errors[candidate.letter]})
            continue
        row |= result.numbers()
        if found.base is not None and result.is_like(found.base):
            row["gain_ns"] = found.base.step_ns - result.step_ns
        what_if = asked.machine.what_if.told()
        row |= {
            "policy": result.played.assignment.policy,
            "assignment_sha256": sim.digest(result.played.assignment),
            "played_on": result.inputs.hardware.name,
            "played_on_sha256": digest((result.inputs.origin or result.inputs).hardware),
            "what_if": json.dumps(what_if, sort_keys=True) if what_if else "",
        }
        rows.append(row)
    return rows
