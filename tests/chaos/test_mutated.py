"""Documents with something wrong in them: read, or refused in one line; never a traceback, never nonsense.

They go through the functions that the command line and uploads use.
"""

import json
import random
import time
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import app
import sim
from sim.clusters.machines import boxed_cluster
from sim.clusters.ranks import Ranks, SlowRanks
from sim.errors import SimError
from sim.formats.documents import parse_text, to_document
from tests.chaos.senseless import PROPERTIES, senseless, table
from tests.cli import cheap
from tests.commands import bucketsim
from tests.importer.damage import JUNK, damaged, places
from tests.strategies import KINDS

LONGEST_MESSAGE, MOST_SECONDS = 500, 10.0
_PRINTED = {  # a command whose --json is of this kind
    "report": "simulate",
    "explanation": "explain",
    "recommendation": "tune",
    "step_distribution": "ranks",
}
_SLOW = (SlowRanks(first=0, pace=2.0),)
_RANKS = Ranks(name="r", pace_jitter=0.1, stall_probability=0.01, stall_ns=1000, slow=_SLOW)


@cache
def corpus() -> dict[str, bytes]:
    """A valid document of each kind that a file may have, as text."""
    with TemporaryDirectory() as name:
        at = Path(name)
        cheap.save_inputs(at)
        commands = cheap.commands(at)
        found = {kind: bucketsim(*commands[command], "--json").out for kind, command in _PRINTED.items()}
        found["assignment_comparison"] = bucketsim(*commands["ranks"], "--caps", "4,8", "--json").out
        found["measurement"] = sorted((at / "record").glob("measurement-*.json"))[0].read_text()
        found["assignment"] = (at / "a.json").read_text()
    hardware = to_document(sim.load_hardware(cheap.H))
    hardware["spread"]["all_reduce"] = {  # what a calibration knows of its points
        str(point["num_bytes"]): {
            **{"count": 9, "min_ns": at - 5, "p10_ns": at - 3, "median_ns": at, "p90_ns": at + 4},
            **{"low_ns": at - 2, "high_ns": at + 2},
        }
        for point in hardware["all_reduce"]
        if (at := point["duration_ns"]) > 5
    }
    found["cluster"] = sim.to_text(boxed_cluster([10**9] * 4, 10**9))
    found |= {"workload": cheap.W.read_text(), "hardware": json.dumps(hardware), "ranks": sim.to_text(_RANKS)}
    return {kind: text.encode() for kind, text in found.items()}


def mutated(draw: random.Random, content: bytes, other: bytes) -> bytes:
    """Half the time members of the JSON are changed, so that much is still read; else the text is damaged."""
    if draw.random() < 0.3:
        return damaged(draw, content, other)
    document = json.loads(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        ways = places(document)
        if not ways:
            break
        *path, last = draw.choice(ways)
        holder = document
        for step in path:
            holder = holder[step]
        holder[last] = _changed(draw, holder[last])
        if draw.random() < 0.1:
            del holder[last]
    return json.dumps(document).encode()


def _changed(draw: random.Random, value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.7:
        half = value / 2 if abs(value) < 2**62 else 0.5
        return draw.choice((-value, 0, value + 1, value - 1, value * 2, value * 1000, -1, half, 1, 2**62))
    if isinstance(value, list) and value and draw.random() < 0.7:
        shuffled = draw.sample(value, len(value))
        return draw.choice((value[::-1], value + value[-1:], value[1:], value[:1], shuffled))
    return json.loads(json.dumps(draw.choice(JUNK)))


def run(count: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Hold what comes of ``count`` mutated documents against the rules; how many of each kind are read, and
    how many refused. An escape raises, with its seed."""
    accepted, refused, texts = Counter[str](), Counter[str](), corpus()
    kinds = sorted(texts)
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        kind = draw.choice(kinds)
        content = mutated(draw, texts[kind], texts[draw.choice(kinds)])
        begin = time.process_time()
        try:
            is_read = _judge(kind, content, uploaded=number % 10 == 0)
        except Exception as error:
            error.add_note(f"{kind}, seed '{seed} {number}': {content[:2000]!r}")
            raise
        took = time.process_time() - begin
        assert took < MOST_SECONDS, f"{kind}, seed '{seed} {number}': {took:.1f} s"
        (accepted if is_read else refused)[kind] += 1
    return accepted, refused


def _judge(kind: str, content: bytes, uploaded: bool) -> bool:
    """Whether it is read; an answer stands, a refusal is one line that names the file."""
    if uploaded:
        _refused_or(lambda: sim.read_uploads([("f.json", content)]), "")
    noun = _refused_or(lambda: parse_text(content, KINDS[kind], "f.json"), "f.json: ")
    if noun is None:
        return False
    document = to_document(noun)
    assert parse_text(json.dumps(document, allow_nan=False), KINDS[kind], "again") == noun
    assert senseless(kind, document) == []
    _refused_or(lambda: _use(kind, noun), "")
    return True


def _use(kind: str, noun: Any) -> object:
    """What is asked of it first."""
    if kind == "cluster":
        return sim.cluster_hardware(noun)
    if kind not in ("workload", "hardware", "assignment"):
        return noun
    workload = noun if kind == "workload" else sim.load_workload(cheap.W)
    hardware = noun if kind == "hardware" else sim.load_hardware(cheap.H)
    assignment = noun if kind == "assignment" else sim.assign(workload)
    told = sim.summarize(sim.simulate(workload, hardware, assignment))
    assert told.step_ns >= told.exposed_comm_ns >= 0
    return sim.to_text(told)


def _refused_or(act: Any, begins: str) -> Any:
    try:
        return act()
    except SimError as error:
        message = str(error)
        assert message.startswith(begins), message
        assert "\n" not in message, message
        assert len(message) < LONGEST_MESSAGE, message
        return None


@pytest.mark.parametrize("count", [150, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_documents_are_read_or_refused(count: int) -> None:
    accepted, refused = run(count, seed=1)
    print(f"{accepted.total()} read, {refused.total()} refused in one line")
    assert accepted.total() > count // 20, (accepted, refused)
    assert refused.total() > count // 3, (accepted, refused)
    assert count < 1000 or set(accepted) == set(refused) == set(corpus())


def test_what_is_not_mutated_makes_sense_and_the_manual_says_what_is_refused() -> None:
    for kind, content in corpus().items():
        document = to_document(parse_text(content, KINDS[kind], kind))
        assert senseless(kind, document) == []
    assert set(PROPERTIES) - {"any"} <= set(corpus())
    assert table() in (Path(app.__file__).parent / "manual" / "house.md").read_text()
