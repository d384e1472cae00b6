"""The command line: what it offers, exit codes, one document on stdout, streams that fail, Ctrl-C.

Names of commands and options, once out, are promises (an idea of torchtitan's): to add one, add it to
``options.txt`` too; before taking one away, think twice.
"""

import ast
import inspect
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import pytest

import sim
import sim.cli.commands
import sim.errors
from app import launch
from sim.errors import InputError, SimError
from tests.cli.cheap import H, W
from tests.commands import bucketsim, process, script
from tests.effort import PATIENCE_S

SIMULATE = ("simulate", W, "--hardware", H)
GROUP = sim.cli.commands.app
COMMANDS = GROUP.commands
LINES = Path(__file__).with_name("options.txt").read_text(encoding="utf-8").splitlines()
FROZEN = {name: words for name, *words in map(str.split, LINES)}
HEAVY = "{'torch', 'numba', 'streamlit', 'plotly', 'playwright'}"


def words_of(command: object) -> list[str]:
    """Arguments and options as the user types them."""
    parameters = command.params  # type: ignore[attr-defined]
    named = sorted(word for one in parameters for word in one.opts if word.startswith("-"))
    return [*(one.metavar for one in parameters if not one.opts[0].startswith("-")), *named]


def test_no_command_and_no_option_comes_or_goes_unseen() -> None:
    """Each command has a row in ``sim/CONTRACT.md``, too, whose options are its own."""
    assert sorted(" ".join((name, *words_of(one))) for name, one in COMMANDS.items()) == LINES
    assert words_of(GROUP) == ["--debug", "--version"]
    text = (Path(sim.__file__).parent / "CONTRACT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `bucketsim (\w+)(.*)$", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(FROZEN)
    for name, row in rows:
        assert set(re.findall(r"--[a-z-]*\w", row)) <= set(FROZEN[name]), name


@pytest.mark.parametrize("name", FROZEN)
def test_every_command_and_every_option_says_what_it_does(name: str) -> None:
    said = bucketsim(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert COMMANDS[name].help.strip() in " ".join(said.out.split())
    assert [one.name for one in COMMANDS[name].params if not one.help] == []


def test_version_help_and_without_a_command_the_loop() -> None:
    assert bucketsim("--version").out == version("bucketsim") + "\n"
    for said in (process("-m", "sim", "--help"), process(script(), "--help")):
        assert (said.code, "simulate" in said.out, said.err) == (0, True, "")
    said = bucketsim()
    _, *loop, after = said.out.splitlines()
    assert [line.split("bucketsim ")[1].split()[0] for line in loop] == [
        *("record", "calibrate", "tune", "export", "validate")
    ]
    assert (said.code, after.startswith("next: bucketsim demo")) == (2, True)


@pytest.mark.parametrize("words", [["--debug", "simulate"], ["simulate", "--debug"]], ids=["before", "after"])
def test_debug_shows_the_traceback(words: list[str]) -> None:
    with pytest.raises(InputError):
        bucketsim(*words, "nowhere.json", "--hardware", H)


@pytest.mark.parametrize("text", ["8MiB", "8", "8192KiB", "8388608B", "8 MiB", "0.0078125GiB"])
def test_sizes_accept_units(text: str) -> None:
    """CONTRACT: sizes accept 25MiB; bucket_cap_mb is torch's name and means MiB."""
    document = json.loads(bucketsim(*SIMULATE, "--bucket-cap-mb", text, "--json").out)
    assert document["bucket_indices"] == [[3, 2], [1, 0]]


def test_names_that_no_terminal_knows_do_not_break_it(tmp_path: Path) -> None:
    document = json.loads(W.read_text()) | {"name": "naïve 模型 \u001b[31m"}
    (tmp_path / "w.json").write_text(json.dumps(document))
    words = ["-m", "sim", "simulate", tmp_path / "w.json", "--hardware", H]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    said = process(*words, "--json", env=environment)
    assert said.code == 0, said.err[-300:]
    assert json.loads(said.out)["provenance"]["workload"] == document["name"]
    assert process(*words, env=environment).code == 0


def test_commands_start_without_torch_and_streamlit_and_nouns_without_anything() -> None:
    """The screen is its own process; the worker on a measured rank imports ``sim.nouns`` alone."""
    program = (
        "import sys, sim, sim.nouns.workload, sim.nouns.assignment\n"
        "print(sorted({'simpy', 'pydantic', 'networkx', 'torch', 'numpy', 'typer'} & set(sys.modules)))\n"
        "import sim.cli.main\n"
        "dir(sim)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))\n"
        f"sys.argv = ['bucketsim', *{list(map(str, SIMULATE))}, '--json']\n"
        "try: sim.cli.main.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        f"print(sorted({HEAVY} & set(sys.modules)))\n"
    )
    said = process("-c", program)
    assert said.code == 0, said.err
    first, second, *_, last = said.out.splitlines()
    assert (first, second, last) == ("[]", "[]", "[]")


# What ``import sim`` offers: all of it exists, all of it is documented, and nothing else (httpx's idea).


def test_the_stub_says_what_is_offered() -> None:
    listed = ast.parse(Path(sim.__file__).with_suffix(".pyi").read_text())
    imported = [name for node in listed.body if isinstance(node, ast.ImportFrom) for name in node.names]
    (said,) = (node.value for node in listed.body if isinstance(node, ast.Assign))
    assert sorted(name.asname for name in imported if name.asname) == sim.__all__ == dir(sim)
    assert ast.literal_eval(said) == sorted(one.asname for one in imported if one.asname != one.name)


def test_everything_exported_is_documented_and_no_module_hides_it() -> None:
    """CONTRACT, Python: a module ``sim.tune`` would take the function's place."""
    for name in sim.__all__:
        member = getattr(sim, name)
        assert inspect.getdoc(member), name
        if inspect.isfunction(member):
            hints = inspect.get_annotations(member)
            assert set(hints) >= {*inspect.signature(member).parameters, "return"}, name
    beside = Path(sim.__file__).parent.iterdir()
    assert not {path.stem for path in beside if path.suffix == ".py" or path.is_dir()} & set(sim.__all__)


def test_every_error_is_a_sim_error() -> None:
    errors = [one for one in vars(sim.errors).values() if isinstance(one, type)]
    assert len(errors) >= 6
    for error in errors:
        assert issubclass(error, SimError)
        assert error.__doc__


# A terminal, a port, Ctrl-C.


def test_a_progress_bar_on_a_terminal_only() -> None:
    """stderr is a terminal, stdout is not: a bar that leaves nothing behind, and one document."""
    words = ("sweep", *SIMULATE[1:], "--json", "--bandwidth", "1,2,3")
    command = [sys.executable, "-m", "sim", *map(str, words)]
    leader, follower = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # a terminal that nobody holds any more
            while chunk := os.read(leader, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environment) as running:
        out, _ = running.communicate(timeout=PATIENCE_S)
    os.close(follower)
    reader.join()
    os.close(leader)
    shown = b"".join(chunks).decode()
    assert running.returncode == 0
    assert len(json.loads(out)["rows"]) > 50
    assert "simulating" in shown
    assert "\x1b[" in shown
    done = bucketsim(*words)
    assert (done.code, done.out.encode(), done.err) == (0, out, "")


def test_a_port_that_is_taken_is_told_before_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = bucketsim("dash", "--port", port)
    assert said.code == 1
    assert said.err.startswith(f"error: --port: {port} is not legal: Address already in use")


def test_ctrl_c_is_heard_while_the_server_starts(tmp_path: Path) -> None:
    """A streamlit that takes its time, in place of the real one."""
    package = tmp_path / "streamlit" / "web"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "cli.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    environment, pipe = os.environ | {"PYTHONPATH": str(tmp_path)}, subprocess.PIPE
    with subprocess.Popen(launch.command(), env=environment, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            assert running.stdout.readline() == "up\n"
            running.send_signal(signal.SIGINT)
            _, said = running.communicate()
        finally:
            running.kill()
    assert (running.returncode, said) == (130, "interrupted\n")


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
        f"sys.argv = ['bucketsim', *{list(map(str, SIMULATE))}, '--json']\n"
        "from sim.cli.main import main\n"
        "main()\n"
    )
    said = process("-c", program)
    assert (said.code, said.out, said.err) == (130, "", "interrupted\n")


# Stdout that is full or closed, and a stderr that is: one line and exit 1; an unread one ends quietly.


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


@pytest.mark.parametrize(
    ("words", "where", "ends"),
    [
        (("--help",), unread, (128 + signal.SIGPIPE, "")),
        ((*SIMULATE, "--json"), full, (1, "error: stdout: cannot be written: No space left on device\n")),
    ],
)
def test_an_answer_that_does_not_arrive_is_one_error_and_one_that_is_not_read_is_none(
    words: tuple[object, ...], where: Callable[[], AbstractContextManager[int]], ends: tuple[int, str]
) -> None:
    with where() as stream:
        assert run(words, stdout=stream) == ends


def test_a_closed_stdout_does_not_end_up_in_a_file_and_a_lost_stderr_costs_nothing(tmp_path: Path) -> None:
    """The first file that is opened would get its number, and whatever is printed with it."""
    path = tmp_path / "s.csv"
    words = ("sweep", *SIMULATE[1:], "--caps", 4, "-o", path)
    code, said = run(words, before=lambda: os.close(1))
    assert code == 1
    assert said.endswith("\nerror: stdout: cannot be written: Bad file descriptor\n")
    assert path.read_text().startswith("label,bucket_cap_mb,")
    path.unlink()
    with full() as stream:
        assert run(words, stderr=stream)[0] == 0
    assert path.exists()
