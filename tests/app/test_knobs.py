"""The knobs: an address restores all of them, and what they ask for is played or refused."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import sim
from app.playing import INTERFERING, Choice, WhatIf
from app.views import tune_knobs
from app.views.tune_knobs import OFFERED
from app.widgets import Knob
from app.words import DDP_PICKS, PICK_WORDS, Pick
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from tests.app.conftest import make_hardware, make_workload
from tests.effort import PATIENCE_S, tries

WORKLOAD = make_workload()
HARDWARE = replace(make_hardware(), compute_slowdown=1.2, comm_slowdown=1.5, channel_slowdown=1.1)
QUICK = settings(max_examples=tries(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


def sidebar() -> None:
    import streamlit as st

    from app.views import tune_knobs

    choice, what_if = tune_knobs.show(None)
    for told in (repr(choice), choice.words, repr(what_if)):
        st.text(told)


# By key, another value than the default and how an address writes it.
VALUES: dict[str, tuple[Any, str]] = {
    one.name: {
        "toggle": (not one.default, str(not one.default).lower()),
        "select": (one.choices[-1], one.choices[-1]) if one.choices else None,
        "integer": (7, "7"),
        "number": (0.5, "0.5"),
        "text": ("1: 2", "1: 2"),
    }[one.kind]
    for of_pick in OFFERED.values()
    for one in of_pick
}
VALUES |= {"optimize_ddp": ("ddp_optimizer", "ddp_optimizer"), "compile_cap_mb": (10.0, "10")}  # its alone
MACHINE: dict[str, tuple[Any, str]] = {
    "bw": (0.5, "0.5"),
    "lat": (2.0, "2"),
    "bwd": (0.33, "0.33"),
    "ranks": (16, "16"),
    "precision": ("bfloat16", "bfloat16"),
    "interference": (0.0, "0"),
}
VALUES |= MACHINE | {"cap": (3.0, "3"), "first": (0.5, "0.5"), "caps": ("1, 50", "1, 50")}


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


@pytest.mark.parametrize("pick", ["cap-list", "zero2", "last-hook-safe", "megatron", "fully_shard"])
def test_an_address_restores_every_knob(page: AppTest, pick: Pick) -> None:
    shown = {"cap", "first", *MACHINE, *(one.name for one in OFFERED.get(pick, ()))}
    shown |= {"caps"} if pick == "cap-list" else set()
    page.query_params["pick"] = PICK_WORDS[pick]
    for key in shown:
        page.query_params[key] = VALUES[key][1]
    assert told(page.run())
    assert value(page, "pick") == pick
    assert {key: value(page, key) for key in shown} == {key: VALUES[key][0] for key in shown}
    assert not page.query_params.keys() - {"pick", *shown}


@pytest.mark.parametrize(
    "pick",
    ["cap", "zero1", *(pytest.param(pick, marks=pytest.mark.slow) for pick in ("default", "recommended"))],
)
def test_an_address_may_name_an_assignment_by_its_bare_name(page: AppTest, pick: Pick) -> None:
    """``?pick=zero1`` is ``?pick=DeepSpeed+ZeRO-1``, and becomes it; knobs beside it count, too."""
    page.query_params["pick"], page.query_params["bw"] = pick, "2"
    page.run()
    assert value(page, "pick") == pick
    assert value(page, "bw") == 2
    if pick != "default":  # what is the default is in no address
        assert page.query_params["pick"] in (PICK_WORDS[pick], [PICK_WORDS[pick]])
    move(page, "bw", 1.0)
    assert value(page, "pick") == pick


def test_switches_are_in_the_choice_by_name(page: AppTest) -> None:
    page.run()
    for key, to, words in (
        ("static_graph", True, "DDP's default, static_graph"),
        ("comm_hook", "fp16_compress", "DDP's default, comm_hook=fp16_compress, static_graph"),
        ("pick", "recommended", "recommended buckets, comm_hook=fp16_compress, static_graph"),
        ("pick", "zero1", "DeepSpeed ZeRO-1"),
        ("overlap_comm", True, "DeepSpeed ZeRO-1, overlap_comm"),
        ("pick", "zero2", "DeepSpeed ZeRO-2, overlap_comm"),
    ):
        move(page, key, to)
        assert told(page)[1] == words


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


# What they ask for


@cache
def tuned() -> Assignment:
    """Not while tests are collected, when every worker would compile the kernels."""
    return sim.tune(WORKLOAD, HARDWARE).assignment


def values(switch: Knob) -> st.SearchStrategy[Any]:
    """What the widget of a switch can give, its default more often than not."""
    others: dict[str, list[Any]] = {
        "toggle": [not switch.default],
        "select": [*switch.choices],
        "text": ["", "blocks", "x.*"],
        "integer": [int(switch.least), 2, 3, 1001, 100_000],
        "number": [0.0, 0.5, 2.0, 1e9],
    }
    default = st.just(switch.default)
    return st.one_of(default, default, st.sampled_from(others[switch.kind]))


@st.composite
def asked(draw: Callable[[Any], Any], of: tuple[Knob, ...]) -> Callable[[Knob], Any]:
    turned = {one.name: draw(values(one)) for one in of}
    return lambda switch: turned[switch.name]


@QUICK
@given(st.data(), st.sampled_from([*DDP_PICKS, "zero1", "zero2", "megatron", "fully_shard"]))
def test_switches_are_played_or_refused_in_one_line(data: st.DataObject, pick: Pick) -> None:
    options = tune_knobs.read(pick, data.draw(asked(OFFERED[pick])))
    choice = Choice(
        pick=pick,
        cap_mb=4.0 if pick == "cap" else None,
        caps="1, 4" if pick == "cap-list" else "",
        options=options,
        given=tuned() if pick == "given" else None,
    )
    assert choice.told().items() >= dict(options).items()
    made, words = None, ""
    try:
        made = choice.assignment(WORKLOAD, tuned)
        timeline = sim.simulate(WORKLOAD, HARDWARE, made, "analytic")
    except SimError as error:
        made, words = None, str(error)
    assert len(words.splitlines()) == (made is None)
    if made is not None:
        assert timeline.sync_end_ns > 0
        taken = made.ddp_kwargs | made.settings
        assert {name: taken[name] for name, _ in options} == dict(options)


STOPS = st.sampled_from(tune_knobs.FACTORS)


@QUICK
@given(
    st.builds(
        WhatIf,
        bandwidth=STOPS,
        latency=STOPS,
        backward=STOPS,
        interference=st.sampled_from(tune_knobs.INTERFERENCE),
        world_size=st.sampled_from([None, 2, 8, 1024]),
        precision=st.sampled_from([None, *tune_knobs.PRECISIONS[1:]]),
    )
)
def test_what_ifs_are_told_as_they_are(one: WhatIf) -> None:
    values = {field.name: (getattr(one, field.name), field.default) for field in fields(WhatIf)}
    turned = {name: value for name, (value, default) in values.items() if value != default}
    assert one.told() == turned
    assert one.is_none == (not turned)
    workload, hardware = one.apply(WORKLOAD, HARDWARE)
    assert sim.simulate(workload, hardware, sim.assign(workload), "analytic").sync_end_ns > 0
    for name in INTERFERING:  # a factor on what exceeds one
        assert getattr(hardware, name) - 1 == pytest.approx((getattr(HARDWARE, name) - 1) * one.interference)
    assert hardware.channel_slowdown == HARDWARE.channel_slowdown


UPLOADED_ZERO = Choice(pick="given", options=(("static_graph", True),), given=sim.assign(WORKLOAD, "zero1"))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        *((Choice(pick="cap-list", caps=caps), "cap.*not legal; give") for caps in ("", "1, x", "1, -2")),
        *((Choice(pick="cap-list", caps=caps), "cap.*not legal; give") for caps in ("1, nan", "[1, inf]")),
        *((Choice(pick=pick), "upload one") for pick in ("given", "as-run")),
        (UPLOADED_ZERO, "zero1"),  # switches of DDP do not fit it
    ],
)
def test_what_has_no_assignment_is_refused(choice: Choice, words: str) -> None:
    with pytest.raises((InputError, NotModelledError), match=words):
        choice.assignment(WORKLOAD, tuned)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), 1e9])
def test_interference_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match="interference"):
        WhatIf(interference=factor).apply(WORKLOAD, HARDWARE)


def test_an_upload_is_part_of_the_key() -> None:
    bare = Choice(pick="given")
    assert bare.with_given(tuned()).told() != bare.with_given(sim.assign(WORKLOAD)).told()
    assert Choice(pick="default").with_given(tuned()) == Choice(pick="default")
    assert bare.with_given(tuned()).assignment(WORKLOAD, lambda: sim.assign(WORKLOAD)) == tuned()


def test_switches_on_the_recommended_buckets_keep_the_buckets() -> None:
    """Without keywords where DDP, which then never rebuilds, would not reach them (A2.6)."""
    assert Choice(pick="recommended").assignment(WORKLOAD, tuned) == tuned()
    viewed = Choice(pick="recommended", options=(("gradient_as_bucket_view", True),))
    made = viewed.assignment(WORKLOAD, tuned)
    assert made.ddp_kwargs == tuned().ddp_kwargs | {"gradient_as_bucket_view": True}
    searching = Choice(pick="recommended", options=(("find_unused_parameters", True),))
    made = searching.assignment(WORKLOAD, tuned)
    assert made.bucket_indices == tuned().bucket_indices
    assert made.ddp_kwargs == {"find_unused_parameters": True}
    assert "sim.apply" in sim.snippet(made, WORKLOAD)


def test_what_is_compared_with_does_as_much_work() -> None:
    options = (("accumulation_steps", 4), ("no_sync", False))
    assert Choice(pick="single", options=options).switches(WORKLOAD) == options
    zero = Choice(pick="zero1", options=(("gradient_accumulation_steps", 4), ("overlap_comm", True)))
    assert zero.switches(WORKLOAD) == (("accumulation_steps", 4),)


@pytest.mark.parametrize("switch", ["find_unused_parameters", "static_graph"])
def test_what_is_compared_with_trains_a_workload_of_which_a_gradient_is_never_ready(switch: str) -> None:
    last = replace(WORKLOAD.gradients[0], ready_ns=None)
    unused = replace(WORKLOAD, gradients=(last, *WORKLOAD.gradients[1:]))
    for choice in (Choice(pick="cap", cap_mb=4.0, options=((switch, True),)), Choice(pick="zero1")):
        default = Choice(pick="default", options=choice.switches(unused))
        assignment = default.assignment(unused, tuned)
        assert sim.simulate(unused, HARDWARE, assignment, "analytic").sync_end_ns > 0
