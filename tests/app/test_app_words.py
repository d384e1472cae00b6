"""Words, files at hand, the command line, origins, the memo, and the pages of the manual."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from app import launch, sources, words
from app.memo import digest, memo, one
from app.playing import Choice, Inputs, WhatIf
from app.views.manual import PAGES
from app.widgets import origin_words, provenance, signed, signed_csv, signed_snippet
from sim.nouns.workload import Workload
from tests.app.conftest import a_page, is_clean


def test_plain_text_is_no_markup() -> None:
    assert words.plain("*a* [x](y)\n<b> :red[z] $1$") == r"\*a\* \[x\]\(y\) \<b\> \:red\[z\] \$1\$"
    assert words.file_safe("../../etc/passwd cap 4 MiB") == "etc-passwd-cap-4-MiB"


def test_the_command_names_this_machine_alone(tmp_path: Path) -> None:
    argv = launch.command(8600, tmp_path, tmp_path / "live")
    assert argv[:4] == [sys.executable, "-P", str(launch.MAIN.with_name("serving.py")), "run"]
    assert Path(argv[4]).name == "main.py"
    assert argv[argv.index("--server.address") + 1] == "127.0.0.1"
    assert argv[argv.index("--server.port") + 1] == "8600"
    found = launch.settings(argv[argv.index("--") + 1 :])
    assert found == launch.Settings(traces=tmp_path, watch=tmp_path / "live")
    assert "--" not in launch.command()
    assert launch.settings([]) == launch.Settings(traces=launch.default_traces(), watch=None)


def test_other_folders_are_in_all_records_alone(traces: Path, tmp_path: Path) -> None:
    for folder in ("measured/a", "claims/deep/b", "systems/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "measurement-00-x.json").touch()
    found = sources.find(launch.Settings(traces=tmp_path, watch=traces / "measured"))
    assert list(found.records) == ["live: made-up", "a", "systems/c"]
    assert list(found.all_records) == ["live: made-up", "claims/deep/b", "measured/a", "systems/c"]
    assert found.all_records["measured/a"] == found.records["a"]
    bundled = sources.find(launch.Settings(traces=traces))
    assert (list(bundled.workloads), list(bundled.hardware)) == (["another", "twenty"], ["two-hosts"])
    for nowhere in (None, tmp_path / "not there"):
        assert sources.find(launch.Settings(traces=nowhere, watch=nowhere)).is_empty


def test_exports_say_where_they_come_from_and_what_was_turned(inputs: Inputs) -> None:
    """Switches and what-ifs, too, in one line each, whatever a name in a file holds."""
    what_if = WhatIf(bandwidth=0.5, world_size=64, precision="bfloat16")
    choice = Choice(pick="cap", cap_mb=4.0, options=(("comm_hook", "odd\nimport os"),))
    origin = provenance(inputs, what_if.told(), choice=choice.told())
    workload, hardware = digest(inputs.workload), digest(inputs.hardware)
    assignment = signed(sim.assign(inputs.workload), origin)
    assert assignment.provenance["workload_sha256"] == workload
    assert assignment.provenance["source"] == "sim.assign"
    (row,) = csv.DictReader(io.StringIO(signed_csv([{"a": 1, "b": 2}], origin)))
    assert (row["b"], row["hardware_sha256"]) == ("2", hardware)
    assert json.loads(row["scaled"]) == what_if.told()
    lines = signed_snippet("x = 1\n", origin)
    assert workload in lines
    assert '"bucket_cap_mb": 4.0' in lines
    assert [line for line in lines.splitlines() if not line.startswith("#")] == ["x = 1"]
    assert workload[:12] in origin_words(origin)
    assert "scaled bandwidth x0.5, world_size 64, precision bfloat16" in origin_words(origin)
    assert "choice" not in provenance(inputs, {})


def test_nothing_rests_on_what_streamlit_and_plotly_keep_to_themselves() -> None:
    """Neither an attribute nor an argument of theirs that begins with an underscore."""
    own = re.compile(r"(?<!self)(?<!this)(?<!os)\._[a-z]|\b_validate\b")
    files = [path for ending in ("py", "js") for path in launch.MAIN.parent.rglob(f"*.{ending}")]
    assert len(files) > 20
    found = {path.name: own.findall(path.read_text(encoding="utf-8")) for path in files}
    assert not {name: names for name, names in found.items() if names}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=40), st.integers(0, 20))
def test_no_more_than_the_weight_but_always_the_last(asked: list[tuple[int, int]], most: int) -> None:
    @memo(most, lambda made, *_: made[1])
    def kept(key: int, make: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        return make()

    for key, weight in asked:
        made = kept(key, lambda key=key, weight=weight: (key, weight))  # type: ignore[misc]
        found = [value for number in range(10) if (value := kept.known(number, tuple)) is not None]
        assert kept.known(key, tuple) is made
        assert len(found) == 1 or sum(weight for _, weight in found) <= most


def test_what_raises_is_not_kept() -> None:
    @memo(1)
    def kept(key: str, make: Callable[[], int]) -> int:
        return make()

    with pytest.raises(ZeroDivisionError):
        kept("a", lambda: 1 // 0)
    assert kept("a", lambda: 2) == 2


def test_a_noun_stands_for_itself_and_a_file_for_what_is_in_it(tmp_path: Path, workload: Workload) -> None:
    made: list[str] = []

    @memo(9)
    def name(choice: Choice, workload: Workload, path: Path) -> str:
        made.append(path.read_text())
        return workload.name

    def times(workload: Workload, **options: object) -> int:
        name(Choice(pick="cap", options=tuple(options.items())), workload, path)
        return len(made)

    (path := tmp_path / "file").write_text("a")
    other = replace(workload)
    assert [times(workload), times(workload), times(other)] == [1, 1, 2]
    assert [times(workload, comm_hook={"name": "x"}), times(workload, comm_hook={"name": "x"})] == [3, 3]
    path.write_text("other")
    assert times(workload) == 4
    assert one(replace(workload)) is one(replace(other)), "what says the same is read once"


@pytest.mark.parametrize("page", PAGES)
def test_an_address_names_a_page_of_the_manual(page: str) -> None:
    shown = a_page("manual", page=page).run()
    assert is_clean(shown)
    assert [title.value for title in shown.title] == [PAGES[page]]
    assert shown.radio(key="page").value == page
    assert not any(".md)" in found.value or "@@" in found.value for found in shown.markdown)
    assert len(shown.get("image")) == (4 if page == "dashboard" else len(shown.get("image")))
