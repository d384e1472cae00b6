"""torch.compile under DDP (A11): cuts, ready order and buckets are the real ones; times by hand; refusals."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import NotModelledError
from sim.importer.imported import ImportOptions
from sim.importer.recorded import read_recording
from sim.systems import ddp_assignment
from sim.systems.ddp_assignment import AS_RECORDED, as_compiled, cut_operators
from sim.units import MIB, NS_PER_MS
from tests.effort import IS_WHOLE, PATIENCE_S
from tests.handmade import handmade, wired
from tests.systems.cases import both
from tests.systems.real import run
from traces.tools.compiled import EAGER
from traces.tools.compiled_train import CASES

Case = dict[str, Any]
_WIDTHS = (8, 16, 32, 48)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
)


def random_case(seed: int, *, plain: bool) -> Case:
    """A chain of parts; unless ``plain``, with tied parts, residual connections and graph breaks."""
    dice = random.Random(seed)
    width = first_width = dice.choice(_WIDTHS)
    parts: list[dict[str, Any]] = []
    opened = None
    for number in range(dice.randint(3, 14)):
        kind = dice.choice(("linear", "linear", "linear", "norm", "scale", "gelu"))
        part: dict[str, Any] = {"kind": kind, "name": f"m{number}", "inputs": width}
        if kind == "linear":
            width = dice.choice(_WIDTHS)
            part |= {"outputs": width, "spare": dice.choice((0, 0, 0, 4096)) if not plain else 0}
            part["bias"] = dice.random() < 0.7
        parts.append({"kind": kind} if kind == "gelu" else part)
        if plain:
            continue
        fitting = [one["name"] for one in parts if one.get("inputs") == width == one.get("outputs", width)]
        if fitting and dice.random() < 0.15:
            parts.append({"kind": "again", "name": dice.choice(fitting)})
        if dice.random() < 0.1:
            parts.append({"kind": "break"})
        if opened == width and dice.random() < 0.6:
            parts.append({"kind": "close"})
            opened = None
        elif opened is None and dice.random() < 0.3:
            parts.append({"kind": "open"})
            opened = width
    if not any(part["kind"] == "linear" for part in parts):
        return random_case(seed + 1_000_003, plain=plain)
    names = [part["name"] for part in parts if "inputs" in part]
    weights = [f"{name}.weight" for name in names]
    frozen = [name for name in weights if dice.random() < 0.15][: len(names) - 1]
    left = [name for name in weights if name not in frozen]
    ignored = [name for name in left if dice.random() < 0.1][: len(left) - 1]
    first_cap = dice.choice((256, 1024, 4096))
    compile_cap = first_cap * dice.choice((1, 2, 5, 20))
    return {
        **{"width": first_width, "backend": "aot_eager", "optimize_ddp": "ddp_optimizer"},
        **{"parts": parts, "registered": dice.sample(names, len(names)), "frozen": frozen},
        **{"ignored": [] if plain else ignored, "options": dice.choice(_OPTIONS)},
        **{"first_cap": first_cap, "compile_cap": compile_cap},
        "bucket_cap": dice.choice((compile_cap, 300, 2048, 10_000)),
    }


def graphs_of(case: Case) -> list[list[list[str]]]:
    """By graph the parameters of each operator that count, in the order of forward.

    Those that DDP ignores count as others do: their mark is not on what the graph shows of them (A11.1).
    """
    biased = {part["name"] for part in case["parts"] if part["kind"] == "norm" or part.get("bias")}
    graphs: list[list[list[str]]] = [[]]
    for part in case["parts"]:
        if part["kind"] == "break":
            graphs.append([])
        elif "name" in part:
            name = part["name"]
            taken = [f"{name}.weight", *([f"{name}.bias"] if name in biased else [])]
            graphs[-1].append([one for one in taken if one not in case["frozen"]])
    return graphs


def check(case: Case, answer: Any) -> None:
    """Torch made the cuts that the rule makes, and the gradients of each came together."""
    sizes = {name: size for name, _, size in answer["parameters"]}
    cuts = []
    for graph in reversed(graphs_of(case)):
        held = [sum(sizes[name] for name in operator) for operator in graph]
        cuts += [
            [name for place in cut for name in graph[place]]
            for cut in cut_operators(held, case["compile_cap"], case["first_cap"])
        ]
    seen = [cut for graph in reversed(answer["graphs"]) for cut in graph]
    assert [sorted(cut) for cut in seen if cut] == [sorted(cut) for cut in cuts if cut], case
    together: list[set[str]] = []
    for name in answer["ready"]:
        if name is None:
            together.append(set())
        else:
            together[-1].add(name)
    # A tied parameter is ready with the last of its cuts.
    reduced = [set(cut).difference(case["ignored"], *cuts[number + 1 :]) for number, cut in enumerate(cuts)]
    assert [cut for cut in together if cut] == [cut for cut in reduced if cut], case


def check_workload(case: Case, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one chain of modules a workload recorded without torch.compile tells ready order and buckets."""
    monkeypatch.setattr(ddp_assignment, "DEFAULT_FIRST_BUCKET_BYTES", case["first_cap"])
    names, shapes, _ = zip(*answer["parameters"], strict=True)
    ready = [1 + answer["eager"].index(name) for name in names]
    workload = handmade(ready, names=names, shapes=shapes, backward_ns=1000)  # recorded without torch.compile
    options = {"optimize_ddp": case["optimize_ddp"], "compile_cap_mb": case["compile_cap"] / MIB}
    order = sim.torch_compiled(workload, **options).order()
    assert [names[index] for index in order] == [name for name in answer["ready"] if name], case
    made = sim.assign(workload, bucket_cap_mb=case["bucket_cap"] / MIB, **options, **case["options"])
    rebuilt = [] if "find_unused_parameters" in case["options"] else list(map(list, made.bucket_indices))
    assert rebuilt == answer["rebuilt"], case


def compare(first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``count`` random models with everything, and as many chains."""
    seeds = range(first, first + count)
    cases = [random_case(seed, plain=plain) for plain in (False, True) for seed in seeds]
    answers = run("compiled_worker", cases, world_size=1)
    for number, (case, by_rank) in enumerate(zip(cases, answers, strict=True)):
        check(case, by_rank[0])
        if number >= count:
            check_workload(case, by_rank[0], monkeypatch)


@pytest.mark.dist
def test_real_graphs_are_cut_so(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(0, 6 if IS_WHOLE else 2, monkeypatch)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("first", range(100, 200, 20))
def test_real_graphs_of_random_models_are_cut_so(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(first, 20, monkeypatch)


@pytest.mark.slow
@pytest.mark.dist
def test_what_compiled_ranks_record_is_what_the_eager_recording_tells(tmp_path: Path) -> None:
    """Ready order and buckets of six compiled jobs on two ranks, from one recording without torch.compile."""
    ranks = "-m torch.distributed.run --standalone --nproc-per-node 2 -m traces.tools.compiled_train"
    train = [sys.executable, *ranks.split(), "traces.tools.paced_chain:chain", tmp_path, "--turns", "2"]
    subprocess.run(train, cwd=Path(__file__).parents[2], capture_output=True, timeout=PATIENCE_S, check=True)
    read = {name: read_recording([tmp_path / name], ImportOptions()) for name in CASES}
    eager = read[EAGER].workload
    assert eager is not None
    for name, options in CASES.items():
        own, (step,) = read[name].workload, read[name].measurements
        asked = sim.assign(eager, **options)
        assert own.order() == as_compiled(eager, asked).order(), name
        assert step.observed == asked.bucket_indices, name


MODULES = {"stem": 12, "wide": 20, "mid": 6, "norm": 0.5, "head": 2}  # MiB, in the order of forward
FIVE = handmade(
    [(5 - index) * 10 * NS_PER_MS for index in range(5)],
    [int(size * MIB) for size in MODULES.values()],
    name="five",
    names=[f"{name}.weight" for name in MODULES],
    backward_ns=60 * NS_PER_MS,
)
HARDWARE = wired({0: 15 * NS_PER_MS})


def told(**options: Any) -> list[tuple[str, float, float]]:
    """Of each bucket its modules, and when it was sent and received, in ms."""
    names, timeline = list(MODULES), both(FIVE, HARDWARE, sim.assign(FIVE, **options))
    assert ("torch.compile" in " ".join(timeline.notes)) == bool(options)
    return [
        (" ".join(names[index] for index in indices), bucket.launch_ns / 1e6, bucket.end_ns / 1e6)
        for indices, bucket in zip(timeline.assignment.bucket_indices, timeline.buckets, strict=True)
    ]


def test_the_worked_example_of_the_rules() -> None:
    assert told() == [("head", 10, 25), ("norm mid wide", 40, 55), ("stem", 50, 70)]
    cut = told(optimize_ddp="ddp_optimizer")
    assert cut == [("head", 10, 25), ("wide mid", 40, 55), ("norm stem", 50, 70)]
    whole = told(optimize_ddp="no_optimization")
    assert whole == [("stem", 50, 65), ("mid head wide", 50, 80), ("norm", 50, 95)]


def test_a_compiled_workload_is_not_compiled_again() -> None:
    once = sim.torch_compiled(FIVE)
    assert sim.torch_compiled(once) is once
    for moved, words in (
        (once, "'five': .* it is moved by .*'ddp_optimizer'.*'no_optimization'.* would move it again"),
        (replace(FIVE, extensions=AS_RECORDED), "'five': .* was recorded under torch.compile: leave opt"),
    ):
        with pytest.raises(NotModelledError, match=words):
            sim.torch_compiled(moved, "no_optimization")
    assignment = sim.assign(FIVE, optimize_ddp="ddp_optimizer")
    plain = sim.assign(once)
    assert plain.bucket_indices == assignment.bucket_indices
    assert sim.simulate(once, HARDWARE, plain).buckets == sim.simulate(FIVE, HARDWARE, assignment).buckets
