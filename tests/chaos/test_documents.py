"""Documents with something wrong in them: read, or refused in one line; never a traceback, never nonsense."""

import random
from pathlib import Path

import pytest

import app
from sim.formats.documents import KINDS, parse_text, to_document
from tests.chaos.documents import corpus, mutated, run
from tests.chaos.senseless import PROPERTIES, senseless, table
from tests.cli import cheap
from tests.commands import bucketsim

SOME, MANY, COMMANDS = 150, 100_000, 1_000


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


@pytest.mark.slow
def test_a_thousand_mutated_documents_through_the_commands(tmp_path: Path) -> None:
    texts = corpus()
    codes = {0: 0, 1: 0}
    for number in range(COMMANDS):
        draw = random.Random(f"command {number}")
        kind = draw.choice(("workload", "hardware", "assignment"))
        files = {"workload": cheap.W, "hardware": cheap.H}
        files[kind] = tmp_path / "f.json"
        files[kind].write_bytes(mutated(draw, texts[kind], texts["report"]))
        given = ("--assignment", files["assignment"]) if kind == "assignment" else ()
        said = bucketsim("simulate", files["workload"], "--hardware", files["hardware"], *given, "--json")
        codes[said.code] += 1
        if said.code:
            assert (said.out, said.err.count("\n")) == ("", 1), (number, said)
            assert said.err.startswith("error: "), (number, said)
    assert min(codes.values()) > COMMANDS // 20, codes
