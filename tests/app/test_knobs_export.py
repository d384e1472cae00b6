"""What is taken home: lines for a torch, DeepSpeed's configuration, files that say where they come from."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import sim
from app.views import tune
from app.widgets import Files
from tests.effort import PATIENCE_S


def take_home(pick: str, options: dict[str, object]) -> None:
    from app import playing
    from app.playing import Choice, Inputs, WhatIf
    from app.views import tune
    from tests.app.conftest import make_hardware, make_workload

    workload, hardware = make_workload("a/b <c>"), make_hardware()
    what_if = WhatIf(bandwidth=0.5)
    inputs = playing.scale(
        Inputs(
            workload=workload,
            hardware=hardware,
        ),
        what_if,
    )
    choice = Choice(pick=pick, options=tuple(options.items()))  # type: ignore[arg-type]
    tune._take_home(inputs, choice, what_if, playing.play(inputs, choice), None)


def page(pick: str, **options: Any) -> AppTest:
    made = AppTest.from_function(take_home, args=(pick, options), default_timeout=PATIENCE_S)
    made.session_state["folded_lines"] = True
    return made


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str | Callable[[], str]]]:
    """What each button would give: by label, the file's name and its content."""
    found: dict[str, tuple[str, str | Callable[[], str]]] = {}

    def row(files: Files, where_from: object = None) -> None:
        found.update({label: (name, content) for label, (content, name, _) in files.items()})

    monkeypatch.setattr(tune, "downloads", row)
    return found


@pytest.mark.usefixtures("fresh")
def test_every_file_is_made_when_asked_for_and_says_what_was_turned(
    files: dict[str, tuple[str, str | Callable[[], str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "tune", partial(sim.tune, draws=20), raising=False)
    made = page("recommended", static_graph=True).run()
    assert not made.exception
    assert len(files) == 6
    for label, (name, content) in files.items():
        assert (label == "Python snippet") == isinstance(content, str), label
        assert name.startswith("a-b-c-best-buckets-found-static-graph."), name
        text = content if isinstance(content, str) else content()
        assert '"bandwidth": 0.5' in text.replace('""', '"'), label
        assert "static_graph" in text, label


def test_zero_gets_deepspeeds_configuration() -> None:
    made = page("zero2", reduce_bucket_size=70_000).run()
    assert json.loads(made.code[0].value)["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 70_000}
    assert "DeepSpeed JSON" in [button.label for button in made.get("download_button")]


def test_megatron_gets_flags() -> None:
    made = page("megatron", overlap_grad_reduce=True, bucket_size=7e4, num_microbatches=2).run()
    assert made.code[0].value.splitlines() == [
        "# Set elsewhere, and part of this assignment: num_microbatches=2",
        "--overlap-grad-reduce",
        "--ddp-bucket-size 70000",
    ]
    assert "Megatron flags" in [button.label for button in made.get("download_button")]
