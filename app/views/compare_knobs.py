"""The sidebar of the Compare page: what is compared. It only asks; playing comes after."""

from typing import Any

import streamlit as st

from app.cached_compare import Candidate, Machine
from app.choosing import Choice, WhatIf
from app.library import Library
from app.views import addresses, cluster_knobs, switches
from app.views.what_ifs import FACTORS
from app.words import cluster as labels_cluster
from app.words import compare as words
from app.words import labels
from sim.errors import InputError

LETTERS = ("A", "B", "C", "D", "E", "F")
_FIRST_PICKS = ("default", "recommended", words.BEST_CAP, "single", "per-parameter", "after-backward")
_HEAD = ("default", "recommended", words.BEST_CAP)
_PICKS = (*_HEAD, *(pick for pick in labels.PICKS if pick not in _HEAD))
_MAX_CAP_MB = 65536.0


def show(library: Library) -> tuple[Candidate, ...]:
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
            help=words.HELP["candidates"],
        )
        candidates = tuple(
            _candidate(letter, first, library)
            for letter, first in zip(LETTERS[:count], _FIRST_PICKS[:count], strict=True)
        )
    return candidates


def _candidate(letter: str, first_pick: str, library: Library) -> Candidate:
    prefix = f"{letter.lower()}_"
    addresses.take_name(f"{prefix}pick", words.PICK_WORDS)
    with st.container(border=True):
        pick: Any = st.selectbox(
            f"{letter}{', the base' if letter == LETTERS[0] else ''}",
            _PICKS,
            index=_PICKS.index(first_pick),
            format_func=words.PICK_WORDS.__getitem__,
            key=f"{prefix}pick",
            bind="query-params",
            help=words.HELP["pick"],
        )
        is_best_cap = pick == words.BEST_CAP
        told: dict[str, Any] = {"pick": "cap" if is_best_cap else pick}
        if pick == "cap":
            told["cap_mb"] = _mib("Cap, MiB", f"{prefix}cap", 25.0, "cap")
            told["first_mb"] = _mib("First bucket, MiB", f"{prefix}first", None, "first")
        caps = _caps(prefix) if pick == "cap-list" else None
        try:
            with st.popover("Switches", width="stretch"):
                told["options"] = switches.show(told["pick"], prefix)
            told["caps_mb"] = None if caps is None else switches.caps(caps)
        except InputError as error:
            told["unreadable"] = str(error)
        with st.popover("Machine", width="stretch"):
            machine = _machine(prefix, library)
    return Candidate(letter=letter, choice=Choice(**told), is_best_cap=is_best_cap, machine=machine)


def _mib(label: str, key: str, value: float | None, word: str) -> float | None:
    return st.number_input(
        label,
        min_value=0.0,
        max_value=_MAX_CAP_MB,
        value=value,
        step=1.0,
        format="%.6g",
        key=key,
        bind="query-params",
        placeholder="none",
        help=labels.HELP[word],
    )


def _caps(prefix: str) -> str:
    return st.text_input(
        "Caps, MiB",
        value="1, 25",
        max_chars=2000,
        key=f"{prefix}caps",
        bind="query-params",
        help=labels.HELP["caps"],
    )


def _machine(prefix: str, library: Library) -> Machine:
    clusters = {f"cluster {preset}": preset for preset in cluster_knobs.PRESETS}

    def told(name: str) -> str:
        return labels_cluster.MACHINE_WORDS[clusters[name]] if name in clusters else name

    name = st.selectbox(
        "Machine",
        [words.ABOVE, *library.hardware, *clusters],
        format_func=told,
        key=f"{prefix}machine",
        bind="query-params",
        help=words.HELP["machine"],
    )
    preset = clusters.get(name)
    settings = () if preset is None else (_how_many(prefix, preset),)
    what_if = WhatIf(
        bandwidth=_factor("Bandwidth ×", f"{prefix}bw", "bandwidth"),
        latency=_factor("Latency ×", f"{prefix}lat", "latency"),
    )
    hardware = None if name == words.ABOVE or preset is not None else name
    return Machine(hardware=hardware, preset=preset, settings=settings, what_if=what_if)


def _how_many(prefix: str, preset: str) -> tuple[str, int]:
    """How large a ready-made cluster is: the first of its settings, hosts or GPUs."""
    setting = cluster_knobs.PRESETS[preset][0]
    count = st.number_input(
        setting.label,
        min_value=1,
        max_value=setting.most,
        value=setting.default,
        step=1,
        key=f"{prefix}{preset}_{setting.name}",
        bind="query-params",
        help=words.HELP["hosts"],
    )
    return setting.name, count


def _factor(label: str, key: str, word: str) -> float:
    return st.select_slider(
        label,
        FACTORS,
        value=1.0,
        format_func=lambda factor: f"{factor:g}",
        key=key,
        bind="query-params",
        help=labels.HELP[word],
    )
