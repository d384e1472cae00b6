"""The sidebar, run without a browser: knobs, presets, reset, and an address that restores all of them."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.playing import WhatIf
from app.views import tune_knobs
from app.views.tune_knobs import OFFERED
from app.words import PICK_WORDS, Pick
from tests.effort import PATIENCE_S


def sidebar() -> None:
    import streamlit as st

    from app.sources import Asked
    from app.views import tune_knobs

    choice, what_if = tune_knobs.show(Asked())
    st.text(repr(choice))
    st.text(choice.words)
    st.text(repr(what_if))


# By key, another value than the default and how an address writes it.
SWITCH_VALUES: dict[str, tuple[Any, str]] = {
    one.name: {
        "toggle": (not one.default, str(not one.default).lower()),
        "select": (one.choices[-1], one.choices[-1]) if one.choices else None,
        "integer": (7, "7"),
        "number": (0.5, "0.5"),
        "text": ("1: 2", "1: 2"),
    }[one.kind]
    for of_pick in OFFERED.values()
    for one in of_pick
} | {
    "optimize_ddp": ("ddp_optimizer", "ddp_optimizer"),  # which alone has a cap of its own
    "compile_cap_mb": (10.0, "10"),
}
WHAT_IF_VALUES: dict[str, tuple[Any, str]] = {
    "bw": (0.5, "0.5"),
    "lat": (2.0, "2"),
    "bwd": (0.33, "0.33"),
    "ranks": (16, "16"),
    "precision": ("bfloat16", "bfloat16"),
    "interference": (0.0, "0"),
}
CAP_VALUES: dict[str, tuple[Any, str]] = {
    "cap": (3.0, "3"),
    "first": (0.5, "0.5"),
    "caps": ("1, 50", "1, 50"),
}
VALUES = SWITCH_VALUES | WHAT_IF_VALUES | CAP_VALUES


@pytest.fixture
def page() -> AppTest:
    return AppTest.from_function(sidebar, default_timeout=PATIENCE_S)


def told(page: AppTest) -> list[str]:
    assert not page.exception
    return [found.value for found in page.text]


def value(page: AppTest, key: str) -> Any:
    return page.session_state[key]


def move(page: AppTest, key: str, to: Any) -> None:
    """Set the one widget of ``key``, of whichever kind it is."""
    kinds = (page.select_slider, page.number_input, page.selectbox, page.toggle, page.text_input)
    (widget,) = (one for kind in kinds for one in kind if one.key == key)
    widget.set_value(to).run()


def at_once(pick: Pick) -> set[str]:
    """The knobs that are drawn together for a pick, beside those of the machine and of one cap."""
    names = {"cap", "first", *WHAT_IF_VALUES, *(one.name for one in OFFERED.get(pick, ()))}
    return names | ({"caps"} if pick == "cap-list" else set())


RESTORED: tuple[Pick, ...] = ("cap-list", "zero2", "last-hook-safe", "megatron", "fully_shard")


@pytest.mark.parametrize("pick", RESTORED)
def test_an_address_restores_every_knob(page: AppTest, pick: Pick) -> None:
    page.query_params["pick"] = PICK_WORDS[pick]
    for key in at_once(pick):
        page.query_params[key] = VALUES[key][1]
    page.run()
    assert told(page)
    assert value(page, "pick") == pick
    assert {key: value(page, key) for key in at_once(pick)} == {key: VALUES[key][0] for key in at_once(pick)}
    assert not page.query_params.keys() - {"pick", *at_once(pick)}


@pytest.mark.parametrize(
    "pick",
    ["cap", "zero1", *(pytest.param(pick, marks=pytest.mark.slow) for pick in ("default", "recommended"))],
)
def test_an_address_may_name_an_assignment_by_its_bare_name(page: AppTest, pick: Pick) -> None:
    """``?pick=zero1`` is ``?pick=DeepSpeed+ZeRO-1``, and becomes it; knobs beside it count, too."""
    page.query_params["pick"] = pick
    page.query_params["bw"] = "2"
    page.run()
    assert value(page, "pick") == pick
    assert value(page, "bw") == 2
    if pick != "default":  # what is the default is in no address
        assert page.query_params["pick"] in (PICK_WORDS[pick], [PICK_WORDS[pick]])
    move(page, "bw", 1.0)
    assert value(page, "pick") == pick


def test_switches_are_in_the_choice_by_name(page: AppTest) -> None:
    page.run()
    move(page, "static_graph", True)
    move(page, "comm_hook", "fp16_compress")
    assert told(page)[1] == "DDP's default, comm_hook=fp16_compress, static_graph"
    move(page, "pick", "recommended")
    assert told(page)[1] == "best buckets found, comm_hook=fp16_compress, static_graph"
    move(page, "pick", "zero1")
    assert told(page)[1] == "DeepSpeed ZeRO-1"
    move(page, "overlap_comm", True)
    move(page, "pick", "zero2")
    assert told(page)[1] == "DeepSpeed ZeRO-2, overlap_comm"


def test_a_preset_sets_all_knobs_and_leaves_when_one_is_moved(page: AppTest) -> None:
    page.run()
    assert value(page, "preset") == "as measured"
    for name, preset in tune_knobs.PRESETS.items():
        move(page, "preset", name)
        assert told(page)[2] == repr(preset)
        assert value(page, "preset") == name
    move(page, "lat", 3.0)
    assert value(page, "preset") == tune_knobs.CUSTOM
    move(page, "preset", tune_knobs.CUSTOM)  # no preset: nothing is set
    assert value(page, "lat") == 3.0
    move(page, "preset", "as measured")
    assert told(page)[2] == repr(WhatIf())
