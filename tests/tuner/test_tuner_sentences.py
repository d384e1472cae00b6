"""All sentences of one answer agree: what is told of a gain, of caps, of the default and of candidates."""

from dataclasses import replace
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.cli import tuning
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Plateau
from sim.nouns.workload import Workload
from sim.tuner.gain import tell_plateau
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.tuner.cases import MIB, MS

AS_GOOD = ("is among them", "cannot be told apart from it", "the difference is not significant")


@st.composite
def uncertain(draw: st.DrawFn) -> tuple[Workload, Hardware]:
    """Some layers on a link about as fast as they are, with iterations and a curve that scatter."""
    random = Random(draw(st.integers(0, 2**32)))
    count = random.randint(2, 10)
    sizes = [round(random.choice((0.2, 2, 8, 24)) * random.uniform(0.5, 1.5) * MIB) for _ in range(count)]
    works = [random.uniform(0.2, 2) for _ in range(count)]
    backward = random.uniform(20, 200) * MS
    ready = [round(backward * sum(works[index:]) / sum(works)) for index in range(count)]
    pace, own = random.choice((0.0, 0.003, 0.02, 0.1)), random.choice((0.0, 0.01, 0.1))

    def iteration() -> tuple[int, ...]:
        factor = max(0.1, random.gauss(1, pace))
        return tuple(round(time * factor * max(0.1, random.gauss(1, own))) for time in ready)

    iterations = random.choice((0, 0, 3, 8, 15))
    workload = handmade(
        ready,
        sizes,
        forward_ns=round(backward / 2),
        backward_ns=max(ready) + 1,
        samples=tuple(iteration() for _ in range(iterations)),
        estimated=(is_estimated := random.random() < 0.2),
        band=(0.8, 1.3) if is_estimated else None,
    )
    latency = random.choice((0.01, 0.5, 3.0)) * MS
    per_byte = backward / sum(sizes) * random.uniform(0.2, 1.5)
    points = [4096, MIB, 16 * MIB, 64 * MIB]
    times = [round(latency + per_byte * size) for size in points]
    scatter = random.choice((0.0, 0.02, 0.3, 1.0))
    spread = {
        str(size): {
            "count": random.choice((3, 5, 50)),
            "min_ns": round(time * (1 - scatter / 3)),
            "p10_ns": round(time * (1 - scatter / 4)),
            "median_ns": time,
            "p90_ns": round(time * (1 + scatter / 2)),
            "max_ns": round(time * (1 + scatter)),
        }
        for size, time in zip(points, times, strict=True)
    }
    known = {"all_reduce": spread} if scatter else {}
    hardware = wired(dict(zip(points, times, strict=True)), spread=known)
    return workload, hardware


@settings(max_examples=tries(150))
@given(uncertain())
def test_no_sentence_contradicts_another(case: tuple[Workload, Hardware]) -> None:
    workload, hardware = case
    answer = sim.tune(workload, hardware, draws=60)
    gain, plateau = answer.gain, answer.plateau
    default_is_as_good = any(words in plateau.sentence for words in AS_GOOD)
    assert ("saves " in gain.sentence) == (gain.significant is not False)
    if gain.significant:
        assert not default_is_as_good, (gain.sentence, plateau.sentence)
        assert not plateau.alike_holds_default
    if gain.significant is False:
        assert default_is_as_good, (gain.sentence, plateau.sentence)
        assert plateau.alike_holds_default
        assert "keep" in gain.sentence
        for family in answer.families.values():  # none of them would have shown
            assert sim.gain(workload, hardware, family.assignment, draws=60).significant is not True

    with mock.patch.object(tuning, "say") as say:
        tuning.print_answer(answer, "")
        tuning._print_tables(answer)
    said = [call.args[0] for call in say.call_args_list]
    if answer.setting is not None and gain.significant is False:
        assert answer.setting.pick == "default"
    if answer.setting is not None:
        assert answer.setting.saved_ns == answer.baseline.step_ns - answer.setting.step_ns
    if gain.significant is not False:
        assert not any("keep the default" in line or line.endswith("keep it") for line in said)


PLATEAU = Plateau(
    tolerance=0.01,
    caps_mb=(2.0,),
    stretches_mb=((2.0, 8.0),),
    low_mb=2,
    high_mb=8,
    holds_default=False,
    is_flat=False,
)


@pytest.mark.parametrize(
    ("alike_mb", "holds_default", "end"),
    [
        (((2.0, 4.0),), True, "Caps of 2 to 4 MiB cannot be told apart from what is recommended; "
         "DDP's default is among them."),
        ((), False, "No cap is as good as what is recommended, the best (2 to 8 MiB) included; "
         "DDP's default is not either."),
        ((), True, "No cap is as good as what is recommended, the best (2 to 8 MiB) included; "
         "DDP's default cannot be told apart from it."),
    ],
)  # fmt: skip
def test_a_recommendation_that_caps_do_not_reach(
    alike_mb: tuple[tuple[float, float], ...], holds_default: bool, end: str
) -> None:
    plateau = replace(
        PLATEAU,
        holds_default=True,
        decided_by="noise",
        alike_mb=alike_mb,
        alike_holds_default=holds_default,
    )
    assert tell_plateau(plateau) == end
