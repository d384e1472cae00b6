"""One answer: the same round cap on the strip, the card, the star, the lines to paste, and on Compare."""

import json

import pytest
from streamlit.testing.v1 import AppTest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.setting import tell_setting
from sim.units import format_ms
from tests.app.browser.conftest import BUNDLED
from tests.app.conftest import main_page, plain, visit


def star(page: AppTest) -> list[float]:
    traces = [one for chart in page.get("plotly_chart") for one in json.loads(chart.proto.spec)["data"]]
    stars = ("recommended cap", "best round cap")
    return next(one["x"] for one in traces if one.get("name") in stars and "customdata" in one)


def test_all_places_say_the_same_cap(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    found = sim.tune(workload, hardware)
    cap, step_ns = found.setting.cap_mb, found.setting.step_ns
    default_ns = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload))).step_ns
    page.run()
    button, chart = page.button(key="apply"), page.get("plotly_chart")[0]
    assert [one for one in page.main if one in (button, chart)] == [button, chart], "before any figure"
    sentence = f"Set: {tell_setting(found.setting, found.against)}."
    assert plain(page.markdown).count(sentence) == 2, "the strip under the cards, and the section"
    gain = next(one for one in page.metric if one.label == "Gain against DDP's default")
    assert gain.delta == f"possible: {format_ms(default_ns - step_ns)}"
    assert star(page) == [cap]
    assert f"bucket_cap_mb={cap:g}" in page.code[0].value
    page.button(key="apply").click().run()
    assert (page.selectbox(key="pick").value, page.number_input(key="cap").value) == ("cap", cap)
    assert next(one.value for one in page.metric) == format_ms(step_ns)
    assert page.button(key="apply").disabled
    visit(page, "compare", a_pick="DDP's default", b_pick="best round bucket_cap_mb", c_pick="single bucket")
    assert f"B best round bucket_cap_mb={cap:g}" in page.metric[1].label.replace("\\", "")
    assert page.metric[1].value == format_ms(step_ns)


def test_applying_leaves_no_cap_for_the_first_bucket_and_no_switch_that_is_not_shown(page: AppTest) -> None:
    """Such a switch was turned for another assignment, and the answer was found without it."""
    page.query_params["pick"] = "bucket_cap_mb"
    page.query_params["first"] = "0.5"
    page.query_params["comm_hook"] = "fp16_compress"
    page.run()
    (cap,) = star(page)
    assert f"Under comm_hook=fp16_compress, set: bucket_cap_mb={cap:g}: " in plain(page.markdown)
    page.selectbox(key="pick").set_value("zero1").run()
    assert not [one for one in page.selectbox if one.key == "comm_hook"]
    page.button(key="apply").click().run()
    assert page.selectbox(key="comm_hook").value == "none"
    assert page.number_input(key="first").value is None
    assert page.button(key="apply").disabled


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """A GPT at 64 ranks with gradients in bfloat16: every round cap is 3 % or more behind."""
    files = {"start": "bundled files", "workload": "gpt-13.8M-cpu", "hardware": "box-2x1gbit"}
    return main_page(monkeypatch, BUNDLED, **files, ranks="64", precision="bfloat16")


def test_a_cap_that_is_far_behind_is_the_answer_only_where_it_cannot_be_told_apart(far: AppTest) -> None:
    """That they cannot be told apart is known under a switch as well."""
    far.run()
    assert not far.error
    (cap,) = star(far)
    told = [one for one in plain(far.markdown).split("**") if one.startswith(f"Set: bucket_cap_mb={cap:g}: ")]
    assert len(told) == 2, "the strip under the cards, and the section"
    assert told[0].endswith("over steps as they vary the two cannot be told apart.")
    assert "cannot be told apart from what is recommended" in plain(far.markdown)
    far.toggle(key="gradient_as_bucket_view").set_value(True).run()
    assert not far.error
    told = [
        one
        for one in plain(far.markdown).split("**")
        if one.startswith("Under gradient_as_bucket_view, set: ")
    ]
    assert len(told) == 2
    assert told[0] == told[1]
