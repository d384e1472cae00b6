"""The Validate page: is the prediction true? Measured records, and a job that is running now."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import cached_records, cached_uploads
from app.cached_records import Opened, Source, Trouble
from app.figures.parity import draw_all
from app.figures.style import CHART
from app.library import Library
from app.shelf import UPLOADED, Card, Score
from app.views import addresses, live, record, records_table, sources, uploading
from app.views.errors import told
from app.views.records_table import CHOSEN, Cards, Scores
from app.words import labels
from app.words import validate as words
from sim.nouns.imported import ImportOptions

_ALL_KEY, _FOLLOWED, _SHOWN = "all_records", "record_followed", "show"
_STEP_S = 4.0  # of scoring, before what is there is drawn; a click does not wait for it


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
        help=words.HELP["show"],
        label_visibility="collapsed",
    )
    if what == "live":
        _live(library, watch)
    else:
        _records(library)


def _live(library: Library, watch: Path | None) -> None:
    if watch is None:
        st.info(words.LIVE_NONE)
        return
    live.show(watch, library)


def _records(library: Library) -> None:
    found: dict[str, Source] = {**library.all_records, **_uploaded()}
    if not found:
        st.info(words.NO_RECORDS)
        return
    _follow(library)
    cards = {name: cached_records.card(source) for name, source in found.items()}
    scores = cached_records.known(found)
    st.caption(words.INTRO)
    claim = st.container()
    names = records_table.filtered(cards, scores)
    st.caption(words.filtered_words(len(names), len(cards)))
    if names:
        with claim:
            _claim(names, cards, scores)
        records_table.draw(records_table.worst_first(names, cards, scores), cards, scores)
        name = records_table.chosen(names)
        addresses.tell()  # the record's name is in it before its figures are drawn
        with told():
            record.show(cached_records.open_record(found[name]), name)
    else:
        st.info(words.NONE_LEFT)
    _score_more(found, cards, scores, claim)


def _follow(library: Library) -> None:
    """Look at the run that Tune and Compare were turned to last, unless the address names one."""
    name = sources.record_looked_at(library)
    if name is None or name == st.session_state.get(_FOLLOWED):
        return
    st.session_state[_FOLLOWED] = name
    if CHOSEN not in st.query_params:
        st.session_state[CHOSEN] = name


def _uploaded() -> dict[str, Opened]:
    """Draw the upload; the record in it by its name, where it holds one. A new one is looked at first."""
    with st.expander(words.UPLOAD_TITLE, icon=":material/upload_file:"):
        files = uploading.kept_files(
            words.UPLOAD_LABEL, "up_record", words.HELP["upload"], accept_multiple_files=True
        )
        if not files:
            return {}
        outcome = cached_uploads.read(files, ImportOptions())
        if outcome.uploaded is None:
            st.error(labels.plain(outcome.error or ""), icon=":material/error:")
            return {}
        found = outcome.uploaded.record
        if found is None:
            st.info(words.NO_RECORD_IN_IT)
            return {}
    name = f"{UPLOADED}{found.name}"
    if st.session_state.get("looked_at_upload") != outcome.key:
        st.session_state["looked_at_upload"], st.session_state[CHOSEN] = outcome.key, name
    return {name: Opened(record=found, key=outcome.key)}


def _claim(names: Sequence[str], cards: Cards, scores: Scores) -> None:
    """All records on one picture, with its sentence; not before all are scored, as totals would change."""
    left = sum(name not in scores and isinstance(cards[name], Card) for name in names)
    if left:
        st.caption(words.unscored_words(left, len(names)))
        return
    found = [score for name in names if isinstance(score := scores.get(name), Score)]
    points = [point for score in found if score.passed is not None for point in score.points]
    if not points:
        return
    st.markdown(f"**{labels.plain(words.claim_sentence(found))}**")
    st.plotly_chart(
        draw_all(points, words.KINDS),
        key=_ALL_KEY,
        on_select=_take_point,
        selection_mode="points",
        config=CHART,
        alt="Predicted over measured step of every candidate of every record, and each error in percent",
    )
    st.caption(labels.plain(words.worst_sentence(points)) + " Click a point to see its record.")


def _take_point() -> None:
    points = st.session_state[_ALL_KEY]["selection"]["points"]
    if points:
        st.session_state[CHOSEN] = points[0]["customdata"][1]


def _score_more(sources: Mapping[str, Source], cards: Cards, scores: Scores, place: DeltaGenerator) -> None:
    """Score some of the records that are not scored yet, small ones first; then draw the page again."""
    left = [name for name, card in cards.items() if isinstance(card, Card) and name not in scores]
    if not left:
        return
    bar = place.progress(0.0)
    begun = time.monotonic()
    for done, name in enumerate(sorted(left, key=lambda name: _cost(cards[name])), start=len(scores)):
        bar.progress(
            done / (len(scores) + len(left)), f"Scored {done} of {len(scores) + len(left)} records …"
        )
        cached_records.score(name, sources[name])
        if time.monotonic() - begun > _STEP_S:
            break
    st.rerun()


def _cost(card: Card | Trouble) -> int:
    return card.candidates if isinstance(card, Card) else 0
