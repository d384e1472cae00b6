"""The Validate page: is the prediction true? Measured records, and a job that is running now."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import streamlit as st

import sim
from app import sources
from app.figures import records as figures
from app.memo import memo
from app.playing import Inputs, Played
from app.sources import LIVE, Library, Source, open_record
from app.views import live
from app.widgets import Files, ask, chart, downloads, folded, keep_among, provenance, table, told
from app.words import counted, file_safe, plain
from sim.columns import CANDIDATES, records
from sim.errors import InputError, SimError
from sim.formats.documents import json_text
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES
from sim.nouns.measurement import Mode, Record
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.telling import agreement_document, tell_best, tell_rule, tell_verdict
from sim.truth.ladder import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.units import format_number, format_percent

# By the folder of a record, or where it came from; in this order.
KINDS: dict[str, str] = {
    "live": "your directory",
    "upload": "uploaded",
    "measured": "caps on even machines",
    "families": "what each knob reaches",
    "contention": "slow ranks and ports",
    "systems": "switches and other systems",
    "claims": "small and large models",
    "training": "real models, trained",
    "gpu": "one GPU, an emulated wire",
}
MODE_WORDS: dict[Mode, str] = {
    "paced": "Paced replay: real DistributedDataParallel, collectives and copies on real ranks; backward "
    "itself is replayed, each gradient at the time that the workload recorded. What is tested is "
    "communication, its overlap and its order, not how long layers take to compute.",
    "model": "Real model: the user's own model was trained on real ranks; nothing was replayed.",
    "trace": "Read from a trace: steps of the job itself. They are predicted from their own parts, so they "
    "neither pass nor fail.",
}
VERDICTS: dict[bool | None, str] = {True: "passed", False: "not passed", None: "no verdict"}
_COLUMN_HELP = {
    "median error, %": "Median over candidates of |predicted - measured| / measured step.",
    "worst, %": "The largest of these.",
    "order": "Pairs in the right order, of all whose measured 95 % intervals are apart.",
    "tests": "Hosts and their rate; slow ranks where there were any.",
    "verdict": "By the rule that each record states. Records read from traces have no verdict.",
}
UPLOADED = "upload: "  # what the name of an uploaded record begins with
CHOSEN = "run"
_ALL_KEY, _FOLLOWED, _SHOWN = "all_records", "record_followed", "show"


def show(library: Library, watch: Path | None) -> None:
    """Draw the page; ``watch`` is the directory that a running job writes to."""
    st.title("Validate")
    address = st.query_params.get(_SHOWN, "records" if CHOSEN in st.query_params else "").lower()
    if _SHOWN not in st.session_state and address in ("records", "live"):
        st.session_state[_SHOWN] = address
    words = (
        "Records: runs that are finished, against the model. Live: a job that writes into "
        "the directory given to `bucketsim dash --watch DIR`."
    )
    first = "live" if live.is_first(watch, library) else "records"
    look: dict[str, Any] = {"required": True, "format_func": str.capitalize, "label_visibility": "collapsed"}
    what = ask(st.segmented_control, "Show", _SHOWN, words, ["records", "live"], default=first, **look)
    if what != "live":
        _records(library)
    elif watch is not None:
        live.show(watch, library)
    else:
        st.info(
            "No directory is watched. `bucketsim dash --watch DIR` shows what a running job "
            'writes into `DIR`: put `with sim.record(ddp_model, "DIR"):` around your training '
            "loop, or let `bucketsim validate` write its record there."
        )


def _records(library: Library) -> None:
    found: dict[str, Source] = {**library.all_records, **_uploaded()}
    if not found:
        st.info(
            "No measured record is at hand. `bucketsim validate` replays assignments on real "
            "ranks and makes one; `bucketsim dash --traces DIR` or `--watch DIR` shows it here, "
            "or upload its files above."
        )
        return
    # Look at the run that Tune and Compare were turned to last, unless the address names one.
    looked_at = sources.record_looked_at(library)
    if looked_at is not None and looked_at != st.session_state.get(_FOLLOWED):
        st.session_state[_FOLLOWED] = looked_at
        if CHOSEN not in st.query_params:
            st.session_state[CHOSEN] = looked_at
    names = sorted(found, key=_place)
    keep_among(CHOSEN, names)
    words = (
        "A record holds a workload, the hardware calibrated before it, and what real ranks did with each "
        "candidate assignment. A row of the table, or a point, below chooses it too."
    )
    name = ask(st.selectbox, "Record", CHOSEN, words, names)
    with told():
        _record(found[name], name)
    st.subheader("All records")
    st.caption(
        "Every point is one candidate: its step on real ranks, and what the model says of it from hardware "
        "that was calibrated apart. Each record tells above whether the model can have seen it."
    )
    place, scores = st.empty(), dict[str, Score]()
    for name in names:
        if score.known(found[name]) is None:
            place.progress(len(scores) / len(names), f"Scoring {name}, {len(scores)} of {len(names)} …")
        scores[name] = score(found[name])
    place.empty()
    _claim(scores)
    _table(table_rows(scores))


Score = tuple[Record, Agreement] | str  # or why it cannot be had


@memo(1024)
def score(source: Source) -> Score:
    """A record, and how it agrees with today's model; or why that cannot be said, remembered as well."""
    try:
        record = open_record(source)
        return record, sim.agreement(record)
    except SimError as error:
        return str(error)


def judge(source: Source) -> tuple[Record, Agreement]:
    """``score``; raises ``InputError`` where there is none."""
    if isinstance(found := score(source), str):
        raise InputError(found)
    return found


def table_rows(scores: Mapping[str, Score]) -> list[dict[str, Any]]:
    """A row a record; those that did not pass, or cannot be read or scored, are ahead of the others."""
    rows: list[dict[str, Any]] = []
    for name, one in scores.items():
        if isinstance(one, str):
            rows.insert(0, {"record": name, "verdict": "cannot be scored", "tests": one})
            continue
        record, agreement = one
        first = record.candidates[0]
        row = {
            "record": name,
            "verdict": VERDICTS[agreement.passed],
            "median error, %": agreement.median_step_error * 100,
            "worst, %": agreement.worst_step_error * 100,
            "order": f"{agreement.order_right} of {agreement.order_pairs}",
            "tests": _tests(record),
            "workload": record.workload.name,
            "ranks": first.world_size,
            "backend": first.backend,
            "mode": MODE_WORDS[first.mode].partition(":")[0].lower(),
            "date": _text(first.provenance.get("date"))[:10],
            "torch": _text(first.environment.get("torch")),
        }
        rows.insert(0 if agreement.passed is False else len(rows), row)
    return rows


def _tests(record: Record) -> str:
    """Where it ran, and what there was beside plain ranks in the box of the calibration."""
    place = _text(record.candidates[0].environment.get("place")) or record.hardware.name
    slow = [(f"rank {rank}", factor) for rank, factor in record.slow]
    tests = [place, *(f"{rank} x {format_number(by, 6)}" for rank, by in slow if rank not in place)]
    if record.is_carried:
        tests.append(f"from hardware of {_text(record.hardware.provenance.get('place')) or 'another box'}")
    return "; ".join(tests)


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""


def _uploaded() -> dict[str, Record]:
    """Draw the upload, the same as on Tune; the record in it by its name, where it holds one."""
    with st.expander("Score a record of your own", icon=":material/upload_file:"):
        outcome = sources.ask_upload()
        if isinstance(outcome, str):
            st.error(plain(outcome), icon=":material/error:")
        elif outcome is not None and outcome.record is not None:
            name = f"{UPLOADED}{outcome.record.name}"
            if st.session_state.get("looked_at_upload") != outcome.record:  # a new one is looked at first
                st.session_state["looked_at_upload"], st.session_state[CHOSEN] = outcome.record, name
            return {name: outcome.record}
        elif outcome is not None:
            st.info("These files hold no measured record: a workload, a hardware, and measurements of both.")
    return {}


def _claim(scores: Mapping[str, Score]) -> None:
    """All records on one picture, with its sentence."""
    found = {name: one[1] for name, one in scores.items() if not isinstance(one, str)}
    judged = {name: agreement for name, agreement in found.items() if agreement.passed is not None}
    points = [(name, kind_of(name), row) for name, agreement in judged.items() for row in agreement.rows]
    if not points:
        return
    st.markdown(f"**{plain(claim_sentence([*found.values()]))}**")
    words = "Predicted over measured step of every candidate of every record, and each error in percent"
    clicks: dict[str, Any] = {"on_select": _take_point, "selection_mode": "points"}
    chart(figures.draw_all(points, KINDS), _ALL_KEY, words, **clicks)
    record, _, worst = max(points, key=lambda point: abs(point[2].step_error))
    off = f"{worst.name} in {record}, {format_percent(worst.step_error, sign=True)}"
    st.caption(plain(f"Farthest off: {off}.") + " Click a point to see its record.")


def _take_point() -> None:
    points = st.session_state[_ALL_KEY]["selection"]["points"]
    if points:
        st.session_state[CHOSEN] = points[0]["customdata"][1]


def kind_of(name: str) -> str:
    """The kind of a record: its folder, or where it came from."""
    for prefix in (LIVE, UPLOADED):
        if name.startswith(prefix):
            return prefix.rstrip(": ")
    return name.split("/")[0] if "/" in name else "record"


def _place(name: str) -> tuple[int, str]:
    kinds = [*KINDS]
    return (kinds.index(kind) if (kind := kind_of(name)) in kinds else len(kinds)), name


def _table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table; a click on a row looks at its record."""
    names = [row["record"] for row in rows]
    key = f"records of {hash(tuple(names))}"  # other rows: a selection by number would mean another record

    def take_row() -> None:
        chosen = st.session_state[key]["selection"]["rows"]
        if chosen:
            st.session_state[CHOSEN] = names[chosen[0]]

    clicks: dict[str, Any] = {"key": key, "on_select": take_row, "selection_mode": "single-row"}
    words = "Records: how well each was predicted, and what it tests"
    table(rows, _COLUMN_HELP, pinned="record", alt=words, **clicks)


def _record(source: Source, name: str) -> None:
    """Draw a record.

    Raises:
        SimError: it cannot be scored.
    """
    st.subheader(plain(name))
    with st.spinner("Comparing with the measurement …"):
        record, agreement = judge(source)
    st.caption(plain(f"{record.workload.name} on {record.hardware.name}"))
    verdict(agreement)
    st.markdown(plain(unseen_sentence(record)))
    st.caption(MODE_WORDS[agreement.mode])
    told = "Measured and predicted figures of each candidate"
    table(records(CANDIDATES, agreement.rows), signed=("error, %", "probe, %"), alt=told)
    chart(figures.draw_steps(agreement), "steps", "Measured and predicted step of each candidate")
    st.caption("Fastest at the top. In the order only pairs count whose measured intervals are apart.")
    folded("Where the error comes from", "folded_error", partial(_attribution, record, agreement))
    rows = {row.name: row for row in agreement.rows}
    keep_among("candidate", rows)
    words = "One measured assignment of gradients to buckets."
    row = rows[ask(st.selectbox, "Candidate", "candidate", words, list(rows), width=320)]
    _overlay(row)
    _take_home(record, agreement, row, name)


def _take_home(record: Record, agreement: Agreement, row: CandidateAgreement, name: str) -> None:
    where_from = provenance(Inputs(workload=record.workload, hardware=record.hardware), {})

    def perfetto() -> str:
        return sim.perfetto_json(timeline_of(record, row.name), row, provenance=where_from)

    file, opened = file_safe(name), "The chosen candidate, measured under predicted; for ui.perfetto.dev"
    files: Files = {
        "Agreement JSON": (
            partial(agreement_json, record, agreement, where_from),
            f"{file}.json",
            "All compared",
        ),
        "Perfetto JSON": (perfetto, f"{file}.{file_safe(row.name)}.trace.json", opened),
    }
    downloads(files, where_from)


def timeline_of(record: Record, name: str) -> Timeline:
    """What the model plays for the candidate ``name``: the very step that ``judge`` compares."""
    measured = sim.as_measured(record)
    asked = next(one.asked for one in measured.candidates if one.name == name)
    assert asked is not None
    return sim.simulate(measured.workload, measured.hardware, asked, "analytic")


def agreement_json(record: Record, agreement: Agreement, where_from: dict[str, Any]) -> str:
    """``agreement_document`` as a file, with where it comes from."""
    return json_text({**agreement_document(record, agreement), "provenance": where_from})


def verdict(agreement: Agreement) -> None:
    """The outcome of the stated rule, the rule, and the best."""
    draw, icon = {
        None: (st.info, ":material/info:"),
        True: (st.success, ":material/check_circle:"),
        False: (st.warning, ":material/error:"),
    }[agreement.passed]
    draw(plain(tell_verdict(agreement)), icon=icon)
    st.caption(plain(tell_rule(agreement)))
    if agreement.passed is not None:
        st.markdown(plain(tell_best(agreement)))


@memo(128)
def _attributed(record: Record) -> Mapping[str, Attribution]:
    return sim.attribution(record)


def _attribution(record: Record, agreement: Agreement) -> None:
    """Where each candidate's error comes from."""
    parts = _attributed(record)
    if not parts:
        st.info("The error cannot be attributed: that takes plain and noop runs, and every bucket traced.")
        return
    words = "Error of the end of synchronisation of each candidate, by mechanism"
    chart(figures.draw_attribution(agreement, parts), "attribution", words)
    st.caption(
        "The prediction is turned into the measurement one mechanism at a time; each bar is "
        "what its turn changed, and they add up to the error. Left: predicted too short."
    )


def _overlay(row: CandidateAgreement) -> None:
    """The buckets of one candidate, measured under predicted."""
    if not row.buckets:
        st.info("This candidate was measured without a trace of its buckets.")
        return
    chart(figures.draw_overlay(row), "overlay_chart", "Measured and predicted buckets of one candidate")
    st.caption(
        "A row a bucket, from its start (or its launch, where the backend cannot tell that) to its end: "
        "predicted above, measured (hatched) below, medians of the traced iterations."
    )


def row_of(agreement: Agreement, shown: Played) -> CandidateAgreement | None:
    """The measured candidate that is what the page shows: the same buckets, system and switches.

    And predicted alike, each bucket to the nanosecond: so no what-if, no slowest rank and no other
    micro-batches make the one differ from the other.
    """
    return next((row for row in agreement.rows if _means(row.predicted) == _means(shown.report)), None)


def _means(report: Report) -> tuple[Any, ...]:
    """All of a report that tells one assignment on one machine from another, not how it was computed."""
    kwargs = {k: v for k, v in report.provenance["ddp_kwargs"].items() if k not in CAP_KWARGS}
    return (
        "ddp" if report.policy in DDP_POLICIES else report.policy,
        [sorted(bucket) for bucket in report.bucket_indices],
        kwargs,
        report.buckets,
        report.pre_forward_ns,
        report.backward_end_ns,
        report.post_sync_ns,
        report.accumulation_ns,
        report.optimizer_ns,
        report.rest_ns,
        report.step_ns,
    )


def claim_sentence(scores: Sequence[Agreement]) -> str:
    """All records in one sentence: how many, how far off, how many passed."""
    judged = [score for score in scores if score.passed is not None]
    errors = [abs(row.step_error) for score in judged for row in score.rows]
    traces = len(scores) - len(judged)
    left_out = f" {counted(traces, 'record')} read from traces left out: no verdict." if traces else ""
    passed, of_all = sum(score.passed is True for score in judged), counted(len(judged), "record")
    right, pairs = (sum(getattr(score, name) for score in judged) for name in ("order_right", "order_pairs"))
    return (
        f"{counted(len(errors), 'candidate')} in {of_all}: median step error "
        f"{format_percent(median(errors), 2)}, worst {format_percent(max(errors))}; {right} of {pairs} "
        f"pairs in the right order; {passed} of {of_all} passed the stated rule.{left_out}"
    )


def unseen_sentence(record: Record) -> str:
    """Whether the model can have seen these steps, as far as the files tell.

    A measurement's date is that at which it was written, behind its steps; so an earlier calibration is told
    as one before the files of the steps, not before the steps.
    """
    provenance = record.hardware.provenance
    if any(one.mode == "trace" for one in record.candidates):
        return "The times are the trace's own: this is no prediction of an unseen run."
    if "anchored" in provenance:
        return "The hardware was anchored: one measured step went into it, and is no unseen one."
    nouns: list[Any] = [record.hardware, *record.candidates]
    made, *dates = (_instant(one.provenance.get("date")) for one in nouns)
    known = [date for date in dates if date is not None]
    is_calibrated = provenance.get("source") == "bucketsim calibrate" and len(known) == len(dates)
    if is_calibrated and made and made < min(known, default=made):
        return (
            f"Unseen: the hardware was calibrated from micro-runs at {made:%Y-%m-%d %H:%M} UTC, the first of "
            f"these runs was written at {min(known):%Y-%m-%d %H:%M}; nothing was fitted to them."
        )
    return "The files cannot show that these runs are unseen: they do not tell a calibration before them."


def _instant(date: object) -> datetime | None:
    """A date of a file; None where it is none, or does not say in which time zone."""
    try:
        found = datetime.fromisoformat(date) if isinstance(date, str) else None
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found.astimezone(UTC)
