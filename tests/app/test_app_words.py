"""Words, files at hand, the command line, and origins."""

import csv
import html
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import sim
from app import launch, library
from app.cached import Inputs
from app.choosing import Choice, WhatIf
from app.provenance import origin_words, provenance, signed, signed_csv, signed_html, signed_snippet
from app.words import labels, switches
from app.words.tune import absent_words, significance_words
from sim.nouns.hardware import Hardware
from sim.nouns.path import PathKind, PathSpan
from sim.nouns.workload import Workload


def test_plain_text_is_no_markup() -> None:
    assert labels.plain("*a* [x](y)\n<b> :red[z] $1$") == r"\*a\* \[x\]\(y\) \<b\> \:red\[z\] \$1\$"


def test_file_names_are_safe() -> None:
    assert labels.file_safe("../../etc/passwd cap 4 MiB") == "etc-passwd-cap-4-MiB"
    assert labels.file_safe("///") == "bucketsim"


def test_choices_in_words() -> None:
    assert labels.choice_words("default", None, None) == "DDP's default"
    assert labels.choice_words("cap", 4.0, None) == "cap 4 MiB"
    assert labels.choice_words("cap", 4.0, 0.5) == "cap 4 MiB, first 0.5 MiB"
    many = Choice(pick="cap-list", caps_mb=(1.0, 2.0, 4.0, 8.0, 16.0), options=(("static_graph", True),))
    assert many.words == "caps 1, 2, 4, 8 MiB … 5 in all, static_graph"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("static_graph", True), "static_graph"),
        (("set_to_none", False), "set_to_none=False"),
        (("set_last_bucket_cap", True), "DDP_SET_LAST_BUCKET_CAP=1"),
        (("comm_hook", "fp16_compress"), "comm_hook=fp16_compress"),
        (
            ("comm_hook", {"name": "powerSGD", "matrix_approximation_rank": 4}),
            "comm_hook=powerSGD(matrix_approximation_rank=4)",
        ),
        (("mixed_precision", {"reduce_dtype": "float16"}), "mixed_precision(reduce_dtype=float16)"),
        (("join_inputs", [2, 4]), "join_inputs=[2, 4]"),
        (("offload_bytes_per_s", 1.5e10), "offload_bytes_per_s=15000000000"),
        (("accumulation_steps", 4), "accumulation_steps=4"),
    ],
)
def test_switches_in_few_words(option: tuple[str, Any], words: str) -> None:
    assert switches.option_words(option) == words


def test_an_estimate_is_called_one(workload: Workload) -> None:
    assert labels.estimated_sentence(workload) is None
    estimated = replace(workload, estimated=True, band=(0.5, 2.0))
    assert "0.5 to 2" in (labels.estimated_sentence(estimated) or "")
    said = replace(estimated, provenance={"band": "nine of ten of them"})
    assert "a band of 0.5 to 2: nine of ten of them." in (labels.estimated_sentence(said) or "")


def test_long_lists_of_caps_are_cut_short() -> None:
    assert labels.knob_words({"bucket_cap_mb_list": [1.0] * 9}) == "bucket_cap_mb_list=[1, 1, 1, … 9 in all]"
    assert labels.knob_words({}) == "nothing to set"


def test_the_command_names_this_machine_alone(tmp_path: Path) -> None:
    argv = launch.command(8600, tmp_path, tmp_path / "live")
    assert argv[:4] == [sys.executable, "-P", str(launch.MAIN.with_name("serving.py")), "run"]
    assert Path(argv[4]).name == "main.py"
    assert argv[argv.index("--server.address") + 1] == "127.0.0.1"
    assert argv[argv.index("--server.port") + 1] == "8600"
    found = launch.settings(argv[argv.index("--") + 1 :])
    assert found == launch.Settings(traces=tmp_path, watch=tmp_path / "live")


def test_the_bare_command_has_no_tail() -> None:
    assert "--" not in launch.command()
    assert launch.settings([]) == launch.Settings(traces=launch.default_traces(), watch=None)


def test_the_library_finds_what_is_there(traces: Path) -> None:
    found = library.find(launch.Settings(traces=traces, watch=traces / "measured" / "made-up"))
    assert list(found.workloads) == ["another", "twenty"]
    assert list(found.hardware) == ["two-hosts"]
    assert list(found.records) == ["live: made-up", "made-up"]
    assert not found.is_empty


@pytest.mark.parametrize("missing", [None, Path("/nowhere/at/all")])
def test_no_traces_is_no_error(missing: Path | None) -> None:
    assert library.find(launch.Settings(traces=missing, watch=missing)).is_empty


def test_exports_say_where_they_come_from(inputs: Inputs) -> None:
    origin = provenance(inputs, {"bandwidth": 0.5})
    assert origin["scaled"] == {"bandwidth": 0.5}
    assignment = signed(sim.assign(inputs.workload), origin)
    assert assignment.provenance["workload_sha256"] == inputs.workload_digest
    assert assignment.provenance["source"] == "sim.assign"
    rows = list(csv.DictReader(io.StringIO(signed_csv("a,b\n1,2\n", origin))))
    assert rows[0]["b"] == "2"
    assert rows[0]["hardware_sha256"] == inputs.hardware_digest
    assert inputs.workload_digest in signed_snippet("x = 1\n", origin)
    compile(signed_snippet("x = 1\n", origin), "snippet", "exec")
    assert inputs.workload_digest[:12] in origin_words(origin)
    assert "bandwidth x0.5" in origin_words(origin)


def test_exports_say_what_was_turned(inputs: Inputs) -> None:
    """Switches and what-ifs, too, in one line each, whatever a name in a file holds."""
    what_if = WhatIf(bandwidth=0.5, world_size=64, precision="bfloat16", slowest_rank=1.3)
    choice = Choice(pick="cap", cap_mb=4.0, options=(("comm_hook", "odd\nimport os"),))
    origin = provenance(inputs, what_if.told(), choice.told())
    words = "scaled bandwidth x0.5, slowest_rank x1.3, world_size 64, precision bfloat16"
    assert words in origin_words(origin)
    lines = signed_snippet("x = 1\n", origin)
    assert [line for line in lines.splitlines() if not line.startswith("#")] == ["x = 1"]
    assert '"bucket_cap_mb": 4.0' in lines
    (row,) = csv.DictReader(io.StringIO(signed_csv("a\n1\n", origin)))
    assert json.loads(row["scaled"]) == what_if.told()
    page = signed_html("<html><head></head></html>", origin | {"workload": '"><script>'})
    assert "<script>" not in page
    found = re.search('name="provenance" content="([^"]*)"', page)
    assert found is not None
    assert json.loads(html.unescape(found[1]))["choice"] == choice.told()
    assert "choice" not in provenance(inputs, {})


def test_a_whole_recommendation_is_signed(inputs: Inputs) -> None:
    found = signed(sim.tune(inputs.workload, inputs.hardware, draws=20), provenance(inputs, {}))
    assert json.loads(sim.to_text(found))["provenance"]["hardware_sha256"] == inputs.hardware_digest


def test_a_path_in_rows() -> None:
    """What the lane does on end is one row; nothing is lost between rows."""
    path = [
        PathSpan(kind="backward", start_ns=0, end_ns=4_000_000, gradient=3),
        PathSpan(kind="copy_in", start_ns=4_000_000, end_ns=5_000_000, gradient=3),
        PathSpan(kind="backward", start_ns=5_000_000, end_ns=9_000_000, gradient=2),
        PathSpan(kind="copy_in", start_ns=9_000_000, end_ns=9_500_000, gradient=2),
        PathSpan(kind="launch", start_ns=9_500_000, end_ns=9_600_000, bucket=0),
        PathSpan(kind="all_reduce", start_ns=9_600_000, end_ns=20_000_000, bucket=0),
        PathSpan(kind="all_reduce", start_ns=20_000_000, end_ns=30_000_000, bucket=1),
    ]
    assert labels.path_rows(path) == [
        ("backward; 2 copies into buckets 1.50 ms; 1 launch 0.10 ms", None, 0, 9_600_000),
        ("all-reduce", 0, 9_600_000, 20_000_000),
        ("all-reduce", 1, 20_000_000, 30_000_000),
    ]
    assert labels.path_rows([]) == []


def test_what_has_to_be_set_in_words(workload: Workload) -> None:
    assert labels.setting_words(sim.assign(workload)) == "nothing to set"
    assert labels.setting_words(sim.assign(workload, bucket_cap_mb=2.5)) == "bucket_cap_mb=2.5"
    env = sim.assign(workload, bucket_cap_mb=2, set_last_bucket_cap=True)
    assert labels.setting_words(env) == "DDP_SET_LAST_BUCKET_CAP=1, bucket_cap_mb=2"
    bare = replace(sim.assign(workload), policy="explicit", ddp_kwargs={})
    assert labels.setting_words(bare) == "sim.apply gives DDP these buckets"


def test_every_span_of_a_path_has_words() -> None:
    kinds = [kind for part in get_args(PathKind) for kind in (get_args(part) or (part,))]
    assert set(kinds) == set(labels.PATH_WORDS)


def test_what_was_drawn_in_words(workload: Workload, hardware: Hardware) -> None:
    robust = sim.tune(workload, hardware, draws=50, seed=3).robust
    assert robust is not None
    assert labels.robust_sentence(robust).startswith("One step, as given: nothing that varies was recorded.")
    drawn = replace(robust, draws=400, calibrations=20, noise_ns=2_000_000, not_known=("this", "that"))
    sentence = labels.robust_sentence(drawn)
    assert sentence.startswith("400 steps with seed 3, the same for every candidate: 20 machines")
    assert "each with 20 steps" in sentence
    assert "varies by 2.00 ms" in sentence
    assert "taken as exact: this; that." in sentence


@pytest.mark.parametrize(
    ("not_known", "why"),
    [
        (("how iterations vary",), "how iterations vary was not recorded."),
        ((), "is doubtful, see the notes."),
    ],
)
def test_why_nobody_knows_whether_it_matters(
    workload: Workload, hardware: Hardware, not_known: tuple[str, ...], why: str
) -> None:
    found = sim.tune(workload, hardware)
    told = replace(found, gain=replace(found.gain, gain_ns=1, significant=None, not_known=not_known))
    words = significance_words(told)
    assert words is not None
    assert words.endswith(why)
    assert ": was" not in words


def test_knobs_that_are_not_in_the_table_are_told_once_a_reason() -> None:
    told = absent_words(
        {
            "zero1 reduce_bucket_size": "zero1: no all_gather curve",
            "zero2 reduce_bucket_size": "zero2: no all_gather curve",
            "fully_shard units": "fully_shard: no reduce_scatter curve",
        }
    )
    assert told == (
        "Not in the table: DeepSpeed ZeRO-1, reduce_bucket_size and DeepSpeed ZeRO-2, reduce_bucket_size (no "
        "all_gather curve); FSDP2 fully_shard, what to wrap (no reduce_scatter curve)."
    )
