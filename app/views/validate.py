"""The Validate page: is the prediction true? Measured records, and a job that is running now."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import sim
from app import sources
from app.figures.records import (
    attribution_data,
    draw_all,
    draw_attribution,
    draw_overlay,
    draw_parity,
    draw_steps,
    draw_strips,
    end_points,
    overlay_data,
    step_points,
)
from app.library import LIVE, Library
from app.memo import memo
from app.playing import Inputs, Played
from app.provenance import origin_words, provenance, signed_csv
from app.sources import Source, open_record
from app.views import live
from app.widgets import chart, download, told
from app.words import counted, file_safe, interval_words, plain
from sim.errors import SimError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES
from sim.nouns.measurement import Mode, Record
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.truth.attribution import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement, Regret
from sim.units import format_ms, format_number, format_percent

COPIES_NOTE = "Copies are switched off in the model: this is an ablation, not the prediction."
KINDS: dict[str, str] = {
    "measured": "caps on even machines",
    "families": "what each knob reaches",
    "contention": "slow ranks and ports",
    "systems": "switches and other systems",
    "claims": "small and large models",
    "training": "real models, trained",
    "gpu": "one GPU, an emulated wire",
    "live": "your directory",
    "upload": "uploaded",
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
UPLOADED = "upload: "  # what the name of an uploaded record begins with


Card = dict[str, Any]  # what the files of a record say of it, by column of the table
Cards = Mapping[str, Card | str]  # or why they cannot be read
Scores = Mapping[str, Agreement | str]
CHOSEN = "run"


_ALL_KEY, _FOLLOWED, _SHOWN = "all_records", "record_followed", "show"
_STEP_S = 4.0  # of scoring, before what is there is drawn; a click does not wait for it


_COLUMNS = (
    "name",
    "iterations",
    "measured_step_ns",
    "step_low_ns",
    "step_high_ns",
    "predicted_step_ns",
    "step_error",
    "measured_exposed_ns",
    "predicted_exposed_ns",
    "exposed_error",
    "measured_backward_end_ns",
    "measured_sync_end_ns",
    "median_bucket_end_error",
    "probe_effect",
)


def show(library: Library, watch: Path | None) -> None:
    """Draw the page; ``watch`` is the directory that a running job writes to."""
    st.title("Validate")
    if CHOSEN in st.query_params and _SHOWN not in st.query_params and _SHOWN not in st.session_state:
        st.session_state[_SHOWN] = "records"  # the address names one
    what = st.segmented_control(
        "Show",
        ["records", "live"],
        default="live" if live.is_first(watch, library) else "records",
        required=True,
        format_func=str.capitalize,
        key=_SHOWN,
        bind="query-params",
        help="Records: runs that are finished, against the model. Live: a job that writes into "
        "the directory given to `bucketsim dash --watch DIR`.",
        label_visibility="collapsed",
    )
    if what == "live":
        if watch is None:
            st.info(
                "No directory is watched. `bucketsim dash --watch DIR` shows what a running job "
                'writes into `DIR`: put `with sim.record(ddp_model, "DIR"):` around your training '
                "loop, or let `bucketsim validate` write its record there."
            )
        else:
            live.show(watch, library)
    else:
        _records(library)


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
        worst_first = sorted(names, key=lambda name: _verdict(cards[name], scores.get(name)) in _GOOD)
        _records_table(worst_first, cards, scores)
        name = _chosen(names)
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
    """Draw the upload; the record in it by its name, where it holds one. A new one is looked at first."""
    with st.expander("Score a record of your own", icon=":material/upload_file:"):
        files = sources.kept_files(
            "All files of one record",
            "up_record",
            "workload.json, hardware.json and every measurement-*.json of a directory that "
            "`bucketsim validate` wrote. Uploads are not in the URL.",
            accept_multiple_files=True,
        )
        if not files:
            return {}
        outcome = sources.read_files(files)
        if outcome.uploaded is None:
            st.error(plain(outcome.error), icon=":material/error:")
            return {}
        found = outcome.uploaded.record
        if found is None:
            st.info(
                "These files hold no measured record. It takes a workload, a hardware and the "
                "measurement-*.json that `bucketsim validate` wrote beside them, or a trace of a job."
            )
            return {}
        name = f"{UPLOADED}{found.name}"
        is_new = st.session_state.get("looked_at_upload") is not found
        if is_new:
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
    judged = {name: score for name, score in found.items() if score.passed is not None}
    points = [
        point
        for name, score in judged.items()
        for point in step_points(score, record=name, kind=kind_of(name))
    ]
    if not points:
        return
    st.markdown(f"**{plain(claim_sentence([*found.values()]))}**")
    chart(
        draw_all(points, KINDS),
        _ALL_KEY,
        "Predicted over measured step of every candidate of every record, and each error in percent",
        on_select=_take_point,
        selection_mode="points",
    )
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
    bar = place.progress(0.0)
    begun = time.monotonic()
    for done, name in enumerate(sorted(left, key=left.__getitem__), start=len(scores)):
        bar.progress(
            done / (len(scores) + len(left)), f"Scored {done} of {len(scores) + len(left)} records …"
        )
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


_GOOD = (VERDICTS[True], VERDICTS[None], "…")


def _filtered(cards: Cards, scores: Scores) -> list[str]:
    """Draw the filters; the names of the records that they leave, in order."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Find records",
            key="text",
            bind="query-params",
            placeholder="name, workload, rate",
            icon=":material/search:",
            help="Shows records with all of these words in name, workload or what was tested.",
            width=320,
        )
        with st.popover("Filters", icon=":material/filter_list:"):
            picked = _pickers(cards)
    kinds = [*dict.fromkeys(["live", "upload", *KINDS])]
    order = {
        name: (kinds.index(kind) if (kind := kind_of(name)) in kinds else len(kinds), name) for name in cards
    }
    names = [name for name in sorted(cards, key=order.__getitem__) if _has(name, cards[name], text or "")]
    return [name for name in names if _fits(cards[name], scores.get(name), picked)]


def _pickers(cards: Cards) -> dict[str, list[str]]:
    """By column, what is asked for of it; one that is not asked about holds nothing."""
    read = [card for card in cards.values() if isinstance(card, dict)]
    columns = {
        "verdict": "passed",
        "mode": "mode",
        "backend": "backend",
        "ranks": "ranks",
        "workload": "load",
    }
    return {
        column: st.multiselect(
            column.capitalize(),
            list(VERDICTS.values())
            if column == "verdict"
            else [str(value) for value in sorted({card[column] for card in read})],
            key=f"has_{key}",
            bind="query-params",
            placeholder="any",
            help=_COLUMN_HELP.get(column) if column in ("verdict", "mode") else None,
        )
        for column, key in columns.items()
    }


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

    st.dataframe(
        table_rows(names, cards, scores),
        hide_index=True,
        key=key,
        on_select=take_row,
        selection_mode="single-row",
        column_config={
            "record": st.column_config.TextColumn(pinned=True),
            "order": st.column_config.TextColumn(help=_COLUMN_HELP["order"], width=100),
            "tests": st.column_config.TextColumn(help=_COLUMN_HELP["tests"], width="medium"),
            **{
                name: st.column_config.NumberColumn(format="%.2f", help=_COLUMN_HELP[name])
                for name in ("median error, %", "worst, %")
            },
            **{name: st.column_config.TextColumn(help=_COLUMN_HELP[name]) for name in ("verdict", "mode")},
        },
        alt="Records: how well each was predicted, and what it tests",
    )


def table_rows(names: Sequence[str], cards: Cards, scores: Scores) -> list[dict[str, Any]]:
    """A row a record; figures are None until it is scored, and where it cannot be."""
    rows = []
    for name in names:
        card, score = cards[name], scores.get(name)
        row: dict[str, Any] = {"record": name, "verdict": _verdict(card, score)}
        row |= dict.fromkeys(("median error, %", "worst, %", "order", "tests"))
        if isinstance(score, Agreement):
            row["median error, %"], row["worst, %"] = (
                score.median_step_error * 100,
                score.worst_step_error * 100,
            )
            row["order"] = f"{score.order_right} of {score.order_pairs}"
        row |= card if isinstance(card, dict) else {}
        rows += [row | {"tests": one} for one in (card, score) if isinstance(one, str)][:1] or [row]
    return rows


def _verdict(card: Card | str, score: Agreement | str | None) -> str:
    if isinstance(card, str):
        return "cannot be read"
    if isinstance(score, str):
        return "cannot be scored"
    return "…" if score is None else VERDICTS[score.passed]


def _chosen(names: Sequence[str]) -> str:
    """Draw the choice of one record; its name."""
    if st.session_state.get(CHOSEN) not in (None, *names):
        del st.session_state[CHOSEN]  # filtered away
    return st.selectbox(
        "Record",
        names,
        key=CHOSEN,
        bind="query-params",
        help="A record holds a workload, the hardware calibrated before it, and what real ranks "
        "did with each candidate assignment. Click a row above, or a point, to choose it too.",
    )


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
        st.warning("Copies are switched off in the model: this is an ablation, not the prediction.")
    verdict(agreement)
    st.markdown(plain(unseen_sentence(record)))
    st.caption(MODE_WORDS[agreement.mode])
    table(agreement)
    look = st.segmented_control(
        "Look at",
        list(LOOKS),
        default="steps",
        required=True,
        format_func=LOOKS.__getitem__,
        key="look",
        bind="query-params",
        help="Which picture of this record to draw.",
    )
    if look == "buckets":
        row = _candidate(agreement)
        overlay(row)
    else:
        _picture(look or "steps", record, agreement)
        row = _candidate(agreement)  # all of them are shown: it chooses what is taken home
    _take_home(record, agreement, row, name, copies)
    with st.expander("Where it comes from"):
        for line in origin_lines(record):
            st.markdown(f"- {plain(line)}")


def _candidate(agreement: Agreement) -> CandidateAgreement:
    names = [row.name for row in agreement.rows]
    if st.session_state.get("candidate") not in (None, *names):
        del st.session_state["candidate"]  # another record's
    name = st.selectbox(
        "Candidate",
        names,
        key="candidate",
        bind="query-params",
        help="One measured assignment of gradients to buckets.",
        width=320,
    )
    return next(row for row in agreement.rows if row.name == name)


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
        figure = draw_parity(step_points(agreement), sim.error_limit(record), "step")
        chart(figure, "parity", "Predicted step over measured step of each candidate")
        st.caption(
            "On the line: predicted exactly. Above it: predicted too long. Bars: 95 % interval "
            "of the measured median."
        )
    elif look == "iterations":
        figure = draw_strips(record, agreement)
        chart(figure, "iterations", "Every measured iteration of each candidate, and its prediction")
        st.caption(
            "A row a candidate; within it, iterations from top to bottom in the order in which "
            "they ran: a slope is drift, a point far off an outlier. Long orange bar: median; "
            "blue: prediction. Iterations with the recording hook see buckets and pay for it; "
            "they are not in the median."
        )
    elif ends := end_points(agreement):
        figure = draw_parity(ends, None, "bucket end")
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
    file = file_safe(name)

    def perfetto() -> str:
        timeline = _timeline_of(record, row.name, copies)
        return sim.perfetto_json(timeline, row, provenance=where_from)

    buttons: tuple[tuple[str, Callable[[], str], str, str], ...] = (
        ("Agreement JSON", lambda: agreement_json(agreement, where_from), "json", "Everything compared"),
        ("Rows CSV", lambda: rows_csv(agreement, where_from), "csv", "The table, times in ns"),
        (
            "Perfetto JSON",
            perfetto,
            f"{file_safe(row.name)}.trace.json",
            "The chosen candidate, measured under predicted; open it in ui.perfetto.dev",
        ),
    )
    with st.container(horizontal=True):
        for label, make, ending, told in buttons:
            download(label, make, f"{file}.{ending}", told)
    st.caption(plain(origin_words(where_from)))


def _timeline_of(record: Record, name: str, copies: bool) -> Timeline:
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
    figures = ({name: getattr(row, name) for name in _COLUMNS} for row in agreement.rows)
    return signed_csv([{"record": agreement.name, **row} for row in figures], where_from)


def ask_copies() -> bool:
    """The ablation: whether the model has the copies into and out of buckets."""
    return st.toggle(
        "Model the copies into and out of buckets",
        value=True,
        key="copies",
        bind="query-params",
        help="Off: predict as if copying gradients into and out of buckets were free, to see its effect.",
    )


def verdict(agreement: Agreement) -> None:
    """The outcome of the stated rule, the rule, the best, and the targets."""
    outcome = plain(verdict_words(agreement))
    if agreement.passed is None:
        st.info(outcome, icon=":material/info:")
    elif agreement.passed:
        st.success(outcome, icon=":material/check_circle:")
    else:
        st.warning(outcome, icon=":material/error:")
    st.caption(plain(rule_words(agreement)))
    if agreement.passed is None:
        return
    best = best_words(agreement)
    st.markdown(plain(best if agreement.regret is None else f"{best} {regret_words(agreement.regret)}"))
    targets = targets_sentence(agreement)
    if targets is not None:
        st.caption(plain(targets))


def regret_words(regret: Regret) -> str:
    """What the candidate ``recommended`` lost against the best measured, in one sentence."""
    if not regret.regret_ns:
        return 'The candidate "recommended" was the fastest.'
    shown = f"over {regret.paired_rounds} rounds, too few for an interval"
    if regret.has_interval:
        shown = f"95 % interval {interval_words(regret.low_ns, regret.high_ns, told=True)} ms"
    return (
        f'The candidate "recommended" was {regret.regret_ns / 1e6:.2f} ms '
        f"({format_percent(regret.relative, 2)}) "
        f"behind {regret.best}, {shown}{': within noise' if regret.within_noise else ''}."
    )


def table(agreement: Agreement) -> None:
    """A row a candidate."""
    rows = [
        {
            "candidate": row.name,
            "buckets": len(row.bucket_indices),
            "measured, ms": row.measured_step_ns / 1e6,
            "95 % interval": interval_words(row.step_low_ns, row.step_high_ns, told=row.has_interval),
            "predicted, ms": row.predicted_step_ns / 1e6,
            "error, %": row.step_error * 100,
            "exposed measured, ms": row.measured_exposed_ns / 1e6,
            "exposed predicted, ms": row.predicted_exposed_ns / 1e6,
            "bucket ends, %": None
            if row.median_bucket_end_error is None
            else row.median_bucket_end_error * 100,
            "iterations": row.iterations,
        }
        for row in agreement.rows
    ]
    two = st.column_config.NumberColumn(format="%.2f")
    signed = st.column_config.NumberColumn(format="%+.2f")
    times = [name for name in rows[0] if name.endswith(" ms") and "interval" not in name]
    st.dataframe(
        rows,
        hide_index=True,
        column_config={**dict.fromkeys(times, two), "error, %": signed, "bucket ends, %": two},
        alt="Measured and predicted figures of each candidate",
    )


def steps(agreement: Agreement) -> None:
    """All candidates: measured with its interval, and predicted."""
    chart(draw_steps(agreement), "steps", "Measured and predicted step of each candidate")


def attribution(agreement: Agreement) -> None:
    """Where each candidate's error comes from, with a sentence for the largest."""
    rows = attribution_data(agreement)
    sentence = mechanism_sentence(rows)
    if sentence is None:
        st.info("The error cannot be attributed: that takes plain and noop runs, and every bucket traced.")
        return
    st.markdown(plain(sentence))
    chart(
        draw_attribution(rows),
        "attribution",
        "Error of the end of synchronisation of each candidate, by mechanism",
    )
    st.caption(
        "The prediction is turned into the measurement one mechanism at a time; each bar is "
        "what its turn changed, and they add up to the error. Left: predicted too short."
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


def overlay(row: CandidateAgreement) -> None:
    """The buckets of one candidate, measured under predicted."""
    if not row.buckets:
        st.info("This candidate was measured without a trace of its buckets.")
        return
    chart(draw_overlay(row), "overlay_chart", "Measured and predicted buckets of one candidate")
    st.caption(overlay_caption({pair.since for pair in overlay_data(row)}))


def verdict_words(agreement: Agreement) -> str:
    """The pass rule's outcome in one line; of a trace, which neither passes nor fails, what was tested."""
    if agreement.passed is None:
        return f"{_ends_words(agreement)}; {_exposed_words(agreement)}."
    wrong = agreement.order_pairs - agreement.order_right
    order = f"{agreement.order_right} of {agreement.order_pairs} pairs in the right order"
    noise = f", {agreement.order_within_noise} within noise" if agreement.order_within_noise else ""
    why = f"{counted(wrong, 'pair')} not in the predicted order; " if wrong else ""
    return (
        f"{'Passed' if agreement.passed else 'Not passed'}: {why}median step error "
        f"{format_percent(agreement.median_step_error, 2)}, worst "
        f"{format_percent(agreement.worst_step_error, 2)}, {order}{noise}."
    )


def _ends_words(agreement: Agreement) -> str:
    error_ns = agreement.median_bucket_end_error_ns
    if error_ns is None:
        return "The ends of buckets cannot be told"
    relative = agreement.median_bucket_end_error
    return (
        f"Bucket ends: median error "
        f"{format_ms(error_ns)}{'' if relative is None else f', {format_percent(relative)}'}"
    )


def _exposed_words(agreement: Agreement) -> str:
    if agreement.median_exposed_error is None:
        return "no communication was exposed"
    return f"exposed communication: median error {format_percent(agreement.median_exposed_error)}"


def rule_words(agreement: Agreement) -> str:
    """The rule in a sentence, or why there is none."""
    rule = agreement.rule
    return f"The rule: {rule}." if agreement.passed is not None else f"{rule[:1].upper()}{rule[1:]}."


def overlay_caption(since: set[str]) -> str:
    """How to read the bars, and where they begin."""
    begin = " or ".join(sorted(since))
    why = "" if since == {"start"} else " (this backend cannot tell when a collective starts)"
    return (
        f"A row a bucket, from its {begin}{why} to its end: predicted above, measured (hatched) below, "
        "medians of the traced iterations. Hover for the error of a bucket's end."
    )


def claim_sentence(scores: Sequence[Agreement]) -> str:
    """All records in one sentence: how many, how far off, how many passed."""
    judged = [score for score in scores if score.passed is not None]
    errors = [abs(row.step_error) for score in judged for row in score.rows]
    traces = len(scores) - len(judged)
    left_out = f" {counted(traces, 'record')} read from traces left out: no verdict." if traces else ""
    if not errors:
        return f"No steps to judge.{left_out}"
    passed = sum(score.passed is True for score in judged)
    right = sum(score.order_right for score in judged)
    pairs = sum(score.order_pairs for score in judged)
    return (
        f"{counted(len(errors), 'candidate')} in {counted(len(judged), 'record')}: median step error "
        f"{format_percent(median(errors), 2)}, worst {format_percent(max(errors))}; {right} of {pairs} "
        f"pairs in the right order; "
        f"{passed} of {counted(len(judged), 'record')} passed the stated rule.{left_out}"
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
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    return [
        (fast.name, slow.name)
        for fast, slow in combinations(rows, 2)
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


def mechanism_sentence(rows: Sequence[tuple[str, Attribution]]) -> str | None:
    """The mechanism that the largest error comes from, and the largest over all candidates."""
    if not rows:
        return None
    name, parts = max(rows, key=lambda row: abs(row[1].total_ns))
    largest = max(MECHANISM_WORDS, key=lambda part: abs(getattr(parts, part)))
    overall = max(MECHANISM_WORDS, key=lambda part: median(abs(getattr(one, part)) for _, one in rows))
    typical = median(abs(getattr(one, overall)) for _, one in rows)
    known = f"Of {len(rows)} candidates whose buckets were seen the" if len(rows) > 1 else "The"
    words = (
        f"{known} largest error is {name}'s, {_signed(parts.total_ns)}; most of it is "
        f"{MECHANISM_WORDS[largest]}, {_signed(getattr(parts, largest))}."
    )
    if len(rows) > 1:
        words += f" Over all of them it is {MECHANISM_WORDS[overall]}, {format_ms(round(typical))} by median."
    return words


def _signed(ns: int) -> str:
    return f"{format_ms(abs(ns))} too {'short' if ns < 0 else 'long'}"


def targets_sentence(agreement: Agreement) -> str | None:
    """How many of the stricter targets were met; None where none are set."""
    if not agreement.targets:
        return None
    met = sum(check.met is True for check in agreement.targets)
    missed = ", ".join(check.name for check in agreement.targets if check.met is False)
    return (
        f"Targets, set for paced replays in the box: {met} of {len(agreement.targets)} met"
        f"{f'; missed: {missed}' if missed else ''}."
    )


def origin_lines(record: Record) -> list[str]:
    """Where a record comes from: machine, versions and dates, as far as its files tell."""
    first = record.candidates[0] if record.candidates else record.measurements[0]
    lines = [
        ("workload", record.workload.name, record.workload.provenance),
        ("hardware", record.hardware.name, record.hardware.provenance),
        ("measured", f"{first.backend}, {first.world_size} ranks", {**first.environment, **first.provenance}),
    ]
    return [f"{what}: {name}{_told(said)}" for what, name, said in lines]


def _told(said: dict[str, object]) -> str:
    names = ("source", "date", "place", "cpu", "gpu", "device", "platform", "python", "torch", "nccl", "cuda")
    found = [f"{name} {said[name]}" for name in names if isinstance(said.get(name), (str, int))]
    return f" · {' · '.join(found)}" if found else ""


def best_words(agreement: Agreement) -> str:
    """The best by measurement and by prediction."""
    if agreement.best_measured == agreement.best_predicted:
        return f"Best measured and best predicted: {agreement.best_measured}."
    near = "within noise of it" if agreement.best_within_noise else "not within noise of it"
    return f"Best measured: {agreement.best_measured}; best predicted: {agreement.best_predicted}, {near}."
