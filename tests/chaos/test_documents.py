"""Documents with something wrong in them: read, or refused in one line; never a traceback, never nonsense.

They go through the functions that the command line and uploads use.
"""

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import app
import sim
from sim.clusters.machines import boxed_cluster
from sim.errors import SimError
from sim.formats.documents import parse_text, to_document
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.chaos.senseless import PROPERTIES, senseless, table
from tests.cli import cheap
from tests.commands import bucketsim
from tests.importer.damage import JUNK, damaged, places
from tests.kinds import KINDS

LONGEST_MESSAGE, MOST_SECONDS = 500, 10.0
_PRINTED = {  # a command whose --json is of this kind
    "report": "simulate",
    "explanation": "explain",
    "recommendation": "tune",
    "step_distribution": "ranks",
}
_RANKS = {"schema_version": 1, "kind": "ranks", "name": "r", "pace_jitter": 0.1, "provenance": {}}
_STALLS = {"stall_probability": 0.01, "stall_ns": 1000, "slow": [{"first": 0, "count": 1, "pace": 2.0}]}


@dataclass(slots=True)
class Tally:
    """What came of the documents, by kind."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def __str__(self) -> str:
        read, refused = self.accepted.total(), self.refused.total()
        kinds = len(set(self.accepted) | set(self.refused))
        return (
            f"{read + refused} documents of {kinds} kinds: {read} read, {refused} refused in one line, "
            f"0 tracebacks, nothing senseless read; the slowest took {self.slowest_s:.2f} s"
        )


@cache
def corpus() -> dict[str, bytes]:
    """A valid document of each kind that a file may have, as text."""
    with TemporaryDirectory() as name:
        at = Path(name)
        cheap.save_inputs(at)
        commands = cheap.commands(at)
        found = {kind: bucketsim(*commands[command], "--json").out for kind, command in _PRINTED.items()}
        compared = bucketsim(*commands["ranks"], "--caps", "4,8", "--json").out
        measured = sorted((at / "record").glob("measurement-*.json"))[0].read_text()
        found["assignment"] = (at / "a.json").read_text()
    found["cluster"] = sim.to_text(boxed_cluster([10**9] * 4, 10**9))
    found |= {"workload": cheap.W.read_text(), "hardware": _scattered(), "measurement": measured}
    found |= {"assignment_comparison": compared, "ranks": json.dumps(_RANKS | _STALLS)}
    return {kind: text.encode() for kind, text in found.items()}


def _scattered() -> str:
    """The hardware of the examples, with what a calibration knows of its points."""
    document = to_document(sim.load_hardware(cheap.H))
    document["spread"]["all_reduce"] = {
        str(point["num_bytes"]): {
            **{"count": 9, "min_ns": at - 5, "p10_ns": at - 3, "median_ns": at, "p90_ns": at + 4},
            **{"low_ns": at - 2, "high_ns": at + 2},
        }
        for point in document["all_reduce"]
        if (at := point["duration_ns"]) > 5
    }
    return json.dumps(document)


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
        return draw.choice(
            (
                -value,
                0,
                value + 1,
                value - 1,
                value * 2,
                value * 1000,
                -1,
                value / 2 if abs(value) < 2**62 else 0.5,
                1,
                2**62,
            )
        )
    if isinstance(value, list) and value and draw.random() < 0.7:
        return draw.choice(
            (value[::-1], value + value[-1:], value[1:], value[:1], draw.sample(value, len(value)))
        )
    return json.loads(json.dumps(draw.choice(JUNK)))


def run(count: int, seed: int) -> Tally:
    """Hold what comes of ``count`` mutated documents against the rules; an escape raises, with its seed."""
    tally = Tally()
    texts = corpus()
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
        tally.slowest_s = max(tally.slowest_s, took := time.process_time() - begin)
        assert took < MOST_SECONDS, f"{kind}, seed '{seed} {number}': {took:.1f} s"
        (tally.accepted if is_read else tally.refused)[kind] += 1
    return tally


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


@cache
def _examples() -> tuple[Workload, Hardware]:
    return sim.load_workload(cheap.W), sim.load_hardware(cheap.H)


def _use(kind: str, noun: Any) -> object:
    """What is asked of it first."""
    workload, hardware = _examples()
    if kind == "cluster":
        return sim.cluster_hardware(noun)
    if kind not in ("workload", "hardware", "assignment"):
        return noun
    workload = noun if kind == "workload" else workload
    hardware = noun if kind == "hardware" else hardware
    assignment = noun if kind == "assignment" else sim.assign(workload)
    told = sim.summarize(sim.simulate(workload, hardware, assignment))
    assert told.step_ns >= told.exposed_comm_ns >= 0
    sim.to_text(told)
    return told


def _refused_or(act: Any, begins: str) -> Any:
    try:
        return act()
    except SimError as error:
        message = str(error)
        assert message.startswith(begins), message
        assert "\n" not in message, message
        assert len(message) < LONGEST_MESSAGE, message
        return None


SOME, MANY = 150, 100_000


def test_some_mutated_documents() -> None:
    tally = run(SOME, seed=1)
    assert tally.accepted.total() > SOME // 20, tally
    assert tally.refused.total() > SOME // 3, tally


@pytest.mark.slow
def test_a_hundred_thousand_mutated_documents() -> None:
    tally = run(MANY, seed=2)
    print(tally)
    assert set(tally.accepted) == set(tally.refused) == set(corpus())


def test_what_is_not_mutated_makes_sense() -> None:
    for kind, content in corpus().items():
        document = to_document(parse_text(content, KINDS[kind], kind))
        assert senseless(kind, document) == []
    assert set(PROPERTIES) - {"any"} <= set(corpus())


def test_the_manual_says_what_is_refused() -> None:
    assert table() in (Path(app.__file__).parent / "manual" / "house.md").read_text()
