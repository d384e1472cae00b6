"""The Compare page: several assignments, systems or machines on one axis, and what sets them apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
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
from app.views.validate import judge, row_of, rule_words
from app.widgets import chart, download, factor, mib, take_name, told
from app.words import (
    CARRIED,
    HELP,
    MACHINE_WORDS,
    PICK_WORDS,
    PICKS,
    as_it_ran,
    device_sentence,
    estimated_sentence,
    file_safe,
    interval_words,
    is_computed,
    lacks_a_part,
    option_words,
    plain,
    share,
    what_if_words,
)
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.timeline import Timeline
from sim.truth.differences import Change, Difference, PartName
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
LETTERS = ("A", "B", "C", "D", "E", "F")


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
        named = self.hardware or ""
        if self.preset is not None:
            settings = ", ".join(f"{value} {name}" for name, value in self.settings)
            named = f"{MACHINE_WORDS[self.preset]}{f', {settings}' if settings else ''}"
        factors = [f"{name} × {format_number(value, 6)}" for name, value in self.what_if.told().items()]
        return ", ".join([named, *factors] if named else factors)


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

    def told(self) -> dict[str, Any]:
        """What was asked for, whole: the pick with all its caps and switches, and another machine."""
        told = self.choice.told()
        if self.is_best_cap:
            told["pick"] = BEST_CAP
        machine = {
            "hardware": self.machine.hardware,
            "preset": self.machine.preset,
            **dict(self.machine.settings),
        }
        machine |= self.machine.what_if.told()
        machine = {name: value for name, value in machine.items() if value is not None}
        return told | ({"machine": machine} if machine else {})


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

    @property
    def uncounted_bytes(self) -> int:
        """What collectives carry that no time is known of, so that it is not in this step."""
        hardware = self.inputs.hardware
        return sum(
            one.num_bytes
            for one in sim.collectives(self.played.timeline)
            if one.kind == "all_gather" and not hardware.all_gather
        )


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


_CARDS = 3  # a row


def show(library: Library, asked: Asked) -> None:
    """Draw the page; a candidate that cannot be played is one line, and the others stay."""
    candidates = _ask(library)
    st.title("Compare")
    given = sources.read(library, asked)
    if given is None:
        sources.nothing_to_show(library)
        return
    inputs = given.inputs
    st.caption(plain(sources.inputs_words(given, asked)))
    sources.tell_chosen(asked)
    elsewhere = standing().beside(inputs.workload, inputs.hardware)
    if not elsewhere.is_none:
        names = ", ".join(what_if_words(*one) for one in elsewhere.told().items())
        st.info(
            plain(
                f"Not in force here: Tune's what-ifs ({names}). Each candidate has a machine of "
                "its own, with its what-ifs, under Machine."
            ),
            icon=":material/tune:",
        )
    if given.is_carried:
        st.caption(CARRIED)
    if given.inputs.workload.switches:
        st.caption(plain(as_it_ran(given.inputs.workload.switches)))
    candidates = tuple(replace(one, choice=one.choice.with_given(given.assignment)) for one in candidates)
    results: list[Result] = []
    errors: dict[str, str] = {}
    for candidate in candidates:
        try:
            results.append(play_candidate(inputs, candidate, library))
        except SimError as error:
            errors[candidate.letter] = str(error)
    _headline(candidates, results, errors)
    estimated = estimated_sentence(inputs.workload)
    if estimated is not None:
        st.warning(plain(estimated))
    for one in results:
        for note in one.played.report.notes:
            if lacks_a_part(note):
                told = f"{one.candidate.name} takes longer than it says here: {note}. "
                sent = format_size(one.uncounted_bytes)
                told += f"{sent} of what it sends are theirs, which are in no timeline."
                st.warning(plain(told))
            else:
                st.caption(plain(f"{one.candidate.name}: {note}."))
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
    presets = [one.candidate.machine.preset for one in results]
    computed = sorted({MACHINE_WORDS[preset] for preset in presets if preset is not None})
    if any(is_computed(one.inputs.hardware) for one in results):
        unlike = device_sentence(inputs.workload, None)
        if unlike is not None:
            st.warning(plain(unlike))
    if computed:
        st.caption(
            plain(
                (
                    "Nobody measured {machines}: collectives are computed by the cost model, backward "
                    "stays as recorded, and copies, launches and interference are free there."
                ).format(machines=", ".join(computed))
            )
        )
    _table(candidates, results, errors)
    verdicts = [plain(f"{one.candidate.name}: {one.played.report.verdict}") for one in results]
    st.markdown("\n".join(f"- {verdict}" for verdict in verdicts))
    for one in results:
        exposed_ns = one.played.report.exposed_by_micro_batch_ns
        if len(exposed_ns) > 1:
            told = f"{one.candidate.name} reduces in {len(exposed_ns)} micro-batches: "
            told += f"{format_ms(sum(exposed_ns))} are exposed, {format_ms(exposed_ns[-1])} in the last, "
            st.info(plain(f"{told}of which the timeline and the overlap are."))
    has_base = candidates[0].letter not in errors
    if has_base and len(results) > 1:
        _what_changed(results)
    if results:
        _breakdown(results, with_delta=has_base and len(results) > 1 and _are_alike(results))
        st.subheader("Where are the cuts?")
        cuts = [(short(one.candidate.name), one.inputs.workload, one.played.assignment) for one in results]
        told = "Gradients in ready order, coloured by bucket, a candidate a row"
        chart(draw_map(map_data(cuts)), "compare_map", told)
        st.caption(
            "Gradients in the order in which they become ready, as wide as they are large; a "
            "colour is a bucket. One sees the cuts."
        )
    _is_it_true(given, library, results)
    _take_home(inputs, candidates, results, errors)


def _headline(candidates: Sequence[Candidate], results: Sequence[Result], errors: dict[str, str]) -> None:
    """A card a candidate, the sentence that names the fastest, and a line for each that failed."""
    played = {one.candidate.letter: one for one in results}
    base = played.get(candidates[0].letter)
    are_alike = _are_alike(results)
    places = [place for _ in range(0, len(candidates), _CARDS) for place in st.columns(_CARDS)]
    if len(candidates) == 2:
        places = list(st.columns(2))
    for place, candidate in zip(places, candidates, strict=False):
        result, delta = played.get(candidate.letter), None
        if result is not None and base is not None and result is not base and are_alike:
            delta = gain_words(base.step_ns - result.step_ns, base.step_ns)
        place.metric(
            plain((result.candidate if result else candidate).name),
            format_ms(result.step_ns) if result else "-",
            delta,
            delta_color=_colour(delta),
            delta_arrow="off",
            help=_COLUMN_HELP["step, ms"],
            border=True,
            height="stretch",
        )
    if not are_alike:
        told = [(one.candidate.name, one.step_ns, one.micro_batches) for one in results]
        names, steps, counts = zip(*told, strict=True)
        st.warning(plain(unlike_sentence(names, steps, counts)))
    elif base is not None and len(results) > 1:
        sentence = fastest_sentence([one.candidate.name for one in results], [one.step_ns for one in results])
        st.markdown(f"**{plain(sentence)}**")
    for letter, error in errors.items():
        st.error(plain(f"{letter}: {error}"), icon=":material/error:")


def _are_alike(results: Sequence[Result]) -> bool:
    """Whether all steps have as many micro-batches, so that they are the same work."""
    return len({one.micro_batches for one in results}) <= 1


def _colour(delta: str | None) -> Literal["off", "green", "orange"]:
    if delta is None or delta.startswith("as fast"):
        return "off"
    return "green" if "faster" in delta else "orange"


def _breakdown(results: Sequence[Result], *, with_delta: bool) -> None:
    st.subheader("Where does each step's time go?")
    reports = {short(one.candidate.name): one.played.report for one in results}
    timelines = {short(one.candidate.name): one.played.timeline for one in results}
    chart(
        draw_breakdown(reports, timelines),
        "compare_breakdown",
        "Where a step's time goes, a candidate a bar",
    )
    if not with_delta:
        return
    steps = {name: report.step_ns for name, report in reports.items()}
    chart(
        draw_deltas(steps),
        "compare_delta",
        "Each candidate's step against A's",
    )


def _take_home(
    inputs: Inputs, candidates: Sequence[Candidate], results: Sequence[Result], errors: dict[str, str]
) -> None:
    st.subheader("Take it home")
    where_from = provenance(inputs, {})
    download(
        "Comparison CSV",
        lambda: signed_csv(csv_rows(candidates, results, errors), where_from),
        f"{file_safe(inputs.workload.name)}-compare.csv",
        "A row a candidate, times in ns and sizes in bytes",
    )
    if st.context.url is not None:
        st.markdown("This comparison, as a link (uploads are not in it):")
        link = address(st.context.url, st.query_params.to_dict(), candidates)
        st.code(link, language=None, wrap_lines=True)
    st.caption(plain(origin_words(where_from)))


def address(url: str, query: Mapping[str, str], candidates: Sequence[Candidate]) -> str:
    """The page's address with every pick in it: what stands at its default today may not tomorrow."""
    picks = {
        f"{one.letter.lower()}_pick": ALL_PICK_WORDS[BEST_CAP if one.is_best_cap else one.choice.pick]
        for one in candidates
    }
    return f"{url}?{urlencode({'candidates': len(candidates), **picks, **query})}"


_FIRST_PICKS = ("default", "recommended", BEST_CAP, "single", "per-parameter", "after-backward")
_HEAD = ("default", "recommended", BEST_CAP)
_PICKS = (*_HEAD, *(pick for pick in PICKS if pick not in _HEAD))


def _ask(library: Library) -> tuple[Candidate, ...]:
    """Draw the sidebar and read it, below what is looked at."""
    with st.sidebar:
        count = st.number_input(
            "Candidates",
            min_value=2,
            max_value=len(LETTERS),
            value=3,
            step=1,
            key="candidates",
            bind="query-params",
            help="How many are compared, 2 to 6. All are compared with A.",
        )
        candidates = tuple(
            _candidate(letter, first, library)
            for letter, first in zip(LETTERS[:count], _FIRST_PICKS[:count], strict=True)
        )
    return candidates


def _candidate(letter: str, first_pick: str, library: Library) -> Candidate:
    prefix = f"{letter.lower()}_"
    take_name(f"{prefix}pick", ALL_PICK_WORDS)
    with st.container(border=True):
        pick: Any = st.selectbox(
            f"{letter}{', the base' if letter == LETTERS[0] else ''}",
            _PICKS,
            index=_PICKS.index(first_pick),
            format_func=ALL_PICK_WORDS.__getitem__,
            key=f"{prefix}pick",
            bind="query-params",
            help="How the gradients are cut. `best buckets found` and `best round bucket_cap_mb` are "
            "searched for on the candidate's own machine.",
        )
        is_best_cap = pick == BEST_CAP
        told: dict[str, Any] = {"pick": "cap" if is_best_cap else pick}
        if pick == "cap":
            told["cap_mb"] = mib("Cap, MiB", f"{prefix}cap", 25.0, HELP["cap"])
            told["first_mb"] = mib("First bucket, MiB", f"{prefix}first", None, HELP["first"])
        caps = ask_caps(f"{prefix}caps") if pick == "cap-list" else None
        try:
            with st.popover("Switches", width="stretch"):
                told["options"] = ask_switches(told["pick"], prefix)
            told["caps_mb"] = None if caps is None else caps_of(caps)
        except InputError as error:
            told["unreadable"] = str(error)
        with st.popover("Machine", width="stretch"):
            machine = _machine(prefix, library)
    return Candidate(letter=letter, choice=Choice(**told), is_best_cap=is_best_cap, machine=machine)


def _machine(prefix: str, library: Library) -> Machine:
    clusters = {f"cluster {preset}": preset for preset in PRESETS}

    def told(name: str) -> str:
        return MACHINE_WORDS[clusters[name]] if name in clusters else name

    name = st.selectbox(
        "Machine",
        [ABOVE, *library.hardware, *clusters],
        format_func=told,
        key=f"{prefix}machine",
        bind="query-params",
        help="The hardware above, another bundled one, or a ready-made cluster by the cost model.",
    )
    preset = clusters.get(name)
    settings: tuple[tuple[str, Any], ...] = ()
    if preset is not None:  # how large it is: the first of its settings, hosts or GPUs
        setting = replace(PRESETS[preset][0], help="How many of them the cluster has.")
        count = sources.ask_setting(f"{prefix}{preset}_{setting.name}", setting)
        settings = ((setting.name, count),)
    what_if = WhatIf(
        bandwidth=factor("Bandwidth ×", FACTORS, f"{prefix}bw", HELP["bandwidth"]),
        latency=factor("Latency ×", FACTORS, f"{prefix}lat", HELP["latency"]),
    )
    hardware = None if name == ABOVE or preset is not None else name
    return Machine(hardware=hardware, preset=preset, settings=settings, what_if=what_if)


_COLUMN_HELP: dict[str, str | None] = {
    "step, ms": "Forward, loss, backward with synchronisation, optimizer, and what comes before forward.",
    "faster than A, ms": "A's step minus this candidate's: positive is faster.",
    "faster than A, %": "A's step minus this candidate's: positive is faster.",
    "speed-up": "A's step over this candidate's.",
    "exposed, ms": (
        "End of synchronisation minus a plain backward: all that synchronising gradients "
        "adds. Of several micro-batches it is that of the last."
    ),
    "overlap, %": (
        "Time in which the compute lane and a collective are busy, over the time in which a "
        "collective is busy; of several micro-batches, in the last."
    ),
    "buckets": None,
    "largest bucket, MiB": "The largest bucket, in bytes that travel.",
    "collectives": (
        "How many a step launches: in all its micro-batches, before forward, and after "
        "synchronisation such as ZeRO's all-gather."
    ),
    "sent, MiB": "What all of these collectives carry, each counted once.",
    "micro-batches": (
        "How many forward and backward passes a step has. Steps of different numbers are not the same work."
    ),
    "buckets hold, MiB": "The most that buckets hold at once on one rank, beside the gradients.",
    "note": "Why a candidate could not be played.",
}


def _table(candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]) -> None:
    """Draw the table."""
    rows = table_rows(candidates, results, errors)
    whole = {"buckets": None, "collectives": None, "micro-batches": None, "speed-up": "%.4f"}
    config: dict[str, Any] = {
        name: st.column_config.NumberColumn(format=whole.get(name, "%.2f"), help=words)
        for name, words in _COLUMN_HELP.items()
    }
    config["candidate"] = st.column_config.TextColumn(pinned=True, width="medium")
    config["note"] = st.column_config.TextColumn(help=_COLUMN_HELP["note"])
    told = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    # Why something failed must not be out of sight, right of all figures.
    order = sorted(told, key=lambda name: (name != "candidate", name != "note"))
    st.dataframe(rows, hide_index=True, column_config=config, column_order=order, placeholder="")


def table_rows(
    candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row a candidate in their order; behind each but A, where both were played, the row of differences."""
    played = {one.candidate.letter: one for one in results}
    base = played.get(candidates[0].letter)
    first = None if base is None else _row(base, base)
    rows = []
    for candidate in candidates:
        result = played.get(candidate.letter)
        if result is None:
            rows.append(_empty(candidate.name) | {"note": errors[candidate.letter]})
            continue
        row = _row(result, base)
        rows.append(row)
        if first is not None and result is not base:
            name = f"{candidate.letter} - {candidates[0].letter}"
            rows.append(
                _empty(name)
                | {
                    key: row[key] - first[key]
                    for key in row
                    if key != "speed-up" and isinstance(row[key], int | float) and first[key] is not None
                }
            )
    return rows


def _empty(name: str) -> dict[str, Any]:
    return {"candidate": name, **dict.fromkeys(_COLUMN_HELP), "note": ""}


def _row(result: Result, base: Result | None) -> dict[str, Any]:
    report = result.played.report
    figures = numbers(result)
    row = _empty(result.candidate.name) | {
        "step, ms": report.step_ns / 1e6,
        "exposed, ms": report.exposed_comm_ns / 1e6,
        "overlap, %": report.overlap_ratio * 100,
        "buckets": figures["buckets"],
        "largest bucket, MiB": figures["largest_bucket_bytes"] / MIB,
        "collectives": figures["collectives"],
        "sent, MiB": figures["sent_bytes"] / MIB,
        "micro-batches": figures["micro_batches"] if figures["micro_batches"] > 1 else None,
        "buckets hold, MiB": None if figures["memory_bytes"] is None else figures["memory_bytes"] / MIB,
    }
    if base is not None and base.micro_batches == result.micro_batches:  # else it is not the same work
        step = base.step_ns
        row["faster than A, ms"] = (step - report.step_ns) / 1e6
        row["faster than A, %"] = (step - report.step_ns) / step * 100 if step else 0.0
        row["speed-up"] = step / report.step_ns if report.step_ns else None
    return row


def numbers(result: Result) -> dict[str, Any]:
    """The figures of one candidate, ns and bytes; memory None where the report has none."""
    report, sent = result.played.report, sim.collectives(result.played.timeline)
    return {
        "step_ns": report.step_ns,
        "exposed_comm_ns": report.exposed_comm_ns,
        "overlap_ratio": report.overlap_ratio,
        "buckets": len(report.buckets),
        "largest_bucket_bytes": max(bucket.num_bytes for bucket in report.buckets),
        "collectives": len(sent),
        "sent_bytes": sum(one.num_bytes for one in sent),
        "micro_batches": result.micro_batches,
        "memory_bytes": None if report.memory is None else report.memory.peak_bytes,
    }


def csv_rows(
    candidates: Sequence[Candidate], results: Sequence[Result], errors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row a candidate in ns and bytes, with the machine that it was played on and what is changed in it."""
    played = {one.candidate.letter: one for one in results}
    base = played.get(candidates[0].letter)
    rows: list[dict[str, Any]] = []
    for candidate in candidates:
        result = played.get(candidate.letter)
        asked = candidate if result is None else result.candidate
        row: dict[str, Any] = {
            "candidate": candidate.letter,
            "assignment": asked.words,
            "choice": json.dumps(asked.told()),
        }
        if result is None:
            rows.append(row | {"error": errors[candidate.letter]})
            continue
        row |= numbers(result)
        if base is not None and base.micro_batches == result.micro_batches:
            row["gain_ns"] = base.step_ns - result.step_ns
        what_if = result.candidate.machine.what_if.told()
        row |= {
            "policy": result.played.assignment.policy,
            "assignment_sha256": sim.digest(result.played.assignment),
            "played_on": result.inputs.hardware.name,
            "played_on_sha256": digest((result.inputs.origin or result.inputs).hardware),
            "what_if": json.dumps(what_if, sort_keys=True) if what_if else "",
        }
        rows.append(row)
    return rows


def _is_it_true(given: Given, library: Library, results: Sequence[Result]) -> None:
    """Draw the section, for the measured run that belongs to the page's inputs, if one does."""
    st.subheader("Is it true?")
    measured = sources.measured_run(library, given)
    if measured is None:
        st.info(NOT_MEASURED)
        return
    with told():
        agreement = judge(sources.open_record(measured))
        rows = truth_rows(agreement, results, given.inputs)
        if not rows:
            st.info(NOT_MEASURED)
            return
        two = st.column_config.NumberColumn(format="%.2f")
        signed = st.column_config.NumberColumn(format="%+.2f")
        st.dataframe(
            rows,
            hide_index=True,
            column_config={
                "candidate": st.column_config.TextColumn(pinned=True),
                **{name: two for name in rows[0] if name.endswith(", ms")},
                "error, %": signed,
                "faster than A, measured, ms": signed,
                "faster than A, predicted, ms": signed,
            },
        )
        st.caption(plain(rule_words(agreement)))


def measured_of(agreement: Agreement, result: Result, measured: Inputs) -> CandidateAgreement | None:
    """The measured candidate that is this one: the same buckets, and the same prediction to the nanosecond.

    Buckets alone would not do: switches change a step, and a machine does that is not that of ``measured``,
    by whatever name it was chosen.
    """
    row = row_of(agreement, result.played)
    same = row is not None and row.predicted_step_ns == result.played.report.step_ns
    return row if same and result.inputs == measured else None


def truth_rows(agreement: Agreement, results: Sequence[Result], measured: Inputs) -> list[dict[str, Any]]:
    """A row a measured candidate, of those on the inputs that were ``measured``; what it gains on A where A
    was measured too.
    """
    found = [(one, row) for one in results if (row := measured_of(agreement, one, measured)) is not None]
    base = next((row for one, row in found if one is results[0] and one.candidate.letter == "A"), None)
    rows = []
    for one, row in found:
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
        rows.append(told)
    return rows


def _what_changed(results: Sequence[Result]) -> None:
    """Draw the section; ``results`` begin with A's."""
    st.subheader("What changed?")
    others = {one.candidate.letter: one for one in results[1:]}
    letter = st.selectbox(
        "A against",
        list(others),
        key="against",
        bind="query-params",
        help="Which candidate is held against A below.",
    )
    before, after = results[0], others[letter]
    with told():
        _tell(_difference(before.played.timeline, after.played.timeline))


def _tell(found: Difference) -> None:
    if not found.changes:
        st.info("Nothing: both are the same buckets on the same machine.")
        return
    heads = " and ".join(change_words(change) for change in found.changes)
    st.markdown(f"**{plain(heads)}**")
    if found.order:
        st.caption(found.order)
    chart(
        draw_parts(
            [
                (change.cause, [(PART_WORDS[part.name], part.change_ns) for part in change.parts])
                for change in found.changes
            ]
        ),
        "parts",
        "The parts of the difference, which add up to it",
    )
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


@memo(128)
def _difference(before: Timeline, after: Timeline) -> Difference:
    """Why one step is not as long as another. Raises ``SimError`` as ``sim.difference``."""
    with st.spinner("Taking both steps apart …"):
        return sim.difference(before, after)


ABOVE = "as above"
NOT_MEASURED = (
    "No candidate was measured here: no measured run belongs to this workload and hardware with these very "
    "buckets. Start from a measured run, or measure your own with `bucketsim validate`."
)
_AXIS_LENGTH = 28  # characters: what a narrow window has room for beside a figure
_CAUSE_WORDS = {
    "assignment": "by the assignment",
    "machine": "by the machine",
    "assignment and machine": "by assignment and machine together",
}


def short(name: str) -> str:
    """A candidate's name for an axis; its letter keeps it apart from the others."""
    return name if len(name) <= _AXIS_LENGTH else f"{name[: _AXIS_LENGTH - 1]}…"


def gain_words(gain_ns: int, base_ns: int) -> str:
    """How much faster, in a few words."""
    if not gain_ns:
        return "as fast as A"
    return f"{format_ms(abs(gain_ns))} ({share(abs(gain_ns), base_ns)}) " + (
        "faster than A" if gain_ns > 0 else "slower than A"
    )


def fastest_sentence(names: Sequence[str], steps_ns: Sequence[int]) -> str:
    """Which candidate wins; ``names`` and ``steps_ns`` begin with A's."""
    best = min(range(len(steps_ns)), key=steps_ns.__getitem__)
    if best == 0 or steps_ns[best] == steps_ns[0]:
        return f"None is faster than {names[0]}."
    return f"{names[best]} is fastest: {gain_words(steps_ns[0] - steps_ns[best], steps_ns[0])}."


def unlike_sentence(names: Sequence[str], steps_ns: Sequence[int], micro_batches: Sequence[int]) -> str:
    """That steps of different numbers of micro-batches are not the same work; the time of one in each."""
    told = "; ".join(
        f"{name}: {count} a step, {format_ms(round(step / count))} each"
        for name, step, count in zip(names, steps_ns, micro_batches, strict=True)
    )
    return f"These steps have different numbers of micro-batches, so they are not the same work. {told}."


def change_words(change: Change) -> str:
    """``-4.20 ms by the assignment``."""
    sign = "+" if change.change_ns > 0 else "-" if change.change_ns < 0 else ""
    return f"{sign}{format_ms(abs(change.change_ns))} {_CAUSE_WORDS[change.cause]}"
