"""Whatever import is given, it answers or refuses in one line: soon, and in little memory."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.formats.documents import to_document
from sim.importer.imported import Imported, ImportOptions
from sim.importer.readers import READABLE, read_files
from tests.commands import Said, bucketsim, process
from tests.effort import PATIENCE_S, tries
from tests.importer.built_traces import Dialect, Job, build
from tests.importer.corpus import LINES, Case, corpus, without
from tests.importer.damage import JUNK, MOST_SECONDS, damaged, judge
from tests.importer.link_texts import today
from tests.importer.test_kineto_built import built

FAST, MANY = 12, 10_000
_OPTIONS = (*(ImportOptions(),) * 3, ImportOptions(world_size=2), ImportOptions(world_size=4, name="given"))

# Reads one import under a limit of its address space; prints its peak memory, its seconds and what it said.
_CONFINED = """
import json, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from sim.errors import SimError
from sim.importer.readers import READABLE, read_files
from sim.importer.imported import ImportOptions
begin = time.process_time()
try:
    said = read_files(sys.argv[1], [Path(sys.argv[2])], ImportOptions(world_size=4)).format
except SimError as error:
    said = str(error)
status = Path("/proc/self/status").read_text()  # getrusage counts the parent's memory before exec too
peak = int(status.split("VmHWM:")[1].split()[0]) << 10
print(json.dumps([peak, time.process_time() - begin, said]))
"""
MOST_MEMORY = 10**9
_EVENT = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"tid":7},'
_REPORT = b'{"args":"","nccl_version":"2.27","results":['
_SMALL = 4 << 20
# How it begins, what comes again and again, how many bytes of it, the format, and a word of the answer.
BOMBS = {
    "zeros": (b"", b"\0", 2 << 30, "auto", "a binary file"),
    "spaces": (b"", b" ", 2 << 30, "auto", "the file is empty"),
    "brackets": (b"", b"[", 300 << 20, "auto", "not recognised"),
    "events": (b'{"traceEvents":[', _EVENT, 100 << 20, "auto", "truncated"),
    "a string": (b'{"traceEvents":["', b"a", 600 << 20, "kineto", "truncated"),
    "lists": (_REPORT, b"[],", 250 << 20, "auto", "wrote with -J"),
    "objects": (_REPORT, b'{"a":1},', 250 << 20, "auto", "wrote with -J"),
    "rows": (b"size_B time_us nranks\n", b"1048576 2.5 4\n", 100 << 20, "auto", "more than 100000 rows"),
    "columns": (b"size_B,time_us" + b",a" * 30_000 + b"\n", b"1,", _SMALL, "auto", "not recognised"),
    "headers": (b"", b"size," * 1000 + b"\n", 60 << 20, "auto", "not recognised"),
}


def run(count: int, seed: int) -> Counter[str | None]:
    """Judge ``count`` imports, at least one file of each damaged; a tenth with files of another job.

    Counts what was read by its format, and as None what was refused.
    """
    tally = Counter[str | None]()
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        case = draw.choice(corpus())
        others = [content for other in corpus() for content in other.files.values()]
        hit = draw.choice(sorted(case.files))
        files = case.files | {hit: damaged(draw, case.files[hit], draw.choice(others))}
        with tempfile.TemporaryDirectory() as folder:
            paths = Case(form=case.form, files=files).write(Path(folder))
            if draw.random() < 0.1:
                (beside := Path(folder) / "beside").mkdir()
                paths += draw.choice(corpus()).write(beside)
            form = draw.choice(corpus()).form if draw.random() < 0.05 else draw.choice(("auto", case.form))
            try:
                tally[judge(form, paths, draw.choice(_OPTIONS))] += 1
            except Exception as error:
                error.add_note(f"{form} of {', '.join(files)}, seed '{seed} {number}'")
                raise
    return tally


@pytest.mark.parametrize("count", [FAST, pytest.param(MANY, marks=pytest.mark.slow)])
def test_damaged_files(count: int) -> None:
    tally = run(count, seed=1)
    print(tally)
    assert count // 10 < tally[None] < count - count // 10
    assert count == FAST or set(tally) >= {case.form for case in corpus()} - {"auto"}


@pytest.mark.parametrize("case", [case for case in corpus() if not case.is_public])
def test_what_is_not_damaged_is_read(case: Case, tmp_path: Path) -> None:
    """Otherwise the damaged ones show little: every valid input gives a result, by name and by content."""
    for form in {"auto", case.form}:
        assert judge(form, case.write(tmp_path), ImportOptions()) is not None


@pytest.mark.parametrize("form", READABLE)
def test_what_is_no_file_of_text(form: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zipped").write_bytes(gzip.compress(b""))
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty", "zipped", "folder", "dangling", "pipe", "vanished", "x" * 300, "nul\0"):
        assert judge(form, [tmp_path / name], ImportOptions()) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_put_out(name: str, tmp_path: Path) -> None:
    """A few megabytes that inflate to what no memory holds: soon refused, below a gigabyte."""
    head, unit, total, form, word = BOMBS[name]
    path = tmp_path / "bomb.gz"
    block = unit * max(1, (1 << 20) // len(unit))
    with gzip.open(path, "wb", 1) as stream:
        stream.write(head)
        for _ in range(total // len(block)):
            stream.write(block)
    done = process("-c", _CONFINED, form, path)
    assert done.code == 0, done.err[-1000:]
    peak, seconds, said = json.loads(done.out)
    print(f"{name}: {peak >> 20} MiB, {seconds:.2f} s: {said[-60:]}")
    assert word in said
    assert peak < MOST_MEMORY
    assert seconds < MOST_SECONDS


# What must not change an import, and what must change it in one way only.

SETTINGS = settings(max_examples=tries(40), deadline=None)
_Texts = dict[str, str]


def read(texts: _Texts, form: str = "auto", zipped: bool = False, **options: Any) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in texts.items():
            paths.append(Path(folder) / name)
            paths[-1].write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
        return read_files(form, paths, ImportOptions(name="one", **options))


def essence(imported: Imported) -> dict[str, Any]:
    """All that was imported but where and when it came from."""
    nouns = [imported.workload, *imported.hardware, *imported.measurements]
    documents = [to_document(noun) for noun in nouns if noun is not None]
    everything = {"nouns": documents, "ranks": [asdict(row) for row in imported.ranks]}
    return without(everything, ("provenance", "file", "source", "made_for"))


def traces(case: tuple[Job, Dialect]) -> _Texts:
    job, dialect = case
    return {f"trace-{rank}.json": text for rank, text in enumerate(build(job, dialect)[0])}


@SETTINGS
@given(built(), st.randoms(use_true_random=False))
def test_the_order_of_events_names_and_events_of_others_are_nothing(
    case: tuple[Job, Dialect], draw: random.Random
) -> None:
    """Python frames, instants, counters, flows, names of threads, and operators of another process."""
    texts, ranks = traces(case), case[0].ranks
    others = {}
    for rank, text in enumerate(texts.values()):
        document = json.loads(text.replace("A GPU", "Another"), parse_float=str)  # times keep their digits
        events = document["traceEvents"]
        first, last = (pick(int(float(one["ts"])) for one in events) for pick in (min, max))
        for number in range(20):
            common = {"ts": draw.randint(first + 1, last + 1), "dur": 5, "tid": draw.choice((100, 101, 7))}
            common["pid"] = draw.choice((1, 99))
            alone = {**common, "pid": 99, "tid": 55}
            events += [
                {"ph": "X", "cat": "python_function", "name": f"train.py({number})", **common},
                {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", **common},
                {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, **common},
                {"ph": "C", "cat": "counter", "name": "GPU power", "args": {"W": 300}, **common},
                {"ph": "M", "name": "thread_name", "args": {"name": "main"}, **common},
                {"ph": "X", "cat": "cpu_op", "name": "aten::add", "args": {}, **alone},
                {"ph": "X", "cat": "overhead", "name": "Buffer Flush", **alone},
            ]
        draw.shuffle(events)
        for event in events:
            event |= {key: f"@{event[key]}@" for key in ("ts", "dur")}
        others[f"other {rank}.txt"] = json.dumps(document).replace('"@', "").replace('@"', "")
    after = json.dumps(essence(read(others, world_size=ranks))).replace("Another", "A GPU")
    assert json.loads(after) == json.loads(json.dumps(essence(read(texts, world_size=ranks))))


# What people give by mistake: each is answered by a line that says what to do.

TABLE = "\n".join(today(LINES, 8)[:-6]) + "\n"


def refused(said: Said) -> str:
    """The one line of a refusal."""
    assert said.code == 1, said.err
    (line,) = said.err.strip().splitlines()
    assert len(line) < 500
    return line


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "link.txt").write_text(TABLE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    for target, word in (
        ("mine", "holds other files already; give a new or empty directory"),
        ("link.txt", "link.txt: cannot be made: it is no directory"),
        ("link.txt/below", "cannot be made"),
    ):
        line = refused(bucketsim("import", "auto", tmp_path / "link.txt", "-o", tmp_path / target))
        assert word in line
    assert (tmp_path / "link.txt").read_text() == TABLE
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    for junk in (*JUNK, {"kind": "import", "files": ["../link.txt", 5, None, "/etc/hosts"]}):
        (tmp_path / "mine" / "summary.json").write_text(json.dumps(junk))
        (tmp_path / "mine" / "hardware.json").write_text("mine too")
        refused(bucketsim("import", "auto", tmp_path / "link.txt", "-o", tmp_path / "mine"))
    assert (tmp_path / "link.txt").read_text() == TABLE


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["heard", "ignored"])
def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path, inherited: signal.Handlers) -> None:
    """A long trace, and Ctrl-C while it is read; also where a shell started the command in the background."""
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "tid": 7},\n'
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [' + event * 1_500_000 + "{}]}")
    running = subprocess.Popen(
        [sys.executable, "-m", "sim", "import", "auto", str(trace), "-o", str(tmp_path / "made")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    opened = Path(f"/proc/{running.pid}/fd")
    while running.poll() is None and trace not in [end(link) for link in opened.iterdir()]:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, said) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def end(link: Path) -> Path | None:
    """Where an open file is; None where it has been closed since."""
    try:
        return link.readlink()
    except FileNotFoundError:
        return None
