"""Simulation against real DistributedDataParallel: every collective of construction and of four iterations.

All facts and the order are compared exactly (``real.check``), and the rebuilt buckets with those that DDP
logs. The vectors of RULES.md are written down besides.
"""

from functools import cache
from itertools import chain
from typing import Any

import pytest

import sim
from sim.errors import SimError
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.units import MIB
from tests.handmade import handmade, wired
from tests.systems.cases import M1
from tests.systems.models import Net
from tests.systems.random_cases import Case, linears, random_ddp
from tests.systems.real import assigned, check, run, workload_of
from tests.this_torch import Ran, takes

pytestmark = pytest.mark.dist

Answers = list[dict[str, Any]]
SAMPLE = range(16)
MANY = range(1000, 1120)
CAP = {"bucket_cap_mb": 0.001}
LARGE = (256, 512, 700, 640, 64)
VIEWS = {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": True}


def special(**extra: Any) -> list[dict[str, Any]]:
    """Three layers, of which the middle one is special."""
    return [*linears(20, 12), {"kind": "linear", "width": 12, "out": 12, **extra}, *linears(12, 9)]


def of(layers: list[dict[str, Any]], also: Case | None = None, **ddp: Any) -> Case:
    """A case with these keywords of DistributedDataParallel, and what else it has."""
    return {"layers": layers, "ddp": ddp} | (also or {})


NORMS = [*linears(8, 12), {"kind": "batch_norm", "width": 12}, *linears(12, 6)]
EMPTY = [*linears(8, 8), {"kind": "nothing", "width": 8}, *linears(8, 8)]
SPARSE = [{"kind": "embedding", "width": 64, "rows": 1000, "sparse": True}, *linears(64, 256, 64)]
MIXED = [*linears(8, 12), {"kind": "batch_norm", "width": 12, "dtype": "bfloat16"}, *linears(12, 6)]
FIND, STATIC = CAP | {"find_unused_parameters": True}, CAP | {"static_graph": True}
SKIP = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
TWO = ("float32", "bfloat16", "float32", "bfloat16")
TWICE = special(times=2, checkpoint="reentrant")
FIRST = {"first_bucket_mb": 0.01}
FIRST_AND_CAP = FIRST | {"bucket_cap_mb": 0.06}
SPARSE_CAPS = {"bucket_cap_mb_list": [70e3 / MIB, 1.0]}

# One case for each thing that changes the sequence.
NAMED: dict[str, Case] = {
    "caps of DDP's own": of(linears(300, 400, 500, 200)),
    "caps in a list": of(linears(20, 12, 15, 9), bucket_cap_mb_list=[2e-4, 1e-3]),
    "buffers, accumulated": of(NORMS, {"micro_batches": 3}, **CAP),
    "buffers of two dtypes": of(MIXED, **CAP),
    "no buffers in forward": of(NORMS, **CAP, forward_sync_buffers=False),
    "no buffers at all": of(NORMS, **CAP, broadcast_buffers=False),
    "frozen": of(special(frozen=["weight"]), **CAP),
    "unused, searched": of(special(used=False), **FIND),
    "unused now and then": of(special(used=[2, 4]), **FIND),
    "unused on one rank": of(special(ranks=[1]), **FIND),
    "outside of the loss": of(special(outside=True), **FIND),
    "unused, skipped": of(special(used=False), bucket_cap_mb=0, **SKIP),
    "unused, static": of(special(used=False), **STATIC),
    "twice, static": of(TWICE, **STATIC),
    "compressed": of(linears(20, 12, 9), {"hook": "fp16_compress"}, **CAP),
    "a cap of 25": of(linears(*LARGE), bucket_cap_mb=25),
    "a cap of 1": of(linears(*LARGE), bucket_cap_mb=1),
    "a small model": of(linears(*M1)),
    "two dtypes": of(linears(*M1, dtypes=TWO), bucket_cap_mb=0.03),
    "two dtypes, caps of DDP's own": of(linears(*M1, dtypes=TWO[:2])),
    "sparse, caps of DDP's own": of(SPARSE),
    "an empty parameter": of(EMPTY, bucket_cap_mb_list=[40 / MIB, 256 / MIB]),
    "an empty parameter, cap 0": of(EMPTY, bucket_cap_mb=0),
    "a first bucket": of(linears(*M1), {"asked": FIRST}, bucket_cap_mb_list=[0.01, 25]),
    "a first bucket and a cap": of(linears(*M1), {"asked": FIRST_AND_CAP}, bucket_cap_mb_list=[0.01, 0.06]),
    "per-parameter": of(linears(*M1), {"asked": {"policy": "per-parameter"}}, bucket_cap_mb=0),
    "single": of(linears(*M1), {"asked": {"policy": "single"}}, bucket_cap_mb=1000),
}
VECTORS: dict[str, Case] = {
    "T1": of(linears(*M1), bucket_cap_mb=0.05),
    "T2": of(linears(*M1), bucket_cap_mb=0.05, find_unused_parameters=True),
    "T3": of(linears(*M1), bucket_cap_mb=0.05, static_graph=True),
    "T4": of(linears(17, 33, 65, 29, 51, 7), bucket_cap_mb_list=[n / MIB for n in (1660, 13832, 10956)]),
    "T10": of(SPARSE, **SPARSE_CAPS),
}
NAMED |= VECTORS
Line = list[tuple[str, int, str, int | None]]


def sent(*buckets: tuple[int, int]) -> Line:
    """All-reduces from the hooks of gradients."""
    return [("all_reduce", elements, "backward", gradient) for elements, gradient in buckets]


def afterwards(*elements: int) -> Line:
    return [("all_reduce", each, "end of backward", None) for each in elements]


def rebuilt(parameters: int, *buckets: tuple[int, int]) -> list[Line]:
    """The iteration that rebuilds, and the next one."""
    told: Line = [("broadcast", each, "before forward", None) for each in (parameters + 1, len(buckets))]
    return [[*told, *sent(*buckets)], sent(*buckets)]


# The vectors of RULES.md by hand: (kind, elements, phase, gradient) of each collective, a line an iteration.
WRITTEN: dict[str, list[Line]] = {
    "T1": [sent((41152, 0)), *rebuilt(10, (20448, 4), (20704, 0))],
    "T2": [sent((3728, 7), (16816, 3), (20608, 0), (10, 0))] * 3,
    "T3": [afterwards(10, 41152), sent((41152, 0)), *rebuilt(10, (20448, 4), (20704, 0))],
    "T4": [sent((1923, 5), (4128, 1), (561, 0)), *rebuilt(10, (415, 7), (3458, 3), (2739, 0))],
    "T10": [sent((64, 4), (33024, 1), (64000, 0)), *rebuilt(5, (33088, 1), (64000, 0))],
}
# Arguments of ``sim.assign`` on M1, whose lines to paste are run on a real model.
SNIPPETS: dict[str, dict[str, Any]] = {
    "default": {},
    "cap": {"bucket_cap_mb": 0.05},
    "list": {"bucket_cap_mb_list": [0.01, 0.05]},
    "first bucket": {"first_bucket_mb": 0.02},
    "first bucket and cap": {"first_bucket_mb": 0.02, "bucket_cap_mb": 0.05},
    "per-parameter": {"policy": "per-parameter"},
    "single": {"policy": "single"},
    "views": VIEWS,
}
EACH_REDUCES: dict[str, dict[str, Any]] = {  # micro-batches without no_sync (A3.12, A3.16)
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "batched": {"batched_grad_copy": True},
    "searched": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "no buffers": {"broadcast_buffers": False},
}
THREE_RANKS = {"plain": of(NORMS, **CAP), "static": of(special(used=False), **STATIC)}
# name -> (case, what torch raises, in which phase and iteration)
REFUSED: dict[str, tuple[Case, str, tuple[str, int]]] = {
    "unused": (
        of(special(used=False), **CAP),
        "Expected to have finished reduction in the prior iteration",
        ("before forward", 2),
    ),
    "ready twice": (of(TWICE, **CAP), "Expected to mark a variable ready only once", ("backward", 1)),
    "static and accumulated": (
        of(linears(20, 12, 9), {"micro_batches": 2}, **STATIC),
        "expect_autograd_hooks_ INTERNAL ASSERT FAILED",
        ("end of backward", 1),
    ),
    "a graph of gradients": (
        of(linears(20, 12, 9), {"create_graph": True}, **CAP),
        "a leaf Variable that requires grad is being used in an in-place",
        ("backward", 1),
    ),
    "nothing to learn": (
        of([{"kind": "linear", "width": 4, "out": 4, "frozen": True}], **CAP),
        "DistributedDataParallel is not needed",
        ("construction", 0),
    ),
}


def answer_all(cases: dict[Any, Case], **how: Any) -> Ran:
    taken = {name: case for name, case in cases.items() if takes(case["ddp"])}
    return Ran(dict(zip(taken, run("ddp", list(taken.values()), **how), strict=True)), cases)


@pytest.fixture(scope="module")
def real() -> dict[Any, Answers]:
    """What two ranks did in the normal suite's cases."""
    return answer_all(
        {
            **NAMED,
            **{seed: random_ddp(seed) for seed in SAMPLE},
            **{name: case for name, (case, _, _) in REFUSED.items()},
            **{f"snippet: {name}": snippet_case(assignment) for name, assignment in pasted().items()},
            **{f"each reduces: {name}": each_reduces(name) for name in EACH_REDUCES},
            "under no_sync": each_reduces("plain") | {"no_sync": True},
        }
    )


@cache
def pasted() -> dict[str, Assignment]:
    """By name, what is pasted: each of ``SNIPPETS``, and what is recommended for M1."""
    model = by_hand(VECTORS["T1"])
    asked = {name: sim.assign(model, **arguments) for name, arguments in SNIPPETS.items()}
    return asked | {"tuned": sim.tune(model, wired({0: 1, 1 << 20: 90})).assignment}


def snippet_case(assignment: Assignment) -> Case:
    text = sim.snippet(assignment, by_hand(VECTORS["T1"]))
    return of(linears(*M1), {"snippet": text}, **assignment.ddp_kwargs)


def each_reduces(name: str) -> Case:
    return of(NORMS, {"micro_batches": 3, "no_sync": False}, bucket_cap_mb=0.0004, **EACH_REDUCES[name])


def by_hand(case: Case) -> Workload:
    """The gradients of a case, each ready before those that come earlier in the model."""
    shapes = [tuple(one.shape) for one in Net(case["layers"], 0).parameters()]
    sparse = (0,) if case["layers"][0].get("sparse", False) else ()
    return handmade(range(len(shapes), 0, -1), shapes=shapes, sparse=sparse)


@pytest.mark.parametrize("name", NAMED)
def test_sequence(name: str, real: dict[Any, Answers]) -> None:
    """A2.6-A2.8, A3.5, A3.9, A3.12-A3.19, A8.1."""
    check("ddp", NAMED[name], real[name])


@pytest.mark.parametrize("seed", SAMPLE)
def test_random_sequence(seed: int, real: dict[Any, Answers]) -> None:
    """The same for random models and settings."""
    check("ddp", random_ddp(seed), real[seed])


def logged(answer: dict[str, Any]) -> list[list[int]]:
    """The buckets that DDP says it has rebuilt, in order."""
    said = answer["logs"][-1]["rebuilt_per_bucket_param_indices"]
    return [[int(place) for place in bucket.split()] for bucket in said.split(",")]


def test_sequence_is_what_ddp_logs(real: dict[Any, Answers]) -> None:
    """A2.4: the steady iteration's buckets are those that DDP says it has rebuilt, in order."""
    for name, case in NAMED.items():
        if name not in real or case["ddp"].get("find_unused_parameters"):
            continue  # not of this torch, or never rebuilt
        answer = real[name][0]
        made = assigned("ddp", case, workload_of(answer))
        assert [list(bucket) for bucket in made.bucket_indices] == logged(answer), name
        sizes = ", ".join(map(str, made.bucket_bytes or ()))
        assert sizes == answer["logs"][-1]["rebuilt_bucket_sizes"], name


@pytest.mark.parametrize("name", WRITTEN)
def test_vectors_are_simulated_as_written(name: str, real: dict[Any, Answers]) -> None:
    """T1-T4, T10; ``test_sequence`` has the real ones, which are ready from the last gradient on."""
    case, answer = VECTORS[name], real[name][0]
    assert answer["ready"][0][-1] == list(range(len(answer["parameters"])))[::-1]
    explained = sim.explain(by_hand(case), iterations=len(WRITTEN[name]), **case["ddp"])
    told = [
        [(e.kind, e.elements, e.phase, e.gradient) for e in iteration.events]
        for iteration in explained.iterations
    ]
    assert told == WRITTEN[name]


@pytest.mark.parametrize("name", [*SNIPPETS, "tuned"])
def test_lines_to_paste_give_the_buckets(name: str, real: dict[Any, Answers]) -> None:
    """B(i): they do what they say, on a real model."""
    assert logged(real[f"snippet: {name}"][0]) == [list(each) for each in pasted()[name].bucket_indices]


SENT = ("kind", "elements", "dtype", "phase", "gradient")


def of_batches(answer: dict[str, Any]) -> list[list[tuple[Any, ...]]]:
    """What is sent in each micro-batch of the fourth iteration."""
    sent = [event for event in answer["events"] if event["iteration"] == 4]
    return [
        [tuple(event[fact] for fact in SENT) for event in sent if event["micro_batch"] == number]
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("name", EACH_REDUCES)
def test_micro_batches_that_each_reduce(name: str, real: dict[Any, Answers]) -> None:
    """Every micro-batch of a steady step sends its buffers, its buckets, and its map where one is due."""
    answer = real[f"each reduces: {name}"][0]
    workload = workload_of(answer)
    programs = write(workload, wired({0: 0}), assigned("ddp", each_reduces(name), workload))
    sent = [[tuple(getattr(one, fact) for fact in SENT) for one in each.collectives] for each in programs]
    assert sent == of_batches(answer)


def test_the_same_buckets_under_no_sync_travel_once_a_step(real: dict[Any, Answers]) -> None:
    each, once = (
        [event[:3] for event in chain(*of_batches(real[name][0])) if event[0] == "all_reduce"]
        for name in ("each reduces: plain", "under no_sync")
    )
    assert len(once) > 1
    assert each == once * 3


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str, real: dict[Any, Answers]) -> None:
    """A3.21, A8.5: where the real run stops, the simulator says no."""
    case, text, (phase, iteration) = REFUSED[name]
    for answer in real[name]:
        error = answer["error"]
        assert error["text"].startswith(text)
        assert (error["phase"], error["iteration"]) == (phase, iteration)
    with pytest.raises(SimError):
        assigned("ddp", case, workload_of(real[name][0]))


def test_three_ranks() -> None:
    """What is sent does not depend on how many ranks there are."""
    for name, answers in answer_all(THREE_RANKS, world_size=3).items():
        check("ddp", THREE_RANKS[name], answers)


@pytest.fixture(scope="module")
def many() -> dict[int, Answers]:
    """What two ranks did in many random cases."""
    return answer_all({seed: random_ddp(seed) for seed in MANY})


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_many_random_sequences(seed: int, many: dict[int, Answers]) -> None:
    """Random models and settings by seed."""
    check("ddp", random_ddp(seed), many[seed])
