"""The Validate page: is the prediction true? Measured records, and a job that is running now."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import sources
from app.figures import records as figures
from app.library import LIVE, Library
from app.memo import memo
from app.playing import Inputs, Played
from app.provenance import origin_words, provenance, signed_csv
from app.sources import Source, open_record
from app.views import live
from app.widgets import ask, chart, download, keep_among, table, told
from app.words import HELP, counted, file_safe, plain
from sim.columns import CANDIDATES, records
from sim.errors import SimError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES
from sim.nouns.measurement import Mode, Record
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.telling import tell_best, tell_rule, tell_verdict
from sim.truth.ladder import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.units import format_ms, format_number, format_percent

COPIES_NOTE = "Copies are switched off in the model: this is an ablation, not the prediction."
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
MODES: dict[Mode, str] = {"paced": "paced replay", "model": "real model", "trace": "read from a trace"}
MODE_WORDS: dict[Mode, str] = {
    "paced": "Paced replay: real DistributedDataParallel, collectives and copies on real ranks; backward "
    "itself is replayed, each gradient at the time that the workload recorded. What is tested is "
    "communication, its overlap and its order, not how long layers take to compute.",
    "model": "Real model: the user's own model was trained on real ranks; nothing was replayed.",
    "trace": "Read from a trace: steps of the job itself. They are predicted from their own parts, so they "
    "neither pass nor fail.",
}
LOOKS: dict[str, str] = {
    "steps": "Steps",
    "buckets": "Buckets",
    "parity": "Parity",
    "ends": "Parity of bucket ends",
    "iterations": "Iterations",
    "why": "Where the error comes from",
}
VERDICTS: dict[bool | None, str] = {True: "passed", False: "not passed", None: "no verdict"}
MECHANISM_WORDS: dict[str, str] = {
    "compute_ns": "the compute lane (backward itself)",
    "copy_ns": "copies into and out of buckets",
    "launch_ns": "launches of collectives",
    "communication_ns": "communication",
    "wait_ns": "waiting and what is left",
}
_COLUMN_HELP = {
    "median error, %": "Median over candidates of |predicted - measured| / measured step.",
    "worst, %": "The largest |predicted - measured| / measured step of any candidate.",
    "order": "Pairs of candidates whose measured 95 % intervals are apart and which are predicted in the "
    "right order, of all such pairs.",
    "tests": "Hosts and their rate; slow ranks where there were any.",
    "verdict": "By the rule that each record states. Records read from traces have no verdict.",
    "mode": "How steps came about: paced replays, real models, or read from a trace.",
}
# By column, how the key of its filter ends.
_FILTERS = {"verdict": "passed", "mode": "mode", "backend": "backend", "ranks": "ranks", "workload": "load"}
UPLOADED = "upload: "  # what the name of an uploaded record begins with
CHOSEN = "run"
_ALL_KEY, _FOLLOWED, _SHOWN = "all_records", "record_followed", "show"
_STEP_S = 4.0  # of scoring, before what is there is drawn; a click does not wait for it

Card = dict[str, Any]  # what the files of a record say of it, by column of the table
Cards = Mapping[str, Card | str]  # or why they cannot be read
Scores = Mapping[str, Agreement | str]


def show(library: Library, watch: Path | None) -> None:
    """Draw the page; ``watch`` is the directory that a running job writes to."""
    st.title("Validate")
    if CHOSEN in st.query_params and _SHOWN not in st.query_params and _SHOWN not in st.session_state:
        st.session_state[_SHOWN] = "records"  # the address names one
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
    cards = {name: card(source) for name, source in found.items()}
    scores = {name: made for name in found if (made := score.known(found[name])) is not None}
    st.caption(
        "Every point is one candidate: its step on real ranks, and what the model says of it "
        "from hardware that was calibrated apart. Each record tells below whether the model "
        "can have seen it."
    )
    claim = st.container()
    names = _filtered(cards, scores)
    of_all = counted(len(cards), "record")
    st.caption(of_all if len(names) == len(cards) else f"{len(names)} of {of_all} shown: filtered")
    if names:
        with claim:
            _claim(names, cards, scores)
        # Records that did not pass, or cannot be read or scored, ahead of the others.
        good = (VERDICTS[True], VERDICTS[None], "…")
        worst_first = sorted(names, key=lambda name: _verdict(cards[name], scores.get(name)) in good)
        _records_table(worst_first, cards, scores)
        keep_among(CHOSEN, names)
        words = (
            "A record holds a workload, the hardware calibrated before it, and what real ranks "
            "did with each candidate assignment. Click a row above, or a point, to choose it too."
        )
        name = ask(st.selectbox, "Record", CHOSEN, words, names)
        with told():
            _record(open_record(found[name]), name)
    else:
        st.info("No record is left by these filters.")
    _score_more(found, cards, scores, claim)


@memo(512)
def card(source: Source) -> Card | str:
    """What the files of a record say of it, or why they cannot be read."""
    try:
        return card_of(open_record(source))
    except SimError as error:
        return str(error)


@memo(128)
def judge(record: Record, copies: bool = True) -> Agreement:
    """A record against today's model.

    Raises:
        SimError: as ``sim.agreement``.
    """
    return sim.agreement(record, copies)


@memo(1024)
def score(source: Source) -> Agreement | str:
    """Score one record, which takes longest of all here, or say why that cannot be."""
    try:  # without where its errors come from: all that a score needs, in a fifth of the time
        return sim.agreement(open_record(source), attributed=False)
    except SimError as error:
        return str(error)


def _uploaded() -> dict[str, Record]:
    """Draw the upload; the record in it by its name, where it holds one."""
    words = (
        "workload.json, hardware.json and every measurement-*.json of a directory that "
        "`bucketsim validate` wrote. Uploads are not in the URL."
    )
    with st.expander("Score a record of your own", icon=":material/upload_file:"):
        files = sources.kept_files("All files of one record", "up_record", words, accept_multiple_files=True)
        if not files:
            return {}
        outcome = sources.read_files(files)
        if isinstance(outcome, str):
            st.error(plain(outcome), icon=":material/error:")
            return {}
        found = outcome.record
        if found is None:
            st.info(
                "These files hold no measured record. It takes a workload, a hardware and the "
                "measurement-*.json that `bucketsim validate` wrote beside them, or a trace of a job."
            )
            return {}
        name = f"{UPLOADED}{found.name}"
        if st.session_state.get("looked_at_upload") != found:  # a new one is looked at first
            st.session_state["looked_at_upload"], st.session_state[CHOSEN] = found, name
        return {name: found}


def _claim(names: Sequence[str], cards: Cards, scores: Scores) -> None:
    """All records on one picture, with its sentence; not before all are scored, as totals would change."""
    left = sum(name not in scores and isinstance(cards[name], dict) for name in names)
    if left:
        done = f"{len(names) - left} of {len(names)}"
        st.caption(f"{done} records are scored; the totals are told when all are.")
        return
    found = {name: score for name in names if isinstance(score := scores.get(name), Agreement)}
    points = [
        point
        for name, score in found.items()
        for point in figures.step_points(score, record=name, kind=kind_of(name))
        if score.passed is not None
    ]
    if not points:
        return
    st.markdown(f"**{plain(claim_sentence([*found.values()]))}**")
    words = "Predicted over measured step of every candidate of every record, and each error in percent"
    clicks: dict[str, Any] = {"on_select": _take_point, "selection_mode": "points"}
    chart(figures.draw_all(points, KINDS), _ALL_KEY, words, **clicks)
    worst = max(points, key=lambda point: abs(point.error))
    off = f"{worst.name} in {worst.record}, {format_percent(worst.error, sign=True)}"
    st.caption(plain(f"Farthest off: {off}.") + " Click a point to see its record.")


def _take_point() -> None:
    points = st.session_state[_ALL_KEY]["selection"]["points"]
    if points:
        st.session_state[CHOSEN] = points[0]["customdata"][1]


def _score_more(found: Mapping[str, Source], cards: Cards, scores: Scores, place: DeltaGenerator) -> None:
    """Score some of the records that are not scored yet, small ones first; then draw the page again."""
    left = {
        name: card["candidates"]
        for name, card in cards.items()
        if isinstance(card, dict) and name not in scores
    }
    if not left:
        return
    bar, begun, count = place.progress(0.0), time.monotonic(), len(scores) + len(left)
    for done, name in enumerate(sorted(left, key=left.__getitem__), start=len(scores)):
        bar.progress(done / count, f"Scored {done} of {count} records …")
        score(found[name])
        if time.monotonic() - begun > _STEP_S:
            break
    st.rerun()


def kind_of(name: str) -> str:
    """The kind of a record: its folder, or where it came from."""
    for prefix in (LIVE, UPLOADED):
        if name.startswith(prefix):
            return prefix.rstrip(": ")
    return name.split("/")[0] if "/" in name else "record"


def card_of(record: Record) -> Card:
    """What the files of a record say of it; ``date`` is ISO's day, "" where not told."""
    first = record.candidates[0] if record.candidates else record.measurements[0]
    place = _text(first.environment.get("place")) or record.hardware.name
    # Where it ran, and what there was beside plain ranks in the box of the calibration.
    slow = [(f"rank {rank}", factor) for rank, factor in record.slow]
    tests = [place, *(f"{rank} x {format_number(by, 6)}" for rank, by in slow if rank not in place)]
    if None not in (record.box, record.calibrated_in) and record.box != record.calibrated_in:
        tests.append(f"from hardware of {_text(record.hardware.provenance.get('place')) or 'another box'}")
    return {
        "tests": "; ".join(tests),
        "workload": record.workload.name,
        "ranks": first.world_size,
        "backend": first.backend,
        "mode": MODES[first.mode],
        "candidates": len(record.candidates),
        "date": _text(first.provenance.get("date"))[:10],
        "torch": _text(first.environment.get("torch")),
    }


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""


def _filtered(cards: Cards, scores: Scores) -> list[str]:
    """Draw the filters; the names of the records that they leave, in order."""
    words = "Shows records with all of these words in name, workload or what was tested."
    read = [card for card in cards.values() if isinstance(card, dict)]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        look = {"placeholder": "name, workload, rate", "icon": ":material/search:", "width": 320}
        text = ask(st.text_input, "Find records", "text", words, **look) or ""
        with st.popover("Filters", icon=":material/filter_list:"):
            picked = {
                column: ask(
                    st.multiselect,
                    column.capitalize(),
                    f"has_{key}",
                    _COLUMN_HELP.get(column),
                    [*VERDICTS.values()]
                    if column == "verdict"
                    else [str(value) for value in sorted({card[column] for card in read})],
                    placeholder="any",
                )
                for column, key in _FILTERS.items()
            }
    kinds = [*KINDS]
    order = {
        name: (kinds.index(kind) if (kind := kind_of(name)) in kinds else len(kinds), name) for name in cards
    }
    return [
        name
        for name in sorted(cards, key=order.__getitem__)
        if _has(name, cards[name], text) and _fits(cards[name], scores.get(name), picked)
    ]


def _has(name: str, card: Card | str, text: str) -> bool:
    own = [name] if isinstance(card, str) else [name, card["workload"], card["tests"]]
    return all(word in " ".join(own).lower() for word in text.lower().split())


def _fits(card: Card | str, score: Agreement | str | None, picked: Mapping[str, list[str]]) -> bool:
    """Whether every filter that is set lets a record through; one that is broken passes none."""
    if isinstance(card, str):
        return not any(picked.values())
    has = card | {"verdict": VERDICTS[score.passed] if isinstance(score, Agreement) else ""}
    return all(not wanted or str(has[column]) in wanted for column, wanted in picked.items())


def _records_table(names: Sequence[str], cards: Cards, scores: Scores) -> None:
    """The table; a click on a row looks at its record."""
    key = f"records of {hash(tuple(names))}"  # other rows: a selection by number would mean another record

    def take_row() -> None:
        rows = st.session_state[key]["selection"]["rows"]
        if rows:
            st.session_state[CHOSEN] = names[rows[0]]

    column = st.column_config.TextColumn
    columns = {
        "order": column(help=_COLUMN_HELP["order"], width=100),
        "tests": column(help=_COLUMN_HELP["tests"], width="medium"),
    }
    clicks: dict[str, Any] = {"key": key, "on_select": take_row, "selection_mode": "single-row"}
    words = "Records: how well each was predicted, and what it tests"
    rows = table_rows(names, cards, scores)
    table(rows, _COLUMN_HELP, pinned="record", columns=columns, alt=words, **clicks)


def table_rows(names: Sequence[str], cards: Cards, scores: Scores) -> list[dict[str, Any]]:
    """A row a record; figures are None until it is scored, and where it cannot be."""
    rows = []
    for name in names:
        card, score = cards[name], scores.get(name)
        row: dict[str, Any] = {"record": name, "verdict": _verdict(card, score)}
        row |= dict.fromkeys(("median error, %", "worst, %", "order", "tests"))
        if isinstance(score, Agreement):
            row["median error, %"] = score.median_step_error * 100
            row["worst, %"] = score.worst_step_error * 100
            row["order"] = f"{score.order_right} of {score.order_pairs}"
        row |= card if isinstance(card, dict) else {}
        why_not = [one for one in (card, score) if isinstance(one, str)]
        rows.append(row | ({"tests": why_not[0]} if why_not else {}))
    return rows


def _verdict(card: Card | str, score: Agreement | str | None) -> str:
    if isinstance(card, str):
        return "cannot be read"
    if isinstance(score, str):
        return "cannot be scored"
    return "…" if score is None else VERDICTS[score.passed]


def _record(record: Record, name: str) -> None:
    """Draw a record.

    Raises:
        SimError: it cannot be scored.
    """
    st.subheader(plain(name))
    if record.candidates:
        st.caption(plain(f"{record.workload.name} on {record.hardware.name}"))
    copies = ask_copies()
    with st.spinner("Comparing with the measurement …"):
        agreement = judge(record, copies)
    if not copies:
        st.warning(COPIES_NOTE)
    verdict(agreement)
    st.markdown(plain(unseen_sentence(record)))
    st.caption(MODE_WORDS[agreement.mode])
    candidates(agreement)
    words = "Which picture of this record to draw."
    named = {"default": "steps", "required": True, "format_func": LOOKS.__getitem__}
    look = ask(st.segmented_control, "Look at", "look", words, list(LOOKS), **named) or "steps"
    if look != "buckets":
        _picture(look, record, agreement)
    rows = {row.name: row for row in agreement.rows}
    keep_among("candidate", rows)
    words = "One measured assignment of gradients to buckets."
    row = rows[ask(st.selectbox, "Candidate", "candidate", words, list(rows), width=320)]
    if look == "buckets":
        overlay(row)  # of the others all are shown: it chooses what is taken home
    _take_home(record, agreement, row, name, copies)
    with st.expander("Where it comes from"):
        for line in origin_lines(record):
            st.markdown(f"- {plain(line)}")


def _picture(look: str, record: Record, agreement: Agreement) -> None:
    if look == "steps":
        steps(agreement)
        st.caption(
            f"Fastest at the top. {plain(order_sentence(agreement))} A pair counts only where the measured "
            f"95 % intervals are apart: of the others the measurement itself cannot tell which is faster."
        )
    elif look == "why":
        attribution(agreement)
    elif look == "parity":
        figure = figures.draw_parity(figures.step_points(agreement), sim.error_limit(record), "step")
        chart(figure, "parity", "Predicted step over measured step of each candidate")
        st.caption(
            "On the line: predicted exactly. Above it: predicted too long. Bars: 95 % interval "
            "of the measured median."
        )
    elif look == "iterations":
        figure = figures.draw_strips(record, agreement)
        chart(figure, "iterations", "Every measured iteration of each candidate, and its prediction")
        st.caption(
            "A row a candidate; within it, iterations from top to bottom in the order in which "
            "they ran: a slope is drift, a point far off an outlier. Long orange bar: median; "
            "blue: prediction. Iterations with the recording hook see buckets and pay for it; "
            "they are not in the median."
        )
    elif ends := figures.end_points(agreement):
        figure = figures.draw_parity(ends, None, "bucket end")
        chart(figure, "ends", "Predicted over measured end of each bucket of each candidate")
        st.caption(
            "The end of every bucket's collective, from the start of backward, of all "
            "candidates. A colour is a bucket's number. Only iterations with the recording hook "
            "see buckets."
        )
    else:
        st.info("No end of a bucket can be told: nothing was traced.")


def _take_home(
    record: Record, agreement: Agreement, row: CandidateAgreement, name: str, copies: bool
) -> None:
    where_from = provenance(Inputs(workload=record.workload, hardware=record.hardware), {})
    if not copies:
        where_from["copies"] = "not modelled"
    file, opened = (
        file_safe(name),
        "The chosen candidate, measured under predicted; open it in ui.perfetto.dev",
    )
    buttons: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        ("Agreement JSON", partial(agreement_json, agreement, where_from), "json", "Everything compared"),
        ("Rows CSV", partial(rows_csv, agreement, where_from), "csv", "The table, times in ns"),
        (
            "Perfetto JSON",
            lambda: sim.perfetto_json(timeline_of(record, row.name, copies), row, provenance=where_from),
            f"{file_safe(row.name)}.trace.json",
            opened,
        ),
    )
    with st.container(horizontal=True):
        for label, make, ending, words in buttons:
            download(label, make, f"{file}.{ending}", words)
    st.caption(plain(origin_words(where_from)))


def timeline_of(record: Record, name: str, copies: bool) -> Timeline:
    """What the model plays for the candidate ``name``: the very step that ``judge`` compares."""
    measured = sim.as_measured(record)
    hardware = measured.hardware
    if not copies:
        hardware = replace(hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
    asked = next(one.asked for one in measured.candidates if one.name == name)
    assert asked is not None
    return sim.simulate(measured.workload, hardware, asked, "analytic")


def agreement_json(agreement: Agreement, where_from: Mapping[str, Any]) -> str:
    """Everything that was compared, with each candidate's predicted report, as JSON; times in ns."""
    document = {**asdict(agreement), "provenance": dict(where_from)}
    return json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def rows_csv(agreement: Agreement, where_from: Mapping[str, Any]) -> str:
    """A row a candidate; times in ns, errors as shares, the digests of the inputs in each row."""
    measured = ("name", "iterations", "measured_step_ns", "step_low_ns", "step_high_ns")
    step = ("predicted_step_ns", "step_error", "measured_exposed_ns", "predicted_exposed_ns")
    ends = ("exposed_error", "measured_backward_end_ns", "measured_sync_end_ns")
    columns = (*measured, *step, *ends, "median_bucket_end_error", "probe_effect")
    rows = ({name: getattr(row, name) for name in columns} for row in agreement.rows)
    return signed_csv([{"record": agreement.name, **row} for row in rows], where_from)


def ask_copies() -> bool:
    """The ablation: whether the model has the copies into and out of buckets."""
    label = "Model the copies into and out of buckets"
    return bool(ask(st.toggle, label, "copies", HELP["copies"], value=True))


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


def candidates(agreement: Agreement) -> None:
    """A row a candidate."""
    told = "Measured and predicted figures of each candidate"
    table(records(CANDIDATES, agreement.rows), signed=("error, %", "probe, %"), alt=told)


def steps(agreement: Agreement) -> None:
    """All candidates: measured with its interval, and predicted."""
    chart(figures.draw_steps(agreement), "steps", "Measured and predicted step of each candidate")


def attribution(agreement: Agreement) -> None:
    """Where each candidate's error comes from, with a sentence for the largest."""
    rows = figures.attribution_data(agreement)
    if not rows:
        st.info("The error cannot be attributed: that takes plain and noop runs, and every bucket traced.")
        return
    st.markdown(plain(mechanism_sentence(rows)))
    words = "Error of the end of synchronisation of each candidate, by mechanism"
    chart(figures.draw_attribution(rows), "attribution", words)
    st.caption(
        "The prediction is turned into the measurement one mechanism at a time; each bar is "
        "what its turn changed, and they add up to the error. Left: predicted too short."
    )


def overlay(row: CandidateAgreement) -> None:
    """The buckets of one candidate, measured under predicted."""
    if not row.buckets:
        st.info("This candidate was measured without a trace of its buckets.")
        return
    chart(figures.draw_overlay(row), "overlay_chart", "Measured and predicted buckets of one candidate")
    since = sorted({pair.since for pair in figures.overlay_data(row)})
    why = "" if since == ["start"] else " (this backend cannot tell when a collective starts)"
    st.caption(
        f"A row a bucket, from its {' or '.join(since)}{why} to its end: predicted above, measured (hatched) "
        "below, medians of the traced iterations. Hover for the error of a bucket's end."
    )


def row_of(agreement: Agreement, shown: Played) -> CandidateAgreement | None:
    """The measured candidate that is what the page shows: the same buckets, system and switches.

    And predicted alike, each bucket to the nanosecond: so no what-if, no slowest rank and no other
    micro-batches make the one differ from the other. ``agreement`` is one with copies in the model.
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
        report.step_ns,
    )


def claim_sentence(scores: Sequence[Agreement]) -> str:
    """All records in one sentence: how many, how far off, how many passed."""
    judged = [score for score in scores if score.passed is not None]
    errors = [abs(row.step_error) for score in judged for row in score.rows]
    traces = len(scores) - len(judged)
    left_out = f" {counted(traces, 'record')} read from traces left out: no verdict." if traces else ""
    if not errors:
        return f"No steps to judge.{left_out}"
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
    if any(one.mode == "trace" for one in record.candidates):
        return (
            "Forward, backward and ready times are the trace's own: this is no prediction of an unseen run."
        )
    provenance = record.hardware.provenance
    if "anchored" in provenance:
        return (
            "The hardware was anchored: one measured step went into it. Where that step is among the rows "
            "below, it has been seen; the others have not."
        )
    made = _instant(provenance.get("date"))
    dates = [_instant(one.provenance.get("date")) for one in record.candidates]
    known = [date for date in dates if date is not None]
    if provenance.get("source") != "bucketsim calibrate" or made is None or len(known) < len(dates):
        return (
            "The files do not say how and when the hardware came about and these runs were made, so they "
            "cannot show that these runs are unseen."
        )
    first = min(known, default=made)
    if made >= first:
        which = "these runs were" if made >= max(known, default=made) else "some of these runs were"
        return (
            f"The hardware was calibrated after {which} written ({_minute(made)}; the first is of "
            f"{_minute(first)}), so the files cannot show that they are unseen."
        )
    return (
        f"Unseen: the hardware was calibrated from micro-runs at {_minute(made)}, before the first of these "
        f"measurements was written ({_minute(first)}); no number in the model was fitted to them."
    )


def _instant(date: object) -> datetime | None:
    """A date of a file; None where it is none, or does not say in which time zone."""
    try:
        found = datetime.fromisoformat(date) if isinstance(date, str) else None
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found.astimezone(UTC)


def _minute(date: datetime) -> str:
    return f"{date:%Y-%m-%d %H:%M} UTC"


def wrong_pairs(agreement: Agreement) -> list[tuple[str, str]]:
    """Candidates that measurement tells apart and the prediction does not so, the faster one first."""
    return [
        (fast.name, slow.name)
        for fast, slow in combinations(figures.fastest_first(agreement), 2)
        if fast.step_high_ns < slow.step_low_ns and fast.predicted_step_ns >= slow.predicted_step_ns
    ]


def order_sentence(agreement: Agreement) -> str:
    """What the order of all pairs came to, with the pairs that are wrong by name."""
    within = agreement.order_within_noise
    noise = f"; {counted(within, 'pair')} within noise" if within else ""
    if not agreement.order_pairs:
        return f"No pair of candidates can be told apart by measurement{noise}."
    words = f"{agreement.order_right} of {counted(agreement.order_pairs, 'pair')} in the right order{noise}."
    if wrong := wrong_pairs(agreement):
        named = "; ".join(f"{fast} was faster than {slow}" for fast, slow in wrong[:3])
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        words += f" Not in the predicted order: {named}{more}."
    return words


def mechanism_sentence(rows: Sequence[tuple[str, Attribution]]) -> str:
    """The mechanism that the largest error comes from, and the largest over all candidates."""
    name, parts = max(rows, key=lambda row: abs(row[1].total_ns))
    largest = max(MECHANISM_WORDS, key=lambda part: abs(getattr(parts, part)))
    known = f"Of {len(rows)} candidates whose buckets were seen the" if len(rows) > 1 else "The"
    most = f"{MECHANISM_WORDS[largest]}, {_signed(getattr(parts, largest))}"
    words = f"{known} largest error is {name}'s, {_signed(parts.total_ns)}; most of it is {most}."
    if len(rows) > 1:
        typical = {part: median(abs(getattr(one, part)) for _, one in rows) for part in MECHANISM_WORDS}
        overall = max(typical, key=typical.__getitem__)
        by_median = format_ms(round(typical[overall]))
        words += f" Over all of them it is {MECHANISM_WORDS[overall]}, {by_median} by median."
    return words


def _signed(ns: int) -> str:
    return f"{format_ms(abs(ns))} too {'short' if ns < 0 else 'long'}"


def origin_lines(record: Record) -> list[str]:
    """Where a record comes from: machine, versions and dates, as far as its files tell."""
    first = record.candidates[0] if record.candidates else record.measurements[0]
    names = ("source", "date", "place", "cpu", "gpu", "device", "platform", "python", "torch", "nccl", "cuda")
    lines = []
    for what, name, said in (
        ("workload", record.workload.name, record.workload.provenance),
        ("hardware", record.hardware.name, record.hardware.provenance),
        ("measured", f"{first.backend}, {first.world_size} ranks", {**first.environment, **first.provenance}),
    ):
        found = [f"{key} {said[key]}" for key in names if isinstance(said.get(key), (str, int))]
        lines.append(" · ".join([f"{what}: {name}", *found]))
    return lines
