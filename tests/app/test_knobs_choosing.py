"""What the knobs ask for, as properties: it is played or refused, and told as it is."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from app.playing import INTERFERING, Choice, WhatIf
from app.views import tune_knobs
from app.views.tune_knobs import OFFERED
from app.widgets import Knob
from app.words import DDP_PICKS, Pick
from sim.errors import InputError, NotModelledError, SimError
from sim.nouns.assignment import Assignment
from tests.app.conftest import make_hardware, make_workload
from tests.effort import tries

WORKLOAD = make_workload()
HARDWARE = replace(make_hardware(), compute_slowdown=1.2, comm_slowdown=1.5, channel_slowdown=1.1)
TEXTS = {
    "units": ("", "blocks", "x.*"),
}
QUICK = settings(
    max_examples=tries(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Ask = Callable[[Knob], Any]


@cache
def tuned() -> Assignment:
    """Not while tests are collected, when every worker would compile the kernels."""
    return sim.tune(WORKLOAD, HARDWARE).assignment


def values(switch: Knob) -> st.SearchStrategy[Any]:
    """What the widget of a switch can give, its default more often than not."""
    others: st.SearchStrategy[Any]
    if switch.kind == "toggle":
        others = st.just(not switch.default)
    elif switch.kind == "select":
        others = st.sampled_from(switch.choices)
    elif switch.kind == "text":
        others = st.sampled_from(TEXTS[switch.name])
    elif switch.kind == "integer":
        others = st.sampled_from([int(switch.least), 2, 3, 1001, 100_000])
    else:
        others = st.sampled_from([0.0, 0.5, 2.0, 1e9])
    return st.one_of(st.just(switch.default), st.just(switch.default), others)


@st.composite
def asked(draw: Callable[[Any], Any], of: tuple[Knob, ...]) -> Ask:
    turned = {one.name: draw(values(one)) for one in of}
    return lambda switch: turned[switch.name]


def plays_or_is_refused(choice: Choice) -> Assignment | None:
    """The assignment that is played; None where an error of ours says why not, in one line."""
    try:
        assignment = choice.assignment(WORKLOAD, tuned)
        timeline = sim.simulate(WORKLOAD, HARDWARE, assignment, "analytic")
    except SimError as error:
        lines = str(error).splitlines()
    else:
        assert timeline.sync_end_ns > 0
        return assignment
    assert len(lines) == 1
    return None


@QUICK
@given(asked(OFFERED["default"]), st.sampled_from(DDP_PICKS))
def test_switches_of_ddp_are_played_or_refused(ask: Ask, pick: Pick) -> None:
    options = tune_knobs.read(pick, ask)
    choice = Choice(
        pick=pick,
        cap_mb=4.0 if pick == "cap" else None,
        caps="1, 4" if pick == "cap-list" else "",
        options=options,
        given=tuned() if pick == "given" else None,
    )
    made = plays_or_is_refused(choice)
    assert choice.told().items() >= dict(options).items()
    if made is not None:
        told = made.ddp_kwargs | made.settings
        assert {name: told[name] for name, _ in options} == dict(options)


@QUICK
@given(st.data(), st.sampled_from(["zero1", "zero2", "megatron", "fully_shard"]))
def test_settings_of_other_systems_are_played_or_refused(data: st.DataObject, pick: Pick) -> None:
    options = tune_knobs.read(pick, data.draw(asked(OFFERED[pick])))
    made = plays_or_is_refused(Choice(pick=pick, options=options))
    if made is not None:
        assert {name: made.settings[name] for name, _ in options} == dict(options)


def what_if_values() -> st.SearchStrategy[WhatIf]:
    stops = st.sampled_from(tune_knobs.FACTORS)
    return st.builds(
        WhatIf,
        bandwidth=stops,
        latency=stops,
        backward=stops,
        interference=st.sampled_from(tune_knobs.INTERFERENCE),
        world_size=st.sampled_from([None, 2, 8, 1024]),
        precision=st.sampled_from([None, *tune_knobs.PRECISIONS[1:]]),
    )


@QUICK
@given(what_if_values())
def test_what_ifs_are_told_as_they_are(one: WhatIf) -> None:
    turned = {
        field.name: getattr(one, field.name)
        for field in fields(WhatIf)
        if getattr(one, field.name) != field.default
    }
    assert one.told() == turned
    assert one.is_none == (not turned)
    workload, hardware = one.apply(WORKLOAD, HARDWARE)
    timeline = sim.simulate(workload, hardware, sim.assign(workload), "analytic")
    assert timeline.sync_end_ns > 0


@pytest.mark.parametrize("caps", ["", "1, x", "1, -2", "1, nan", "[1, inf]"])
def test_caps_that_cannot_be_read_are_refused_in_one_line(caps: str) -> None:
    with pytest.raises(InputError, match=r"bucket.cap.*not legal; give"):
        Choice(pick="cap-list", caps=caps).assignment(WORKLOAD, tuned)


def test_an_upload_is_part_of_the_key() -> None:
    bare = Choice(pick="given")
    assert bare.with_given(tuned()).told() != bare.with_given(sim.assign(WORKLOAD)).told()
    assert Choice(pick="default").with_given(tuned()) == Choice(pick="default")
    assert bare.with_given(tuned()).assignment(WORKLOAD, lambda: sim.assign(WORKLOAD)) == tuned()
    with pytest.raises(InputError, match="upload one"):
        bare.assignment(WORKLOAD, tuned)


def test_switches_on_the_recommended_buckets_keep_the_buckets() -> None:
    """Without keywords where DDP, which then never rebuilds, would not reach them (A2.6)."""
    plain = Choice(pick="recommended").assignment(WORKLOAD, tuned)
    assert plain == tuned()
    viewed = Choice(pick="recommended", options=(("gradient_as_bucket_view", True),))
    made = viewed.assignment(WORKLOAD, tuned)
    assert made.ddp_kwargs == tuned().ddp_kwargs | {"gradient_as_bucket_view": True}
    searching = Choice(pick="recommended", options=(("find_unused_parameters", True),))
    made = searching.assignment(WORKLOAD, tuned)
    assert made.bucket_indices == tuned().bucket_indices
    assert made.ddp_kwargs == {"find_unused_parameters": True}
    assert "sim.apply" in sim.snippet(made, WORKLOAD)


def test_switches_do_not_fit_an_upload_of_another_system() -> None:
    choice = Choice(pick="given", options=(("static_graph", True),), given=sim.assign(WORKLOAD, "zero1"))
    with pytest.raises(NotModelledError, match="zero1"):
        choice.assignment(WORKLOAD, tuned)


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


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0])
def test_interference_is_a_factor_on_what_exceeds_one(factor: float) -> None:
    workload, hardware = WhatIf(interference=factor).apply(WORKLOAD, HARDWARE)
    assert workload == WORKLOAD
    for name in INTERFERING:
        assert getattr(hardware, name) - 1 == pytest.approx((getattr(HARDWARE, name) - 1) * factor)
    assert hardware.channel_slowdown == HARDWARE.channel_slowdown


@pytest.mark.parametrize("factor", [-1.0, float("nan"), 1e9])
def test_interference_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match="interference"):
        WhatIf(interference=factor).apply(WORKLOAD, HARDWARE)
