"""The library of records: filters, a table, and which record is looked at."""

from collections.abc import Mapping, Sequence

import streamlit as st

from app.cached_records import Trouble
from app.shelf import Card, Score, kind_of
from app.words import validate as words

Cards = Mapping[str, Card | Trouble]
Scores = Mapping[str, Score | Trouble]
CHOSEN = "run"
_GOOD = (words.VERDICTS[True], words.VERDICTS[None], "…")


def in_order(names: Sequence[str]) -> list[str]:
    """Names by kind, as the words list them, then by name."""
    kinds = ["live", "upload", *words.KINDS]
    return sorted(
        names, key=lambda name: (kinds.index(kind) if (kind := kind_of(name)) in kinds else len(kinds), name)
    )


def worst_first(names: Sequence[str], cards: Cards, scores: Scores) -> list[str]:
    """Records that did not pass, or cannot be read or scored, ahead of the others; else the order is kept."""
    return sorted(names, key=lambda name: _verdict(cards[name], scores.get(name)) in _GOOD)


def filtered(cards: Cards, scores: Scores) -> list[str]:
    """Draw the filters; the names of the records that they leave, in order."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Find records",
            key="text",
            bind="query-params",
            placeholder="name, workload, rate",
            icon=":material/search:",
            help=words.HELP["text"],
            width=320,
        )
        with st.popover("Filters", icon=":material/filter_list:"):
            picked = _pickers(cards)
    names = [name for name in in_order(list(cards)) if _has(name, cards[name], text or "")]
    return [name for name in names if _fits(cards[name], scores.get(name), picked)]


def _pickers(cards: Cards) -> dict[str, list[str]]:
    read = [card for card in cards.values() if isinstance(card, Card)]
    options: dict[str, tuple[str, list[str]]] = {
        "passed": ("Verdict", list(words.VERDICTS.values())),
        "mode": ("Mode", sorted({words.MODES[card.mode] for card in read})),
        "backend": ("Backend", sorted({card.backend for card in read})),
        "ranks": ("Ranks", [str(ranks) for ranks in sorted({card.ranks for card in read})]),
        "load": ("Workload", sorted({card.workload for card in read})),
    }
    return {
        key: st.multiselect(
            label, found, key=f"has_{key}", bind="query-params", placeholder="any", help=words.HELP.get(key)
        )
        for key, (label, found) in options.items()
    }


def _has(name: str, card: Card | Trouble, text: str) -> bool:
    own = [name] if isinstance(card, Trouble) else [name, card.workload, card.tests]
    where = " ".join(own).lower()
    return all(word in where for word in text.lower().split())


def _fits(card: Card | Trouble, score: Score | Trouble | None, picked: Mapping[str, list[str]]) -> bool:
    """Whether every filter that is set lets a record through; one that is broken passes none."""
    if not any(picked.values()):
        return True
    if isinstance(card, Trouble):
        return False
    has = {
        "mode": words.MODES[card.mode],
        "backend": card.backend,
        "ranks": str(card.ranks),
        "load": card.workload,
        "passed": words.VERDICTS[score.passed] if isinstance(score, Score) else "",
    }
    return all(not wanted or has[key] in wanted for key, wanted in picked.items())


def draw(names: Sequence[str], cards: Cards, scores: Scores) -> None:
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
            "median error, %": st.column_config.NumberColumn(format="%.2f", help=words.HELP["median"]),
            "worst, %": st.column_config.NumberColumn(format="%.2f", help=words.HELP["worst"]),
            "order": st.column_config.TextColumn(help=words.HELP["order"], width=100),
            "tests": st.column_config.TextColumn(help=words.HELP["tests"], width="medium"),
            "verdict": st.column_config.TextColumn(help=words.HELP["passed"]),
            "mode": st.column_config.TextColumn(help=words.HELP["mode"]),
        },
        alt="Records: how well each was predicted, and what it tests",
    )


def table_rows(
    names: Sequence[str], cards: Cards, scores: Scores
) -> list[dict[str, str | int | float | None]]:
    """A row a record; figures are None until it is scored, and where it cannot be."""
    rows = []
    for name in names:
        card, score = cards[name], scores.get(name)
        row: dict[str, str | int | float | None] = {
            "record": name,
            "verdict": _verdict(card, score),
            "median error, %": score.median_step_error * 100 if isinstance(score, Score) else None,
            "worst, %": score.worst_step_error * 100 if isinstance(score, Score) else None,
            "order": f"{score.order_right} of {score.order_pairs}" if isinstance(score, Score) else None,
        }
        trouble = next((one.words for one in (card, score) if isinstance(one, Trouble)), None)
        row["tests"] = trouble
        if isinstance(card, Card):
            row |= {
                "tests": card.tests if trouble is None else trouble,
                "workload": card.workload,
                "ranks": card.ranks,
                "backend": card.backend,
                "mode": words.MODES[card.mode],
                "candidates": card.candidates,
                "date": card.date,
                "torch": card.torch,
            }
        rows.append(row)
    return rows


def _verdict(card: Card | Trouble, score: Score | Trouble | None) -> str:
    if isinstance(card, Trouble):
        return "cannot be read"
    if isinstance(score, Trouble):
        return "cannot be scored"
    return "…" if score is None else words.VERDICTS[score.passed]


def chosen(names: Sequence[str]) -> str:
    """Draw the choice of one record; its name."""
    if st.session_state.get(CHOSEN) not in (None, *names):
        del st.session_state[CHOSEN]  # filtered away
    return st.selectbox("Record", names, key=CHOSEN, bind="query-params", help=words.HELP["run"])
