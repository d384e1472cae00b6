"""The command line: exit codes, one document on stdout, help, sizes, errors in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import InputError
from sim.formats import documents
from sim.formats import record_files as records
from tests.cli.cheap import save_measurements
from tests.commands import Said, bucketsim, process, script
from tests.effort import PATIENCE_S

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"
FILES = (W, "--hardware", H)


def one_document(said: Said) -> Any:
    """stdout holds exactly one JSON document and the newline behind it."""
    assert said.code == 0, said.err
    document, end = json.JSONDecoder().raw_decode(said.out)
    assert said.out[end:] == "\n"
    return document


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that nobody measured: two candidates, each 10 % slower than predicted."""
    folder = tmp_path_factory.mktemp("records") / "made up"
    workload, hardware = sim.load_workload(W), sim.load_hardware(H)
    records.start_record(folder, workload, hardware)
    save_measurements(folder)
    return folder


# Exit codes


def test_exit_0_on_success() -> None:
    said = bucketsim("simulate", *FILES)
    assert said.code == 0
    assert said.out
    assert "exposed" in said.out
    assert said.err == f"next: bucketsim tune {W} --hardware {H} -o assignment.json\n"


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "nowhere.json", "--hardware", H],
        ["simulate", H, "--hardware", H],
        ["simulate", *FILES, "--policy", "zero3"],
        ["simulate", *FILES, "--policy", "best"],
        ["simulate", *FILES, "--iteration", "4"],
        ["simulate", *FILES, "--reduce-bucket-size", "1000"],
        ["simulate", *FILES, "--bucket-cap-mb", "5apples"],
        ["simulate", *FILES, "--bucket-cap-mb", "-1"],
        ["simulate", *FILES, "--bucket-cap-mb", "1e999"],
        ["simulate", *FILES, "--bucket-cap-mb-list", ""],
        ["simulate", *FILES, "--bucket-cap-mb-list", "1,,25"],
        ["simulate", *FILES, "--bucket-cap-mb-list", "1,25", "--bucket-cap-mb", "4"],
        ["simulate", *FILES, "--policy", "single", "--bucket-cap-mb", "4"],
        ["simulate", *FILES, "--assignment", "nowhere.json", "--policy", "single"],
        ["simulate", *FILES, "--policy", "zero2", "--zero", "communication_data_type=[1]"],
        ["simulate", *FILES, "--policy", "zero2", "--zero", "gradient_accumulation_steps=1000000000"],
        ["simulate", *FILES, "--ddp", "first_bucket_mb=1"],
        ["simulate", *FILES, "--ddp", "misspelt=false"],
        ["explain", "nowhere.json"],
        ["explain", H],
        ["explain", W, "--iterations", "0"],
        ["sweep", *FILES, "--caps", ","],
        ["sweep", *FILES, "-o", "nowhere/sweep.csv", "--json"],
        ["tune", *FILES, "-o", "nowhere/best.json", "--json"],
        ["export", W],
        ["export", W, "--assignment", W],
        ["agree", "nowhere"],
        ["dash", "--watch", "nowhere"],
        ["calibrate", "-o", "h.json", "--largest", "1e999"],
        ["record", "no_module_of_this_name:make", "-o", "w.json"],
    ],
    ids=lambda words: " ".join(str(word) for word in words if word not in FILES),
)
def test_exit_1_in_one_line_without_a_traceback(
    words: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bucketsim(*words)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nope"],
        ["simulate"],
        ["simulate", W],
        ["simulate", *FILES, "--nope"],
        ["simulate", *FILES, "--engine", "guess"],
        ["simulate", *FILES, "--reduce-bucket-size", "many"],
        ["export", W, "--as", "nope"],
        ["record", "a:b"],
        ["validate", *FILES],
    ],
    ids=lambda words: " ".join(map(str, words[:1] + words[3:])) or "nothing",
)
def test_exit_2_on_usage(words: list[Any]) -> None:
    said = bucketsim(*words)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_exit_3_where_a_validation_misses_its_threshold(recorded: Path) -> None:
    """10 % off: within 12, not within 5."""
    assert bucketsim("agree", recorded, "--max-error", "12").code == 0
    said = bucketsim("agree", recorded, "--max-error", "5", "--json")
    assert said.code == 3
    assert "missed: worst step error 9.09% > 5 %" in said.err
    document = json.loads(said.out)
    assert document["worst_step_error"] == pytest.approx(1 / 11, rel=1e-6)


@pytest.mark.parametrize("words", [["--debug", "simulate"], ["simulate", "--debug"]], ids=["before", "after"])
def test_debug_shows_the_traceback(words: list[str]) -> None:
    with pytest.raises(InputError):
        bucketsim(*words, "nowhere.json", "--hardware", H)


def test_debug_in_a_real_process() -> None:
    said = process("-m", "sim", "agree", "nowhere", "--debug")
    assert said.code == 1
    assert "Traceback" in said.err
    said = bucketsim("agree", "nowhere")
    assert (said.code, said.out) == (1, "")
    assert said.err == "error: nowhere: not a directory; give the directory of a measured record\n"


def test_a_closed_pipe_is_no_error() -> None:
    """``bucketsim sweep … | head -1``"""
    command = f"{sys.executable} -m sim sweep '{W}' --hardware '{H}' --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("{", "")


# Documents


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["simulate", *FILES, "--json"], "report"),
        (["explain", W, "--json"], "explanation"),
        (["tune", *FILES, "--json"], "recommendation"),
        (["export", *FILES, "--as", "assignment"], "assignment"),
    ],
    ids=["simulate", "explain", "tune", "export"],
)
def test_json_is_one_document_that_reads_back(words: list[Any], kind: str) -> None:
    """CONTRACT, Command line: --json prints one document on stdout."""
    said = bucketsim(*words)
    document = one_document(said)
    assert document["kind"] == kind
    documents.parse_document(document, documents.KINDS[kind], "stdout")


def test_json_of_agree(recorded: Path) -> None:
    document = one_document(bucketsim("agree", recorded, "--json"))
    assert [row["name"] for row in document["rows"]] == ["cap 4", "cap 25"]


def test_what_is_written_is_told_on_stderr(tmp_path: Path) -> None:
    said = bucketsim("tune", *FILES, "--json", "-o", tmp_path / "best.json")
    one_document(said)
    assert f"wrote {tmp_path / 'best.json'}" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["best.json"]


def test_a_tuned_assignment_is_simulated_as_it_was_recommended(tmp_path: Path) -> None:
    answer = one_document(bucketsim("tune", *FILES, "--json", "-o", tmp_path / "a.json"))
    again = one_document(bucketsim("simulate", *FILES, "--assignment", tmp_path / "a.json", "--json"))
    assert again["sync_end_ns"] == answer["report"]["sync_end_ns"]
    assert again["buckets"] == answer["report"]["buckets"]
    assert answer["report"]["engine"] == "simpy"


def test_sweep_writes_csv(tmp_path: Path) -> None:
    said = bucketsim("sweep", *FILES, "--caps", "4,8MiB,0.01GiB", "--json", "-o", tmp_path / "s.csv")
    rows = one_document(said)["rows"]
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows)
    assert lines[0].split(",") == list(rows[0])
    assert {row["bucket_cap_mb"] for row in rows} >= {None, 4.0, 8.0, 10.24}


@pytest.mark.parametrize("text", ["8MiB", "8", "8192KiB", "8388608B", "8 MiB", "0.0078125GiB"])
def test_sizes_accept_units(text: str) -> None:
    """CONTRACT: sizes accept 25MiB; bucket_cap_mb is torch's name and means MiB."""
    document = one_document(bucketsim("simulate", *FILES, "--bucket-cap-mb", text, "--json"))
    assert document["bucket_indices"] == [[3, 2], [1, 0]]


@pytest.mark.parametrize("target", ["bucket-indices", "perfetto"])
def test_exports_are_json(target: str) -> None:
    assert one_document(bucketsim("export", *FILES, "--as", target))


def test_exported_flags_are_megatrons() -> None:
    """Without an assignment, of the best ``--ddp-bucket-size``; it is in no file: no replay is suggested."""
    said = bucketsim("export", *FILES, "--as", "megatron-flags")
    assert said.code == 0
    assert "--overlap-grad-reduce\n--ddp-bucket-size " in said.out
    assert "validate" not in said.err


def test_units_may_be_numbers() -> None:
    said = bucketsim("simulate", *FILES, "--policy", "fully_shard", "--fsdp", "units=0")
    assert said.code == 1
    assert "units='0' names no module" in said.err


def test_names_that_no_terminal_knows_do_not_break_it(tmp_path: Path) -> None:
    document = json.loads(W.read_text()) | {"name": "naïve 模型 \u001b[31m"}
    (tmp_path / "w.json").write_text(json.dumps(document))
    words = ["-m", "sim", "simulate", tmp_path / "w.json", "--hardware", H]
    said = process(*words, "--json", env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"})
    assert said.code == 0, said.err[-300:]
    assert json.loads(said.out)["provenance"]["workload"] == document["name"]
    assert process(*words, env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}).code == 0


# The program itself


def test_version_and_help() -> None:
    from importlib.metadata import version

    assert bucketsim("--version").out == version("bucketsim") + "\n"
    for said in (process("-m", "sim", "--help"), process(script(), "--help")):
        assert said.code == 0
        assert "simulate" in said.out
        assert said.err == ""


_STARTING = ["sim.errors", "sim.systems.simulate"]
_LATER = ["sim.cli.commands", "sim.formats.documents"]


@pytest.mark.parametrize(
    "module", [*_STARTING, *(pytest.param(one, marks=pytest.mark.slow) for one in _LATER)]
)
def test_ctrl_c_is_one_line_also_while_it_starts(module: str) -> None:
    """Ctrl-C as a module is being imported: of the command line, or of what it runs."""
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['bucketsim', 'simulate', {str(W)!r}, '--hardware', {str(H)!r}, '--json']\n"
        "from sim.cli.main import main\n"
        "main()\n"
    )
    said = process("-c", program)
    assert (said.code, said.out, said.err) == (130, "", "interrupted\n")


def test_the_command_line_starts_without_torch_and_streamlit() -> None:
    """``bucketsim simulate`` and its help start without torch; the screen is its own process."""
    program = (
        "import sys, sim.cli.main\n"
        "import sim\n"
        "dir(sim)\n"
        "print(sorted({'torch', 'numba', 'streamlit', 'plotly', 'playwright'} & set(sys.modules)))\n"
        f"sys.argv = ['bucketsim', 'simulate', {str(W)!r}, '--hardware', {str(H)!r}, '--json']\n"
        "try: sim.cli.main.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print(sorted({'torch', 'numba', 'streamlit', 'plotly', 'playwright'} & set(sys.modules)))\n"
    )
    said = process("-c", program)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "[]")


# No command


def test_without_a_command_it_tells_the_loop() -> None:
    said = bucketsim()
    assert said.code == 2
    first, *loop, after = said.out.splitlines()
    assert "DistributedDataParallel" in first
    assert [line.split("bucketsim ")[1].split()[0] for line in loop] == [
        "record",
        "calibrate",
        "tune",
        "export",
        "validate",
    ]
    assert after.startswith("next: bucketsim demo")
