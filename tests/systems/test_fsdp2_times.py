"""How long a step under FSDP2 takes: the example of RULES A10 by hand; units, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.clock import play, simpy_clock
from sim.errors import InputError
from sim.nouns.timeline import Timeline
from sim.systems.registry import write
from sim.tuner.others import best_of, unit_choices
from tests.systems.four_gradients import HARDWARE, four_gradients

WORKLOAD = four_gradients("tokens", "h.0", "h.1", "head")


def played(**settings: Any) -> Timeline:
    assignment = sim.assign(WORKLOAD, "fully_shard", **settings)
    one, other = (sim.simulate(WORKLOAD, HARDWARE, assignment, engine) for engine in ("simpy", "analytic"))
    assert replace(one, engine="") == replace(other, engine="")
    return one


def test_the_example_of_the_rules() -> None:
    timeline = played()
    assert timeline.assignment.bucket_indices == ((2,), (1,), (0, 3))
    spans = [(one.collective.kind, one.start_ns, one.end_ns) for one in timeline.collectives]
    assert spans == [
        ("all_gather", 0, 25),
        ("all_gather", 30, 55),
        ("reduce_scatter", 55, 80),
        ("reduce_scatter", 83, 108),
        ("reduce_scatter", 120, 145),
    ]
    assert (timeline.pre_forward_ns, timeline.backward_end_ns, timeline.sync_end_ns) == (60, 103, 145)
    assert timeline.optimizer_ns == 500


def test_the_example_of_the_rules_on_replicas() -> None:
    """A10.7: each unit's all-reduce behind its reduce-scatter, on the one channel."""
    made = sim.assign(WORKLOAD, "fully_shard", replicas=2)
    hardware = replace(HARDWARE, world_size=4)
    one, other = (sim.simulate(WORKLOAD, hardware, made, engine) for engine in ("simpy", "analytic"))
    assert replace(one, engine="") == replace(other, engine="")
    reduced = [each for each in one.collectives if each.collective.bucket is not None]
    assert [(each.collective.kind, each.start_ns, each.end_ns) for each in reduced] == [
        ("reduce_scatter", 55, 80),
        ("all_reduce", 80, 105),
        ("reduce_scatter", 105, 130),
        ("all_reduce", 130, 155),
        ("reduce_scatter", 155, 180),
        ("all_reduce", 180, 205),
    ]
    assert [each.collective.elements for each in reduced] == [50, 25, 30, 15, 120, 60]
    assert (one.pre_forward_ns, one.backward_end_ns, one.sync_end_ns) == (60, 103, 205)
    assert one.optimizer_ns == 500
    assert sum("HSDP" in note for note in one.notes) == 2


def test_explicit_prefetch_gathers_further_ahead() -> None:
    timeline = played(backward_prefetch=2)
    gathers = [one for one in timeline.collectives if one.collective.kind == "all_gather"]
    assert [(one.start_ns, one.end_ns) for one in gathers] == [(0, 25), (25, 50)]


def test_a_gather_behind_another_takes_less() -> None:
    """A10.8, 10 of 25 ns. Forward: the root's to 25, that of `h.0` to 35; that of `h.1` waits for the root's
    copy out and is alone, 37 to 62. `tokens` to 47, `h.0` copied out and computed to 60, `h.1` to 77, `head`
    to 87. In backward the second of two that are launched together.
    """
    hardware = replace(HARDWARE, queued_gather_factor=0.4)
    (program,) = write(WORKLOAD, hardware, sim.assign(WORKLOAD, "fully_shard", backward_prefetch=2))
    outcome = play.play(program)
    assert outcome == simpy_clock.play(program)
    spans = zip(program.before, outcome.start_ns, outcome.end_ns, strict=False)
    assert [end - start for _, start, end in spans] == [25, 10, 25]
    assert outcome.begin_ns == 87
    gathers = [one for one in program.collectives if (one.kind, one.phase) == ("all_gather", "backward")]
    assert [one.service_ns for one in gathers] == [25, 10]
    (program,) = write(WORKLOAD, hardware, sim.assign(WORKLOAD, "fully_shard"))
    gathers = [one for one in program.collectives if (one.kind, one.phase) == ("all_gather", "backward")]
    assert [one.service_ns for one in gathers] == [25, 25]
    with pytest.raises(InputError, match="queued_gather_factor: 0 is not legal; give a number above 0"):
        replace(HARDWARE, queued_gather_factor=0)


def test_forward_is_slowed_down_beside_gathers() -> None:
    """Twice as long: the root's copy out 25 to 49, `h.0`'s gather beside it to 50; `tokens` to 69 beside that
    of `h.1`, 50 to 75; `h.0` copied out to 75 and computed to 85, `h.1` copied out to 90; to 100 and 110."""
    timeline = sim.simulate(
        WORKLOAD, replace(HARDWARE, compute_slowdown=2.0), sim.assign(WORKLOAD, "fully_shard")
    )
    assert timeline.pre_forward_ns == 110 - WORKLOAD.forward_ns


def test_only_the_last_micro_batch_reduces() -> None:
    assignment = sim.assign(WORKLOAD, "fully_shard", accumulation_steps=3)
    first, second, last = write(WORKLOAD, HARDWARE, assignment)
    assert [len(program.before) for program in (first, second, last)] == [3, 3, 3]
    assert [len(program.collectives) for program in (first, second, last)] == [5, 5, 8]
    assert played(accumulation_steps=3).accumulation_ns > 0


@pytest.mark.parametrize(
    ("units", "indices"),
    [
        ("", ((0, 1, 2, 3),)),
        ("blocks", ((2,), (1,), (0, 3))),
        ("h.*", ((2,), (1,), (0, 3))),
        ("h", ((1, 2), (0, 3))),
        ("h.0+h.1", ((1, 2), (0, 3))),
        ("blocks, head", ((3,), (2,), (1,), (0,))),
    ],
)
def test_units_are_named_by_module(units: str, indices: tuple[tuple[int, ...], ...]) -> None:
    assert sim.assign(WORKLOAD, "fully_shard", units=units).bucket_indices == indices


def test_the_best_units_are_the_best_of_those_tried() -> None:
    assert unit_choices(WORKLOAD) == ["", "tokens,h.0,h.1,head", "h.0,h.1", "h.0+h.1"]
    found = best_of(WORKLOAD, HARDWARE, "fully_shard")
    tried = [sim.assign(WORKLOAD, "fully_shard", units=units) for units in unit_choices(WORKLOAD)]
    assert found.step_ns == min(sim.summarize(sim.simulate(WORKLOAD, HARDWARE, one)).step_ns for one in tried)
