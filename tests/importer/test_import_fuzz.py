"""Whatever import is given, it answers or refuses in one line: soon, and in little memory."""

import gzip
import json
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from sim.importer.bounded_json import MOST_VALUES
from sim.importer.readers import READABLE
from sim.nouns.imported import ImportOptions
from tests.commands import bucketsim, process
from tests.importer.corpus import MODEL, Case, corpus
from tests.importer.damage import damaged
from tests.importer.judging import MOST_SECONDS, Tally, judge, no_constant

FAST, MANY = 24, 10_000
_OPTIONS = (
    *(ImportOptions(),) * 3,
    ImportOptions(world_size=2),
    ImportOptions(model=MODEL),
    ImportOptions(world_size=4, name="given"),
)


# Reads one import under a limit of its address space; prints its peak memory, its seconds and what it said.
_CONFINED = """
import json, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from sim.errors import SimError
from sim.importer.readers import reader
from sim.importer.readers import READABLE
from sim.nouns.imported import ImportOptions
begin = time.process_time()
try:
    said = reader(sys.argv[1])([Path(sys.argv[2])], ImportOptions(world_size=4)).format
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
    "spaces as text": (b"", b" ", 1 << 30, "nccl-tests", "holds more than 256 MiB"),
    "brackets": (b"", b"[", 300 << 20, "auto", "not recognised"),
    "events": (b'{"traceEvents":[', _EVENT, 100 << 20, "auto", "truncated"),
    "a string": (b'{"traceEvents":["', b"a", 1 << 30, "kineto", "longer than 8 Mi characters"),
    "a member": (b'{"traceEvents":[{"a":[', b"[],", 60 << 20, "kineto", "longer than 8 Mi characters"),
    "lists": (_REPORT, b"[],", 250 << 20, "auto", "holds more than 8000000 values"),
    "objects": (_REPORT, b'{"a":1},', 250 << 20, "auto", "holds more than 8000000 values"),
    "rows": (b"size_B time_us nranks\n", b"1048576 2.5 4\n", 100 << 20, "auto", "more than 100000 rows"),
    "columns": (b"size_B,time_us" + b",a" * 30_000 + b"\n", b"1,", _SMALL, "auto", "not recognised"),
    "headers": (b"", b"size," * 1000 + b"\n", 60 << 20, "auto", "not recognised"),
}


def run(count: int, seed: int) -> Tally:
    """Judge ``count`` damaged imports."""
    tally = Tally()
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        case = draw.choice(corpus())
        with tempfile.TemporaryDirectory() as folder:
            form, paths, what = _damage(draw, case, Path(folder))
            try:
                judge(form, paths, draw.choice(_OPTIONS), tally, f"{what}, seed '{seed} {number}'")
            except Exception as error:
                error.add_note(f"{what}, seed '{seed} {number}'")
                raise
    return tally


def _damage(draw: random.Random, case: Case, folder: Path) -> tuple[str, list[Path], str]:
    """Files of a case, at least one of them damaged; a tenth of the time with files of another job."""
    files = dict(case.files)
    others = [content for other in corpus() for content in other.files.values()]
    hit = draw.choice(sorted(files))
    files[hit] = damaged(draw, files[hit], draw.choice(others))
    paths = Case(form=case.form, files=files).write(folder)
    if draw.random() < 0.1:
        stranger = draw.choice(corpus())
        beside = folder / "beside"
        beside.mkdir()
        paths += stranger.write(beside)
    form = draw.choice(corpus()).form if draw.random() < 0.05 else draw.choice(("auto", case.form))
    return form, paths, f"{form} of {', '.join(map(str, files))}"


def test_some_damaged_files() -> None:
    tally = run(FAST, seed=1)
    assert tally.results.total() > FAST // 10, tally
    assert tally.errors.total() > FAST // 10, tally


@pytest.mark.slow
def test_ten_thousand_damaged_files() -> None:
    tally = run(MANY, seed=2)
    print(tally)
    assert tally.results.total() + tally.errors.total() == MANY
    assert set(tally.results) >= {form for form in {case.form for case in corpus()} if form != "auto"}


def test_what_is_not_damaged_is_read(tmp_path: Path) -> None:
    """Otherwise the damaged ones show little: every valid input gives a result, by name and by content."""
    for number, case in enumerate(case for case in corpus() if len(case.files) < 3):
        if case.is_public:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = case.write(folder)
        for form in {"auto", case.form}:
            tally = Tally()
            judge(form, paths, ImportOptions(), tally, form)
            assert tally.results.total() == 1, (form, paths, tally)


@pytest.mark.parametrize("form", READABLE)
def test_what_is_no_file_of_text(form: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zipped").write_bytes(gzip.compress(b""))
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    tally = Tally()
    for name in ("empty", "zipped", "folder", "dangling", "pipe", "vanished", "x" * 300, "nul\0"):
        judge(form, [tmp_path / name], ImportOptions(), tally, name)
    assert tally.errors.total() == 8, tally


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


def test_documents_as_full_as_are_read_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "full.json"
    path.write_bytes(_REPORT + b'{"a":1},' * (MOST_VALUES // 3 - 100) + b"{}]}")
    done = process("-c", _CONFINED, "auto", path)
    assert done.code == 0, done.err[-1000:]
    peak, seconds, said = json.loads(done.out)
    assert "no row in it" in said
    assert peak < MOST_MEMORY
    assert seconds < MOST_SECONDS


@pytest.mark.slow
def test_real_processes_end_as_they_should(tmp_path: Path) -> None:
    """0 and files, or 1 and one red line; never a traceback."""
    codes = Counter[int]()
    for number in range(40):
        draw = random.Random(f"process {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        form, paths, what = _damage(draw, draw.choice(corpus()), folder)
        said = process("-m", "sim", "import", form, *paths, "-o", folder / "made", "--json")
        codes[said.code] += 1
        assert said.code in (0, 1), (what, said.err)
        assert "Traceback" not in said.err, (what, said.err)
        if said.code:
            assert len(said.err.strip().splitlines()) == 1, (what, said.err)
            assert not (folder / "made").exists()
        else:
            json.loads(said.out, parse_constant=no_constant)
    assert codes[0] > 3
    assert codes[1] > 3


def test_the_command_shows_what_it_reads_and_refuses(tmp_path: Path) -> None:
    """In this process: tables and JSON of results, and one line for what is refused."""
    codes = Counter[int]()
    for number in range(24):
        draw = random.Random(f"command {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        form, paths, what = _damage(draw, draw.choice(corpus()), folder)
        said = bucketsim("import", form, *paths, "-o", folder / "made", *draw.choice(([], ["--anonymize"])))
        codes[said.code] += 1
        assert said.code in (0, 1), (what, said.err)
        assert all(line.isprintable() for line in (said.out + said.err).splitlines()), what
        assert (folder / "made").exists() == (said.code == 0)
    assert min(codes[0], codes[1]) > 3, codes
