"""What stands around tables in a text: launchers' words before each line, what ends a table, who ran what."""

import re
from collections.abc import Callable
from math import prod

from sim.importer.links.columns import COLLECTIVE, NUMBER, collective_in

# ---- before each line

LONGEST_HEADER, LONGEST_PREFIX = 2000, 200

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_START = re.compile(r"(?:(?<=[\s:|>\])])|^)(?=[^\s])")
_PART = re.compile(r"(?P<digits>\d+)|(?P<day>\b[A-Z][a-z]{2}\b)|(?P<space>\s+)|(?P<mark>.)")


def headers_in(text: str, may_be: re.Pattern[str], known_columns: Callable[[str], int]) -> dict[int, str]:
    """What stands before each header of a text on its line, by the line's number.

    ``known_columns`` counts the columns of a line that a table of collectives has; 0 for no header.
    """
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_HEADER or " NCCL " in line or not may_be.search(line):
            continue
        line = _ANSI.sub("", line)
        starts = [match.start() for match in _START.finditer(line[:LONGEST_PREFIX])]
        best = max(starts, key=lambda start: (known_columns(line[start:]), -start), default=0)
        if known_columns(line[best:]) and (
            not re.search(r"\w", line[:best]) or _is_prefix(line[:best], text)
        ):
            found[number] = line[:best]
    return found


def without_prefixes(text: str, prefixes: set[str]) -> str:
    """The text without colours, and without what has the shape of one of the prefixes before a line."""
    text = _ANSI.sub("", text)
    shapes = sorted({_shape(prefix) for prefix in prefixes if prefix.strip(" \t#|")}, key=len, reverse=True)
    return (
        re.sub(rf"^(?:{'|'.join(sorted(shapes, key=len, reverse=True))})", "", text, flags=re.MULTILINE)
        if shapes
        else text
    )


def _is_prefix(before: str, text: str) -> bool:
    """Whether words before a header are a prefix: they end as one, or a row has them too."""
    is_stamped = before.rstrip()[-1:] in (":", "|", ">", "]", ")") or re.search(r"\d:\d\d", before)
    row = rf"^{re.escape(before.rstrip())}[ \t]+\d"
    return bool(is_stamped) or re.search(row, text, re.MULTILINE) is not None


def _shape(prefix: str) -> str:
    """A prefix as a pattern: times, ranks and numbers of hosts may differ, other words are another's."""
    prefix = prefix.strip()
    parts = []
    for part in _PART.finditer(prefix):
        if part["digits"]:
            parts.append(r"\d+")
        elif part["day"]:
            parts.append("[A-Z][a-z]{2}")
        else:
            parts.append(r"[ \t]+" if part["space"] else re.escape(part["mark"]))
    ends = r"(?=[ \t#]|$)" if re.search(r"\w$", prefix) else ""
    return rf"[ \t]*{''.join(parts)}{ends}"


def origin(prefix: str) -> str:
    """What a prefix says of who wrote a line: its words without numbers, days and months."""
    return " ".join(re.sub(r"\b[A-Z][a-z]{2}\b|\d+", "", prefix).strip(" \t#|:>").split())


# ---- between tables

_NOISE = re.compile(r"\b(warn\w*|error|fail\w*|traceback|info|debug|notice|help message)\b", re.IGNORECASE)
_MESSAGE = re.compile(r"[a-z][\w./-]*(?:\[\d+\])?:\s")  # a program's, with its name before it
_FOOTER = re.compile(r"out of bounds|av(?:era)?ge? bus bandwidth|test concluded", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)")
_PROMPT = re.compile(
    r"\s*(?:\[?\S+@\S+(?:\s\S+)?\]?\s?[$#%]|(?:\([\w.-]+\)\s*)?(?:\[[^\]]+\]|[\w./:~-]*)\s?\$)\s+\S"
)
_HEADLINE = re.compile(r"#{2,6}\s+\S|[=*~+_-]{2,}\s*[^\s=*~+_-]|[^(]{1,80}:\s*$")
_OWN_COMMENT = re.compile(
    r"nccl|collective test|nthread|using devices|\brank\b|-place|osu |datatype|^\(b\)", re.IGNORECASE
)
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|prun|torchrun|jsrun|flux run)\b")
_LAUNCHED = re.compile(
    r"\W*(?:.{0,200}?[$#%:+]\s+)?(?:(?:\w{1,80}=\S{0,200}|time|nohup|sudo|exec|env)\s+)*(?:\S{0,200}/)?"
    + _LAUNCHER.pattern
    + r"\s"
)
_PROGRAM = re.compile(r"(?:^|[\s/])(\w{1,80}_perf|osu_\w{1,80})(?=\s|$)")
_NCCL_TESTS = re.compile(
    r"\b[nr]ccl-tests\b|\bnThread \d+ nGpus \d+|\bCollective test \w+: \w+_perf|\bPid +\d+ on +\S+ +device "
)
_OSU = re.compile(r"OSU (MPI|NCCL|RCCL)(?:-(CUDA|ROCM))? ")
_OSU_DEVICES = {"": "cpu", "CUDA": "cuda", "ROCM": "cuda"}  # torch calls both cuda
NCCL = ("nccl", "cuda")
_REPEAT = re.compile(r"\b(?:run|iteration|trial|repeat|attempt|repetition|try)s?\s*(?:#|no\.?)?\s*\d*\b")

_DATE = re.compile(r"\d+(?:[:/.-]\d+)+\S*")

COMMAND, WORDS = "the command line", "the words before it"


def ends_table(body: str, after_blank: bool, delimiter: str | None) -> str | None:
    """``footer``, ``comment``, ``fence``, ``prompt``, ``headline`` or ``prose``: what ends a table of that
    delimiter; None where a line may stand between two rows, as warnings and blank lines may."""
    line = body.strip()
    if _FENCE.match(line):
        return "fence"
    if _FOOTER.search(line):
        return "footer"
    first = line.split(None, 1)[0] if line else ""
    if NUMBER.fullmatch(first.rstrip(",;")) or _NOISE.search(line) or not re.search(r"[^\W\d_]", line):
        return None
    if _PROMPT.match(line) or is_command(line):
        return "prompt"
    if delimiter in (",", ";", "\t") and line.count(delimiter) > 1:
        return None
    if _HEADLINE.match(line):
        return "headline"
    if line.startswith("#"):
        return "comment"
    if delimiter == "|":
        return None if line.startswith("|") or line.count("|") > 1 else "prose"
    words = line.split()
    if _MESSAGE.match(line):
        return None
    few = sum(NUMBER.fullmatch(word) is not None for word in words) < 2
    return "prose" if after_blank and few and re.match(r"[^\W\d_]|[*_>-]", line) else None


def is_command(line: str) -> bool:
    """Whether a line starts a benchmark: with a launcher, or with a program and its options."""
    if _LAUNCHED.match(line) is not None:
        return True
    program = _PROGRAM.search(line)
    return program is not None and re.match(r"\s+-", line[program.end() :]) is not None


def program_of(line: str) -> str | None:
    """The program of nccl-tests or OSU that a command line starts."""
    found = _PROGRAM.search(line)
    return None if found is None else found[1]


def library_of(line: str) -> tuple[str, str] | None:
    """The backend and the device, by torch's names, of the benchmark that wrote or started with ``line``.

    nccl-tests and rccl-tests reduce buffers of GPUs; OSU's headers say whose theirs are. None where a line
    says nothing of it.
    """
    if (osu := _OSU.match(line)) is not None:
        return NCCL if osu[1] != "MPI" else ("mpi", _OSU_DEVICES[osu[2] or ""])
    if _NCCL_TESTS.search(line) is not None:
        return NCCL
    program = program_of(line)
    is_nccl = program is not None and program.endswith("_perf") and collective_in(program) is not None
    return NCCL if is_nccl else None


def title_of(line: str, kind: str) -> str | None:
    """What a headline, a comment or a command says of which run it is; None where it says nothing of it.

    The collective and the number of a repeated run are no part of it.
    """
    if kind in ("fence", "footer") or (kind == "comment" and _OWN_COMMENT.search(line)):
        return None
    words = line.lower()
    for pattern in (_DATE, COLLECTIVE, _REPEAT):
        words = pattern.sub("", words)
    return " ".join(words.strip("#=*~+-_:$%<> \t").split())[:80]


def ranks_of_command(line: str) -> tuple[int, str] | None:
    """Ranks that a command line starts: processes x threads x GPUs a thread; None where it gives none."""
    program = _PROGRAM.search(line)
    before, arguments = (line, "") if program is None else (line[: program.start(1)], line[program.end() :])

    def given(text: str, *names: str) -> int | None:
        found = re.search(rf"(?:^|\s)(?:{'|'.join(names)})[ =]*(\d{{1,6}})\b", text)
        return None if found is None else int(found[1])

    launcher = _LAUNCHER.search(before)
    nodes = given(before, "-N", "--nodes", "--nnodes")
    a_node = given(
        before, "--ntasks-per-node", "--tasks-per-node", "-ppn", "--ppn", "-npernode", "--npernode", "-N"
    )
    if launcher is not None and launcher[0] == "torchrun":
        a_node = given(before, "--nproc[-_]per[-_]node")
        processes = None if a_node is None else a_node * (nodes or 1)
    else:
        if launcher is None or launcher[0] in ("srun", "flux run"):
            a_node = given(before, "--ntasks-per-node", "--tasks-per-node")
        processes = given(before, "-np", "--np", "-n", "--ntasks")
        if processes is None and launcher is not None and launcher[0] == "srun" and nodes is not None:
            processes = nodes * (a_node or 1)
    gpus, threads = given(arguments, "-g", "--ngpus"), given(arguments, "-t", "--nthreads")
    if processes is None and (gpus is None or launcher is not None):
        return None
    return (processes or 1) * (gpus or 1) * (threads or 1), COMMAND


_NODES = re.compile(
    r"\b(\d{1,6})[\s-]*(?:nodes?|hosts?|servers?|machines?)?\s*(?:x|×|with|,|of)\s*(\d{1,6})\s*(?:x\s*)?"
    r"(?:GPUs?\b|[A-Z]{1,3}\d{1,4}\w{0,4}\b)(?:\s+GPUs?\b)?\s*"
    r"(?:per node|per host|each|a node|a host|/\s*node)?",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"\b(\d{1,6})[\s-]+(?:mpi\s+)?(?:ranks|processes|procs|workers|tasks)\b(?! (?:per|a|each)\b)"
    r"|\b(?:world[ _-]?size|n?ranks|nprocs)\s*[:=]\s*(\d{1,6})\b",
    re.IGNORECASE,
)
_GPUS = re.compile(r"\b(\d{1,6})[\s-]*x?\s*(?:[A-Z]{1,3}\d{1,4}\w{0,4}\s+)?GPUs?\b", re.IGNORECASE)
_IS_NODES = re.compile(r"\b(?:nodes?|hosts?|servers?|machines?)\b", re.IGNORECASE)


def ranks_in_words(line: str) -> tuple[int, str] | None:
    """Ranks that a sentence or a headline tells (``4 ranks``, ``2 nodes x 8 GPUs``); None where it tells
    none, or several."""
    if _NOISE.search(line) or len(line) > 400:
        return None
    counted = {int(a or b) for a, b in _COUNTED.findall(line)}
    if not counted:
        nodes = _NODES.search(line)
        has_each = nodes is not None and re.search(
            r"[x×]\s*\d|(?:per|a|/)\s*(?:node|host)|\beach\b", nodes[0], re.IGNORECASE
        )
        if nodes is not None and has_each:
            counted = {prod((int(nodes[1]), int(nodes[2])))}
        elif not _IS_NODES.search(line):
            counted = {int(number) for number in _GPUS.findall(line)}
    return (counted.pop(), WORDS) if len(counted) == 1 else None
