"""The command line: exit codes, one document on stdout, help, sizes, errors in one line."""

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import InputError, SimError
from sim.formats import documents
from sim.formats import record_files as records
from tests.cli.cheap import save_measurements
from tests.commands import Said, bucketsim, process, script
from tests.kinds import KINDS

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
    documents.parse_document(document, KINDS[kind], "stdout")


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


# What ``import sim`` offers: all of it exists, all of it is documented, and nothing else (httpx's idea).


def test_the_stub_says_what_is_offered() -> None:
    listed = ast.parse(Path(sim.__file__).with_suffix(".pyi").read_text())
    imported = [name for node in listed.body if isinstance(node, ast.ImportFrom) for name in node.names]
    (said,) = (node.value for node in listed.body if isinstance(node, ast.Assign))
    assert sorted(name.asname for name in imported if name.asname) == sim.__all__ == dir(sim)
    assert ast.literal_eval(said) == sorted(one.asname for one in imported if one.asname != one.name)


@pytest.mark.parametrize("name", sim.__all__)
def test_everything_exported_exists_and_is_documented(name: str) -> None:
    member = getattr(sim, name)
    assert inspect.getdoc(member)
    if inspect.isfunction(member):
        hints = inspect.get_annotations(member)
        assert set(hints) >= {*inspect.signature(member).parameters, "return"}


def test_no_module_bears_the_name_of_a_function() -> None:
    """CONTRACT, Python: otherwise ``import sim.tuner.tune`` would hide ``sim.tune``."""
    modules = {
        path.stem for path in Path(sim.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    assert modules & set(sim.__all__) == set()


def test_every_error_is_a_sim_error() -> None:
    import sim.errors

    errors = [one for one in vars(sim.errors).values() if isinstance(one, type)]
    assert len(errors) >= 6
    for error in errors:
        assert issubclass(error, SimError)
        assert error.__doc__
        assert error.__name__ in (sim.errors.__doc__ or "")


def test_importing_sim_is_light() -> None:
    """The worker on a measured rank imports ``sim.nouns`` without SimPy, pydantic or networkx."""
    said = process(
        "-c",
        "import sys, sim, sim.nouns.workload, sim.nouns.assignment; "
        "print(sorted({'simpy', 'pydantic', 'networkx', 'torch', 'numpy', 'typer'} & set(sys.modules)))",
    )
    assert said.out == "[]\n"


# Stdout that is full or closed, and a stderr that is: one line and exit 1; an unread one ends quietly.

SIMULATE = ("simulate", *FILES)


@contextmanager
def full() -> Iterator[int]:
    with Path("/dev/full").open("wb") as stream:
        yield stream.fileno()


@contextmanager
def unread() -> Iterator[int]:
    """The end of a pipe whose reader is gone: what ``| head -1`` leaves."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def run(
    words: tuple[object, ...], before: Callable[[], object] | None = None, **streams: int
) -> tuple[int, str]:
    """Exit code and stderr of a real process; ``before`` runs in it first."""
    done = subprocess.run(
        [sys.executable, "-m", "sim", *map(str, words)],
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | streams,
        preexec_fn=before,
        check=False,
    )
    return done.returncode, (done.stderr or b"").decode()


FULL = (1, "error: stdout: cannot be written: No space left on device\n")
FAR = [(full, FULL), (unread, (128 + signal.SIGPIPE, ""))]


@pytest.mark.parametrize(
    ("words", "where", "ends"), [(("--help",), *FAR[1]), ((*SIMULATE, "--json"), *FAR[0])]
)
def test_an_answer_that_does_not_arrive_is_one_error_and_one_that_is_not_read_is_none(
    words: tuple[object, ...], where: Callable[[], AbstractContextManager[int]], ends: tuple[int, str]
) -> None:
    with where() as stream:
        assert run(words, stdout=stream) == ends


def test_a_closed_stdout_does_not_end_up_in_a_file(tmp_path: Path) -> None:
    """The first file that is opened would get its number, and whatever is printed with it."""
    path = tmp_path / "s.csv"
    code, said = run(("sweep", *SIMULATE[1:], "--caps", 4, "-o", path), before=lambda: os.close(1))
    assert code == 1
    assert said.endswith("\nerror: stdout: cannot be written: Bad file descriptor\n")
    assert path.read_text().startswith("label,bucket_cap_mb,")


def test_a_stderr_that_is_lost_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    with full() as stream:
        assert run(("sweep", *SIMULATE[1:], "--caps", 4, "-o", path), stderr=stream)[0] == 0
    assert path.exists()
