"""Words, files at hand, the command line, and origins."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import sim
from app import launch, sources, words
from app.memo import digest
from app.playing import Choice, Inputs, WhatIf
from app.widgets import origin_words, provenance, signed, signed_csv, signed_snippet


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


def test_exports_say_where_they_come_from(inputs: Inputs) -> None:
    origin = provenance(inputs, {"bandwidth": 0.5})
    assert origin["scaled"] == {"bandwidth": 0.5}
    assignment = signed(sim.assign(inputs.workload), origin)
    assert assignment.provenance["workload_sha256"] == digest(inputs.workload)
    assert assignment.provenance["source"] == "sim.assign"
    rows = list(csv.DictReader(io.StringIO(signed_csv([{"a": 1, "b": 2}], origin))))
    assert rows[0]["b"] == "2"
    assert rows[0]["hardware_sha256"] == digest(inputs.hardware)
    assert digest(inputs.workload) in signed_snippet("x = 1\n", origin)
    compile(signed_snippet("x = 1\n", origin), "snippet", "exec")
    assert digest(inputs.workload)[:12] in origin_words(origin)
    assert "bandwidth x0.5" in origin_words(origin)


def test_exports_say_what_was_turned(inputs: Inputs) -> None:
    """Switches and what-ifs, too, in one line each, whatever a name in a file holds."""
    what_if = WhatIf(bandwidth=0.5, world_size=64, precision="bfloat16")
    choice = Choice(pick="cap", cap_mb=4.0, options=(("comm_hook", "odd\nimport os"),))
    origin = provenance(inputs, what_if.told(), choice=choice.told())
    words = "scaled bandwidth x0.5, world_size 64, precision bfloat16"
    assert words in origin_words(origin)
    lines = signed_snippet("x = 1\n", origin)
    assert [line for line in lines.splitlines() if not line.startswith("#")] == ["x = 1"]
    assert '"bucket_cap_mb": 4.0' in lines
    (row,) = csv.DictReader(io.StringIO(signed_csv([{"a": 1}], origin)))
    assert json.loads(row["scaled"]) == what_if.told()
    assert "choice" not in provenance(inputs, {})


def test_nothing_rests_on_what_streamlit_and_plotly_keep_to_themselves() -> None:
    """Neither an attribute nor an argument of theirs that begins with an underscore."""
    own = re.compile(r"(?<!self)(?<!this)(?<!os)\._[a-z]|\b_validate\b")
    files = [path for ending in ("py", "js") for path in launch.MAIN.parent.rglob(f"*.{ending}")]
    assert len(files) > 20
    found = {path.name: own.findall(path.read_text(encoding="utf-8")) for path in files}
    assert not {name: names for name, names in found.items() if names}
