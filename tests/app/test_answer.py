"""One answer: the same round cap on the strip, the card, the star, the lines to paste, and on Compare."""

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_ms
from tests.app.browser.conftest import BUNDLED
from tests.app.conftest import main_page, plain, visit


def answer_of(workload: Workload, hardware: Hardware, **switches: Any) -> tuple[float, int]:
    rows = sim.sweep(workload, hardware)
    found = sim.round_cap(rows, sim.tune(workload, hardware).plateau)
    assert found is not None
    assert found.bucket_cap_mb is not None
    return found.bucket_cap_mb, found.step_ns


def star(page: AppTest) -> list[float]:
    traces = [one for chart in page.get("plotly_chart") for one in json.loads(chart.proto.spec)["data"]]
    stars = ("recommended cap", "best round cap")
    return next(one["x"] for one in traces if one.get("name") in stars and "customdata" in one)


def test_all_places_say_the_same_cap(page: AppTest, workload: Workload, hardware: Hardware) -> None:
    cap, step_ns = answer_of(workload, hardware)
    best_ns = sim.tune(workload, hardware).report.step_ns
    default_ns = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload))).step_ns
    page.run()
    the_strip_stands_before_any_figure(page)
    sentence = f"Set bucket_cap_mb={cap:g}: {format_ms(step_ns)} a step, {format_ms(default_ns - step_ns)}"
    assert plain(page.markdown).count(sentence) == 2, "the strip under the cards, and the section"
    behind = (
        f"{format_ms(step_ns - best_ns)} (" if step_ns > best_ns else "no buckets that were found are better"
    )
    assert behind in plain(page.markdown), "what it loses"
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


def the_strip_stands_before_any_figure(page: AppTest) -> None:
    order = [one.type for one in page.main]
    button, chart = page.button(key="apply"), page.get("plotly_chart")[0]
    kinds = [element for element in page.main if element in (button, chart)]
    assert order
    assert kinds == [button, chart]


def test_applying_leaves_no_cap_for_the_first_bucket(page: AppTest) -> None:
    for key, value in {"pick": "bucket_cap_mb", "cap": "3", "first": "0.5"}.items():
        page.query_params[key] = value
    page.run()
    page.button(key="apply").click().run()
    assert page.number_input(key="first").value is None
    assert page.button(key="apply").disabled


def test_applying_leaves_switches_off_that_are_not_shown(page: AppTest) -> None:
    """They were turned for another assignment, and the answer was found without them."""
    page.query_params["pick"] = "per-parameter"
    page.query_params["comm_hook"] = "fp16_compress"
    page.run()
    page.selectbox(key="pick").set_value("zero1").run()
    assert not [one for one in page.selectbox if one.key == "comm_hook"]
    page.button(key="apply").click().run()
    assert page.selectbox(key="comm_hook").value == "none"
    assert page.button(key="apply").disabled


def test_under_a_switch_the_cap_is_found_under_it(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    page.query_params["comm_hook"] = "fp16_compress"
    page.query_params["pick"] = "bucket_cap_mb"
    page.run()
    (cap,) = star(page)
    played = sim.simulate(
        workload, hardware, sim.assign(workload, bucket_cap_mb=cap, comm_hook="fp16_compress")
    )
    step_ns = sim.summarize(played).step_ns
    assert f"Under comm_hook=fp16_compress, set bucket_cap_mb={cap:g}: {format_ms(step_ns)} a step" in plain(
        page.markdown
    )


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """A GPT at 64 ranks with gradients in bfloat16: every round cap is 3 % or more behind."""
    files = {"start": "bundled files", "workload": "gpt-13.8M-cpu", "hardware": "box-2x1gbit"}
    return main_page(monkeypatch, BUNDLED, **files, ranks="64", precision="bfloat16")


def test_a_cap_that_is_far_behind_and_cannot_be_told_apart_is_the_answer(far: AppTest) -> None:
    """The page does not say in one place that no cap comes near, and in another that this one does."""
    far.run()
    assert not far.error
    (cap,) = star(far)
    told = [one for one in plain(far.markdown).split("**") if one.startswith(f"Set bucket_cap_mb={cap:g}: ")]
    assert len(told) == 2, "the strip under the cards, and the section"
    assert told[0].endswith(
        "than the best buckets found; over steps as they vary the two cannot be told apart."
    )
    assert "cannot be told apart from what is recommended" in plain(far.markdown)
    assert "comes near" not in plain(far.markdown)


def test_where_no_cap_comes_near_the_best_buckets_that_is_said_first(far: AppTest) -> None:
    """Under a switch, where nobody knows which steps can be told apart."""
    page = far
    page.query_params["gradient_as_bucket_view"] = "true"
    page.run()
    assert not page.error
    (strip, section) = [one.value for one in page.markdown if "no one cap comes near" in one.value]
    assert strip == section
    (cap,) = star(page)
    assert f"The best round cap, bucket_cap_mb={cap:g}, takes " in strip.replace("\\", "")
    page.button(key="apply_cap").click().run()
    assert (page.selectbox(key="pick").value, page.number_input(key="cap").value) == ("cap", cap)
    slower = next(one.value for one in page.metric)
    page.button(key="apply").click().run()
    assert page.selectbox(key="pick").value == "recommended"
    assert page.button(key="apply").disabled
    quicker = next(one.value for one in page.metric)
    assert float(slower.split()[0]) > 1.03 * float(quicker.split()[0])


def test_what_is_folded_away_is_played_as_the_page_is(
    page: AppTest, workload: Workload, hardware: Hardware
) -> None:
    """Beside a slow rank: the best buckets' step, and whose critical path is told."""
    page.query_params["slowest"] = "1.3"
    page.run()
    assert all(not one.children for one in page.expander if one.label.startswith("Why")), "until it is opened"
    for box in ("folded_why", "folded_best"):
        page.session_state[box] = True
    page.run()
    (best,) = [one.label.replace("\\", "") for one in page.expander if "best buckets" in one.label]
    (told,) = [
        one
        for one in plain(page.markdown).split("**")
        if one.startswith("Under the slowest rank these take ")
    ]
    assert best.rpartition(", ")[2].removesuffix(" a step") in told
    assert "without the slowest rank" in plain(page.caption)
    gain = sim.tune(workload, hardware).gain.sentence
    assert gain[1:] not in plain(page.markdown), (
        "which knows nothing of the slow rank, and may say the contrary"
    )
    (cap,) = star(page)
    (why,) = [one for one in page.expander if one.label.startswith("Why")]
    titles = [one.value.replace("\\", "").split("**")[1] for one in why.markdown]
    assert titles == [f"Recommended: bucket_cap_mb={cap:g}", "The best buckets found", "DDP's default"]
    of_the_cap = why.markdown[0].value.partition("**: ")[2]
    page.button(key="apply").click().run()
    assert f"**{of_the_cap}**" in [one.value for one in page.markdown], "the sentence about what is shown"
